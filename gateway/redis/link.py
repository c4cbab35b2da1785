"""The way to Redis: calls of scripts, with deadlines, to the node that has their keys.

What a caller gets is a reply or a `LinkError`, within its deadline. Nothing here tries again
behind its back but where the server itself says how: a script that it does not know by its digest
yet, and slots that have moved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial

from gateway.background import Background, Work
from gateway.observability.logging import EventLog
from gateway.observability.redis_metrics import RedisMetrics
from gateway.redis.address import Kind
from gateway.redis.connection import Argument, Reply
from gateway.redis.errors import CallRefused, LinkDown, LinkError, LinkTimeout
from gateway.redis.node import Dialing, LinkState, Node
from gateway.redis.placing import Cluster, Fixed, Placing
from gateway.redis.scripts import Script
from routing.value import value

# Slots that move are told one hop at a time; two hops are a cluster that is still settling.
MAX_REDIRECTS = 3
# During the move of a slot some of its keys are here and some there; a key takes about so long.
TRY_AGAIN_AFTER_S = 0.001


@value
class Call:
    """One run of a script.

    Attributes:
        keys: At least one; in a cluster all of one slot.
    """

    script: Script
    keys: Sequence[bytes]
    args: Sequence[Argument]


class RedisLink:
    """Calls scripts on the servers that an address names. Made inside the running event loop.

    Args:
        dialing: Where they are, and how connections to them are made.
        namespace: Of all keys.
        metrics: Of the link.
        log: Gets one line for each change of a server's state.
    """

    def __init__(
        self, dialing: Dialing, namespace: str, metrics: RedisMetrics, log: EventLog
    ) -> None:
        self._dialing = dialing
        self._metrics = metrics
        self._log = log
        self._name_by_node: dict[Node | None, str] = {}
        self._task: asyncio.Task[None] | None = None
        kind = dialing.address.kind
        self._placing: Placing = (
            Cluster(dialing, namespace, self._note_change, self._forget)
            if kind is Kind.CLUSTER
            else Fixed(dialing, namespace, self._note_change)
        )
        self.is_cluster = kind is Kind.CLUSTER
        self.namespace = namespace
        self._run_id_by_node: dict[Node | None, str | None] = {}
        self.num_met = 0
        """Runs of servers that were met so far. The next one may be a replica that was behind, or
        the same server with what it saved before: what was acknowledged is undone."""

    @property
    def state(self) -> LinkState:
        """What can be asked, of the worst server."""
        return self._placing.state

    def start(self, background: Background) -> None:
        """Keep connected from now on; nobody has to be there yet."""
        run = partial(self._placing.run, background)
        self._task = background.start(Work.REDIS, run)

    def close(self) -> None:
        """Close all connections."""
        if self._task is not None:
            self._task.cancel()

    async def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[Argument], deadline_s: float
    ) -> Reply:
        """Run one script.

        Args:
            script: What to run.
            keys: At least one; in a cluster all of one slot.
            args: Its arguments.
            deadline_s: Seconds to wait for the reply.

        Returns:
            bytes, int, None or a list of these.

        Raises:
            LinkError: There is no reply.
        """
        (reply,) = await self.call_many([Call(script, keys, args)], deadline_s)
        if isinstance(reply, LinkError):
            raise reply
        return reply

    async def call_many(self, calls: Sequence[Call], deadline_s: float) -> list[Reply | LinkError]:
        """Run many scripts, at all their nodes at once.

        Args:
            calls: What to run.
            deadline_s: Seconds to wait for all of them together.

        Returns:
            By call its reply, or the error as a value.
        """
        started = self._dialing.now()
        sent = self._send(calls)
        replies: list[Reply | LinkError] = [LinkTimeout()] * len(calls)
        try:
            async with asyncio.timeout(deadline_s):
                for number, (call, one) in enumerate(zip(calls, sent, strict=True)):
                    replies[number] = await self._reply(call, one)
        except TimeoutError:
            await _take_late(sent, replies)
        # A caller that leaves before says nothing about the server.
        self._observe(calls, sent, replies, self._dialing.now() - started)
        return replies

    def _send(self, calls: Sequence[Call]) -> list[_Sent]:
        """Send calls, those of one node at once."""
        numbers_by_way: dict[tuple[Node | None, bool], list[int]] = {}
        for number, call in enumerate(calls):
            way = (self._placing.node_of(call.keys[0]), call.script.writes)
            numbers_by_way.setdefault(way, []).append(number)
        sent: list[_Sent] = [_NOWHERE] * len(calls)
        for (node, writes), numbers in numbers_by_way.items():
            if node is None:
                continue
            commands = [_evalsha(calls[number]) for number in numbers]
            try:
                futures = node.send_all(commands, writes=writes)
            except LinkDown as error:
                for number in numbers:
                    sent[number] = (node, error)
            else:
                for number, future in zip(numbers, futures, strict=True):
                    sent[number] = (node, future)
        return sent

    async def _reply(self, call: Call, sent: _Sent) -> Reply | LinkError:
        """Wait for a call's reply, and follow where the server points to."""
        node, waited = sent
        if isinstance(waited, LinkError) or node is None:
            return waited
        # A caller that gives up does not cancel it: see `_take_late`.
        reply = await asyncio.shield(waited)
        for _ in range(MAX_REDIRECTS):
            if not isinstance(reply, CallRefused):
                return reply
            try:
                again = await self._again(call, node, reply)
            except LinkError as error:
                return error
            if again is None:
                return reply
            node, waited = again
            reply = await waited
        return reply

    async def _again(self, call: Call, node: Node, why: CallRefused) -> _Underway | None:
        """Send a call again, as the server's answer says; None where it says nothing of that."""
        writes = call.script.writes
        if why.code == "NOSCRIPT":
            return node, node.send_all([_eval(call)], writes=writes)[0]
        if why.code == "TRYAGAIN":
            await asyncio.sleep(TRY_AGAIN_AFTER_S)
            return node, node.send_all([_evalsha(call)], writes=writes)[0]
        if why.code not in ("MOVED", "ASK"):
            return None
        target = self._placing.redirected(node, why)
        if target is None:
            return None
        if why.code == "ASK":
            return target, target.send_all([["ASKING"], _eval(call)], writes=writes)[1]
        return target, target.send_all([_evalsha(call)], writes=writes)[0]

    def _observe(
        self,
        calls: Sequence[Call],
        sent: Sequence[_Sent],
        replies: Sequence[Reply | LinkError],
        took_s: float,
    ) -> None:
        for name, number in Counter(call.script.name for call in calls).items():
            counted = self._metrics.of_script(name)
            counted.calls.inc(number)
            counted.seconds.observe(took_s)
        for call, (node, _), reply in zip(calls, sent, replies, strict=True):
            if isinstance(reply, LinkError):
                self._metrics.failures.labels(call.script.name, reply.reason).inc()
            if node is not None and not isinstance(reply, LinkDown):
                node.note(reply, writes=call.script.writes)

    def _note_change(self, node: Node | None, state: LinkState, reason: str) -> None:
        found = node.endpoint if node is not None else None
        name = str(found or self._dialing.address.endpoints[0])
        say = self._log.info if state is LinkState.UP else self._log.warning
        say("redis_state", node=name, state=state.value, reason=reason)
        if self._name_by_node.get(node) != name:  # the sentinels name another server now
            self._forget(node)
            self._name_by_node[node] = name
        if node is not None and state is not LinkState.DOWN:
            self._meet(node)
        for each in LinkState:
            self._metrics.state.labels(name, each.value).set(each is state)

    def _meet(self, node: Node) -> None:
        """Count a server that is not known to be the one that was there before."""
        known = self._run_id_by_node.get(node)
        if known is None or known != node.run_id:
            self.num_met += 1
        self._run_id_by_node[node] = node.run_id

    def _forget(self, node: Node | None) -> None:
        """Drop the gauge of a server that is not asked any more."""
        self._run_id_by_node.pop(node, None)
        name = self._name_by_node.pop(node, None)
        if name is not None:
            for each in LinkState:
                self._metrics.state.remove(name, each.value)


async def _take_late(sent: Sequence[_Sent], replies: list[Reply | LinkError]) -> None:
    """Take the replies that came in time.

    A loop that was busy for longer than the deadline finds both, the deadline and the replies: one
    more turn of it, without a wait, reads what the sockets have.
    """
    await asyncio.sleep(0)
    for number, (_, waited) in enumerate(sent):
        is_open = isinstance(replies[number], LinkTimeout)
        if is_open and isinstance(waited, asyncio.Future) and waited.done():
            replies[number] = LinkTimeout() if waited.cancelled() else waited.result()


_Underway = tuple[Node, "asyncio.Future[Reply | LinkError]"]
_Sent = tuple[Node | None, "asyncio.Future[Reply | LinkError] | LinkError"]
_NOWHERE: _Sent = (None, LinkDown("down"))


def _evalsha(call: Call) -> list[Argument]:
    return ["EVALSHA", call.script.digest, len(call.keys), *call.keys, *call.args]


def _eval(call: Call) -> list[Argument]:
    return ["EVAL", call.script.text, len(call.keys), *call.keys, *call.args]
