"""A directory of LMCache's: what is in it is found out by looking for the files of a prompt."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from typing import Any

from gateway.config.shared_cache import LmcacheFsConfig
from gateway.l2.base import Chunks, PoolHealth, SharedPrefix, chunks_of
from gateway.l2.canary import Canary
from gateway.l2.chunks import Algorithm, ChunkHasher, Digest, chunk_hasher
from gateway.l2.file_form import Mode, NameForm
from gateway.l2.gallop import longest_run
from gateway.l2.mount import Mount
from gateway.l2.names import FileNames, is_salt, path_index
from gateway.l2.remembered import Remembered
from gateway.observability.logging import EventLog
from routing.hashing import HashSpec
from routing.types import BlockKey
from routing.value import value

# A name that the file system cannot have is no file, and no fault of the mount.
_NO_SUCH_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL})


@value
class _Looked:
    """What a thread found: chunks that are there, and what it asked for on the way."""

    num_chunks: int
    told: Sequence[tuple[int, bool, Digest]]


class LmcacheFs(Remembered):
    """A `SharedCache` over LMCache's files.

    Args:
        config: Validated.
        model: Its key in block keys.
        model_path: Returns what the engines were started with, where the configuration does not
            say; None while no replica has told.
        log: Gets one line when the mount goes down or comes back, or when nothing ever matches.
        now: Monotonic seconds.
    """

    kind = "lmcache_fs"

    def __init__(
        self,
        config: LmcacheFsConfig,
        model: str,
        model_path: Callable[[], str | None],
        log: EventLog,
        now: Callable[[], float],
    ) -> None:
        super().__init__(config, now)
        self._config = config
        self._mode = Mode(config.mode)
        self._model = model
        self._model_path = model_path
        self._log = log
        self._hashers: dict[NameForm, ChunkHasher] = {}
        self.mount = Mount(config.paths, config.threads, config.stall_s, self._mount_changed)
        self.canary = Canary(self._mode, log, model)
        # Questions that are under way, by the last chunk of their prompts, so that a burst of one
        # prompt asks once.
        self._asked: dict[BlockKey, asyncio.Future[SharedPrefix]] = {}

    def chunks(self, packed: bytes, lora: str, salt: str) -> Chunks | None:
        """Return a prompt's chunks.

        The in-process form knows neither adapters nor salts: whoever asks finds the same files. The
        multiprocess form names no adapters, and refuses some salts: None for those.
        """
        if self._mode is Mode.IN_PROCESS:
            salt = ""
        elif lora or not is_salt(salt):
            return None
        return chunks_of(packed, HashSpec(self._model, self.chunk_tokens, "", salt))

    def look_up(self, chunks: Chunks) -> asyncio.Future[SharedPrefix] | SharedPrefix:
        """Return what is there; from memory where that tells all."""
        start, end, digest = self._known.span(chunks.keys)
        names = self.names
        if start == end or names is None:
            return SharedPrefix(chunks, start, self.chunk_tokens)
        last_key = chunks.keys[-1]
        # While the mount is down what is under way may never end.
        under_way = None if self.mount.down_reason else self._asked.get(last_key)
        if under_way is not None:
            return under_way
        hasher, paths = self._hasher(names), self.mount.paths
        found = self.mount.look(lambda: _look(hasher, names, paths, chunks, (start, end, digest)))
        if found is None:
            return SharedPrefix(chunks, start, self.chunk_tokens)
        result: asyncio.Future[SharedPrefix] = asyncio.get_running_loop().create_future()
        self._asked[last_key] = result
        found.add_done_callback(lambda done: self._found(done, chunks, start, result))
        return result

    def _found(
        self,
        done: asyncio.Future[_Looked],
        chunks: Chunks,
        start: int,
        result: asyncio.Future[SharedPrefix],
    ) -> None:
        if self._asked.get(chunks.keys[-1]) is result:
            del self._asked[chunks.keys[-1]]
        num_chunks = start
        if not done.cancelled() and done.exception() is None:
            looked = done.result()
            num_chunks = looked.num_chunks
            for number, is_there, digest in looked.told:
                self._known.note(chunks.keys[number], is_there=is_there, digest=digest)
            self.canary.looked(num_chunks)
        if not result.done():
            result.set_result(SharedPrefix(chunks, num_chunks, self.chunk_tokens))

    @property
    def names(self) -> FileNames | None:
        """How files are named; None while no replica has told what its engine was started with."""
        config, sample = self._config, self.canary.sample
        model = config.model_path or self._model_path()
        if model is None:
            return None
        form = sample.form if config.name_form == "auto" else NameForm(config.name_form)
        return FileNames(
            mode=self._mode,
            model=model,
            world_size=config.world_size or sample.world_size,
            dtype=config.dtype or sample.dtype,
            form=form,
            local_world_size=config.local_world_size,
        )

    def _hasher(self, names: FileNames) -> ChunkHasher:
        hasher = self._hashers.get(names.form)
        if hasher is None:
            config = self._config
            default = Algorithm.BUILTIN if self._mode is Mode.IN_PROCESS else Algorithm.BLAKE3
            algorithm = default if config.hash == "auto" else Algorithm(config.hash)
            hasher = chunk_hasher(algorithm, config.chunk_tokens, config.seed, names.form)
            self._hashers[names.form] = hasher
        return hasher

    async def run(self) -> None:
        """Probe the mount, and find out why nothing matches."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.mount.watch())
            group.create_task(self.canary.watch(self.mount, lambda: self.names))

    def close(self) -> None:
        """Let the threads end."""
        self.mount.close()

    def health(self) -> PoolHealth:
        """Return how the mount is."""
        return PoolHealth(
            known_chunks=len(self._known),
            down_reason=self.mount.down_reason,
            num_downs=self.mount.counts.downs.total(),
            threads_busy=self.mount.num_threads_busy,
            problem=self.canary.problem,
        )

    def status(self) -> dict[str, Any]:
        """Return what else people want to know of it."""
        names = self.names
        return {
            "paths": list(self.mount.paths),
            "names": None if names is None else _told(names),
        }

    def _mount_changed(self, what: str) -> None:
        fields = {"model": self._model, "paths": list(self.mount.paths)}
        if what == "down":
            reason, problem = self.mount.down_reason, self.mount.down_problem
            self._log.warning("shared_cache_down", **fields, reason=reason, problem=problem)
        elif what == "replaced":
            self._known.flush()
            self._log.warning("shared_cache_replaced", **fields)
        else:
            self._log.info("shared_cache_up", **fields)


