"""Two real replicas, an LMCache server beside each, one directory for both, and a gateway."""

import contextlib
import json
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from loadtests.conformance.environment import Environment, Unavailable
from loadtests.conformance.observe import NotAnswered, Observer
from loadtests.conformance.traffic import MODEL
from loadtests.conformance_l2.pool import Pool
from loadtests.demo.children import Child, ChildError, Children, wait_until
from loadtests.demo.fleet import ROOT

# LMCache's default, and what the published pattern used.
CHUNK_TOKENS: Final = 256
NAMES: Final = ("a", "b")
_MAX_MODEL_LEN: Final = 4096
# Host memory of each LMCache server. 23 kB a token: 20,000 tokens, less than the run writes, so
# that L2 is not only read while everything is in L1 too.
_L1_GB: Final = 0.5
# Loads its libraries in 5 s on an idle machine; everything starts at once.
_LMCACHE_DEADLINE_S: Final = 120.0
# Probes every second or so.
_READY_DEADLINE_S: Final = 60.0
_PORTS_EACH: Final = 5
_TIMEOUT_S: Final = 5.0


@dataclass(slots=True)
class Fleet:
    """The running fleet.

    Attributes:
        engines: Replicas by name.
        observer: Asks the gateway's admin listener.
        url: The gateway's public listener.
        pool: The shared directory.
    """

    engines: Mapping[str, Engine]
    observer: Observer
    url: str
    pool: Pool
    _metrics_urls: Mapping[str, str]

    def only(self, name: str) -> None:
        """Let one replica have all new requests.

        Raises:
            ChildError: It is not ready in time.
        """
        for replica in self.engines:
            verb = "uncordon" if replica == name else "cordon"
            self.observer.admin("POST", f"/admin/replicas/{replica}/{verb}")
        self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        """Wait until the gateway may send requests to a replica.

        Raises:
            ChildError: It may not in time.
        """
        if not wait_until(lambda: self._state(name) == "ready", _READY_DEADLINE_S):
            raise ChildError(f"replica {name} is {self._state(name)}, not ready")

    def lmcache_metrics(self, name: str) -> str:
        """Return the page of metrics of a replica's LMCache server."""
        return _fetch(self._metrics_urls[name])

    def _state(self, name: str) -> str:
        return str(self.observer.admin("GET", f"/admin/replicas/{name}")["state"])


def check_machine() -> None:
    """Look for what LMCache needs beside what vLLM does.

    Raises:
        Unavailable: It is not there.
    """
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0  # noqa: S108 - LMCache's L1 is there
    needed = len(NAMES) * _L1_GB * 2**30
    if free < needed:
        have = f"{free / 1e6:.0f} MB of shared memory are free"
        raise Unavailable(f"{have}; two LMCache servers need {needed / 1e6:.0f}")


@contextlib.contextmanager
def running(found: Environment, folder: Path) -> Iterator[Fleet]:
    """Start everything with an empty pool; end it all afterwards.

    Raises:
        ChildError: Something did not start.
    """
    pool = Pool(folder / "l2")
    pool.make_empty()
    ports = free_ports(_PORTS_EACH * len(NAMES))
    with Children(environment(), folder, STOP_DEADLINE_S) as children:
        engines, metrics_urls = {}, {}
        for core, name in enumerate(NAMES):
            own = ports[core * _PORTS_EACH : (core + 1) * _PORTS_EACH]
            lmcache_port, metrics_port = own[3:]
            argv = lmcache_argv(found.python, name, lmcache_port, metrics_port, pool.folder)
            metrics_urls[name] = f"http://127.0.0.1:{metrics_port}/metrics"
            _wait_lmcache(children.start(f"lmcache-{name}", argv), metrics_urls[name])
            engines[name] = _engine(found, name, core, own[:3], lmcache_port)
        processes = {name: engine.start(children) for name, engine in engines.items()}
        for name, engine in engines.items():
            wait_started(processes[name], engine.url)
        config = folder / "gateway.json"  # JSON is YAML
        content = gateway_config(found.model, engines, pool.folder)
        config.write_text(json.dumps(content, indent=2), encoding="utf-8")
        argv = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config)]
        ready = children.start("gateway", ["env", f"PYTHONPATH={ROOT}", *argv]).wait_ready()
        observer = Observer(ready["url"], ready["admin_url"])
        fleet = Fleet(engines, observer, ready["url"], pool, metrics_urls)
        for name in NAMES:
            fleet.wait_ready(name)
        _wait_precise(observer)
        yield fleet


