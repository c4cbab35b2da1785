"""GET /metrics with vLLM's names, labels and buckets.

Source:
    tests/data/vllm-0.32/metrics_A.txt.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from loadtests.simulator.driver import Generation
from routing.lab.engine_model import EngineModel

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_LABELS = ("engine", "model_name")
_FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
_TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKEN_COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_HISTOGRAMS: Mapping[str, Sequence[float]] = MappingProxyType(
    {
        "time_to_first_token_seconds": _TTFT_BUCKETS_S,
        "inter_token_latency_seconds": _TOKEN_BUCKETS_S,
        "request_time_per_output_token_seconds": _TOKEN_BUCKETS_S,
        "e2e_request_latency_seconds": _REQUEST_BUCKETS_S,
        "request_queue_time_seconds": _REQUEST_BUCKETS_S,
        "request_prefill_time_seconds": _REQUEST_BUCKETS_S,
        "request_prompt_tokens": _TOKEN_COUNT_BUCKETS,
        "request_generation_tokens": _TOKEN_COUNT_BUCKETS,
    }
)


class SimulatorMetrics:
    """The page of one simulator, over all its engines.

    Args:
        models: One a data-parallel rank, in order.
        model_name: What requests call the model.

    Attributes:
        engines: What each engine counts; the observers of the drivers.
    """

    def __init__(self, models: Sequence[EngineModel], model_name: str) -> None:
        self.registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self.registry)
        histograms = {name: self._histogram(name, buckets) for name, buckets in _HISTOGRAMS.items()}
        self.engines = [
            EngineMetrics(
                {
                    name: histogram.labels(engine=str(rank), model_name=model_name)
                    for name, histogram in histograms.items()
                }
            )
            for rank, _ in enumerate(models)
        ]
        collectors = [
            _EngineCollector(model, model_name, str(rank), self.engines[rank].finished)
            for rank, model in enumerate(models)
        ]
        self.registry.register(_Merged(collectors))

    def render(self) -> bytes:
        """Return the page."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            f"vllm:{name}", _help(name), _LABELS, buckets=buckets, registry=self.registry
        )


class EngineMetrics:
    """What one engine counts; it is its driver's observer.

    Args:
        histograms: By name, with the engine's labels.
    """

    def __init__(self, histograms: Mapping[str, Histogram]) -> None:
        self.finished = dict.fromkeys(_FINISHED_REASONS, 0)
        self._ttft_s = histograms["time_to_first_token_seconds"]
        self._itl_s = histograms["inter_token_latency_seconds"]
        self._tpot_s = histograms["request_time_per_output_token_seconds"]
        self._e2e_s = histograms["e2e_request_latency_seconds"]
        self._queue_s = histograms["request_queue_time_seconds"]
        self._prefill_s = histograms["request_prefill_time_seconds"]
        self._prompt = histograms["request_prompt_tokens"]
        self._output = histograms["request_generation_tokens"]

    def on_first_token(self, generation: Generation, now: float) -> None:
        """Note the end of a prefill."""
        self._ttft_s.observe(now - generation.arrived_at)
        self._queue_s.observe(max(0.0, generation.admitted_at - generation.arrived_at))
        self._prefill_s.observe(max(0.0, now - generation.admitted_at))

    def on_next_token(self, generation: Generation, now: float) -> None:
        """Note a decoded token."""
        self._itl_s.observe(now - generation.last_token_at)

    def on_end(self, generation: Generation, reason: str, now: float) -> None:
        """Note the end of a request: stop, length or abort."""
        self.finished[reason] += 1
        self._e2e_s.observe(now - generation.arrived_at)
        self._prompt.observe(len(generation.request.prompt_token_ids))
        self._output.observe(generation.num_tokens)
        if generation.num_tokens > 1 and reason != "abort":
            decode_s = now - generation.first_token_at
            self._tpot_s.observe(decode_s / (generation.num_tokens - 1))


