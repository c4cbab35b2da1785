"""One gateway and its replicas in a thread with a loop of their own, for thousands of examples.

uvloop runs the thread as it runs `warmroute serve`. Each request names the script that the replica
plays for it in an `x-plan` header.
"""

import asyncio
import contextlib
import itertools
import logging
import threading
from collections import Counter
from unittest import mock

import httpx
import uvloop

from gateway.config.load import config_from_flags
from gateway.observability.logging import _is_news
from tests.support.books import CheckedBook
from tests.support.clients import RawClient
from tests.support.gateways import all_ready, quick, running
from tests.support.replicas import ScriptedReplica, until

# Longer than any single example may take; only a hang meets it.
PLAY_DEADLINE_S = 60.0


class _Errors(logging.Handler):
    """Keeps what asyncio and uvicorn report as errors: a bug of ours that nobody caught."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.addFilter(_is_news)
        self.told = []

    def emit(self, record):
        self.told.append(self.format(record))


class Stage:
    """Runs coroutines beside a gateway with two replicas: `stage.play(coroutine_function, ...)`.

    Attributes:
        book: The gateway's load book.
        replicas: Two scripted ones, of the same model.
        scripts: What replicas do, by the request's `x-plan`; "" where it has none.
    """

    def __init__(self, **changes):
        self._changes = changes
        self._numbers = itertools.count()
        self._loop = None
        self._up = threading.Event()
        self._down = None
        self._failure = None
        self._baseline = set()
        self.scripts = {}
        self.book = CheckedBook()
        self.replicas = []
        self.gateway = None
        self._errors = _Errors()
        self._thread = threading.Thread(target=self._run, name="stage")

    def __enter__(self):
        self._thread.start()
        self._up.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._down.set)
        self._thread.join()

    def play(self, coroutine_function, *args):
        """Run a coroutine in the stage's loop and return its result."""
        coroutine = coroutine_function(self, *args)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PLAY_DEADLINE_S)

    def new_plan(self, script):
        """Return the name of a script, for a request's `x-plan`."""
        name = f"plan-{next(self._numbers)}"
        self.scripts[name] = script
        return name

    async def connect(self, **options):
        return await RawClient.open(self.gateway.gateway.url, **options)

    async def quiet(self):
        """Wait until the gateway serves nothing: all connections are over, all tasks ended."""
        for _ in range(2):  # whatever was sent before this was accepted before it
            async with httpx.AsyncClient(base_url=self.gateway.gateway.url) as client:
                assert (await client.get("/livez")).status_code == 200
        await until(self._nothing_runs, "the end of all requests")

    def _nothing_runs(self):
        current = asyncio.current_task()
        names = {
            task.get_coro().__qualname__ for task in asyncio.all_tasks() if task is not current
        }
        return "RequestResponseCycle.run_asgi" not in names

    def told(self):
        """Return how often each request id was logged since the last call; no bug was."""
        counts = Counter(line["request_id"] for line in self.gateway.requests())
        bugs = [line for line in self.gateway.log if line["event"] == "internal_error"]
        bugs += [self._errors.told.pop() for _ in list(self._errors.told)]
        self.gateway.log.clear()
        assert bugs == []
        return counts

    def _run(self):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self):
        self._loop, self._down = asyncio.get_running_loop(), asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            for name in ("asyncio", "uvicorn.error"):
                logging.getLogger(name).addHandler(self._errors)
                stack.callback(logging.getLogger(name).removeHandler, self._errors)
            try:
                await self._start(stack)
            except BaseException as error:  # noqa: BLE001 - raised where the stage is entered
                self._failure = error
            self._up.set()
            if self._failure is None:
                await self._down.wait()

    async def _start(self, stack):
        for _ in range(2):
            replica = await ScriptedReplica(self._script).start()
            stack.push_async_callback(replica.stop)
            self.replicas.append(replica)
        config = config_from_flags([replica.url for replica in self.replicas])
        with mock.patch("gateway.wiring.LoadBook", return_value=self.book):
            self.gateway = await stack.enter_async_context(running(quick(config, **self._changes)))
            await until(lambda: all_ready(self.gateway), "readiness")

    async def _script(self, conversation):
        plan = conversation.request.header(b"x-plan") or b""
        await self.scripts[plan.decode()](conversation)
