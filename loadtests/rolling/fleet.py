"""The processes that come and go: simulated replicas, a file that lists them, and gateways."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadtests.children import START_DEADLINE_S, Child, ChildError, Children
from loadtests.demo.fleet import MODEL, TOKENIZER
from loadtests.programs import fetch, simulator_argv, start_gateway

# A replica that drains, a gateway that learns of it: seconds, on a machine that is busy.
DEADLINE_S: Final = 30.0
_POLL_S: Final = 0.02
_TIMEOUT_S: Final = 5.0
# Longer than a balancer needs to see /readyz fail, as an operator would set it.
_DRAIN_NOTICE_S: Final = 1.0


@dataclass(slots=True)
class Replica:
    """One simulator."""

    name: str
    child: Child
    url: str = ""


@dataclass(slots=True)
class Gateway:
    """One gateway."""

    child: Child
    url: str = ""
    admin_url: str = ""

    async def status(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what the gateway says of its replicas, by name."""
        told = json.loads(await asyncio.to_thread(fetch, f"{self.admin_url}/admin/status"))
        return {one["id"]: one for model in told["models"] for one in model["replicas"]}

    async def is_ready(self) -> bool:
        """Return whether /readyz says so."""
        try:
            await asyncio.to_thread(fetch, f"{self.url}/readyz")
        except OSError:  # an HTTPError for a 503, too
            return False
        return True

    def requests(self) -> Iterator[Mapping[str, Any]]:
        """Yield the log's lines on requests."""
        for line in self.child.log.read_text("utf-8", errors="replace").splitlines():
            if line.startswith("{") and '"event": "request"' in line:
                yield json.loads(line)


@dataclass(slots=True)
class Fleet:
    """Starts and stops processes; the list of replicas is a file, as a platform would write it.

    Attributes:
        children: Ends them all; the list lies in its folder.
        replicas: Those in the list, in order.
    """

    children: Children
    replicas: list[Replica] = field(default_factory=list)
    _num_started: int = 0

    async def start_replicas(self, count: int) -> None:
        """Start replicas and list them once all serve.

        Raises:
            ChildError: One did not start.
        """
        started = [self._start_replica(port=0) for _ in range(count)]
        self.replicas += [await self._ready(replica) for replica in started]
        self.write_list()

    async def start_replica(self, port: int = 0) -> Replica:
        """Start one replica, not yet listed, and return it when it serves.

        Raises:
            ChildError: It did not start.
        """
        return await self._ready(self._start_replica(port))

    async def start_gateway(self) -> Gateway:
        """Start a gateway over the list and return it when it is ready.

        Raises:
            ChildError: It did not start, or is not ready in time.
        """
        self._num_started += 1
        name = f"gateway-{self._num_started}"
        gateway = Gateway(start_gateway(self.children, name, self._config()))
        ready = await _ready_line(gateway.child)
        gateway.url, gateway.admin_url = ready["url"], ready["admin_url"]
        await until(gateway.is_ready, f"{gateway.child.name} is ready")
        return gateway

    def write_list(self) -> None:
        """Put the list of replicas in the place of the old one."""
        found = [{"url": replica.url, "name": replica.name} for replica in self.replicas]
        new = self.children.folder / "replicas.new"
        new.write_text(json.dumps(found), encoding="utf-8")
        new.rename(self._list)

    @property
    def _list(self) -> Path:
        return self.children.folder / "replicas.json"

    def _start_replica(self, port: int) -> Replica:
        self._num_started += 1
        name = f"replica-{self._num_started}"
        argv = simulator_argv(port=port, model=MODEL, tokenizer=TOKENIZER)
        return Replica(name, self.children.start(name, argv))

    async def _ready(self, replica: Replica) -> Replica:
        replica.url = (await _ready_line(replica.child))["url"]
        return replica

    def _config(self) -> Mapping[str, Any]:
        discovery = [{"kind": "file", "path": str(self._list)}]
        model = {"name": MODEL, "tokenizer": str(TOKENIZER), "discovery": discovery}
        return {"models": [model], "timeouts": {"drain_notice_s": _DRAIN_NOTICE_S}}


async def is_idle(replica: Replica) -> bool:
    """Return whether a replica has neither running nor waiting requests, as it says itself."""
    page = (await asyncio.to_thread(fetch, f"{replica.url}/metrics")).decode()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    lines = [line for line in page.splitlines() if line.startswith(names)]
    return bool(lines) and all(float(line.rpartition(" ")[2]) == 0.0 for line in lines)


async def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> float:
    """Wait until a condition, plain or a coroutine's, holds.

    Returns:
        Seconds waited.

    Raises:
        ChildError: It did not come true in time.
    """
    started = time.monotonic()
    while time.monotonic() < started + deadline_s:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return time.monotonic() - started
        await asyncio.sleep(_POLL_S)
    raise ChildError(f"not within {deadline_s:g} s: {what}")


async def exit_code(child: Child, deadline_s: float = DEADLINE_S) -> int | None:
    """Wait for a process to end, and return its code."""
    await until(lambda: child.exit_code is not None, f"{child.name} ends", deadline_s)
    return child.exit_code


async def _ready_line(child: Child) -> Mapping[str, Any]:
    def ready_or_ended() -> bool:
        return child.ready_line() is not None or child.exit_code is not None

    await until(ready_or_ended, f"{child.name} serves; see {child.log}", START_DEADLINE_S)
    return child.wait_ready(_TIMEOUT_S)
