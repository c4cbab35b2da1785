"""Models, their replicas, and what work costs there."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from gateway.config.access import ReplicaTlsConfig
from gateway.config.discovery import DiscoveryConfig
from gateway.config.engine import EngineConfig
from gateway.config.fields import (
    ApiKey,
    Label,
    ListOf,
    Name,
    ReplicaUrl,
    ReplicaWeight,
    Section,
    ZmqEndpoint,
    host_and_port,
)
from gateway.config.shared_cache import SharedCacheConfig

REFERENCE_COSTS: Mapping[str, float] = MappingProxyType(
    {
        "prefill_token_s": 70e-6,
        "prefill_pair_s": 4e-9,
        "decode_sequence_s": 0.08e-3,
        "decode_kv_token_s": 52e-9,
        "l1_latency_s": 1e-3,
        "l1_token_s": 6e-6,
        "l2_latency_s": 3e-3,
        "l2_token_s": 22.6e-6,
    }
)
"""Seconds under which 1,900 tokens take 148 ms to prefill and 56 ms to load from L2."""

COST_PROFILES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "reference": REFERENCE_COSTS,
        # Published for Qwen2-7B on an A10G: 2,500 tokens prefilled in 774 ms, which is a mean over
        # the prompt, attention included, so pairs cost nothing. Of L2, over Curvine, ratios at 500,
        # 1,000 and 2,500 tokens, to which `make measure-tiers` fits a line.
        "a10g": MappingProxyType(
            {
                **REFERENCE_COSTS,
                "prefill_token_s": 0.31e-3,
                "prefill_pair_s": 0.0,
                "l2_latency_s": 124.5e-3,
                "l2_token_s": 53e-6,
            }
        ),
    }
)
"""Costs by the name of their profile."""


def _cost(key: str, meaning: str) -> Any:
    return Field(REFERENCE_COSTS[key], ge=0.0, description=meaning)


class CostConfig(Section):
    """Seconds that work costs on one model's replicas. Their ratios matter, not their size."""

    profile: Literal["reference", "a10g"] | None = Field(
        None,
        description="Named set of costs to start from; keys given beside it win. Without one the "
        "costs are those of `reference`.",
    )
    prefill_token_s: float = _cost("prefill_token_s", "Seconds to prefill one token.")
    prefill_pair_s: float = _cost(
        "prefill_pair_s", "Seconds for one pair of a new token and a token that it attends to."
    )
    decode_sequence_s: float = _cost(
        "decode_sequence_s", "Seconds that one running sequence adds to every step."
    )
    decode_kv_token_s: float = _cost(
        "decode_kv_token_s", "Seconds that one token of a running sequence's KV adds to every step."
    )
    l1_latency_s: float = _cost("l1_latency_s", "Fixed seconds of a load from host memory (L1).")
    l1_token_s: float = _cost("l1_token_s", "Seconds to load one token's KV from host memory (L1).")
    l2_latency_s: float = _cost(
        "l2_latency_s", "Fixed seconds of a load from the shared pool (L2)."
    )
    l2_token_s: float = _cost(
        "l2_token_s",
        "Seconds to load one token's KV from the shared pool (L2). A tier counts only where "
        "loading is cheaper than prefilling.",
    )

    @model_validator(mode="before")
    @classmethod
    def _start_from_profile(cls, given: Any) -> Any:
        name = given.get("profile") if isinstance(given, dict) else None
        if not isinstance(name, str) or name not in COST_PROFILES:
            return given  # nothing named, or wrong: then the field's own check says so
        return {**COST_PROFILES[name], **given}


class KvEventsConfig(Section):
    """Where one replica publishes its KV events, for engines that do not say so themselves."""

    endpoint: ZmqEndpoint = Field(
        description="ZMQ address of the event publisher.", examples=["tcp://engine-0:5557"]
    )
    replay_endpoint: ZmqEndpoint | None = Field(
        None,
        description="ZMQ address that sends missed events again. Without it a gap empties what is "
        "known of this replica.",
    )
    topic: str = Field(
        "", description="Prefix of the topics to subscribe to; empty means all of them."
    )


def _kv_events_tag(value: Any) -> str:
    return "source" if isinstance(value, dict | KvEventsConfig) else "word"


def _default_id(given: dict[str, Any]) -> str:
    # Before pydantic 2.12 this also runs where `url` itself was refused.
    return host_and_port(given["url"]) if "url" in given else ""


