"""The configuration file as types. docs/configuration.md is generated from what is said here.

Every description says unit, meaning and the reason of the default. Checks that look at several
keys at once are in crosschecks.py.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from gateway.config.access import (
    AuthConfig,
    CorsConfig,
    IsolationConfig,
    ListenTlsConfig,
)
from gateway.config.crosschecks import DEFAULT_POLICY, cross_findings
from gateway.config.fields import (
    DEFAULT_ADMIN,
    DEFAULT_LISTEN,
    Host,
    Label,
    ListOf,
    Port,
    Seconds,
    Section,
)
from gateway.config.fleet import CostConfig, KvEventsConfig, ModelConfig, ReplicaConfig
from gateway.config.guards import (
    EjectionConfig,
    LimitsConfig,
    RetriesConfig,
    TimeoutsConfig,
)
from gateway.config.index import IndexConfig
from gateway.config.policies import (
    ConsistentHashConfig,
    ExpectedTtftConfig,
    LeastLoadedConfig,
    PolicyConfig,
    PowerOfTwoConfig,
    PrefixAffinityConfig,
    RoundRobinConfig,
    SessionConfig,
)
from gateway.config.rules import RuleConfig, WhenConfig

__all__ = [
    "AdminConfig",
    "AuthConfig",
    "ConsistentHashConfig",
    "CorsConfig",
    "CostConfig",
    "EjectionConfig",
    "ExpectedTtftConfig",
    "GatewayConfig",
    "HealthConfig",
    "IndexConfig",
    "IsolationConfig",
    "KvEventsConfig",
    "LeastLoadedConfig",
    "LimitsConfig",
    "ListenConfig",
    "ListenTlsConfig",
    "LoggingConfig",
    "ModelConfig",
    "PolicyConfig",
    "PowerOfTwoConfig",
    "PrefixAffinityConfig",
    "PrepareConfig",
    "ReplicaConfig",
    "RetriesConfig",
    "RoundRobinConfig",
    "RuleConfig",
    "SessionConfig",
    "TimeoutsConfig",
    "WhenConfig",
]

CROSS_CHECK = "cross_check"
"""Type of the errors that come from crosschecks.py."""


class ListenConfig(Section):
    """The public listener: the API that clients use."""

    host: Host = Field(
        DEFAULT_LISTEN[0],
        description="Address to bind. All interfaces, as serving others is a gateway's job.",
    )
    port: Port = Field(
        DEFAULT_LISTEN[1],
        description="TCP port; 0 lets the system choose. 8080 needs no privileges.",
    )
    tls: ListenTlsConfig | None = Field(
        None, description="Serve HTTPS. Left out, the listener speaks plain HTTP."
    )


class AdminConfig(Section):
    """The admin listener: metrics, explanations, the dashboard. It has no authentication."""

    host: Host = Field(
        DEFAULT_ADMIN[0],
        description="Address to bind. Loopback, as nothing here is protected; another address is "
        "allowed where the network protects it.",
    )
    port: Port = Field(DEFAULT_ADMIN[1], description="TCP port; 0 lets the system choose.")


class PrepareConfig(Section):
    """Rendering and tokenizing prompts before the decision."""

    timeout_s: Seconds = Field(
        0.02,
        description="Seconds after which a request is routed without its token ids, the wait for a "
        "thread included. A new turn takes 1 ms and 50,000 new tokens 20 ms, so who takes longer "
        "sent more than a request's time to first token is worth waiting for. The work goes on, "
        "and its token ids are known for the next turn.",
    )
    threads: int = Field(
        2,
        ge=1,
        le=64,
        description="Threads that render and tokenize. The tokenizer holds no lock of the "
        "interpreter while it works, so 2 leave the event loop free and use a second core.",
    )
    max_bytes: int = Field(
        4 * 1024 * 1024,
        ge=1,
        description="Bodies of more bytes are routed by their beginning, without token ids. "
        "Tokenizing takes about 160 bytes of memory for each byte of text, and 4 MiB hold a "
        "million tokens, more than any model takes.",
    )
    check_every: int = Field(
        1000,
        ge=0,
        description="One prompt in so many is compared, off the request path, with what a "
        "replica's /tokenize says, and some are at the start; 0 for none. 1,000 cost a busy "
        "replica less than a tenth of a per cent, and two differences in 20 drop the model to "
        "routing by the first bytes of its prompts until they are equal again.",
    )
    replica_timeout_s: Seconds = Field(
        0.05,
        description="Seconds to wait for a replica that is asked for the token ids of a prompt "
        "that cannot be rendered here. 50 ms are some 10,000 tokens; an answer that comes later is "
        "kept for the next turn.",
    )
    inline_bytes: int = Field(
        16 * 1024,
        ge=0,
        description="Bodies of fewer bytes, and of at most 16 messages, are rendered on the event "
        "loop, which takes up to 0.4 ms. They are tokenized there, too, where little of them is "
        "new. Longer work would hold up the streams, and for shorter work a change of threads "
        "would cost more than it saves.",
    )
    cache_bytes: int = Field(
        256 * 1024 * 1024,
        ge=0,
        description="Memory for token ids and block keys of prompts, so that a new turn of a chat "
        "costs its own tokens only; the least recently used go first. A chat of 8,000 tokens takes "
        "32 KB, and what chats share is kept once. 0 keeps nothing.",
    )


class HealthConfig(Section):
    """Probing the replicas."""

    interval_s: Seconds = Field(
        1.0, description="Seconds between two probes of a replica, so that a dead one is noticed."
    )
    timeout_s: Seconds = Field(
        2.0,
        description="Seconds until a probe counts as failed. Longer than the interval, as a "
        "busy engine answers late rather than never.",
    )
    failures_to_eject: int = Field(
        3,
        ge=1,
        description="Failed probes in a row after which a replica gets no requests. 3 forgive one "
        "slow answer and eject within some seconds.",
    )
    ready_replicas: int = Field(
        1,
        ge=0,
        description="Ready replicas, of all models together, from which on /readyz says ready. 1: "
        "a model without replicas must not take the others along. 0: ready without any, where "
        "clients are to get our 503 rather than the balancer's own.",
    )
    metrics_interval_s: Seconds = Field(
        10.0,
        description="Seconds between two readings of what a replica says about itself in its "
        "metrics and its list of models. They cost the engine time, and what cannot wait does not: "
        "a new process is noticed with the next probe.",
    )


class LoggingConfig(Section):
    """The gateway's log: JSON lines without prompt text and without keys."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe level that is written."
    )
    requests: bool = Field(True, description="Write one line for each request.")


