"""The kinds of discovery: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from gateway.config.discovery import DiscoveryConfig
from gateway.config.fleet import ModelConfig, ReplicaConfig
from gateway.replicas.discovery.base import Discovery
from gateway.replicas.discovery.file import FileDiscovery
from gateway.replicas.discovery.static import StaticDiscovery

STATIC = "static"
"""Kind of the replicas that a model lists itself."""

Section = DiscoveryConfig | tuple[ReplicaConfig, ...]
"""What feeds a pool, as configured: a discovery, or the replicas that are listed."""

# Makes a discovery of a kind's section (for static: the list), a monotonic clock and chance.
Build = Callable[[Any, Callable[[], float], Random], Discovery]


def _dns(section: Any, now: Callable[[], float], rng: Random) -> Discovery:
    # 0.1 s to import, and only here: a gateway without DNS discovery never loads the client.
    from gateway.replicas.discovery.dns import DnsDiscovery  # noqa: PLC0415

    return DnsDiscovery(section, now, rng)


def _kubernetes(section: Any, now: Callable[[], float], rng: Random) -> Discovery:
    # For the same reason; and what is heavy in it is not imported before its first request.
    from gateway.replicas.discovery.kubernetes import KubernetesDiscovery  # noqa: PLC0415

    return KubernetesDiscovery(section, now, rng)


BUILD_BY_KIND: Mapping[str, Build] = MappingProxyType(
    {
        STATIC: lambda replicas, _now, _rng: StaticDiscovery(replicas),
        "file": lambda section, _now, _rng: FileDiscovery(section),
        "dns": _dns,
        "kubernetes": _kubernetes,
    }
)
"""How each kind is built."""


def sections_of(model: ModelConfig) -> Iterator[Section]:
    """Yield all that feeds one model, as configured: the listed replicas first."""
    if model.replicas:
        yield tuple(model.replicas)
    yield from model.discovery


def kind_of(section: Section) -> str:
    """Return the kind of a section, as `BUILD_BY_KIND` and people call it."""
    return STATIC if isinstance(section, tuple) else section.kind


def build(section: Section, now: Callable[[], float], rng: Random) -> Discovery:
    """Return the discovery that a section of the configuration describes, not yet begun."""
    return BUILD_BY_KIND[kind_of(section)](section, now, rng)


def discoveries(
    model: ModelConfig, now: Callable[[], float], rng: Random
) -> Iterator[tuple[str, Discovery]]:
    """Yield all that feed one model, each with its kind: the listed replicas first.

    Args:
        model: A model's section.
        now: Monotonic seconds.
        rng: Spreads retries.
    """
    for section in sections_of(model):
        yield kind_of(section), build(section, now, rng)
