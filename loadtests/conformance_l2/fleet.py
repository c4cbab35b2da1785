"""Two real replicas, an LMCache server beside each, one directory for both, and a gateway."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from loadtests.conformance.observe import Observer, observed_gateway
from loadtests.conformance.traffic import MODEL
from loadtests.conformance_l2.pool import Pool
from loadtests.measurement import Unavailable
from loadtests.programs import fetch, free_ports

# LMCache's default, and what the published pattern used.
CHUNK_TOKENS: Final = 256
NAMES: Final = ("a", "b")
# Host memory of each LMCache server. 23 kB a token: 20,000 tokens, less than the run writes, so
# that L2 is not only read while everything is in L1 too.
_L1_GB: Final = 0.5
# Loads its libraries in 5 s on an idle machine; everything starts at once.
_LMCACHE_DEADLINE_S: Final = 120.0
_PORTS_EACH: Final = 5


@dataclass(slots=True)
class Fleet:
    """The running fleet.

    Attributes:
        engines: Replicas by name.
        observer: Asks the gateway.
        pool: The shared directory.
    """

    engines: Mapping[str, Engine]
    observer: Observer
    pool: Pool
    _metrics_urls: Mapping[str, str]

    def only(self, name: str) -> None:
        """Let one replica have all new requests.

        Raises:
            ChildError: It is not ready in time.
        """
        self.observer.only(name, self.engines)

    def lmcache_metrics(self, name: str) -> str:
        """Return the page of metrics of a replica's LMCache server."""
        return fetch(self._metrics_urls[name]).decode()


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
    with (
        Children(environment(), folder, STOP_DEADLINE_S) as engine_children,
        Children(programs.environment(), folder) as children,
    ):
        engines, metrics_urls = {}, {}
        for core, name in enumerate(NAMES):
            own = ports[core * _PORTS_EACH : (core + 1) * _PORTS_EACH]
            lmcache_port, metrics_port = own[3:]
            argv = lmcache_argv(found.python, name, lmcache_port, metrics_port, pool.folder)
            metrics_urls[name] = f"http://127.0.0.1:{metrics_port}/metrics"
            _wait_lmcache(engine_children.start(f"lmcache-{name}", argv), metrics_urls[name])
            engines[name] = _engine(found, name, core, own[:3], lmcache_port)
        started(engines, engine_children)
        config = gateway_config(found.model, engines, pool.folder)
        observer = observed_gateway(children, config, NAMES)
        yield Fleet(engines, observer, pool, metrics_urls)


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
    return {"models": [served]}


def _engine(found: Environment, name: str, core: int, ports: Any, lmcache_port: int) -> Engine:
    port, events, replay = ports
    flags = {
        **cached_flags(name, events, replay),
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
            return bool(fetch(metrics_url))
        return False

    wait_until(lambda: child.exit_code is not None or answers(), _LMCACHE_DEADLINE_S)
    if child.exit_code is not None or not answers():
        raise ChildError(f"{child.name} did not start; see {child.log}")
