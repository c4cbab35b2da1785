"""One streamed chat, with the time to its first token and what the headers say."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from loadtests.conformance.cases import CHAT
from loadtests.conformance.observe import NotAnswered

_TIMEOUT_S: Final = 120.0
_STREAMED: Final[Mapping[str, Any]] = {
    "stream": True,
    "stream_options": {"include_usage": True},
}


@dataclass(slots=True)
class Reply:
    """What came back.

    Attributes:
        ttft_s: Seconds from sending to the first token.
        prompt_tokens: By the engine's count.
        cached_tokens: Of them, not computed, by the engine's count.
        replica: That answered, as the gateway's header says, as do the two below.
        tier: The farthest tier that was to serve part of the prompt.
        matched_tokens: That were to be cached, over all tiers.
    """

    ttft_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    replica: str = ""
    tier: str = ""
    matched_tokens: int = 0


def ask(url: str, body: Mapping[str, Any]) -> Reply:
    """Send a chat and read its stream to the end.

    Args:
        url: Base address of a gateway or an engine.
        body: Of the chat; streaming is added.

    Raises:
        NotAnswered: It was refused, or the stream broke.
    """
    data = json.dumps({**body, **_STREAMED}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}{CHAT}", data, headers)  # noqa: S310 - our own child
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            reply = read_stream(answer, began)
            reply.replica = answer.headers.get("x-warmroute-replica", "")
            reply.tier = answer.headers.get("x-warmroute-tier", "")
            reply.matched_tokens = int(answer.headers.get("x-warmroute-matched-tokens", "0"))
    except urllib.error.HTTPError as error:
        said = error.read()[:300].decode(errors="replace")
        raise NotAnswered(f"{url}: {error.code} {said}") from None
    except OSError as error:
        raise NotAnswered(f"{url}: {error}") from None
    return reply


def read_stream(lines: Iterable[bytes], began: float) -> Reply:
    """Return what a stream of events tells, read line by line.

    Args:
        lines: As they arrive.
        began: When the request was sent, on the monotonic clock.

    Raises:
        NotAnswered: The stream ends early, or with an error.
    """
    reply, done = Reply(), False
    for line in lines:  # to the last byte: a connection closed before it is a client that left
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:"):
            continue
        if data == b"[DONE]":
            done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            raise NotAnswered(f"the stream says {chunk['error']}")
        if not reply.ttft_s and any(c["delta"].get("content") for c in chunk.get("choices", ())):
            reply.ttft_s = time.monotonic() - began
        if usage := chunk.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            reply.prompt_tokens = usage["prompt_tokens"]
            reply.cached_tokens = details.get("cached_tokens") or 0
    if not done:
        raise NotAnswered("the stream ended early")
    return reply