class ReplicaConfig(Section):
    """One running engine with its own KV cache and address."""

    url: ReplicaUrl = Field(
        description="Base address, http or https, without a path.",
        examples=["http://engine-0:8000"],
    )
    id: Label = Field(
        default_factory=_default_id,
        description="Name in logs, metrics and response headers; unique over the file.",
        json_schema_extra={"default_text": "`host:port` of `url`"},
    )
    kv_events: Annotated[
        Annotated[Literal["auto", "off"], Tag("word")] | Annotated[KvEventsConfig, Tag("source")],
        Discriminator(_kv_events_tag),
    ] = Field(
        "auto",
        description="Where the replica's KV events come from. `auto` asks the replica "
        "(/kv_event_sources, vLLM 0.31 and later); `off` trusts our own routing history; a mapping "
        "names the publisher.",
    )
    weight: ReplicaWeight = Field(
        1.0,
        description="Share of the work as against its siblings: 2 settles at twice the load of 1. "
        "An operator can put another in its place while the gateway runs.",
    )


class ModelConfig(Section):
    """One model and the pool of replicas that serve it.

    Several entries may serve the same name, each with a `pool` of its own: a canary, or replicas
    for one tenant. They share the name's requests by `weight`, and a session stays in one pool.
    Where no replica of a pool is ready, the others take its share.
    """

    name: Name | None = Field(
        None,
        description="Name that requests use. Left out, the names are read from the replicas at "
        "start; only the single model of a file may leave it out.",
    )
    aliases: ListOf[Name] = Field(
        (),
        description="Further names that requests may use, LoRA adapters for example. The name "
        "passes unchanged, so the replicas have to know it (--served-model-name). Adapters that "
        "replicas tell need not stand here. One that stands here and is loaded nowhere may be "
        "loaded on demand, so any replica gets its requests; else only those that have it do.",
    )
    pool: Name | None = Field(
        None,
        description="Name of this entry in metrics, logs and rules; unique over the file. Needed "
        "where an earlier entry serves one of the same names.",
        json_schema_extra={"default_text": "`name`"},
    )
    weight: float = Field(
        1.0,
        ge=0.0,
        description="Share of the requests for names that several pools serve, as against the "
        "others' weights: 95 and 5 are 5% for the second. 0 takes only what a rule sends.",
    )
    replicas: ListOf[ReplicaConfig] = Field(
        (),
        description="The engines that serve it, where their addresses stay the same. At least one, "
        "or a `discovery`.",
        examples=["[{url: 'http://engine-0:8000'}]"],
    )
    discovery: ListOf[DiscoveryConfig] = Field(
        (),
        description="Where engines that come and go are found. Several kinds, and `replicas`, may "
        "feed one model.",
    )
    tokenizer: Name | None = Field(
        None,
        description="Local folder or hub id of the model's tokenizer. A folder is surer: a hub "
        "that does not answer within 5 s is done without, and what is not in the cache at HF_HOME "
        "is missing then. Without it there are no exact token ids, and prompts are routed by a "
        "canonical prefix of their bytes.",
    )
    engine: EngineConfig = Field(
        default_factory=EngineConfig,
        description="Flags of the engines that change what a request's token ids are.",
    )
    forward_token_ids: bool = Field(
        False,
        description="Whether chats go to the engines with their token ids "
        "(`kv_transfer_params.prompt_token_ids`), so that an engine does not render and tokenize "
        "them again. Only where the ids are known to be what it would compute, and only while all "
        "replicas of the model are vLLM 0.28 or newer. Off, as an engine then runs what the "
        "gateway computed, so a wrong flag under `engine` would change answers and not only "
        "costs. It adds about 7 bytes a token to a request.",
    )
    block_size: int | None = Field(
        None,
        ge=1,
        description="Tokens in one KV block. Left out, it is read from the replicas.",
    )
    policy: str | None = Field(
        None,
        description="Policy of requests that no rule takes. Left out, it is `default_policy`.",
    )
    cost: CostConfig = Field(
        default_factory=CostConfig, description="Prices of prefill, decode and loads."
    )
    calibrate: bool = Field(
        True,
        description="Whether prices follow what is observed: the times to first token of streams "
        "that tell what they had cached, at replicas with little else to do. They move within "
        "bounds and only where replicas load from L1 or L2; `cost` is where they start.",
    )
    shared_cache: SharedCacheConfig | None = Field(
        None,
        description="The pool (L2) that all its replicas read and write, such as LMCache's over "
        "Curvine, and how the gateway knows what is in it. Left out, nothing is expected of one.",
    )
    tls: ReplicaTlsConfig = Field(
        default_factory=ReplicaTlsConfig, description="TLS to replicas with an https address."
    )
    api_key: ApiKey | None = Field(
        None,
        description="Key that the gateway shows to the replicas, also when it probes them. Use "
        "`${NAME}`; it is never logged and never sent to clients.",
    )


def model_key(model: ModelConfig) -> str:
    """Return a pool's identity: its name, its model's, or a word where replicas will tell that."""
    return model.pool or model.name or "default"
