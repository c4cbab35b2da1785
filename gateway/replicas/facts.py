"""Reads what a replica says about itself. Pure parsing; gateway/replicas/health.py does the I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from gateway.engines import vllm
from gateway.kvevents.subscriber import Source
from gateway.replicas.registry import ServedModel

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def served_models(body: bytes) -> tuple[ServedModel, ...]:
    """Parse /v1/models.

    Raises:
        ValueError: Not a model list.
    """
    try:
        entries = json.loads(body)["data"]
        models = [
            ServedModel(str(e["id"]), e.get("parent"), e.get("max_model_len")) for e in entries
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("not a list of models") from error
    return tuple(sorted(models, key=lambda model: model.parent is not None))


def kv_event_source(body: bytes, replica_url: str) -> Source | None:
    """Parse /kv_event_sources: the first data-parallel rank that publishes; None if none does.

    The engine names the address that it binds, often with `*` for the host; the replica's own
    host stands in for that.

    Raises:
        ValueError: Not a map of sources.
    """
    try:
        sources = json.loads(body)
        enabled = [s for _, s in sorted(sources.items()) if s.get("enable_kv_cache_events")]
        if not enabled:
            return None
        source = enabled[0]
        host = urlsplit(replica_url).hostname or ""
        replay = source.get("replay_endpoint")
        return Source(
            endpoint=_reachable(str(source["endpoint"]), host),
            replay_endpoint=None if replay is None else _reachable(str(replay), host),
            topic=str(source.get("topic") or ""),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("not a map of KV event sources") from error


def _reachable(endpoint: str, host: str) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return re.sub(r"^tcp://(\*|0\.0\.0\.0|\[::\]|::)(?=:)", f"tcp://{bracketed}", endpoint)


def metric_labels(text: str, name: str) -> Mapping[str, str]:
    """Return the labels of the first sample of a metric; empty where it is missing.

    Only the one line is parsed: a scrape has thousands, and runs beside requests.
    """
    line = _sample_line(text, name)
    return dict(_LABEL.findall(line.partition("{")[2].rpartition("}")[0])) if line else {}


def metric_value(text: str, name: str) -> float | None:
    """Return the value of the first sample of a metric; None where it is missing."""
    line = _sample_line(text, name)
    try:
        return float(line.rpartition(" ")[2]) if line else None
    except ValueError:
        return None


def _sample_line(text: str, name: str) -> str | None:
    found = re.search(rf"^{re.escape(name)}[{{ ].*$", text, re.MULTILINE)
    return found.group(0) if found else None


def cache_config(text: str) -> tuple[int | None, int | None]:
    """Return (block size, number of GPU blocks) from a /metrics page; None where it is silent."""
    labels = metric_labels(text, vllm.CACHE_CONFIG_METRIC)
    return _integer(labels.get("block_size")), _integer(labels.get("num_gpu_blocks"))


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
