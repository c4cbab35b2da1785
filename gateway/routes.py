"""From the configured policies and prices to what routes requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from gateway.config.models import (
    ConsistentHashConfig,
    CostConfig,
    ExpectedTtftConfig,
    LeastLoadedConfig,
    PolicyConfig,
    PowerOfTwoConfig,
    PrefixAffinityConfig,
    RoundRobinConfig,
    SessionConfig,
)
from gateway.proxy.headers import Header, first
from gateway.stored import NEW_SESSION, SESSION_HEADER
from routing.cost import CostModel
from routing.policies import (
    ConsistentHash,
    ExpectedTtft,
    LeastLoaded,
    Policy,
    PowerOfTwo,
    PrefixAffinity,
    RoundRobin,
    Session,
)
from routing.policies.expected_ttft import Profile
from routing.router import LoadBound, Router

# Where no consistent_hash policy says otherwise; see that policy's own description.
DEFAULT_AFFINITY_BLOCKS = 16
DEFAULT_SESSION_HEADER = "x-session-id"


@dataclass(frozen=True, slots=True)
class Route:
    """How one kind of request of one model is routed.

    Attributes:
        name: The policy's name in the configuration.
        router: Decides.
        affinity_blocks: Leading blocks that make the affinity key.
        session_header: Names the session, in lower case.
    """

    name: str
    router: Router
    affinity_blocks: int
    session_header: bytes

    def session(self, headers: Sequence[Header]) -> bytes | None:
        """Return the session that a request's headers name, or None."""
        named = first(headers, self.session_header) or first(headers, SESSION_HEADER)
        return named if named and named != NEW_SESSION else None


def build_routes(policies: Mapping[str, PolicyConfig], cost: CostModel) -> Mapping[str, Route]:
    """Return a route by every policy, over one model's prices."""
    return {name: _route(name, policy, cost) for name, policy in policies.items()}


def build_cost(cost: CostConfig) -> CostModel:
    """Return the prices that a configuration states."""
    return CostModel(
        prefill_token_s=cost.prefill_token_s,
        prefill_pair_s=cost.prefill_pair_s,
        decode_sequence_s=cost.decode_sequence_s,
        decode_kv_token_s=cost.decode_kv_token_s,
        l1_latency_s=cost.l1_latency_s,
        l1_token_s=cost.l1_token_s,
        l2_latency_s=cost.l2_latency_s,
        l2_token_s=cost.l2_token_s,
    )


def _route(name: str, config: PolicyConfig, cost: CostModel) -> Route:
    bound = LoadBound()
    if not isinstance(config, RoundRobinConfig):
        bound = LoadBound(config.load_bound, config.slack)
    affinity_blocks, session_header = DEFAULT_AFFINITY_BLOCKS, DEFAULT_SESSION_HEADER
    if isinstance(config, ConsistentHashConfig):
        affinity_blocks = config.affinity_blocks
    if isinstance(config, SessionConfig):
        session_header = config.header
    router = Router(_policy(config, cost), bound)
    return Route(name, router, affinity_blocks, session_header.encode())


def _policy(config: PolicyConfig, cost: CostModel) -> Policy:  # noqa: PLR0911 - one row a kind
    match config:
        case ExpectedTtftConfig():
            return ExpectedTtft(
                cost=cost,
                profile=Profile(config.profile),
                prefill_weight=config.prefill_weight,
                decode_steps=config.decode_steps,
                fixed_s=config.fixed_s,
            )
        case PrefixAffinityConfig():
            return PrefixAffinity()
        case ConsistentHashConfig():
            return ConsistentHash()
        case PowerOfTwoConfig():
            return PowerOfTwo()
        case LeastLoadedConfig():
            return LeastLoaded()
        case SessionConfig():
            return Session()
        case RoundRobinConfig():
            return RoundRobin()
        case _:
            assert_never(config)
