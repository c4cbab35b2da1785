"""Puts together how each model's prompts become token ids, for one configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gateway.assembly import Parts
from gateway.config.fleet import ModelConfig, model_key
from gateway.config.models import PrepareConfig
from gateway.prompt.bycode import MISTRAL, rendered_by_code
from gateway.prompt.checking import Checker, Told
from gateway.prompt.loading import ModelTokenizer
from gateway.prompt.prepare import Preparer
from gateway.prompt.rendering import Renderer
from gateway.prompt.verified import CheckedPrompts, Prompts, ToldPrompts
from gateway.replicas.registry import Replica
from gateway.replicas.tokens import ReplicaTokens
from gateway.threads import run_apart

# What `engine.renderer: replica` stands for where the tokenizer's folder does not say it.
_SAID_SO = "configured"


class Prompting:
    """Asks and checks for all models of one configuration.

    Args:
        parts: Replicas to ask, and who is told.
        executor: Threads to compute in.
        config: How often, and how long.
    """

    def __init__(self, parts: Parts, executor: ThreadPoolExecutor, config: PrepareConfig) -> None:
        self._parts = parts
        self._executor = executor
        self._config = config
        self._checkers: list[Checker] = []
        self._asking: list[ReplicaTokens] = []

    async def prompts(
        self, model: ModelConfig, tokenizer: ModelTokenizer | None, preparer: Preparer
    ) -> Prompts:
        """Return what prepares a model's prompts.

        Args:
            model: Its section.
            tokenizer: Its tokenizer; None where it has none, or it could not be loaded.
            preparer: Computes what can be computed here.
        """
        by_code = await self._by_code(model, tokenizer)
        if tokenizer is None and by_code is None:
            return preparer  # nothing to check, and nothing that a replica would be asked
        key = model_key(model)
        ready = partial(self._parts.registry.eligible, key)
        tokens = ReplicaTokens(self._parts.transport, ready, self._parts.rng)
        self._asking.append(tokens)
        renderer = Renderer(None, model.engine) if tokenizer is None else tokenizer.renderer
        timeout_s = self._config.replica_timeout_s
        told = ToldPrompts(preparer, tokens, renderer, timeout_s, by_code)
        if tokenizer is None or by_code is not None:
            return told
        checker = Checker(
            partial(self._served_name, model, ready),
            tokenizer,
            tokens,
            self._executor,
            self._config.check_every,
            self._told(key),
        )
        self._checkers.append(checker)
        return CheckedPrompts(told, checker)

    def start(self) -> None:
        """Make the first comparisons."""
        for checker in self._checkers:
            checker.start()

    def close(self) -> None:
        """Stop what runs."""
        for checker in self._checkers:
            checker.close()
        for tokens in self._asking:
            tokens.close()

    async def _by_code(self, model: ModelConfig, tokenizer: ModelTokenizer | None) -> str | None:
        renderer = model.engine.renderer
        says_so = _SAID_SO if renderer == "replica" else None
        if renderer == "template" or model.tokenizer is None:
            return says_so
        found: str | None = MISTRAL
        if renderer != "mistral":
            found = await run_apart(partial(rendered_by_code, model.tokenizer), "load")
        if found == MISTRAL and tokenizer is not None:
            return says_so  # rendered here, by the engine's own library
        return found or says_so

    @staticmethod
    def _served_name(model: ModelConfig, ready: Callable[[], Sequence[Replica]]) -> str | None:
        """Return what a ready replica calls the model; None where none is ready."""
        for replica in ready():
            base = replica.facts.base
            return model.name if base is None else base.name
        return None

    def _told(self, key: str) -> Told:
        metrics, log = self._parts.metrics.index, self._parts.log
        metrics.token_trusted.labels(key).set(1)

        def trust(is_given: bool, result: str) -> None:
            metrics.token_trusted.labels(key).set(is_given)
            if is_given:
                log.info("token_ids_trusted", model=key)
            else:
                log.warning("token_ids_distrusted", model=key, result=result, cure=_CURE)

        return Told(lambda result: metrics.token_check.labels(key, result).inc(), trust)


_CURE = (
    "compare models[].tokenizer and models[].engine with the engines' command line: prompts are "
    "routed by their first bytes until the replicas' /tokenize says the same again"
)