def lmcache_argv(python: Path, name: str, port: int, metrics_port: int, folder: Path) -> list[str]:
    """Return the command of one LMCache server that writes through to `folder`.

    Without `engine_driven` a CPU-only vLLM starts and quietly recomputes everything.
    """
    options = {
        "host": "127.0.0.1",
        "port": port,
        "prometheus-port": metrics_port,
        "chunk-size": CHUNK_TOKENS,
        "l1-size-gb": _L1_GB,
        "eviction-policy": "LRU",
        "supported-transfer-mode": "engine_driven",
        "l2-prefetch-policy": "retain",
        "shm-name": f"warmroute_{name}_{port}",
        "max-workers": 1,
        "l2-adapter": json.dumps({"type": "fs", "base_path": str(folder)}),
    }
    argv = ["env", "LMCACHE_TRACK_USAGE=false", "OMP_NUM_THREADS=1", str(python)]
    argv += ["-m", "lmcache.v1.multiprocess.server", "--no-l1-use-lazy"]
    for option, value in options.items():
        argv += [f"--{option}", str(value)]
    return argv


def gateway_config(model: Path, engines: Mapping[str, Engine], folder: Path) -> dict[str, Any]:
    """Return the gateway's configuration."""
    loopback = {"host": "127.0.0.1", "port": 0}
    served = {
        "name": MODEL,
        "tokenizer": str(model),
        "block_size": BLOCK_SIZE,
        "replicas": [
            {"id": name, "url": engine.url, "kv_events": "auto"} for name, engine in engines.items()
        ],
        "shared_cache": {
            "kind": "lmcache_fs",
            "mode": "multiprocess",
            "paths": [str(folder)],
            "chunk_tokens": CHUNK_TOKENS,
        },
    }
    return {"listen": loopback, "admin": loopback, "models": [served]}


def _engine(found: Environment, name: str, core: int, ports: Any, lmcache_port: int) -> Engine:
    port, events, replay = ports
    flags = {
        "dtype": "bfloat16",
        "max_model_len": _MAX_MODEL_LEN,
        "max_num_seqs": 16,
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
        "kv_events_config": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://127.0.0.1:{replay}",
            "topic": f"kv@{name}",
        },
        "kv_transfer_config": {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": lmcache_port,
            },
        },
    }
    environ = {"LMCACHE_TRACK_USAGE": "false"}
    return Engine(f"engine-{name}", found.python, found.model, MODEL, port, flags, core, environ)


def _wait_lmcache(child: Child, metrics_url: str) -> None:
    """Wait until a server serves: its metrics come up with it."""

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return bool(_fetch(metrics_url))
        return False

    wait_until(lambda: child.exit_code is not None or answers(), _LMCACHE_DEADLINE_S)
    if child.exit_code is not None or not answers():
        raise ChildError(f"{child.name} did not start; see {child.log}")


def _wait_precise(observer: Observer) -> None:
    """Wait until decisions are based on token ids and events."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}

    def knows_ids() -> bool:
        with contextlib.suppress(NotAnswered):
            return bool(observer.explain(CHAT, chat)["rung"] == "precise")
        return False

    if not wait_until(knows_ids, _READY_DEADLINE_S):
        raise ChildError("the gateway has no token ids or no events")


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - our own child
        page: bytes = answer.read()
    return page.decode()
