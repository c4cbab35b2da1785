"""Scripted engines that say of themselves what a test wants, and a balancer in front of some."""

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from dataclasses import dataclass, field

from tests.support.api_replicas import says_hello
from tests.support.replicas import BACKLOG, ScriptedReplica

_numbers = itertools.count(1)
PAGES = ("/health", "/metrics", "/v1/models", "/version", "/kv_event_sources")


@dataclass
class Engine(ScriptedReplica):
    """An engine's pages, from plain attributes; a page whose name is in `hangs` never comes.

    Attributes:
        statuses: Answers of another status, by path.
        asked: How often each page was asked for.
    """

    script: object = says_hello
    started_at: float = 0.0
    block_size: int = 16
    num_blocks: int = 1000
    ranks: tuple[int, ...] = (0,)
    models: list[dict] = field(
        default_factory=lambda: [{"id": "m", "root": "/weights/m", "max_model_len": 4096}]
    )
    sources: dict = field(default_factory=dict)
    key: str | None = None
    hangs: set[str] = field(default_factory=set)
    statuses: dict[str, bytes] = field(default_factory=dict)
    asked: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.restart()

    def restart(self):
        """Be another process from now on."""
        self.started_at = 1.7e9 + next(_numbers)

    async def _probe(self, conversation):
        path = conversation.request.line.split()[1].decode()
        self.asked[path] += 1
        authorization = conversation.request.header(b"authorization")
        if self.key is not None and authorization != f"Bearer {self.key}".encode():
            await conversation.answer(b"", status=b"401 Unauthorized")
        elif path in self.hangs:
            await conversation.client_left()
        elif path in self.statuses:
            await conversation.answer(b"", status=self.statuses[path])
        else:
            await conversation.answer(self._page(path))

    def _page(self, path):
        pages = {
            "/health": lambda: "",
            "/metrics": self._metrics,
            "/v1/models": lambda: json.dumps({"object": "list", "data": self.models}),
            "/version": lambda: '{"version":"0.32.0"}',
            "/kv_event_sources": lambda: json.dumps(self.sources),
        }
        return pages[path]().encode()

    def _metrics(self):
        lines = [f"process_start_time_seconds {self.started_at}"]
        for rank in self.ranks:
            labels = f'block_size="{self.block_size}",engine="{rank}"'
            labels += f',num_gpu_blocks="{self.num_blocks}",prefix_caching_hash_algo="sha256"'
            lines.append(f"vllm:cache_config_info{{{labels}}} 1.0")
        return "\n".join(lines) + "\n"


@dataclass
class Balancer:
    """Forwards each new TCP connection to the next of several replicas."""

    replicas: list
    server: asyncio.Server | None = None
    tasks: set = field(default_factory=set)

    def use(self, *replicas):
        """Forward to these from now on."""
        self._turns = itertools.cycle(replicas)

    async def start(self):
        self._turns = itertools.cycle(self.replicas)
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=BACKLOG)
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    @property
    def name(self):
        return self.url.removeprefix("http://")

    async def stop(self):
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.server.wait_closed()

    async def _serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        host, port = next(self._turns).url.removeprefix("http://").split(":")
        try:
            there, back = await asyncio.open_connection(host, int(port))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(reader, back))
                    group.create_task(_pump(there, writer))
            finally:
                back.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(asyncio.current_task())
            writer.close()


async def _pump(source, sink):
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
