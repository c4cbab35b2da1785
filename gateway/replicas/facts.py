"""What a replica says about itself, and how it is read. Pure; learning.py does the I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gateway.engines import vllm
from gateway.kvevents.subscriber import Source

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# What an engine that runs alone calls itself.
_FIRST_RANK = 0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of a replica's /v1/models.

    Attributes:
        name: What requests call it.
        parent: The base model, where this is a LoRA adapter.
        max_model_len: Tokens of prompt and answer together.
        root: The weights' folder or hub id, as the engine was started with.
    """

    name: str
    parent: str | None = None
    max_model_len: int | None = None
    root: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What a replica says about itself; None or empty where it does not say.

    Attributes:
        models: What it serves; the base model first.
        block_size: Tokens a KV block.
        num_blocks: Blocks that fit the GPU memory of one engine.
        hash_algorithm: What its engine hashes blocks with; ours does not depend on it.
        version: The engine's.
        started_at: Its process's start, in seconds of its own clock; tells a restart.
        ranks: Data-parallel ranks behind the address, in order; each has its own KV cache.
        l1_evicted: Chunks that its LMCache evicted from host memory since it began.
        kv_events: Where it publishes KV events, by data-parallel rank.
        tells_events: Whether it says where it publishes, be it nowhere.
    """

    models: tuple[ServedModel, ...] = ()
    block_size: int | None = None
    num_blocks: int | None = None
    hash_algorithm: str | None = None
    version: str | None = None
    started_at: float | None = None
    ranks: tuple[int, ...] = ()
    l1_evicted: float | None = None
    kv_events: Mapping[int, Source] = field(default_factory=dict)
    tells_events: bool = False

    @property
    def base(self) -> ServedModel | None:
        """The base model; adapters come after it."""
        return self.models[0] if self.models else None

    @property
    def max_model_len(self) -> int | None:
        """Tokens of prompt and answer together, of the base model."""
        return self.base.max_model_len if self.base is not None else None


@dataclass(frozen=True, slots=True)
class EnginePage:
    """What one page of /metrics says of the engines behind it.

    Attributes:
        started_at: As in `ReplicaFacts`.
        ranks: Engines by data-parallel rank, in order.
        block_size: Of the first engine.
        num_blocks: Of the first engine.
        hash_algorithm: Of the first engine.
        l1_evicted: As in `ReplicaFacts`.
    """

    started_at: float | None = None
    ranks: tuple[int, ...] = ()
    block_size: int | None = None
    num_blocks: int | None = None
    hash_algorithm: str | None = None
    l1_evicted: float | None = None


def served_models(body: bytes) -> tuple[ServedModel, ...]:
    """Parse /v1/models.

    Raises:
        ValueError: Not a model list.
    """
    try:
        models = [_served_model(entry) for entry in json.loads(body)["data"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("not a list of models") from error
    return tuple(sorted(models, key=lambda model: model.parent is not None))


def _served_model(entry: Mapping[str, object]) -> ServedModel:
    parent, length, root = (entry.get(key) for key in ("parent", "max_model_len", "root"))
    return ServedModel(
        name=str(entry["id"]),
        parent=parent if isinstance(parent, str) else None,
        max_model_len=length if isinstance(length, int) else None,
        root=root if isinstance(root, str) else None,
    )


def version(body: bytes) -> str:
    """Parse /version.

    Raises:
        ValueError: Not an answer of vLLM's.
    """
    try:
        return str(json.loads(body)["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("not a version") from error


def kv_event_sources(body: bytes, replica_url: str) -> dict[int, Source]:
    """Parse /kv_event_sources: the data-parallel ranks that publish, and where.

    The engine names the address that it binds, often with `*` for the host; the replica's own
    host stands in for that.

    Raises:
        ValueError: Not a map of sources.
    """
    try:
        host = urlsplit(replica_url).hostname or ""
        return {
            int(rank): _source(source, host)
            for rank, source in json.loads(body).items()
            if source.get("enable_kv_cache_events")
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("not a map of KV event sources") from error


def _source(said: Mapping[str, object], host: str) -> Source:
    replay = said.get("replay_endpoint")
    return Source(
        endpoint=_reachable(str(said["endpoint"]), host),
        replay_endpoint=None if replay is None else _reachable(str(replay), host),
        topic=str(said.get("topic") or ""),
    )


def _reachable(endpoint: str, host: str) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return re.sub(r"^tcp://(\*|0\.0\.0\.0|\[::\]|::)(?=:)", f"tcp://{bracketed}", endpoint)


def engine_page(page: bytes) -> EnginePage:
    """Read a page of /metrics; what it is silent about stays None."""
    configs = [dict(_LABEL.findall(line)) for line in _samples(page, vllm.CACHE_CONFIG_METRIC)]
    first = configs[0] if configs else {}
    ranks = {_integer(config.get("engine")) or _FIRST_RANK for config in configs}
    return EnginePage(
        started_at=metric_value(page, vllm.START_TIME_METRIC),
        ranks=tuple(sorted(ranks)),
        block_size=_integer(first.get("block_size")),
        num_blocks=_integer(first.get("num_gpu_blocks")),
        hash_algorithm=first.get("prefix_caching_hash_algo"),
        l1_evicted=metric_value(page, vllm.L1_EVICTED_METRIC),
    )


def metric_value(page: bytes, name: str) -> float | None:
    """Return the value of the first sample of a metric; None where it is missing."""
    line = next(_samples(page, name), None)
    try:
        return float(line.rpartition(" ")[2]) if line is not None else None
    except ValueError:
        return None


def _samples(page: bytes, name: str) -> Iterator[str]:
    """Yield the lines of a metric's samples.

    Found by a plain search, and only they are decoded: a page has thousands of lines, and hundreds
    of pages are read between requests.
    """
    start, wanted = 0, b"\n" + name.encode()
    page = b"\n" + page
    while (start := page.find(wanted, start)) >= 0:
        after = start + len(wanted)
        end = page.find(b"\n", after)
        end = len(page) if end < 0 else end
        if page[after : after + 1] in (b"{", b" "):
            yield page[start + 1 : end].decode("utf-8", "replace")
        start = end


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
