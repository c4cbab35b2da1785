"""Two real replicas and a gateway over them, with a cuttable way for the events of one."""

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from loadtests.conformance.cases import CHAT
from loadtests.conformance.engine import (
    BLOCK_SIZE,
    STOP_DEADLINE_S,
    Engine,
    environment,
    free_ports,
    wait_started,
)
from loadtests.conformance.environment import Environment
from loadtests.conformance.observe import NotAnswered, Observer
from loadtests.conformance.traffic import MODEL
from loadtests.demo.children import Child, ChildError, Children, wait_until
from loadtests.demo.fleet import ROOT

TEMPLATE: Final = Path(__file__).with_name("chat.jinja")
# 5,120 tokens: three long documents fill it.
FEW_BLOCKS: Final = 160
_MAX_MODEL_LEN: Final = 4096
# Probes every second or so, after an ejection later and later.
_READY_DEADLINE_S: Final = 60.0


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
    _children: Children
    _forwards: list[str]
    _forwarder: Child

    def only(self, name: str) -> None:
        """Let one replica have all new requests."""
        for replica in self.engines:
            verb = "uncordon" if replica == name else "cordon"
            self.observer.admin("POST", f"/admin/replicas/{replica}/{verb}")
        self.wait_state(name, "ready")

    def restart(self, name: str, blocks: int) -> None:
        """Stop a replica and start it again with this many KV blocks.

        Raises:
            ChildError: It did not start, or is not ready.
        """
        old, engine = self.processes[name], self.engines[name]
        stop(old)
        if not wait_until(lambda: not self._is_alive(name), _READY_DEADLINE_S):
            raise ChildError(f"the gateway does not notice that {name} is gone")
        flags = {**engine.flags, "num_gpu_blocks_override": blocks}
        self.engines[name] = replace(engine, name=f"{engine.name}-again", flags=flags)
        self.processes[name] = self.engines[name].start(self._children)
        wait_started(self.processes[name], engine.url)
        self.wait_state(name, "ready")

    def cut_events(self) -> None:
        """Let nothing of replica "a"'s events through any more."""
        stop(self._forwarder)

    def mend_events(self) -> None:
        """Let the events through again, from now on."""
        self._forwarder = _start_forwarder(self._children, "forwarder-again", self._forwards)

    def wait_state(self, name: str, state: str) -> None:
        """Wait until the gateway says that a replica is in this state.

        Raises:
            ChildError: It is not in time.
        """
        if not wait_until(lambda: self._told(name)["state"] == state, _READY_DEADLINE_S):
            raise ChildError(f"replica {name} is {self._told(name)['state']}, not {state}")

    def _is_alive(self, name: str) -> bool:
        return bool(self._told(name)["alive"])

    def _told(self, name: str) -> Mapping[str, Any]:
        told: Mapping[str, Any] = self.observer.admin("GET", f"/admin/replicas/{name}")
        return told


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
    with Children(environment(), folder, STOP_DEADLINE_S) as children:
        engines = {
            name: _engine(found, name, core, ports[core * 3 : core * 3 + 3])
            for core, name in enumerate("ab")
        }
        processes = {name: engine.start(children) for name, engine in engines.items()}
        events, replay = ports[6:]
        forwards = [f"{events}:{ports[1]}", f"{replay}:{ports[2]}"]
        forwarder = _start_forwarder(children, "forwarder", forwards)
        for name, engine in engines.items():
            wait_started(processes[name], engine.url)
        config = folder / "gateway.json"  # JSON is YAML
        content = _gateway_config(found.model, engines, events, replay)
        config.write_text(json.dumps(content, indent=2), encoding="utf-8")
        argv = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config)]
        argv = ["env", f"PYTHONPATH={ROOT}", *argv]
        ready = children.start("gateway", argv).wait_ready()
        observer = Observer(ready["url"], ready["admin_url"])
        fleet = Fleet(engines, processes, observer, children, forwards, forwarder)
        for name in engines:
            fleet.wait_state(name, "ready")
        _wait_for_tokenizer(observer)
        yield fleet


def _start_forwarder(children: Children, name: str, forwards: list[str]) -> Child:
    argv = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "loadtests.conformance.forwarder"]
    child = children.start(name, [*argv, *forwards])
    child.wait_ready()
    return child


def _engine(found: Environment, name: str, core: int, ports: Any) -> Engine:
    port, events, replay = ports
    flags = {
        "dtype": "bfloat16",
        "max_model_len": _MAX_MODEL_LEN,
        "max_num_seqs": 16,
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "chat_template": str(TEMPLATE),
        "kv_events_config": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://127.0.0.1:{replay}",
            "topic": f"kv@{name}",
        },
    }
    return Engine(f"engine-{name}", found.python, found.model, MODEL, port, flags, core)


def _gateway_config(
    model: Path, engines: Mapping[str, Engine], events: int, replay: int
) -> dict[str, Any]:
    loopback = {"host": "127.0.0.1", "port": 0}
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
    return {"listen": loopback, "admin": loopback, "models": [served], "prepare": compared}


def _wait_for_tokenizer(observer: Observer) -> None:
    """Wait until decisions are based on token ids and events."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}

    def knows_ids() -> bool:
        with contextlib.suppress(NotAnswered):
            told = observer.explain(CHAT, chat)
            return bool(told["rung"] == "precise")
        return False

    if not wait_until(knows_ids, _READY_DEADLINE_S):
        raise ChildError("the gateway has no token ids or no events")
