"""The shared pool (L2) of a model's replicas, and what tells the gateway what is in it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.config.fields import ListOf, Name, ReplicaUrl, Seconds, Section, refused

# LMCache's `chunk_size`.
DEFAULT_CHUNK_TOKENS = 256
# Forms of names whose LMCache writes a hash as an integer, which of vLLM's only `builtin` is.
_BUILTIN_ONLY = frozenset({"0.3.10", "0.3.9", "0.3.7"})
# PYTHONHASHSEED's.
_MAX_SEED = 2**32 - 1


def _check_folder(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise refused("must be an absolute path")
    return text


Folder = Annotated[str, AfterValidator(_check_folder)]

ChunkTokens = Annotated[int, Field(ge=1)]

_CHUNKS = Field(
    DEFAULT_CHUNK_TOKENS,
    description="Tokens a chunk: LMCache's `chunk_size` (LMCACHE_CHUNK_SIZE, --chunk-size).",
)


class StorageConfig(Section):
    """The storage behind the pool, as its own metrics tell."""

    metrics_urls: ListOf[ReplicaUrl] = Field(
        (),
        description="Web addresses of Curvine's masters and workers, whose /metrics are read. "
        "Without, capacity and use are the mount's own, and nothing is known of evictions and lost "
        "workers.",
        examples=["['http://curvine-master:9000', 'http://curvine-worker-0:9001']"],
    )
    interval_s: Seconds = Field(
        15.0, description="Seconds between two readings; what is scraped of us is as old at most."
    )
    timeout_s: Seconds = Field(2.0, description="Seconds until a source counts as unreachable.")


class PoolSection(Section):
    """What all kinds have."""

    l1_capacity_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens that LMCache keeps in one replica's host memory (L1): "
        "LMCACHE_MAX_LOCAL_CPU_SIZE over the KV bytes of a token. With it, KV events of medium CPU "
        "are taken as chunks of LMCache in process, which tells what it stores and never what it "
        "drops: the least recently used are taken to be gone. Left out, and with `index.backend: "
        "redis`, such events are taken as they are.",
    )
    storage: StorageConfig = Field(
        default_factory=StorageConfig, description="The storage behind the pool, for metrics."
    )


class LmcacheFsConfig(PoolSection):
    """A directory in which LMCache keeps chunks, mounted here too: the gateway looks for files.

    The names are computed here, so whatever is part of them has to be as the engines have it.
    What is left out is read from a replica or from the name of a file that is there;
    `warmroute check --connect` shows what was found.
    """

    kind: Literal["lmcache_fs"] = Field(description="This kind.")
    paths: ListOf[Folder] = Field(
        min_length=1,
        description="The directory as it is mounted here, read-only is enough; several where "
        "`remote_url` lists several, in its order.",
        examples=["[/mnt/curvine/l2cache]"],
    )
    mode: Literal["in_process", "multiprocess"] = Field(
        "in_process",
        description="How LMCache runs: `in_process` is LMCacheConnectorV1 with "
        "LMCACHE_REMOTE_URL=fs://, `multiprocess` is LMCacheMPConnector with an `fs` adapter.",
    )
    chunk_tokens: ChunkTokens = _CHUNKS
    hash: Literal["auto", "builtin", "sha256_cbor", "sha256", "blake3"] = Field(
        "auto",
        description="LMCACHE_PRE_CACHING_HASH_ALGORITHM. `auto`: LMCache's defaults, `builtin` in "
        "process and `blake3` in the multiprocess form. sha256_cbor is recommended in process: "
        "with vLLM 0.29 and later it needs no seed.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        le=_MAX_SEED,
        description="The engines' PYTHONHASHSEED. Left out: not set there.",
    )
    model_path: Name | None = Field(
        None,
        description="What the engines were started with (`--model`), such as /opt/ml/model; not "
        "the served name. Left out, it is the `root` that a replica names in /v1/models.",
    )
    world_size: int | None = Field(
        None,
        ge=1,
        le=255,
        description="Tensor-parallel times pipeline-parallel ranks, each with files of its own; 1 "
        "for MLA models. Left out, it is read from a file's name, 1 while there is none.",
    )
    local_world_size: int | None = Field(
        None,
        ge=1,
        le=255,
        description="Ranks on one node, where they are spread over several; multiprocess only.",
    )
    dtype: Name | None = Field(
        None,
        description="Of the KV cache as LMCache writes it: bfloat16, half, fp8_e4m3fn; in process "
        "only. Left out, it is read from a file's name, bfloat16 while there is none.",
    )
    name_form: Literal["auto", "current", "0.4.1", "0.3.13", "0.3.10", "0.3.9", "0.3.7"] = Field(
        "auto",
        description="In process: the latest of these versions of LMCache that the engines' is not "
        "older than; `current` is 0.4.6 and later. `auto` reads it from a file's name, which does "
        "not tell 0.3.13 from later ones.",
    )
    lookup_timeout_s: Seconds = Field(
        0.005,
        description="Seconds that a request waits for its look-up, beside the one in the index. "
        "5 ms are some ten calls to a metadata server nearby. What comes later is known for the "
        "next turn.",
    )
    stall_s: Seconds = Field(
        0.1,
        description="Seconds after which a call that has not returned marks the mount down: it is "
        "asked nothing more until it answers again. Well above a slow call, well below a hang.",
    )
    threads: int = Field(
        4,
        ge=1,
        le=64,
        description="Threads that look, for this model; as many can hang. What finds none free "
        "goes on without L2.",
    )
    present_s: Seconds = Field(
        60.0,
        description="Seconds that a file which was there counts as there. Files go by the janitor "
        "or an eviction only, and a replica that does not find one corrects it.",
    )
    absent_s: Seconds = Field(
        1.0,
        description="Seconds that a file which was not there counts as absent. Short, as the next "
        "prefill writes it.",
    )

    @model_validator(mode="after")
    def _check_hash(self) -> Self:
        is_multiprocess = self.mode == "multiprocess"
        if self.hash != "auto" and (self.hash == "blake3") is not is_multiprocess:
            raise refused("hash blake3 belongs to mode multiprocess, all others to in_process")
        if not is_multiprocess and self.hash in ("auto", "builtin") and self.seed is None:
            raise refused(
                "hash builtin (LMCache's default) needs the engines' PYTHONHASHSEED as seed, as "
                "its hashes differ from process to process without one; or use sha256_cbor"
            )
        if self.name_form in _BUILTIN_ONLY and self.hash not in ("auto", "builtin"):
            raise refused("LMCache before 0.3.13 stores nothing under a hash other than builtin")
        return self


class LmcacheCoordinatorConfig(PoolSection):
    """LMCache's coordinator is asked for each prompt (multiprocess form).

    What it places in tier l2 counts as there for every replica.
    """

    kind: Literal["lmcache_coordinator"] = Field(description="This kind.")
    url: ReplicaUrl = Field(
        description="Address of the coordinator's HTTP server.",
        examples=["http://lmcache-coordinator:8080"],
    )
    chunk_tokens: ChunkTokens = _CHUNKS
    model_path: Name | None = Field(
        None,
        description="What the engines were started with (`--model`). Left out, it is the `root` "
        "that a replica names in /v1/models.",
    )
    world_size: int = Field(1, ge=1, description="Tensor-parallel times pipeline-parallel ranks.")
    lookup_timeout_s: Seconds = Field(
        0.005,
        description="Seconds that a request waits for the answer, which goes on and is known for "
        "the next turn.",
    )
    timeout_s: Seconds = Field(
        1.0,
        description="Seconds until a question counts as failed. Three in a row, and the "
        "coordinator is asked again only every few seconds until it answers.",
    )
    present_s: Seconds = Field(10.0, description="Seconds that an answer counts.")
    absent_s: Seconds = Field(
        1.0, description="Seconds that a chunk which was not there counts as absent."
    )


class SharedEventsConfig(PoolSection):
    """KV events with medium STORAGE tell what is in the pool (vLLM's tiering connectors).

    With `index.backend: redis` each gateway sees the events of some replicas only, so there the
    index has these blocks, for all gateways and without the bounds below.
    """

    kind: Literal["events"] = Field(description="This kind.")
    ttl_s: Seconds = Field(
        3600.0,
        description="Seconds that a block counts as there after the last event about it. A pool "
        "that loses blocks by itself sends no removals.",
    )
    max_blocks: int = Field(
        2_000_000, ge=1, description="Blocks remembered at most; the least recently used go first."
    )


class AssumeWriteThroughConfig(PoolSection):
    """Nobody tells what is in the pool: what replicas computed is taken to be there.

    For pools that no mount shows: HyperPod's managed tieredstorage, Redis, S3, Mooncake. What
    engines say of their cached tokens corrects it.
    """

    kind: Literal["assume_write_through"] = Field(description="This kind.")
    chunk_tokens: ChunkTokens = _CHUNKS
    capacity_tokens: int = Field(
        20_000_000,
        ge=1,
        description="Tokens that the pool holds; the least recently used are taken to be gone. "
        "20 million are about 1 TB of a 7B model's KV in 16 bits.",
    )
    ttl_s: Seconds = Field(
        3600.0, description="Seconds that a chunk counts as there after it was last used."
    )
    delay_s: float = Field(
        0.5,
        ge=0.0,
        description="Seconds from the end of a prompt's answer until its chunks count as written.",
    )
    salted: bool = Field(
        True,
        description="Whether `cache_salt` separates chunks. LMCache's in-process form does not.",
    )


SharedCacheConfig = Annotated[
    LmcacheFsConfig | LmcacheCoordinatorConfig | SharedEventsConfig | AssumeWriteThroughConfig,
    Field(discriminator="kind"),
]
"""Any source; `kind` says which."""
