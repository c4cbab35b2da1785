"""The public application without sockets: a client and replicas that are plain Python.

Everything between them is the gateway's own, wired by `gateway.wiring`. Every step of the client
and of a replica suspends, so that every await of the gateway can be cancelled.
"""

import asyncio
import contextlib
import itertools
import json
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

from gateway.api.asgi import ON_DISCONNECT
from gateway.certificates import Certificates
from gateway.config.models import GatewayConfig
from gateway.errors import ReplicaTimeout, ReplicaUnreachable, StreamBroken
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.reload import Reloader
from gateway.wiring import Wiring
from tests.support.books import CheckedBook, CountingObserver

ERRORS = {
    "refused": ReplicaUnreachable,
    "timeout": ReplicaTimeout,
    "broken": StreamBroken,
    "bug": RuntimeError,
}
EVENT_STREAM = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]


@dataclass
class Answer:
    """What a replica does with one request: a status and pieces, or a word of ERRORS instead.

    Attributes:
        ends_late: That the body is whole shows only after its last piece.
    """

    status: int | str = 200
    pieces: tuple[bytes | str, ...] = (b"data: 1\n\n", b"data: 2\n\n")
    stream: bool = True
    ends_late: bool = False

    @property
    def has_bug(self):
        return "bug" in (self.status, *self.pieces)


class FakeResponse:
    """An `UpstreamResponse` from an `Answer`."""

    def __init__(self, answer):
        self.status = answer.status
        self.headers = EVENT_STREAM if answer.stream else JSON
        self.closed = 0
        self._pieces = deque(answer.pieces)
        self._ends_late = answer.ends_late

    @property
    def ended(self):
        return not (self._pieces or self._ends_late)

    async def read(self):
        await asyncio.sleep(0)
        if not self._pieces:
            self._ends_late = False
            return b""
        piece = self._pieces.popleft()
        if isinstance(piece, str):
            raise ERRORS[piece](piece)
        return piece

    def close(self):
        self.closed += 1


class FakeTransport:
    """A `Transport` that gives the answers of a plan, one a try; the last one again and again."""

    def __init__(self):
        self.plan = [Answer()]
        self.tries = 0
        self.opened = []

    def begin(self, plan):
        self.plan, self.tries, self.opened = plan, 0, []

    async def request(self, origin, request, deadlines):
        answer = self.plan[min(self.tries, len(self.plan) - 1)]
        self.tries += 1
        await asyncio.sleep(0)
        if isinstance(answer.status, str):
            raise ERRORS[answer.status](answer.status)
        await asyncio.sleep(0)
        self.opened.append(FakeResponse(answer))
        return self.opened[-1]

    def forget(self, origin):
        pass

    def close(self):
        pass


