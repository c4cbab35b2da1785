"""Follows one replica's KV event stream: SUB for the live batches, DEALER for replays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zmq
import zmq.asyncio

from gateway.engines import vllm
from gateway.kvevents.decode import BatchUnreadable, decode_batch
from gateway.kvevents.sequence import Sequence, Step
from gateway.kvevents.translate import Change, Translator

if TYPE_CHECKING:
    from collections.abc import Iterator

# vLLM serves replays between two polls of its queue, up to 0.1 s apart; a reply that takes longer
# than this means that nobody listens on the replay socket.
REPLAY_TIMEOUT_S = 2.0
# After this long without a batch we ask for what came since: the last batches before a quiet time
# can be lost like any other (a slow joiner, a full queue), and no later number shows the gap.
QUIET_S = 2.0
# Batches that may wait in our socket while a replay is read: vLLM's own bound on its side.
RECEIVE_HWM = 100_000
# After this many batches in a row the loop lets requests run.
BATCHES_A_TURN = 16


Context = zmq.asyncio.Context
"""What all sockets of one gateway share."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one replica publishes its KV events; see vLLM's KVEventsConfig."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""

    def of_rank(self, rank: int) -> Source:
        """Return where a data-parallel rank publishes, if this is where the first one does.

        vLLM adds the rank to the ports.
        """
        replay = self.replay_endpoint
        return Source(_shifted(self.endpoint, rank), replay and _shifted(replay, rank), self.topic)


def _shifted(endpoint: str, rank: int) -> str:
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}" if port.isdecimal() else endpoint


@dataclass(slots=True)
class StreamCounts:
    """What happened on a stream, for metrics."""

    batches: int = 0
    blocks_stored: int = 0
    blocks_removed: int = 0
    gaps: int = 0
    replays: int = 0
    losses: int = 0  # gaps that no replay could fill: the replica's entries were dropped
    restarts: int = 0
    unreadable: int = 0
    skipped_events: int = 0


@dataclass(slots=True)
class KvEventStream:
    """One replica's events as changes of the index, in order, or the replica cleared.

    Args:
        source: Where to subscribe.
        translator: Turns events into changes; belongs to this stream alone.
        on_change: Takes each change.
        on_synced: Called when the stream has caught up with what the replica remembers.
    """

    source: Source
    translator: Translator
    on_change: Callable[[Change], None]
    on_synced: Callable[[], None]
    counts: StreamCounts = field(default_factory=StreamCounts)
    _sequence: Sequence = field(default_factory=Sequence)

    async def run(self, context: Context) -> None:
        """Follow the stream until cancelled. ZMQ reconnects by itself.

        Starts with a replay from batch 0, as a late subscriber has missed what came before.
        """
        with _socket(context, zmq.SUB) as live:
            live.setsockopt(zmq.RCVHWM, RECEIVE_HWM)
            live.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
            live.connect(self.source.endpoint)
            await self._replay(context)
            self.on_synced()
            while True:
                if not await live.poll(QUIET_S * 1000):
                    await self._replay(context)
                for _ in range(BATCHES_A_TURN):
                    try:
                        frames = await live.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    if len(frames) >= 3:
                        number = int.from_bytes(frames[-2], "big")
                        await self._live(context, number, frames[-1])
                await asyncio.sleep(0)  # a poll that finds a message ready does not yield

    def restart(self) -> None:
        """Forget everything: the engine process is a new one, whatever its numbers say."""
        self._clear()
        self._sequence.restart()

    async def _live(self, context: Context, number: int, payload: bytes) -> None:
        step = self._sequence.live(number)
        if step is Step.RESTART:
            self.counts.restarts += 1
            self.restart()
            step = self._sequence.live(number)
        if step is Step.GAP:
            self.counts.gaps += 1
            await self._replay(context)
            step = self._sequence.replayed(number)
            if step is Step.GAP:  # the replay did not reach up to here
                self._lose()
                step = Step.APPLY
        if step is Step.APPLY:
            self._apply(number, payload)

    async def _replay(self, context: Context) -> None:
        """Apply what the replica still has from the expected batch on; what is gone clears it."""
        if self.source.replay_endpoint is None:
            return
        self.counts.replays += 1
        with _socket(context, zmq.DEALER) as dealer:
            dealer.connect(self.source.replay_endpoint)
            await dealer.send_multipart([b"", self._sequence.expected.to_bytes(8, "big")])
            try:
                async for number, payload in _replies(dealer):
                    step = self._sequence.replayed(number)
                    if step is Step.GAP:  # older than the replica's buffer
                        self._lose()
                        step = Step.APPLY
                    if step is Step.APPLY:
                        self._apply(number, payload)
            except TimeoutError:
                return  # nobody answers; the caller sees whether the gap is still there

    def _apply(self, number: int, payload: bytes) -> None:
        self._sequence.applied(number)
        self.counts.batches += 1
        try:
            batch = decode_batch(payload)
        except BatchUnreadable:
            self.counts.unreadable += 1
            return
        self.counts.skipped_events += batch.num_skipped
        for event in batch.events:
            change = self.translator.apply(event)
            if change is not None:
                self.on_change(change)

    def _lose(self) -> None:
        # Something may have been removed in the batches that nobody has any more.
        self.counts.losses += 1
        self._clear()

    def _clear(self) -> None:
        self.on_change(self.translator.clear())


async def _replies(dealer: zmq.asyncio.Socket) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (number, payload) of each replayed batch, up to the end mark.

    Read from the right: vLLM from 0.26 on puts the topic in front of the number.

    Raises:
        TimeoutError: No reply within `REPLAY_TIMEOUT_S`.
    """
    while True:
        async with asyncio.timeout(REPLAY_TIMEOUT_S):
            frames = await dealer.recv_multipart()
        if len(frames) < 2:
            continue
        number, payload = frames[-2], frames[-1]
        if number == vllm.REPLAY_END:
            return
        yield int.from_bytes(number, "big"), payload


@contextmanager
def _socket(context: Context, kind: int) -> Iterator[zmq.asyncio.Socket]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        yield socket
    finally:
        socket.close()
