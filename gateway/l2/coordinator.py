"""LMCache's coordinator: asked what the pool holds of each prompt that is new to us."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import msgspec

from gateway.config.shared_cache import LmcacheCoordinatorConfig
from gateway.errors import UpstreamError
from gateway.l2.base import Chunks, PoolHealth, SharedPrefix, chunks_of
from gateway.l2.names import is_salt
from gateway.l2.remembered import Remembered
from gateway.observability.logging import EventLog
from gateway.proxy.transport import Deadlines, Origin, Transport, UpstreamRequest
from routing.hashing import HashSpec, unpack_tokens

LOOKUP_PATH = b"/directory/lookup"
# Questions at once: one a prompt, and each takes the coordinator about a millisecond.
MAX_QUESTIONS = 8
# Failures in a row until it is left alone, and for how long.
MAX_FAILURES = 3
PAUSE_S = 5.0
_STATUS_OK = 200


class Coordinator(Remembered):
    """A `SharedCache` that a coordinator knows.

    Args:
        config: Validated.
        model: Its key in block keys.
        model_path: Returns what the engines were started with, where the configuration does not
            say.
        transport: For questions; used for nothing else.
        log: Gets one line when it is left alone and one when it answers again.
        now: Monotonic seconds.
    """

    kind = "lmcache_coordinator"

    def __init__(
        self,
        config: LmcacheCoordinatorConfig,
        model: str,
        model_path: Callable[[], str | None],
        transport: Transport,
        log: EventLog,
        now: Callable[[], float],
    ) -> None:
        super().__init__(config, now)
        self._config = config
        self._model = model
        self._model_path = model_path
        self._transport = transport
        self._origin = Origin.of(config.url, ssl.create_default_context())
        self._log = log
        self._now = now
        self._questions: dict[int, asyncio.Task[SharedPrefix]] = {}
        self._num_failures = 0
        self._num_downs = 0
        self._paused_until = 0.0

    def chunks(self, packed: bytes, lora: str, salt: str) -> Chunks | None:
        """Return a prompt's chunks; None for an adapter's, which the directory does not name.

        And for salts that it refuses: its failures would be those of a client.
        """
        if lora or not is_salt(salt):
            return None
        return chunks_of(packed, HashSpec(self._model, self.chunk_tokens, "", salt))

    def look_up(self, chunks: Chunks) -> asyncio.Future[SharedPrefix] | SharedPrefix:
        """Return what it says; from memory where that tells all, or where it is left alone."""
        start, end, _ = self._known.span(chunks.keys)
        model_path = self._config.model_path or self._model_path()
        if start == end or model_path is None or self._now() < self._paused_until:
            return SharedPrefix(chunks, start, self.chunk_tokens)
        last_key = chunks.keys[-1]
        if last_key in self._questions:
            return self._questions[last_key]
        if len(self._questions) >= MAX_QUESTIONS:
            return SharedPrefix(chunks, start, self.chunk_tokens)
        task = asyncio.create_task(self._ask(chunks, model_path, (start, end)))
        self._questions[last_key] = task
        task.add_done_callback(lambda _: self._questions.pop(last_key, None))
        return task

    async def _ask(self, chunks: Chunks, model_path: str, known: tuple[int, int]) -> SharedPrefix:
        start, end = known  # what is known to be missing from `end` on stays so for its time
        try:
            async with asyncio.timeout(self._config.timeout_s):
                num_chunks = min(await self._answer(chunks, model_path), end)
        except (UpstreamError, OSError, ValueError, TimeoutError) as error:
            self._failed(error)
            return SharedPrefix(chunks, start, self.chunk_tokens)
        if self._num_failures >= MAX_FAILURES:
            self._log.info("shared_cache_up", model=self._model, url=self._config.url)
        self._num_failures = 0
        if num_chunks:
            self._known.note(chunks.keys[num_chunks - 1], is_there=True)
        if num_chunks < end:
            self._known.note(chunks.keys[num_chunks], is_there=False)
        return SharedPrefix(chunks, num_chunks, self.chunk_tokens)

    async def _answer(self, chunks: Chunks, model_path: str) -> int:
        question = {
            "token_ids": unpack_tokens(chunks.packed_tokens),
            "model_name": model_path,
            "world_size": self._config.world_size,
            "cache_salt": chunks.salt,
        }
        timeout_s = self._config.timeout_s
        request = UpstreamRequest(
            b"POST",
            LOOKUP_PATH,
            [(b"content-type", b"application/json"), (b"user-agent", b"warmroute")],
            msgspec.json.encode(question),
        )
        deadlines = Deadlines(timeout_s, timeout_s, timeout_s)
        response = await self._transport.request(self._origin, request, deadlines)
        try:
            pieces = [await response.read()]
            while not response.ended and pieces[-1]:
                pieces.append(await response.read())
        finally:
            response.close()
        if response.status != _STATUS_OK:
            raise ValueError(f"status {response.status}")
        return num_shared_chunks(b"".join(pieces))

    def _failed(self, error: Exception) -> None:
        self._num_failures += 1
        if self._num_failures < MAX_FAILURES:
            return
        self._paused_until = self._now() + PAUSE_S
        if self._num_failures == MAX_FAILURES:
            self._num_downs += 1
            problem = str(error) or type(error).__name__
            fields = {"model": self._model, "url": self._config.url}
            self._log.warning("shared_cache_down", **fields, reason=problem)

    async def run(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Stop asking."""
        for task in list(self._questions.values()):
            task.cancel()
        self._transport.close()

    def health(self) -> PoolHealth:
        """Return how it is."""
        is_paused = self._now() < self._paused_until
        return PoolHealth(
            known_chunks=len(self._known),
            down_reason="failures" if is_paused else None,
            num_downs=self._num_downs,
        )

    def status(self) -> dict[str, Any]:
        """Return what else people want to know of it."""
        return {"url": self._config.url}


def num_shared_chunks(answer: bytes) -> int:
    """Return how many leading chunks an answer places in the shared tier, with all their ranks.

    Raises:
        ValueError: It is no answer of a coordinator.

    Source:
        LMCache 0.5.6, POST /directory/lookup: one result for each chunk, rank and object group.
    """
    is_whole: dict[str, bool] = {}
    try:
        for result in json.loads(answer)["results"]:
            key, placements = result["key"], result["placements"]
            if key.get("object_group_id", 0) == 0:  # the one with full attention, as in names
                there = any(placement["tier"] == "l2" for placement in placements)
                chunk = key["chunk_hash_hex"]
                is_whole[chunk] = is_whole.get(chunk, True) and there
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("not an answer of a coordinator") from error
    return len(list(takewhile(bool, is_whole.values())))
