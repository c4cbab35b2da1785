"""One server that calls go to: its connections, its state, and how it comes back."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from gateway.redis.address import Address, Credentials, Endpoint
from gateway.redis.breaker import Breaker
from gateway.redis.connection import Argument, Connection, Reply, ask, connect
from gateway.redis.errors import CallRefused, LinkDown, LinkError, LinkTimeout

# A dead server is asked again 0.1 s later, when it may have been a blip, and then more and more
# rarely; once a second costs nobody anything and is soon enough.
MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0
# How often a node looks whether its server still answers.
WATCH_S = 0.1
# What the probe of a server that refuses writes leaves behind lives so long.
PROBE_TTL_MS = 1000
# Errors by which a server says that it takes no writes now, while it still answers reads.
WRITE_REFUSALS = frozenset({"READONLY", "OOM", "MISCONF", "NOREPLICAS"})


class LinkState(StrEnum):
    """What can be asked of a server, best first."""

    UP = "up"
    SLOW = "slow"  # calls that only read were late again and again: none is sent
    READ_ONLY = "read_only"  # it refuses writes: a replica, or its memory is full
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Dialing:
    """How connections are made.

    Attributes:
        address: Database and TLS.
        tls: None for plain TCP.
        connect_timeout_s: For the connection and the login together.
        reply_timeout_s: A reply that takes longer means that the connection is dead.
        fast_limit_s: Returns after how long calls that only read are worth nothing now.
        now: Monotonic seconds.
        rng: Spreads reconnections.
    """

    address: Address
    credentials: Credentials
    tls: ssl.SSLContext | None
    connect_timeout_s: float
    reply_timeout_s: float
    fast_limit_s: Callable[[], float]
    now: Callable[[], float]
    rng: Random

    async def dial(self, endpoint: Endpoint, on_lost: Callable[[], None]) -> Connection:
        """Return an open connection, logged in and at the right database.

        Raises:
            LinkError: There is none.
        """
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                connection = await connect(endpoint, self.credentials, self.tls, on_lost, self.now)
                if self.address.database:
                    try:
                        await ask(connection, "SELECT", self.address.database)
                    except BaseException:
                        connection.close()
                        raise
        except TimeoutError:
            raise LinkTimeout from None
        except (OSError, UnicodeError) as error:  # TLS errors too; a host that is no name
            raise LinkDown("unreachable", str(error)) from error
        return connection


class Node:
    """A server, kept connected.

    Args:
        resolve: Says where it is; asked before every new connection.
        dialing: How connections are made.
        probe_key: A key that it would take a write to.
        on_change: Told of every change of state, with the reason.
    """

    def __init__(
        self,
        resolve: Callable[[], Awaitable[Endpoint]],
        dialing: Dialing,
        probe_key: Callable[[], str],
        on_change: Callable[[Node, LinkState, str], None],
    ) -> None:
        self._resolve = resolve
        self._dialing = dialing
        self._probe_key = probe_key
        self._on_change = on_change
        self._fast: Connection | None = None
        self._bulk: Connection | None = None
        self._breaker = Breaker()
        self._refuses_writes = False
        self._trouble = asyncio.Event()
        self._told: LinkState | None = None
        self._told_reason = ""
        self.endpoint: Endpoint | None = None
        """Where it was found last."""
        self.run_id: str | None = None
        """Of the server's process that was found there. None where it does not say, and of a
        replica: its data is another server's, also once it is a primary again."""

    @property
    def state(self) -> LinkState:
        """What can be asked of it now."""
        if self._bulk is None:
            return LinkState.DOWN
        if self._refuses_writes:
            return LinkState.READ_ONLY
        return LinkState.SLOW if self._breaker.is_open else LinkState.UP

    def send_all(
        self, commands: Sequence[Sequence[Argument]], *, writes: bool
    ) -> list[asyncio.Future[Reply | LinkError]]:
        """Send commands; their replies come as values, errors too.

        Raises:
            LinkDown: They were not sent.
        """
        connection = self._bulk if writes else self._fast
        if connection is None:
            raise LinkDown("down")
        if self._refuses_writes if writes else self._breaker.is_open:
            raise LinkDown("read_only" if writes else "slow")
        return connection.send_all(commands)

    def note(self, reply: Reply | LinkError, *, writes: bool) -> None:
        """Learn from what became of a call."""
        if isinstance(reply, CallRefused):
            # Scripts report what a command inside them was told behind a word of their own.
            if any(code in str(reply) for code in WRITE_REFUSALS):
                self._refuses_writes = True
                if "READONLY" in str(reply):
                    self.run_id = None
                self._tell(reply.reason)
            elif reply.code in ("LOADING", "MASTERDOWN", "NOAUTH"):
                self._drop(reply.reason)
        elif writes:
            return
        elif not isinstance(reply, LinkTimeout):
            self._breaker.succeeded()
        elif self._breaker.late(self._dialing.now()):
            self._tell("late")

    async def run(self) -> None:
        """Keep it connected until cancelled."""
        backoff_s = MIN_BACKOFF_S
        try:
            while True:
                if self._is_well():
                    backoff_s = MIN_BACKOFF_S
                    await self._watch()
                    continue
                reason = await self._mend()
                self._tell(reason)
                if not self._is_well():
                    await asyncio.sleep(backoff_s * self._dialing.rng.uniform(0.75, 1.0))
                    backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        finally:
            self._close()

    def _is_well(self) -> bool:
        return self.state is LinkState.UP

    async def _watch(self) -> None:
        """Return when something is wrong, or some time later."""
        self._trouble.clear()
        try:
            async with asyncio.timeout(WATCH_S):
                await self._trouble.wait()
        except TimeoutError:
            self._check_silence()

    def _check_silence(self) -> None:
        limit_s = self._dialing.reply_timeout_s
        if any(lane.waiting_s() > limit_s for lane in (self._fast, self._bulk) if lane):
            self._drop("silent")

    async def _mend(self) -> str:
        """Try to come to a better state; return why it is what it is then."""
        self._check_silence()
        try:
            if self._bulk is None or self._refuses_writes:
                await self._renew()
            async with asyncio.timeout(self._dialing.reply_timeout_s):
                return await self._measure()
        except TimeoutError:
            self._drop("silent")
            return "silent"
        except LinkError as error:
            if isinstance(error, CallRefused) and error.code != "LOADING":
                self._tell_cause(error.reason)
            return error.reason

    async def _renew(self) -> None:
        """Connect anew, where the server is now; a server that refuses writes keeps its reads.

        Raises:
            LinkError: Nobody is there, or who is there takes no writes either.
        """
        endpoint = await self._resolve()
        lanes: list[Connection] = []
        try:
            lanes.append(await self._dialing.dial(endpoint, self._lost))
            lanes.append(await self._dialing.dial(endpoint, self._lost))
            async with asyncio.timeout(self._dialing.reply_timeout_s):
                await ask(lanes[0], "PING")
                run_id = await _run_id(lanes[0])
                refused = await _why_no_writes(lanes[1], self._probe_key())
        except TimeoutError:
            _close_all(lanes)
            raise LinkTimeout from None
        except BaseException:
            _close_all(lanes)
            raise
        if not all(lane.is_open for lane in lanes):
            # It broke while it was not ours yet: nobody would notice that later.
            _close_all(lanes)
            raise LinkDown("lost")
        if refused and self._bulk is not None and self._bulk.is_open:
            _close_all(lanes)
            raise refused
        old = [lane for lane in (self._fast, self._bulk) if lane is not None]
        self._fast, self._bulk = lanes
        self.endpoint, self._refuses_writes = endpoint, refused is not None
        self.run_id = None if refused is not None and refused.code == "READONLY" else run_id
        _close_all(old)
        if refused:
            raise refused

    async def _measure(self) -> str:
        """Close the breaker if the server answers in time."""
        if self._fast is None:
            return "lost"
        started = self._dialing.now()
        await ask(self._fast, "PING")
        if self._dialing.now() - started > self._dialing.fast_limit_s():
            self._breaker.is_open = True
            return "late"
        self._breaker.close()
        return "connected"

    def _lost(self) -> None:
        lanes = (self._fast, self._bulk)
        if any(lane is not None and not lane.is_open for lane in lanes):
            self._drop("lost")

    def _drop(self, reason: str) -> None:
        self._close()
        self._tell(reason)

    def _close(self) -> None:
        lanes = [lane for lane in (self._fast, self._bulk) if lane is not None]
        self._fast = self._bulk = None
        _close_all(lanes)

    def _tell_cause(self, reason: str) -> None:
        """Tell why a server that is there does not let us in: only people can mend that."""
        if self._told is self.state and reason != self._told_reason:
            self._told = None
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        state = self.state
        if state is not self._told:
            self._told, self._told_reason = state, reason
            self._on_change(self, state, reason)
        if state is not LinkState.UP:
            self._trouble.set()


async def _run_id(connection: Connection) -> str | None:
    try:
        told = await ask(connection, "INFO", "server")
    except CallRefused:  # not allowed to ask
        return None
    found = re.search(rb"^run_id:(\w+)", told, re.MULTILINE)
    return found[1].decode() if found else None


async def _why_no_writes(connection: Connection, key: str) -> CallRefused | None:
    try:
        await ask(connection, "SET", key, "", "PX", PROBE_TTL_MS)
    except CallRefused as error:
        # MOVED: the slot is somewhere else by now, which says nothing about this server.
        return error if error.code in WRITE_REFUSALS else None
    return None


def _close_all(lanes: Sequence[Connection]) -> None:
    for lane in lanes:
        lane.close()