class GatewayConfig(Section):
    """The whole file."""

    listen: ListenConfig = Field(
        default_factory=ListenConfig, description="The public listener, for clients."
    )
    admin: AdminConfig = Field(
        default_factory=AdminConfig, description="The admin listener, for operators."
    )
    models: ListOf[ModelConfig] = Field(
        description="The models that are served, at least one; each entry is a pool of replicas.",
        examples=["[{replicas: [{url: 'http://engine-0:8000'}]}]"],
    )
    policies: dict[Label, PolicyConfig] = Field(
        default_factory=dict,
        validate_default=True,
        description="Policies by the names that you give them. One named `default` "
        "(expected_ttft with its defaults) is there unless the file defines it.",
    )
    default_policy: str = Field(
        DEFAULT_POLICY,
        description="Policy of requests that neither a rule nor their model gives one.",
    )
    rules: ListOf[RuleConfig] = Field(
        (), description="Policies and pools for some requests; the first rule that matches wins."
    )
    index: IndexConfig = Field(
        default_factory=IndexConfig, description="The index of who holds which block."
    )
    prepare: PrepareConfig = Field(
        default_factory=PrepareConfig, description="Rendering and tokenizing."
    )
    auth: AuthConfig = Field(
        default_factory=AuthConfig, description="Who may use the public listener."
    )
    isolation: IsolationConfig = Field(
        default_factory=IsolationConfig, description="Separate KV caches for tenants."
    )
    cors: CorsConfig = Field(
        default_factory=CorsConfig, description="Which web pages may call the public listener."
    )
    timeouts: TimeoutsConfig = Field(
        default_factory=TimeoutsConfig, description="How long each part of a request may take."
    )
    limits: LimitsConfig = Field(
        default_factory=LimitsConfig, description="What one request may ask for."
    )
    retries: RetriesConfig = Field(
        default_factory=RetriesConfig, description="Sending a request to another replica."
    )
    ejection: EjectionConfig = Field(
        default_factory=EjectionConfig, description="Taking out replicas that fail requests."
    )
    health: HealthConfig = Field(default_factory=HealthConfig, description="Probing the replicas.")
    decision_headers: bool = Field(
        True,
        description="Tell clients in x-warmroute-* response headers where a request went and why. "
        "Switch it off where clients must not learn the replicas' names.",
    )
    logging: LoggingConfig = Field(default_factory=LoggingConfig, description="What is logged.")

    @field_validator("policies", mode="after")
    @classmethod
    def _add_default_policy(cls, given: dict[str, PolicyConfig]) -> dict[str, PolicyConfig]:
        return {DEFAULT_POLICY: ExpectedTtftConfig(kind="expected_ttft"), **given}

    @model_validator(mode="after")
    def _check_across_keys(self) -> Self:
        findings = cross_findings(self.model_dump(mode="json"))
        if findings:
            raise ValidationError.from_exception_data(
                type(self).__name__,
                [
                    InitErrorDetails(
                        type=PydanticCustomError(
                            CROSS_CHECK, "{text}", {"text": finding.text + finding.hint}
                        ),
                        loc=finding.path,
                        input=None,
                    )
                    for finding in findings
                ],
            )
        return self
