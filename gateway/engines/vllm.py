"""Facts about vLLM: paths, metric names and KV event words. No behavior.

Source: vLLM 0.9 to 0.33; where a fact depends on the version, it says so.
"""

from __future__ import annotations

HEALTH_PATH = "/health"
MODELS_PATH = "/v1/models"
VERSION_PATH = "/version"
METRICS_PATH = "/metrics"
KV_EVENT_SOURCES_PATH = "/kv_event_sources"  # since 0.31

# Pins a request to one data-parallel rank, since 0.12.
RANK_HEADER = b"x-data-parallel-rank"

CACHE_CONFIG_METRIC = "vllm:cache_config_info"
KV_USAGE_METRIC = "vllm:kv_cache_usage_perc"
RUNNING_METRIC = "vllm:num_requests_running"
WAITING_METRIC = "vllm:num_requests_waiting"
# LMCache's, in the engine's own page where it runs in its process.
L1_EVICTED_METRIC = "lmcache:local_cpu_evict_keys_count_total"
# Tells one engine process from the next one at the same address.
START_TIME_METRIC = "process_start_time_seconds"

# Words of KV events.
MEDIUM_GPU = "gpu"  # compared in lower case: LMCache writes "cpu", vLLM "CPU"
MEDIUM_CPU = "cpu"
MEDIUM_STORAGE = "storage"
# Kinds of KV cache groups whose blocks make up a prefix; None is what versions before 0.22 send.
PREFIX_SPEC_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
# The replay socket marks the end with sequence number -1.
REPLAY_END = b"\xff" * 8
