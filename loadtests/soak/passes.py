"""One pass: a gateway with some limit on open files, and the streams through it."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.bench import gateways, native
from loadtests.bench.native import Programs
from loadtests.bench.scenarios import PATH
from loadtests.children import Child, ChildError, Children
from loadtests.programs import gateway_argv
from loadtests.soak.hold import Held, hold, idle_cores
from loadtests.soak.liveness import Liveness, Probes
from loadtests.usage import cpu_s, tree

# A fast reader's pace, and vLLM's on a busy GPU.
EVENT_INTERVAL_S: Final = 0.05
# The part of a stream's length over which streams are opened: 2 s of 20. All at once would measure
# the burst and not the streams.
_RAMP_RATIO: Final = 0.1
# A gateway that cannot keep up makes streams late; this is how late before we stop waiting.
_PATIENCE_S: Final = 30.0
# Idle connections beyond the limit on open files.
_SURPLUS: Final = 200


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    Attributes:
        streams: At once.
        seconds: Length of each.
    """

    streams: int
    seconds: float

    @property
    def events(self) -> int:
        """Events of one stream."""
        return round(self.seconds / EVENT_INTERVAL_S)

    def write_body(self, folder: Path) -> Path:
        """Write the request's body for the mock replicas and return its path."""
        body = {
            "model": "mock",
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": self.events,
            "stream": True,
            "seed": round(EVENT_INTERVAL_S * 1e6),
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "body.json"
        path.write_text(json.dumps(body, separators=(",", ":")), encoding="utf-8")
        return path


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass found.

    Attributes:
        open_files: The gateway's limit.
        streams: What the client counted; the head of native/streams.c explains it.
        public: Liveness on the listener that the streams use.
        admin: Liveness on the other one.
        cpu_cores: CPU of the gateway during the streams, in cores.
        cpu_us_per_event: The same for each event that reached a client.
        idle_cores: CPU of the gateway after the streams, in cores.
        held: Idle connections beyond the limit; None where the limit is out of reach.
        survived: The process is the same, and answers.
    """

    open_files: int
    streams: dict[str, Any]
    public: Liveness
    admin: Liveness
    cpu_cores: float
    cpu_us_per_event: float | None
    idle_cores: float
    held: Held | None
    survived: bool


def run(open_files: int, load: Load, programs: Programs, folder: Path) -> Pass:
    """Run the streams through a fresh gateway.

    Args:
        open_files: The gateway's limit; connections beyond it are tried where streams need more.
        load: The streams.
        programs: Compiled.
        folder: For logs and the body.

    Raises:
        ChildError: Something did not start.
        NativeError: The client failed.
    """
    with Children(gateways.environment(()), folder) as mocks:
        mock_urls = gateways.start_mocks(mocks, programs)
        with Children(gateways.environment(mock_urls), folder) as children:
            gateway = children.start(f"gateway-{open_files}", _limited_argv(open_files))
            ready = gateway.wait_ready()
            port = gateways.port_of(ready["url"])
            gateways.wait_answering(gateway, port)
            admin_port = gateways.port_of(ready["admin_url"])
            return _measure(gateway, (port, admin_port), open_files, load, programs, folder)


def _measure(
    gateway: Child,
    ports: tuple[int, int],
    open_files: int,
    load: Load,
    programs: Programs,
    folder: Path,
) -> Pass:
    port, admin_port = ports
    pids = tree(gateway.pid)
    before = cpu_s(pids)
    with Probes(port) as public, Probes(admin_port) as admin:
        streams = _stream(port, load, programs, folder)
    used_s = cpu_s(pids) - before
    idle = idle_cores(gateway.pid)
    scarce = 2 * load.streams > open_files
    held = hold(port, gateway.pid, open_files + _SURPLUS) if scarce else None
    return Pass(
        open_files=open_files,
        streams=streams,
        public=public.found(),
        admin=admin.found(),
        cpu_cores=used_s / streams["seconds"],
        cpu_us_per_event=1e6 * used_s / streams["events"] if streams["events"] else None,
        idle_cores=idle,
        held=held,
        survived=_answers(gateway, port),
    )


def _stream(port: int, load: Load, programs: Programs, folder: Path) -> dict[str, Any]:
    ramp_s = _RAMP_RATIO * load.seconds
    limit_s = ramp_s + load.seconds + _PATIENCE_S
    shape = [load.streams, load.events, EVENT_INTERVAL_S, ramp_s, limit_s]
    return native.run(programs.streams, [port, PATH, load.write_body(folder), *shape])


def _answers(gateway: Child, port: int) -> bool:
    try:
        gateways.wait_answering(gateway, port)
    except ChildError:
        return False
    return True


def _limited_argv(open_files: int) -> list[str]:
    command = shlex.join(gateway_argv(gateways.CONFIG / "round_robin.yaml"))
    return ["/bin/sh", "-c", f"ulimit -n {open_files} && exec {command}"]
