"""Compares what engines say they had cached with what was believed, and draws the consequences."""

from __future__ import annotations

from collections.abc import Callable

from gateway.observability.logging import EventLog
from gateway.proxy.usage import Usage
from gateway.replicas.registry import Registry, Replica
from routing.types import ReplicaId


class EngineWord:
    """Listens to every engine's own word, request by request.

    Args:
        registry: The replicas; told whom not to believe.
        distrust: Forgets what a replica is believed to hold.
        log: Gets one line when a replica loses its rung and one when it has it again.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        registry: Registry,
        distrust: Callable[[Replica], None],
        log: EventLog,
        now: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._distrust = distrust
        self._log = log
        self._now = now

    def cached_tokens(self, replica_id: ReplicaId, usage: Usage) -> int | None:
        """Return how many tokens an engine says were cached; None where it does not say.

        Versions of vLLM leave the figure out where it is 0. So none is 0 of an engine that has
        told one before.
        """
        replica = self._registry.get(replica_id)
        if replica is None or usage.cached_tokens is not None or not usage.prompt_tokens:
            if replica is not None and usage.cached_tokens:
                replica.tells_cached = True
            return usage.cached_tokens
        return 0 if replica.tells_cached else None

    def heard(self, replica_id: ReplicaId, expected_tokens: int, cached_tokens: int) -> None:
        """Take what an engine said of one request; see `routing.trust.Trust.heard`.

        Args:
            replica_id: Who said it.
            expected_tokens: What it was believed to hold itself, without the shared pool's.
            cached_tokens: What was cached, from wherever it came.
        """
        replica = self._registry.get(replica_id)
        if replica is None or not replica.trust.heard(expected_tokens, cached_tokens, self._now()):
            return
        fields = {"replica": replica_id, "expected": expected_tokens, "cached": cached_tokens}
        if replica.trust.is_trusted:
            self._registry.distrusted.discard(replica_id)
            self._log.info("replica_trusted", **fields)
        else:
            self._registry.distrusted.add(replica_id)
            self._distrust(replica)
            self._log.warning(
                "replica_distrusted",
                **fields,
                problem="it says again and again that it had not cached what it should hold; is "
                "its chat template, tokenizer or cache another one than configured?",
            )
        replica.judge_events()

    def heard_shared(self, replica_id: ReplicaId, expected_tokens: int, served_tokens: int) -> bool:
        """Take how much of what was expected of the shared pool it served to a replica.

        Judged apart from its own memory: an engine without a pool is still right about that.

        Returns:
            Whether that says something of the pool: a replica that takes nothing from it, whatever
            is there, must not make the others forget what is.
        """
        replica = self._registry.get(replica_id)
        if replica is None:
            return False
        if replica.shared_trust.heard(expected_tokens, served_tokens, self._now()):
            self._tell_shared(replica, expected_tokens, served_tokens)
        return replica.shared_trust.is_trusted

    def _tell_shared(self, replica: Replica, expected_tokens: int, served_tokens: int) -> None:
        replica_id = replica.replica_id
        fields = {"replica": replica_id, "expected": expected_tokens, "served": served_tokens}
        if replica.shared_trust.is_trusted:
            self._registry.shared_distrusted.discard(replica_id)
            self._log.info("shared_cache_served", **fields)
        else:
            self._registry.shared_distrusted.add(replica_id)
            self._log.warning(
                "shared_cache_not_served",
                **fields,
                problem="it took nothing from the shared pool several times in a row, although the "
                "prompts are there; has its LMCache the pool's address and mount, and does it run?",
            )

    def served(self, replica_id: ReplicaId, num_prompt_tokens: int, expected_tokens: int) -> None:
        """Take a request that was served; a replica that publishes must tell what it stored."""
        replica = self._registry.get(replica_id)
        if replica is None or replica.stream is None or not replica.block_size:
            return
        size = replica.block_size
        if num_prompt_tokens // size <= expected_tokens // size + 1:
            return  # perhaps all of it was there: then nothing was stored
        stream = replica.stream
        if not replica.silence.served(stream.counts.batches, self._now()):
            return
        replica.judge_events()
        fields = {"replica": replica_id, "endpoint": stream.source.endpoint}
        if replica.silence.is_silent:
            self._log.warning(
                "kv_events_silent",
                **fields,
                problem="it should publish KV events, but requests store blocks and none comes; "
                "is --kv-events-config set, and can its port be reached?",
            )
        else:
            self._log.info("kv_events_heard", **fields)