class Bugs(logging.Handler):
    """Keeps what the log says about bugs of ours."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.told = []

    def emit(self, record):
        self.told.append(self.format(record))


class NoListeners:
    """In the place of the listeners: keeps the applications that it is given."""

    def __init__(self):
        self.public, self.admin = _Given(), _Given()

    def is_stopping(self):
        return False

    def configure(self, config):
        pass


class _Given:
    app = None

    def give(self, app):
        self.app = app


class AlwaysReady:
    """In the place of the prober: every replica is ready, whatever happens to it."""

    def __init__(self, open_transport, registry, *_):
        self._registry = registry

    async def run(self, replica):
        while True:
            replica.ejected_until = 0.0
            self._registry.probed_well(replica)
            await asyncio.sleep(0)


@dataclass
class Client:
    """One request as an ASGI server would hand it in; it leaves when told to.

    Attributes:
        registers: Whether the server offers to call back on a disconnect, as ours does.
        sent: The messages of the answer.
    """

    body: bytes
    headers: tuple = ()
    registers: bool = True
    sent: list[dict] = field(default_factory=list)
    _gone: asyncio.Event = field(default_factory=asyncio.Event)
    _on_leave: list = field(default_factory=lambda: [None])
    _parts: Iterator = None

    def scope(self, number):
        def register(callback):
            self._on_leave[0] = callback

        ids = [(b"x-request-id", b"id-%d" % number)]
        return {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"host", b"gw"), *ids, *self.headers],
            "client": ("10.0.0.1", 1),
            "scheme": "http",
            "state": {ON_DISCONNECT: register} if self.registers else {},
        }

    def leave(self):
        self._gone.set()
        if self._on_leave[0] is not None:
            self._on_leave[0]()

    async def receive(self):
        if self._parts is None:
            half = len(self.body) // 2
            self._parts = iter([(self.body[:half], True), (self.body[half:], False)])
        await asyncio.sleep(0)
        part = None if self._gone.is_set() else next(self._parts, None)
        if part is None:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part[0], "more_body": part[1]}

    async def send(self, message):
        self.sent.append(message)
        await asyncio.sleep(0)

    @property
    def status(self):
        return self.sent[0]["status"] if self.sent else 0

    @property
    def whole(self):
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    @property
    def answer(self):
        return b"".join(message.get("body", b"") for message in self.sent)


class Stepped:
    """Awaits a coroutine and acts whenever it is suspended for the n-th time."""

    def __init__(self, coroutine):
        self._coroutine = coroutine
        self._acts = {}
        self.steps = 0

    def at(self, acts):
        """Return itself, to be awaited; `acts[n]` is called at the n-th suspension."""
        self._acts = acts
        return self

    def __await__(self):
        inner, thrown = self._coroutine.__await__(), None
        while True:
            try:
                waits_for = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration:
                return
            self.steps += 1
            if act := self._acts.get(self.steps):
                act()
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - cancellation too goes inside
                thrown = error
            else:
                thrown = None


class Assembled:
    """A wired gateway, driven request by request."""

    def __init__(self, app, transport, book, observer, bugs):
        self.app = app
        self.bugs = bugs
        self.transport = transport
        self.book = book
        self.observer = observer
        self.admission = app._admission
        self._numbers = itertools.count()

    async def run(self, plan, client, acts=None, beside=None):
        """Serve one request and return after how many suspensions it ended.

        Args:
            plan: The replicas' answers, one a try.
            acts: What happens at which suspension: `cancel` or `leave`.
            beside: Another task that uses the gateway, to be over before the books are checked.
        """
        self.transport.begin(plan)
        number = next(self._numbers)
        request = self.app(client.scope(number), client.receive, client.send)

        async def serve():
            means = {"cancel": asyncio.current_task().cancel, "leave": client.leave}
            await stepped.at({step: means[name] for step, name in (acts or {}).items()})

        stepped = Stepped(request)
        task = asyncio.create_task(serve())
        # A deadline's own task would cancel too; a wait does not.
        done, _ = await asyncio.wait([task], timeout=10.0)
        assert done, "the request hangs"
        # A client that leaves is an ending like any other; only the server cancels for good.
        assert not task.cancelled() or "cancel" in (acts or {}).values()
        if not task.cancelled():
            task.result()
        if beside is not None:
            await beside
        await self._settled()
        self.book.check()
        assert self.observer.times_by_id.pop(f"id-{number}", 0) == 1, "told exactly once"
        assert self.observer.times_by_id == {}
        assert (self.admission.num_inside, self.admission.num_waiting) == (0, 0)
        assert all(response.closed for response in self.transport.opened)
        assert not self.bugs or any(answer.has_bug for answer in plan), self.bugs
        self.bugs.clear()
        return stepped.steps

    async def _settled(self):
        # Watchers that were cancelled need a turn to end.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def config_for(**changes):
    replicas = [{"url": f"http://127.0.0.1:{port}"} for port in (1, 2)]
    values = {
        "listen": {"host": "127.0.0.1", "port": 0},
        "admin": {"host": "127.0.0.1", "port": 0},
        "models": [{"name": "m", "replicas": replicas}],
        "retries": {"budget_ratio": 1.0},
        "logging": {"requests": False},
        **changes,
    }
    return GatewayConfig.model_validate(values)


@contextlib.asynccontextmanager
async def assembled(config):
    """Wire a gateway around a `FakeTransport`."""
    transport, book = FakeTransport(), CheckedBook()
    observers = []

    def observer(*args):
        observers.append(CountingObserver(*args))
        return observers[-1]

    bugs = Bugs()
    logger = logging.getLogger("test.assembled")
    logger.handlers, logger.propagate = [bugs], False
    patches = (
        mock.patch("gateway.wiring.HttpToolsTransport", return_value=transport),
        mock.patch("gateway.wiring.LoadBook", return_value=book),
        mock.patch("gateway.assembly.Observer", observer),
        mock.patch("gateway.replicas.following.Prober", AlwaysReady),
    )
    async with contextlib.AsyncExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        listeners, log, metrics = NoListeners(), EventLog(logger), Metrics()
        wiring = Wiring(config, listeners, Certificates(), metrics, log, stack)
        await wiring.start(Reloader(None, config, wiring.prepare, metrics, log))
        await asyncio.sleep(0)
        yield Assembled(listeners.public.app, transport, book, observers[0], bugs.told)
    # What the stack cancelled needs a turn to end.
    await asyncio.sleep(0)


def chat(**fields):
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()
