"""A small client for streaming chats that stamps the first token with content.

One connection a request, as many separate users would open; httptools parses the answer. In the
demo (12 requests/s, 500 tokens/s) the whole program takes 4% of one core, so that the figures are
the fleet's and not the client's.
"""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import httptools

from loadtests.workloads.sessions import TimedRequest

_READ_BYTES: Final = 65_536  # what one socket read may bring; streams are far below it
REPLICA_HEADER: Final = b"x-warmroute-replica"
_DETAIL_CHARS: Final = 300  # of a failure; a proxy may answer with a whole page


class Failure(StrEnum):
    """How a request failed, from before it was sent to after it began to answer."""

    UNREACHABLE = "unreachable"  # no connection
    STATUS = "status"  # an HTTP status of 400 or above
    BROKEN = "broken stream"  # the answer ended early, or with an error event
    TIMEOUT = "timeout"  # no end in time


@dataclass(slots=True)
class Answer:
    """What came back for one request; times are of the `time.monotonic` clock, in seconds.

    Attributes:
        sent_s: When the connection was begun.
        first_content_s: When the first chunk with text arrived; None if none did.
        end_s: When the answer ended.
        status: HTTP status; 0 if there was none.
        replica: The gateway's `x-warmroute-replica`; empty without a gateway.
        text: The whole reply.
        prompt_tokens: From the usage chunk, as are the two below; 0 if there was none.
        cached_tokens: Prompt tokens that the replica did not compute.
        completion_tokens: Tokens of the reply.
        failure: None if all went well.
        detail: One line on the failure.
    """

    sent_s: float
    first_content_s: float | None = None
    end_s: float = 0.0
    status: int = 0
    replica: str = ""
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    failure: Failure | None = None
    detail: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first text; None if none came."""
        return None if self.first_content_s is None else self.first_content_s - self.sent_s


async def ask(base_url: str, request: TimedRequest, timeout_s: float) -> Answer:
    """Send one request and read its answer to the end. Failures are in the answer, never raised.

    Args:
        base_url: Such as `http://127.0.0.1:8000`, http or https.
        request: What to send; its time is the caller's business.
        timeout_s: Most seconds from sending to the end of the answer.
    """
    answer = Answer(sent_s=time.monotonic())
    with _failures_noted(answer, timeout_s):
        async with asyncio.timeout(timeout_s):
            target = _Target.of(base_url)
            reader = _AnswerReader(answer)
            stream, writer = await asyncio.open_connection(
                target.host, target.port, ssl=target.tls or None
            )
            try:
                writer.write(_encoded(target, request))
                while not reader.complete and (data := await stream.read(_READ_BYTES)):
                    reader.feed(data)
            finally:
                writer.close()
            reader.judge()
    answer.end_s = time.monotonic()
    return answer


def ask_blocking(base_url: str, request: TimedRequest, timeout_s: float) -> Answer:
    """Do as `ask` does, for threads and for gevent's greenlets, which make sockets cooperate.

    Args:
        base_url: Such as `http://127.0.0.1:8000`, http or https.
        request: What to send.
        timeout_s: Most seconds without a byte.
    """
    answer = Answer(sent_s=time.monotonic())
    with _failures_noted(answer, timeout_s):
        target = _Target.of(base_url)
        reader = _AnswerReader(answer)
        with socket.create_connection((target.host, target.port), timeout_s) as plain:
            stream = _with_tls(plain, target.host) if target.tls else plain
            stream.sendall(_encoded(target, request))
            while not reader.complete and (data := stream.recv(_READ_BYTES)):
                reader.feed(data)
        reader.judge()
    answer.end_s = time.monotonic()
    return answer


class _Target(NamedTuple):
    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def of(cls, base_url: str) -> Self:
        url = urlsplit(base_url)
        tls = url.scheme == "https"
        return cls(url.hostname or "", url.port or (443 if tls else 80), tls, url.path.rstrip("/"))


def _with_tls(plain: socket.socket, host: str) -> ssl.SSLSocket:
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _encoded(target: _Target, request: TimedRequest) -> bytes:
    body = json.dumps(request.body, ensure_ascii=False).encode()
    head = (
        f"POST {target.prefix}{request.path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        f"Connection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body


@contextmanager
def _failures_noted(answer: Answer, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        _fail(answer, Failure.TIMEOUT, f"no end within {timeout_s:g} s")
    except OSError as error:
        failure = Failure.BROKEN if answer.status else Failure.UNREACHABLE
        _fail(answer, failure, str(error) or type(error).__name__)
    except httptools.HttpParserError as error:
        _fail(answer, Failure.BROKEN, f"not HTTP: {error}")


class _AnswerReader:
    """Fills an Answer from the bytes of one HTTP response, an event stream or a JSON body."""

    def __init__(self, answer: Answer) -> None:
        self.complete = False
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._streaming = False
        self._done = False
        self._buffer = b""

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    # The next four are httptools' callbacks.
    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == REPLICA_HEADER:
            self._answer.replica = value.decode("latin-1")
        elif lowered == b"content-type":
            self._streaming = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._buffer += data
        if self._streaming:
            *events, self._buffer = self._buffer.split(b"\n\n")
            for event in events:
                self._event(event.removeprefix(b"data:").strip())

    def on_message_complete(self) -> None:
        self.complete = True

    def judge(self) -> None:
        """Say what was wrong with the answer, if anything, once its bytes have ended."""
        answer = self._answer
        if answer.status >= 400:
            _fail(answer, Failure.STATUS, f"HTTP {answer.status}: {_message(self._buffer)}")
        elif not self.complete:
            _fail(answer, Failure.BROKEN, "the connection closed in the middle of the answer")
        elif self._streaming and not self._done:
            _fail(answer, Failure.BROKEN, "the stream ended without [DONE]")
        elif not self._streaming:
            self._take_usage(_json_object(self._buffer))

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        chunk = _json_object(data)
        if "error" in chunk:
            _fail(self._answer, Failure.BROKEN, f"error event: {_message(data)}")
        for choice in chunk.get("choices") or ():
            # A chat's, or a completion's.
            text = choice.get("delta", {}).get("content") or choice.get("text")
            if text:
                if self._answer.first_content_s is None:
                    self._answer.first_content_s = time.monotonic()
                self._answer.text += text
        self._take_usage(chunk)

    def _take_usage(self, body: Mapping[str, Any]) -> None:
        usage = body.get("usage")
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            self._answer.prompt_tokens = usage.get("prompt_tokens", 0)
            self._answer.cached_tokens = details.get("cached_tokens") or 0
            self._answer.completion_tokens = usage.get("completion_tokens") or 0


def _fail(answer: Answer, failure: Failure, detail: str) -> None:
    """Note a failure; the first one stays, for what follows is its consequence."""
    if answer.failure is None:
        answer.failure, answer.detail = failure, detail.replace("\n", " ")[:_DETAIL_CHARS]


def _json_object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _message(body: bytes) -> str:
    """Return the message of an error body in OpenAI's shape, or the body as it is."""
    error = _json_object(body).get("error")
    if isinstance(error, dict):
        return str(error.get("message", error))
    return str(error) if error else body.decode("utf-8", "replace")
