"""What keeps one request, one client or one replica from hurting the others."""

from __future__ import annotations

from pydantic import Field

from gateway.config.fields import ListOf, Name, Seconds, Section


class TimeoutsConfig(Section):
    """How long each part of a request may take. None of them limits a whole stream."""

    connect_s: Seconds = Field(
        2.0,
        description="Seconds to open a connection to a replica. 2 s forgive one lost packet, which "
        "is sent again after 1 s; then the next replica is tried.",
    )
    first_byte_s: Seconds = Field(
        600.0,
        description="Seconds until a replica's first byte. A prefill of 150,000 tokens on a busy "
        "replica has been seen to take nine minutes.",
    )
    idle_s: Seconds = Field(
        120.0,
        description="Seconds between two bytes of a running stream. Tokens come many a second; "
        "120 s allow for preemption.",
    )
    receive_s: Seconds = Field(
        60.0,
        description="Seconds for a client to send a whole request, headers and body; later it is "
        "answered with 408. 32 MiB need 5 Mbit/s.",
    )
    total_s: Seconds | None = Field(
        None,
        description="Seconds from a request's place (see `limits.max_in_flight`) to the end of its "
        "answer. Left out, there is no limit: a long answer is no fault, and the other deadlines "
        "find what hangs.",
    )
    heartbeat_s: Seconds | None = Field(
        None,
        description="Seconds after which a stream that still waits for its first token gets an SSE "
        "comment, and again each time. For clients or proxies that cut idle connections. Once a "
        "comment was sent the status is 200, and an error of the replica becomes an error event. "
        "Left out, nothing is added.",
    )
    drain_s: Seconds = Field(
        30.0,
        description="Seconds that running requests get to end after a stop signal; then each is "
        "ended, a stream with an error event. Kubernetes kills after 30 s unless told otherwise.",
    )
    drain_notice_s: float = Field(
        0.0,
        ge=0.0,
        description="Seconds at the start of `drain_s` in which new requests are served although "
        "nothing else runs, with /readyz at 503: for balancers that learn from it. 0 where the "
        "platform takes the gateway out before it signals, as the Helm chart's preStop does.",
    )


class LimitsConfig(Section):
    """What clients may ask for, alone and together. Each gateway and each worker counts its own."""

    max_body_bytes: int = Field(
        32 * 1024 * 1024,
        ge=1,
        description="Largest request body in bytes, also after decompression; a larger one is "
        "answered with 413. 32 MiB hold a million tokens of text and some images.",
    )
    max_header_bytes: int = Field(
        64 * 1024,
        ge=1024,
        description="Most bytes of a request's headers; more is answered with 431. Real clients "
        "send under 4 KiB; 64 KiB is what h11 allows.",
    )
    max_connections: int = Field(
        10_000,
        ge=1,
        description="Most open client connections; further ones get 503 and are closed. Lowered "
        "at start to what the limit on open files allows, as each may need one to a replica.",
    )
    max_in_flight: int = Field(
        4096,
        ge=1,
        description="Most requests at the replicas at once; further ones wait in the queue. 4,096 "
        "are 16 replicas at vLLM's default of 256 sequences.",
    )
    queue_requests: int = Field(
        1024,
        ge=0,
        description="Most requests that wait for a place; further ones get 503 at once. API keys "
        "take turns, so one key's burst does not push others back.",
    )
    queue_timeout_s: Seconds = Field(
        30.0,
        description="Seconds that a request waits for a place before it gets 503. Clients "
        "commonly give up after 60 s.",
    )
    refused_fields: ListOf[Name] = Field(
        ("kv_transfer_params",),
        description="Body fields that are refused with 400, because they reach into the engine: "
        "kv_transfer_params.prompt_token_ids runs other tokens than the messages say.",
    )


class RetriesConfig(Section):
    """Sending a request to another replica, only where nothing can have run."""

    max_tries: int = Field(
        3,
        ge=1,
        description="Replicas that one request is sent to at most. With more than 3 refusing, the "
        "fleet is down, and further tries only delay the answer.",
    )
    budget_ratio: float = Field(
        0.2,
        ge=0.0,
        le=1.0,
        description="Retries allowed for each request, on average, so that a fleet in trouble gets "
        "at most 1.2 times its traffic. 0.2 is Finagle's default.",
    )


class EjectionConfig(Section):
    """Taking out replicas that fail requests, besides those that fail probes."""

    failures: int = Field(
        3,
        ge=1,
        description="Failed requests in a row after which a replica is ejected: no answer in time, "
        "a broken connection, 502 or 504. A refused connection ejects at once. A 500 does not "
        "count: one client's bad prompt can cause any number of them.",
    )
    base_s: Seconds = Field(
        1.0, description="Seconds until an ejected replica may come back, with its next good probe."
    )
    max_s: Seconds = Field(
        30.0,
        description="Longest ejection in seconds: the time doubles with each ejection that follows "
        "another without a good request in between.",
    )
