"""Asks a model's replicas for the token ids of prompts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import Random

from xxhash import xxh3_128_digest

from gateway.errors import UpstreamError
from gateway.prompt.questions import Question, packed_answer
from gateway.proxy.headers import Header
from gateway.proxy.transport import Deadlines, Transport, UpstreamRequest
from gateway.replicas.registry import Replica

# Of an answer: a million token ids are 8 MB of JSON.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
# Of token ids that replicas told: 1,000 prompts of 4,000 tokens.
MAX_KEPT_BYTES = 16 * 1024 * 1024
_HEADERS: Sequence[Header] = (
    (b"user-agent", b"warmroute"),
    (b"accept", b"*/*"),
    (b"content-type", b"application/json"),
)


class NotTold(Exception):
    """No replica told the token ids.

    Attributes:
        reason: In one word, for metrics.
        status: HTTP status of its answer; 0 where there was none.
    """

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class ReplicaTokens:
    """Asks one model's replicas, keeps what they said, and asks each thing once at a time.

    Args:
        transport: Of the data path.
        replicas: Those that may be asked now.
        rng: Chooses one of them.
    """

    def __init__(
        self, transport: Transport, replicas: Callable[[], Sequence[Replica]], rng: Random
    ) -> None:
        self._transport = transport
        self._replicas = replicas
        self._rng = rng
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._asking: dict[bytes, asyncio.Task[bytes]] = {}

    async def ask(self, question: Question, timeout_s: float, *, keep: bool) -> bytes:
        """Return packed token ids.

        Args:
            question: Whole; equal questions have equal answers.
            timeout_s: For the answer. One that comes later is kept all the same.
            keep: Look among what is kept, and keep the answer.

        Raises:
            NotTold: There is no answer in time, or no good one.
        """
        key = xxh3_128_digest(question.path.encode() + b"\n" + question.body)
        known = self._kept.get(key) if keep else None
        if known is not None:
            self._kept.move_to_end(key)
            return known
        task = self._asking.get(key)
        if task is None:
            task = asyncio.create_task(self._ask(question, timeout_s * 2), name="ask for tokens")
            self._asking[key] = task
            task.add_done_callback(lambda done: self._done(key, done, keep=keep))
        # Not a shield: that would cancel whoever waits when `close` cancels the question.
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done or task.cancelled():
            raise NotTold("replica_timeout")
        return task.result()

    def close(self) -> None:
        """Stop asking; whoever waits for an answer has none in time."""
        for task in list(self._asking.values()):
            task.cancel()

    def _done(self, key: bytes, task: asyncio.Task[bytes], *, keep: bool) -> None:
        del self._asking[key]
        if task.cancelled() or task.exception() is not None or not keep:
            return
        packed = task.result()
        self._kept[key] = packed
        self._kept_bytes += len(packed)
        while self._kept_bytes > MAX_KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)

    async def _ask(self, question: Question, timeout_s: float) -> bytes:
        replicas = self._replicas()
        if not replicas:
            raise NotTold("no_replica")
        replica = self._rng.choice(replicas)
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await self._post(replica, question, timeout_s)
        except TimeoutError:
            raise NotTold("replica_timeout") from None
        except UpstreamError as error:
            raise NotTold("replica_unreachable") from error
        if status != 200:
            raise NotTold("replica_refused", status)
        try:
            return packed_answer(body)
        except ValueError:
            raise NotTold("replica_nonsense", status) from None

    async def _post(
        self, replica: Replica, question: Question, timeout_s: float
    ) -> tuple[int, bytes]:
        headers = [*_HEADERS]
        if replica.upstream_key:
            headers.append((b"authorization", b"Bearer " + replica.upstream_key.encode()))
        request = UpstreamRequest(b"POST", question.path.encode(), headers, question.body)
        deadlines = Deadlines(timeout_s, timeout_s, timeout_s)
        response = await self._transport.request(replica.origin, request, deadlines)
        try:
            pieces, num_bytes = [], 0
            while not response.ended and (piece := await response.read()):
                pieces.append(piece)
                num_bytes += len(piece)
                if num_bytes > MAX_ANSWER_BYTES:
                    raise NotTold("replica_nonsense", response.status)
        finally:
            response.close()
        return response.status, b"".join(pieces)