class _Merged(Collector):
    """Several engines' metrics: each name once, with a sample of every engine."""

    def __init__(self, collectors: Sequence["_EngineCollector"]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        for families in zip(*(collector.collect() for collector in self._collectors), strict=True):
            for other in families[1:]:
                families[0].samples.extend(other.samples)
            yield families[0]


class _EngineCollector(Collector):
    """Gauges and counters that the model keeps anyway, read when somebody asks."""

    def __init__(
        self, model: EngineModel, model_name: str, rank: str, finished: Mapping[str, int]
    ) -> None:
        self._model = model
        self._model_name = model_name
        self._rank = rank
        self._finished = finished

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield from self._gauges()
        yield from self._counters()
        yield self._cache_config()

    def _gauges(self) -> Iterator[Metric]:
        model, loading = self._model, self._model.num_loading
        yield self._gauge("num_requests_running", model.num_running)
        yield self._gauge("num_requests_waiting", model.num_waiting)
        reasons = {"capacity": model.num_waiting - loading, "deferred": loading}
        yield self._gauge("num_requests_waiting_by_reason", reasons, "reason")
        states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._gauge("engine_sleep_state", states, "sleep_state")
        yield self._gauge("kv_cache_usage_perc", model.kv_usage_ratio)

    def _counters(self) -> Iterator[Metric]:
        counters = self._model.counters
        local = counters.l0_hit_tokens
        external = counters.l1_hit_tokens + counters.l2_hit_tokens
        computed = counters.prompt_tokens - local - external
        yield self._counter("prefix_cache_queries", counters.prompt_tokens)
        yield self._counter("prefix_cache_hits", local)
        yield self._counter("external_prefix_cache_queries", counters.external_query_tokens)
        yield self._counter("external_prefix_cache_hits", external)
        yield self._counter("num_preemptions", counters.preemptions)
        yield self._counter("prompt_tokens", counters.prompt_tokens)
        yield self._counter("prompt_tokens_cached", local + external)
        yield self._counter("generation_tokens", counters.generated_tokens)
        sources = {
            "local_compute": computed,
            "local_cache_hit": local,
            "external_kv_transfer": external,
        }
        yield self._counter("prompt_tokens_by_source", sources, "source")
        # LMCache does not tell vLLM in which tier it found a block.
        tiers = {"device": local, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": external}
        yield self._counter("prompt_tokens_cached_by_source", tiers, "source")
        yield self._counter("request_success", self._finished, "finished_reason")

    def _gauge(
        self, name: str, values: float | Mapping[str, float], label: str | None = None
    ) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", _help(name), labels=_label_names(label))
        for key, value in self._samples(values):
            family.add_metric(key, value)
        return family

    def _counter(
        self, name: str, values: float | Mapping[str, float], label: str | None = None
    ) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", _help(name), labels=_label_names(label))
        for key, value in self._samples(values):
            family.add_metric(key, value)
        return family

    def _samples(
        self, values: float | Mapping[str, float]
    ) -> Iterator[tuple[tuple[str, ...], float]]:
        common = (self._rank, self._model_name)
        if isinstance(values, Mapping):
            for key, value in values.items():
                yield (*common, key), value
        else:
            yield common, values

    def _cache_config(self) -> GaugeMetricFamily:
        model = self._model
        config = {
            "block_size": str(model.block_size),
            "enable_prefix_caching": "True",
            "engine": self._rank,
            "kv_cache_size_tokens": str(model.num_blocks * model.block_size),
            "num_gpu_blocks": str(model.num_blocks),
            "prefix_caching_hash_algo": "sha256",
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=list(config),
        )
        family.add_metric(list(config.values()), 1.0)
        return family


def _help(name: str) -> str:
    return name.replace("_", " ")


def _label_names(label: str | None) -> tuple[str, ...]:
    return _LABELS if label is None else (*_LABELS, label)
