"""What replicas are told so that they share a pool: the variables of LMCache, and why. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.l2.file_form import TMP_FOLDER
from routing.value import value

URL_NAME = "LMCACHE_REMOTE_URL"
EXTRA_NAME = "LMCACHE_EXTRA_CONFIG"
POD_NAME = "POD_NAME"
TMP_DIR = "fs_connector_relative_tmp_dir"
# LMCache names a temporary file after the final one. Two engines that store the same chunk at the
# same time then write one file, and the second rename fails (LMCache/LMCache#2517). A directory of
# each pod's own, in the same file system so that renaming still works, keeps them apart. By how its
# name begins the janitor knows it.
_TMP_DIR_OF_POD = f"{TMP_FOLDER}$({POD_NAME})"
POD_NAME_SOURCE: Mapping[str, Any] = {"fieldRef": {"fieldPath": "metadata.name"}}
# The operator's own connector to its node-local daemon.
OPERATORS_URL = "sagemaker-hyperpod://"


class CannotPatch(Exception):
    """What stands there and must be changed by hand; the text says where and what to do."""


@value
class Settings:
    """What to write.

    Attributes:
        claim: PersistentVolumeClaim of the pool, ReadWriteMany.
        mount_path: Where the engine sees it, absolute.
        volume: Name of the volume in the pod.
        events_port: Where the engine publishes KV events.
        replay_port: Where it repeats them.
        chunk_tokens: LMCache's chunk; None keeps what is written there, else 256.
        hash_algorithm: Of LMCache's chunks; None keeps what is written there, else sha256_cbor.
        seed: PYTHONHASHSEED; None keeps what is written there, else 0.
        l1_gb: Host memory of LMCache; None leaves it as it is.
        l1_events: Let LMCache tell what it stores in host memory.
    """

    claim: str = "l2-pool"
    mount_path: str = "/mnt/l2"
    volume: str = "l2-pool"
    events_port: int = 5557
    replay_port: int = 5558
    chunk_tokens: int | None = None
    hash_algorithm: str | None = None
    seed: int | None = None
    l1_gb: float | None = None
    l1_events: bool = False

    @property
    def url(self) -> str:
        """LMCACHE_REMOTE_URL. It wants a host and a port, and its fs connector ignores both."""
        return f"fs://localhost:0{self.mount_path}/"

    def shared_variables(self, present: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that every replica of a pool must have alike, but for the URL.

        Args:
            present: Values that are written there.

        Raises:
            CannotPatch: The chunk is no number of tokens.
        """
        defaults = {
            # The other serialiser, cachegen, does not work with the fs connector.
            "LMCACHE_REMOTE_SERDE": (None, "naive"),
            "LMCACHE_CHUNK_SIZE": (self.chunk_tokens, "256"),
            # `builtin` is Python's hash(): equal only for equal seeds and Python versions.
            "LMCACHE_PRE_CACHING_HASH_ALGORITHM": (self.hash_algorithm, "sha256_cbor"),
            # vLLM before 0.29 seeds every process differently without it.
            "PYTHONHASHSEED": (self.seed, "0"),
        }
        told = {
            name: str(given) if given is not None else present.get(name, default)
            for name, (given, default) in defaults.items()
        }
        chunk = told["LMCACHE_CHUNK_SIZE"]
        if not chunk.isdecimal() or int(chunk) == 0:
            raise CannotPatch(f"LMCACHE_CHUNK_SIZE is {chunk}, and no number of tokens")
        if self.l1_gb is not None:
            told["LMCACHE_LOCAL_CPU"] = "True"
            told["LMCACHE_MAX_LOCAL_CPU_SIZE"] = f"{self.l1_gb:g}"
        if self.l1_events:
            told["LMCACHE_ENABLE_KV_EVENTS"] = "true"
        return told

    def events(self) -> dict[str, Any]:
        """Return what --kv-events-config has to say; `*` binds, a host name would connect."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
        }


def extra_config(present: str | None) -> str:
    """Return LMCACHE_EXTRA_CONFIG with a directory for temporary files that no other pod uses.

    Args:
        present: What is written there; None for nothing. Its other keys stay.

    Raises:
        CannotPatch: It is no JSON object.
    """
    try:
        told = json.loads(present) if present else {}
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise CannotPatch(f"{EXTRA_NAME} is no JSON object: correct it, or take it out")
    if has_own_tmp_dir(told):
        return present or ""
    return json.dumps({**told, TMP_DIR: _TMP_DIR_OF_POD})


def has_own_tmp_dir(extra: Mapping[str, Any]) -> bool:
    """Return whether temporary files go to a directory that depends on the pod."""
    return "$(" in str(extra.get(TMP_DIR, ""))
