"""The kinds of discovery: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from gateway.config.discovery import DiscoveryConfig
from gateway.config.fleet import ModelConfig
from gateway.replicas.discovery.base import Discovery
from gateway.replicas.discovery.file import FileDiscovery
from gateway.replicas.discovery.static import StaticDiscovery

STATIC = "static"
"""Kind of the replicas that a model lists itself."""

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


def build(section: DiscoveryConfig, now: Callable[[], float], rng: Random) -> Discovery:
    """Return the discovery that a section of the configuration describes, not yet begun."""
    return BUILD_BY_KIND[section.kind](section, now, rng)


def discoveries(
    model: ModelConfig, now: Callable[[], float], rng: Random
) -> Iterator[tuple[str, Discovery]]:
    """Yield all that feed one model, each with its kind: the listed replicas first.

    Args:
        model: A model's section.
        now: Monotonic seconds.
        rng: Spreads retries.
    """
    if model.replicas:
        yield STATIC, BUILD_BY_KIND[STATIC](model.replicas, now, rng)
    for section in model.discovery:
        yield section.kind, build(section, now, rng)