def _told(names: FileNames) -> dict[str, Any]:
    return {
        "mode": names.mode.value,
        "model_path": names.model,
        "world_size": names.world_size,
        "dtype": names.dtype,
        "name_form": names.form.value,
    }


def _look(
    hasher: ChunkHasher,
    names: FileNames,
    paths: Sequence[str],
    chunks: Chunks,
    known: tuple[int, int, Digest | None],
) -> _Looked:
    """Look for a prompt's files; runs in a thread.

    Args:
        hasher: Computes the chunks' hashes, as far as they are needed.
        names: Makes names of them.
        paths: Where the files are.
        chunks: The prompt.
        known: What is known of it, as `KnownChunks.span` returns it.

    Raises:
        OSError: The mount does not work.
    """
    start, end, before = known
    first = start if before is not None else 0
    digests: list[Digest] = []
    more = hasher.hashes(chunks.packed_tokens, first, before)
    told: list[tuple[int, bool, Digest]] = []

    def digest_of(number: int) -> Digest:
        while len(digests) <= number - first:
            digests.append(next(more))
        return digests[number - first]

    def has(number: int, ranks: range) -> bool:
        digest = digest_of(number)
        folder = paths[path_index(digest, len(paths))]
        return all(_is_file(f"{folder}/{names.of(digest, rank, chunks.salt)}") for rank in ranks)

    def run(ranks: range, end: int) -> int:
        def is_there(number: int) -> bool:
            found = has(number, ranks)
            told.append((number, found, digest_of(number)))
            return found

        return longest_run(is_there, start, end)

    num_chunks = run(range(1), end)
    last = num_chunks - 1
    if num_chunks == start or has(last, range(1, names.world_size)):
        return _Looked(num_chunks, told)
    # The end of a write that was cut off, or a rank that writes nothing: what rank 0 has says no
    # more which chunks are whole.
    told[:] = [(last, False, digest_of(last))]
    return _Looked(run(range(names.world_size), last), told)


def _is_file(path: str) -> bool:
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path for each of thousands of names would cost more
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in _NO_SUCH_NAME:
            return False
        raise
    # An empty one is what a disk that ran full or a crash left; LMCache fails to load it.
    return found.st_size > 0
