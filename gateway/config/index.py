"""The index of who holds which block, and what several gateways share it through."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from gateway.config.access import ReplicaTlsConfig
from gateway.config.fields import Name, Seconds, Section, refused
from gateway.redis.address import parse_url


def _check_url(secret: SecretStr) -> SecretStr:
    try:
        parse_url(secret.get_secret_value())
    except ValueError as error:
        raise refused(str(error)) from None
    return secret


def _check_namespace(text: str) -> str:
    # Braces would change which slot of a cluster the keys are in, and colons end the namespace.
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text):
        raise refused("must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    return text


def _check_secret(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value():
        raise refused("must not be empty, leave it out where none is needed")
    return secret


RedisUrl = Annotated[SecretStr, AfterValidator(_check_url)]
Namespace = Annotated[str, AfterValidator(_check_namespace)]
Password = Annotated[SecretStr, AfterValidator(_check_secret)]


class RedisTlsConfig(ReplicaTlsConfig):
    """TLS to Redis, for the `rediss` schemes."""

    verify: bool = Field(
        True,
        description="Whether the server's certificate must be right and carry its host name. Off "
        "only where the network is trusted: then anybody can be the server.",
    )


class IndexConfig(Section):
    """The index: which replica holds which KV block."""

    backend: Literal["memory", "redis"] = Field(
        "memory",
        description="Where the index lives. `memory`: in the gateway's own process, for one "
        "gateway. `redis`: in Redis or Valkey, with all else that several gateways share.",
    )
    url: RedisUrl | None = Field(
        None,
        description="Where Redis or Valkey is, for `redis`: `redis://HOST:PORT/DB`, "
        "`unix:///PATH`, `redis+sentinel://HOST,HOST/PRIMARY` or `redis+cluster://HOST,HOST`; "
        "`rediss` instead of `redis` for TLS. It may hold `USER:PASSWORD@` and is never shown.",
    )
    namespace: Namespace = Field(
        "warmroute",
        description="Begins every key: gateways that share replicas have the same one, others of "
        "the same server another.",
    )
    username: Name | None = Field(
        None, description="User of Redis' ACL, instead of one in `url`. Left out: the default user."
    )
    password: Password | None = Field(
        None, description="Password, instead of one in `url`, best as `${NAME}`. Never shown."
    )
    tls: RedisTlsConfig | None = Field(
        None, description="Whom to trust and what to show with `rediss`; left out, the system's."
    )
    connect_timeout_s: Seconds = Field(
        1.0,
        description="Seconds for a connection and the login. 1 s is far above any network near "
        "enough for look-ups of 3 ms; no request waits for it.",
    )
    reply_timeout_s: Seconds = Field(
        0.5,
        description="Seconds after which a server that owes a reply counts as down, and its "
        "connections are made anew. Longer than a save or a fork stops it for.",
    )
    entry_ttl_s: Seconds = Field(
        3600.0,
        description="Seconds that an entry in Redis lives when nobody renews it; who follows a "
        "replica renews what it holds. Entries of replicas that are gone count no longer at once, "
        "and take memory so long.",
    )
    max_blocks: int = Field(
        2_000_000,
        ge=1,
        description="Most blocks of one tier that are recorded; further ones are refused and "
        "counted. The default has room for 78 replicas with 410,000 tokens of KV in blocks of 16 "
        "and takes about 0.3 GB when full.",
    )
    predicted_ttl_s: Seconds = Field(
        2.0,
        description="Seconds that a routed prompt counts as cached where no KV event confirms it. "
        "2 s outlasts a prefill and its event, and forgets requests that failed.",
    )
    eventless_ttl_s: Seconds = Field(
        120.0,
        description="The same for replicas without KV events, where nothing ever confirms. 120 s "
        "is what NVIDIA Dynamo's router takes for them; replicas that evict sooner want less.",
    )
    reseed: bool = Field(
        False,
        description="Ask replicas whose KV events were lost for good to report also what requests "
        "find in their caches (`vllm_xargs.kv_cache_report_mode`, vLLM 0.26 and later). It is "
        "added to chats and completions without `vllm_xargs`, until the replica is known again.",
    )
    usage_sample: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="Share of the streaming requests without `stream_options` that ask the engine "
        "for usage, whose event is taken out of the answer again: engines then tell how much they "
        "had cached, whatever clients ask. 0: bodies and answers pass as they are; 0.02 is plenty.",
    )
    lookup_timeout_s: Seconds = Field(
        0.003,
        description="Seconds after which a request is routed without its lookup. 3 ms is far "
        "above a lookup in memory and far below the prefill that it may save.",
    )
