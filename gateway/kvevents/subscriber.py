"""Follows one replica's KV event stream: SUB for the live batches, DEALER for replays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from gateway.engines import vllm
from gateway.kvevents.decode import AllCleared, BatchUnreadable, Event, Pause, batch_events
from gateway.kvevents.sequence import Sequence, Step
from gateway.kvevents.translate import Change, Translator
from gateway.kvevents.turns import Turns

# vLLM serves replays between two polls of its queue, up to 0.1 s apart; a reply that takes longer
# than this means that nobody listens on the replay socket.
REPLAY_TIMEOUT_S = 2.0
# After this long without a batch we ask for what came since: the last batches before a quiet time
# can be lost like any other (a slow joiner, a full queue), and no later number shows the gap.
QUIET_S = 2.0
# While it stays quiet we ask less and less often, down to this.
MAX_QUIET_S = 60.0
# Batches that may wait in our socket: what a busy engine sends in a minute, or with 20 events each
# 15 MB. What comes on top is dropped, which the next number shows, and replayed.
RECEIVE_HWM = 4000
# Missing batches up to which a gap is short: what a busy engine sends in some seconds, less than
# a MB. Until it is filled what is known grows stale, so its replay waits for nobody.
MAX_SHORT_GAP = 100
# Known blocks over those that fit from which on an engine's cache counts as known again after a
# loss: the last tenth may be blocks of other groups, or in no prefix at all.
REFILLED_RATIO = 0.9


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
    gaps: int = 0
    missed: int = 0  # batches that did not come by themselves, replayed or not
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
        turns: Shared with all other streams.
        capacity: Returns how many blocks fit the replica's GPU memory; None if it does not say.
        now: Monotonic seconds.
        on_standing: Called when one of the attributes below has changed.

    Attributes:
        is_synced: Whether it has caught up with what the replica remembers.
        is_complete: Whether nothing is missing: false from a loss on, until the cache is known to
            be empty, or as much of it is known as fits (docs/adr/0025).
        problem: Which endpoint cannot be used, and why; None where both can.
    """

    source: Source
    translator: Translator
    on_change: Callable[[Change], None]
    turns: Turns
    capacity: Callable[[], int | None]
    now: Callable[[], float]
    on_standing: Callable[[], None]
    counts: StreamCounts = field(default_factory=StreamCounts)
    is_synced: bool = False
    is_complete: bool = True
    problem: str | None = None
    _sequence: Sequence = field(default_factory=Sequence)
    _num_counted: int = 0  # the batches before are counted, where they are missing
    _num_lives: int = 0
    _stopped_at: tuple[int, bytes] | None = None

    async def run(self, context: Context) -> None:
        """Follow the stream until cancelled. ZMQ reconnects by itself.

        Starts with a replay from batch 0, as a late subscriber has missed what came before. Returns
        at once where the endpoint cannot be used; where it fails, nothing is known until it runs
        again.
        """
        try:
            await self._follow(context)
        except Exception:
            self.is_synced = False
            self.on_standing()
            self.restart()
            raise

    async def _follow(self, context: Context) -> None:
        with _socket(context, zmq.SUB, self.source.endpoint) as live:
            live.setsockopt(zmq.RCVHWM, RECEIVE_HWM)
            live.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
            if not self._connect(live, "endpoint", self.source.endpoint):
                return
            # The same socket without futures: one that holds "nothing waits" is a cycle with the
            # frames where that was raised, and keeps the last batch until the collector comes.
            at_once: zmq.Socket[bytes] = zmq.Socket.shadow(live.underlying)
            await self._replay(context)
            self.is_synced = True
            self.on_standing()
            quiet_s = QUIET_S
            while True:
                if await live.poll(quiet_s * 1000):
                    quiet_s = QUIET_S
                    await self._take(context, at_once)
                else:
                    await self._replay(context)
                    quiet_s = min(2 * quiet_s, MAX_QUIET_S)

    def restart(self) -> None:
        """Forget everything: the engine process is a new one, whatever its numbers say."""
        self._clear()
        self._sequence.restart()
        self._num_counted = 0
        self._stand(is_complete=True)

    def resync(self) -> None:
        """Forget everything that is known, and have the replica tell it again."""
        self.restart()

    def _connect(self, socket: zmq.asyncio.Socket, what: str, endpoint: str) -> bool:
        """Connect; False, and a problem, where no socket can: engines say any text."""
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            why = zmq.strerror(error.errno or 0)
        except UnicodeError:
            why = "no UTF-8 text"
        else:
            return True
        self.problem = f"its {what} {endpoint!r} cannot be used: {why}"
        return False

    async def _take(self, context: Context, live: zmq.Socket[bytes]) -> None:
        """Take what waits in the socket; a gap is filled before what comes after it."""
        await self.turns.run(self._take_waiting(live))
        if self._stopped_at is None:
            return
        (number, payload), self._stopped_at = self._stopped_at, None
        self.counts.gaps += 1
        self._count_missed(number)
        await self._replay(context, num_missing=number - self._sequence.expected)
        step = self._sequence.replayed(number)
        if step is Step.GAP:  # the replay did not reach up to here
            self._lose()
        if step is not Step.SKIP:
            await self.turns.run(self._apply(number, payload))

    def _take_waiting(self, live: zmq.Socket[bytes]) -> Iterator[None]:
        """Apply one batch after the other, until none waits or one is missing."""
        while (frames := _receive(live)) is not None:
            yield  # also where it says nothing new: after a replay, thousands may
            if len(frames) < 3:
                continue
            number, payload = int.from_bytes(frames[-2], "big"), frames[-1]
            step = self._sequence.live(number)
            if step is Step.RESTART:
                self.counts.restarts += 1
                self.restart()
                step = self._sequence.live(number)
            if step is Step.GAP:
                self._stopped_at = (number, payload)
                return
            if step is Step.APPLY:
                yield from self._apply(number, payload)

    async def _replay(self, context: Context, num_missing: int = 0) -> None:
        """Apply what the replica still has from the expected batch on; what is gone clears it."""
        endpoint = self.source.replay_endpoint
        if endpoint is None:
            return
        async with self._place(num_missing):
            is_done = False
            while not is_done:
                self.counts.replays += 1
                is_done = await self._replay_once(context, endpoint)

    def _place(self, num_missing: int) -> AbstractAsyncContextManager[None]:
        """Return what a replay holds, so that no more of them come at once than fit in memory."""
        if self._sequence.expected == 0:
            return self.turns.whole_replays
        return nullcontext() if num_missing <= MAX_SHORT_GAP else self.turns.long_replays

    async def _replay_once(self, context: Context, endpoint: str) -> bool:
        """Replay once; False where a part was lost on its way and can be had again."""
        is_first = True
        with _socket(context, zmq.DEALER, endpoint) as dealer:
            dealer.setsockopt(zmq.RCVHWM, 0)  # the replica drops what does not fit; it has a bound
            if not self._connect(dealer, "replay endpoint", endpoint):
                return True
            await dealer.send_multipart([b"", self._sequence.expected.to_bytes(8, "big")])
            try:
                async for number, payload in _replies(dealer):
                    step = self._sequence.replayed(number)
                    if step is Step.GAP and not is_first:
                        return False
                    if step is Step.GAP:  # older than the replica's buffer
                        self._count_missed(number)
                        self._lose()
                    if step is Step.SKIP:
                        await self.turns.run(iter(()))  # what has come is received without a wait
                    else:
                        is_first = False
                        await self.turns.run(self._apply(number, payload))
            except TimeoutError:
                pass  # nobody answers; the caller sees whether the gap is still there
        return True

    def _apply(self, number: int, payload: bytes) -> Iterator[None]:
        """Apply a batch step by step; a clear in between ends it."""
        self._sequence.applied(number)
        self.counts.batches += 1
        self.translator.begin_batch()
        life = self._num_lives
        try:
            events = batch_events(payload)
        except BatchUnreadable:
            self.counts.unreadable += 1
            return
        for event in events:
            yield  # also where nothing changes: reading took its time
            if self._num_lives != life:
                return
            if isinstance(event, Pause):
                continue
            if event is None:
                self.counts.skipped_events += 1
                continue
            for change in self.translator.apply(event, self.now()):
                self.on_change(change)
                yield
                if self._num_lives != life:
                    return
            self._look_at_completeness(event)

    def _count_missed(self, number: int) -> None:
        """Count the batches missing before one, each once: a gap may show again in its replay."""
        first = max(self._sequence.expected, self._num_counted)
        self.counts.missed += max(0, number - first)
        self._num_counted = max(self._num_counted, number)

    def _look_at_completeness(self, event: Event) -> None:
        if self.is_complete:
            return
        capacity = self.capacity()
        is_full = (
            capacity is not None and self.translator.num_gpu_blocks >= REFILLED_RATIO * capacity
        )
        self._stand(is_complete=is_full or isinstance(event, AllCleared))

    def _stand(self, *, is_complete: bool) -> None:
        if is_complete is not self.is_complete:
            self.is_complete = is_complete
            self.on_standing()

    def _lose(self) -> None:
        # Something may have been removed in the batches that nobody has any more.
        self.counts.losses += 1
        self._clear()
        self._stand(is_complete=False)

    def _clear(self) -> None:
        self._num_lives += 1
        self.on_change(self.translator.clear())


def _receive(live: zmq.Socket[bytes]) -> list[bytes] | None:
    """Return the frames of a message that waits; None where none does."""
    try:
        return live.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


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
def _socket(context: Context, kind: int, endpoint: str) -> Iterator[zmq.asyncio.Socket]:
    """Yield a socket that can be connected to an endpoint."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    # libzmq reads IPv6 addresses only if it is told to, and then takes a name for one, too, where
    # vLLM may listen on IPv4 alone.
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    try:
        yield socket
    finally:
        socket.close()
