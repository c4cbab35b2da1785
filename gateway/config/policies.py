"""Routing policies as the file names them; their rules are in routing/policies, one file each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.fields import HeaderName, Section


class BoundedPolicy(Section):
    """What every policy but round_robin has: the load bound that the router applies to it."""

    load_bound: float = Field(
        1.5,
        ge=1.0,
        description="Factor over the mean of in-flight requests that no replica may exceed. 1.5 "
        "comes from a sweep over six simulated workloads, where the skew was 1.56 with it; nearer "
        "to 1.0 is more even and loses cache hits.",
    )
    slack: int = Field(
        4,
        ge=0,
        description="Requests above the mean that are always allowed, so that small fleets and low "
        "traffic do not flap between replicas. 4 comes from the same sweep.",
    )


class ExpectedTtftConfig(BoundedPolicy):
    """Sends a request where its first token is expected soonest: queue, loads and prefill."""

    kind: Literal["expected_ttft"] = Field(description="Names this policy.")
    profile: Literal["additive", "balanced"] = Field(
        "additive",
        description="`additive` has the lowest TTFT. `balanced` multiplies by the requests in "
        "flight: lower skew and end-to-end time, p99 TTFT about 5% higher, better for one hot "
        "prompt on many replicas.",
    )
    prefill_weight: float = Field(
        2.0,
        ge=0.0,
        description="Factor on the seconds of prefill that the request itself needs. Above 1 "
        "because they also delay the requests behind it; 2 was best in the sweep.",
    )
    decode_steps: float = Field(
        20.0,
        ge=0.0,
        description="Decode steps of a busy replica that a new request is charged for; `additive` "
        "only. 20 was best in the sweep.",
    )
    fixed_s: float = Field(
        0.008,
        ge=0.0,
        description="Seconds that a request costs even where its whole prompt is cached; "
        "`balanced` only. One engine step: without it a full hit would make requests in flight "
        "count for nothing.",
    )


class PrefixAffinityConfig(BoundedPolicy):
    """The longest cached prefix wins, then the fewest requests in flight."""

    kind: Literal["prefix_affinity"] = Field(description="Names this policy.")


class ConsistentHashConfig(BoundedPolicy):
    """Requests that begin alike go to the same replica; needs no index and no KV events."""

    kind: Literal["consistent_hash"] = Field(description="Names this policy.")
    affinity_blocks: int = Field(
        16,
        ge=1,
        description="Leading blocks of the prompt that make the key. 16 blocks are 256 tokens at "
        "vLLM's block size of 16: enough to tell system prompts and documents apart. A prompt "
        "with fewer blocks changes its key as it grows, so short chats want a smaller number.",
    )


class PowerOfTwoConfig(BoundedPolicy):
    """The less loaded of two random replicas; knows load only."""

    kind: Literal["power_of_two"] = Field(description="Names this policy.")


class LeastLoadedConfig(BoundedPolicy):
    """The fewest requests in flight wins; knows load only."""

    kind: Literal["least_loaded"] = Field(description="Names this policy.")


class SessionConfig(BoundedPolicy):
    """All requests of a session go to the same replica; without a session, by their beginning."""

    kind: Literal["session"] = Field(description="Names this policy.")
    header: HeaderName = Field(
        "x-session-id",
        description="Request header that names the session, in any case. x-session-id is the one "
        "that vLLM itself reads.",
    )


class RoundRobinConfig(Section):
    """One replica after the other, without a load bound: a baseline, not for production."""

    kind: Literal["round_robin"] = Field(description="Names this policy.")


PolicyConfig = Annotated[
    ExpectedTtftConfig
    | PrefixAffinityConfig
    | ConsistentHashConfig
    | PowerOfTwoConfig
    | LeastLoadedConfig
    | SessionConfig
    | RoundRobinConfig,
    Field(discriminator="kind"),
]
"""Any policy; `kind` says which."""
