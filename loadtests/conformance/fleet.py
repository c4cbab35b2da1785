"""Two real replicas and a gateway over them, with a cuttable way for the events of one."""

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from loadtests import programs
from loadtests.children import Child, ChildError, Children, wait_until
from loadtests.conformance.engine import (
    BLOCK_SIZE,
    STOP_DEADLINE_S,
    Engine,
    cached_flags,
    environment,
    started,
)
from loadtests.conformance.environment import Environment
from loadtests.conformance.observe import READY_DEADLINE_S, Observer, observed_gateway
from loadtests.conformance.traffic import MODEL
from loadtests.programs import free_ports

TEMPLATE: Final = Path(__file__).with_name("chat.jinja")
# 5,120 tokens: three long documents fill it.
FEW_BLOCKS: Final = 160


@dataclass(slots=True)
class Fleet:
    """The running fleet.

    Attributes:
        engines: Replicas "a" and "b" by name.
        processes: Theirs.
        observer: Asks through the gateway.
    """

    engines: dict[str, Engine]
    processes: dict[str, Child]
    observer: Observer
    _engine_children: Children
    _children: Children
    _forwards: list[str]
    _forwarder: Child

    def only(self, name: str) -> None:
        """Let one replica have all new requests."""
        self.observer.only(name, self.engines)

    def restart(self, name: str, blocks: int) -> None:
        """Stop a replica and start it again with this many KV blocks.

        Raises:
            ChildError: It did not start, or is not ready.
        """
        old, engine = self.processes[name], self.engines[name]
        stop(old)
        if not wait_until(lambda: not self.observer.replica(name)["alive"], READY_DEADLINE_S):
            raise ChildError(f"the gateway does not notice that {name} is gone")
        flags = {**engine.flags, "num_gpu_blocks_override": blocks}
        self.engines[name] = replace(engine, name=f"{engine.name}-again", flags=flags)
        self.processes |= started({name: self.engines[name]}, self._engine_children)
        self.observer.wait_state(name, "ready")

    def cut_events(self) -> None:
        """Let nothing of replica "a"'s events through any more."""
        stop(self._forwarder)

    def mend_events(self) -> None:
        """Let the events through again, from now on."""
        self._forwarder = _start_forwarder(self._children, "forwarder-again", self._forwards)


def stop(child: Child) -> None:
    """End a child politely, so that it ends what it started.

    Raises:
        ChildError: It does not listen.
    """
    child.signal_group(signal.SIGTERM)
    if not wait_until(lambda: child.exit_code is not None, STOP_DEADLINE_S):
        raise ChildError(f"{child.name} does not stop")


@contextlib.contextmanager
def running(found: Environment, folder: Path) -> Iterator[Fleet]:
    """Start everything; end it all afterwards.

    Raises:
        ChildError: Something did not start.
    """
    ports = free_ports(8)
    with (
        Children(environment(), folder, STOP_DEADLINE_S) as engine_children,
        Children(programs.environment(), folder) as children,
    ):
        engines = {
            name: _engine(found, name, core, ports[core * 3 : core * 3 + 3])
            for core, name in enumerate("ab")
        }
        events, replay = ports[6:]
        forwards = [f"{events}:{ports[1]}", f"{replay}:{ports[2]}"]
        forwarder = _start_forwarder(children, "forwarder", forwards)
        processes = started(engines, engine_children)
        config = _gateway_config(found.model, engines, events, replay)
        observer = observed_gateway(children, config, engines)
        yield Fleet(engines, processes, observer, engine_children, children, forwards, forwarder)


def _start_forwarder(children: Children, name: str, forwards: list[str]) -> Child:
    argv = [sys.executable, "-m", "loadtests.conformance.forwarder", *forwards]
    child = children.start(name, argv)
    child.wait_ready()
    return child


def _engine(found: Environment, name: str, core: int, ports: Any) -> Engine:
    port, events, replay = ports
    flags = {
        **cached_flags(name, events, replay),
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "chat_template": str(TEMPLATE),
    }
    return Engine(f"engine-{name}", found.python, found.model, MODEL, port, flags, core)


def _gateway_config(
    model: Path, engines: Mapping[str, Engine], events: int, replay: int
) -> dict[str, Any]:
    forwarded = {
        "endpoint": f"tcp://127.0.0.1:{events}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
    }
    sources = {"a": forwarded, "b": "auto"}
    served = {
        "name": MODEL,
        "tokenizer": str(model),
        "block_size": BLOCK_SIZE,
        "engine": {"chat_template": str(TEMPLATE)},
        "replicas": [
            {"id": name, "url": engine.url, "kv_events": sources[name]}
            for name, engine in engines.items()
        ],
    }
    compared = {"check_every": 1}  # every prompt's ids with /tokenize
    return {"models": [served], "prepare": compared}
