"""Routing policies, one file each. A new one is one file and one row in `POLICIES`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from routing.policies.base import Policy
from routing.policies.consistent_hash import ConsistentHash
from routing.policies.expected_ttft import ExpectedTtft
from routing.policies.least_loaded import LeastLoaded
from routing.policies.power_of_two import PowerOfTwo
from routing.policies.prefix_affinity import PrefixAffinity
from routing.policies.round_robin import RoundRobin
from routing.policies.session import Session

POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    {
        policy.kind: policy
        for policy in (
            ExpectedTtft,
            PrefixAffinity,
            ConsistentHash,
            PowerOfTwo,
            LeastLoaded,
            Session,
            RoundRobin,
        )
    }
)
"""Every policy by its kind, the name that configuration uses."""

__all__ = [
    "POLICIES",
    "ConsistentHash",
    "ExpectedTtft",
    "LeastLoaded",
    "Policy",
    "PowerOfTwo",
    "PrefixAffinity",
    "RoundRobin",
    "Session",
]
