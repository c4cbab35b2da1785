"""Puts together how each model's prompts become token ids, for one configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from gateway.assembly import Parts
from gateway.config.engine import EngineConfig
from gateway.config.fleet import ModelConfig, model_key
from gateway.config.models import PrepareConfig
from gateway.prompt.bycode import MISTRAL
from gateway.prompt.checking import Checker, Told
from gateway.prompt.loading import Files, Loaded, ModelTokenizer
from gateway.prompt.prepare import Preparer
from gateway.prompt.rendering import Renderer
from gateway.prompt.verified import CheckedPrompts, Prompts, ToldPrompts
from gateway.replicas.registry import Replica
from gateway.replicas.tokens import ReplicaTokens

# What `engine.renderer: replica` stands for where the tokenizer's folder does not say it.
_SAID_SO = "configured"


@dataclass(frozen=True, slots=True)
class _Basis:
    """What a model's token ids depend on: while it stays, so does what is known of them."""

    tokenizer: str | None
    files: Files | None
    engine: EngineConfig
    templates: tuple[str, ...]


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
        self._checkers: dict[str, Checker] = {}
        self._bases: dict[str, _Basis] = {}
        self._asking: list[ReplicaTokens] = []

    def prompts(self, model: ModelConfig, loaded: Loaded, preparer: Preparer) -> Prompts:
        """Return what prepares a model's prompts.

        Args:
            model: Its section.
            loaded: What there is of its tokenizer.
            preparer: Computes what can be computed here.
        """
        tokenizer, by_code = loaded.tokenizer, _by_code(model, loaded)
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
        return CheckedPrompts(told, self._checker(model, tokenizer, loaded.files, tokens))

    def _checker(
        self,
        model: ModelConfig,
        tokenizer: ModelTokenizer,
        files: Files | None,
        tokens: ReplicaTokens,
    ) -> Checker:
        key = model_key(model)
        ready = partial(self._parts.registry.eligible, key)
        checker = Checker(
            partial(self._served_name, model, ready),
            tokenizer,
            tokens,
            self._executor,
            self._config.check_every,
            self._told(key),
        )
        templates = tuple(template.source for template in tokenizer.renderer.templates)
        self._checkers[key] = checker
        self._bases[key] = _Basis(model.tokenizer, files, model.engine, templates)
        return checker

    def inherit(self, before: Prompting) -> None:
        """Take over what is known of token ids whose tokenizer, flags and templates stay."""
        for key, basis in self._bases.items():
            if before._bases.get(key) == basis:
                self._checkers[key].inherit(before._checkers[key])

    def start(self) -> None:
        """Make the first comparisons, and show which ids are used."""
        trusted = self._parts.metrics.index.token_trusted
        trusted.clear()  # a new configuration may have fewer of them
        for key, checker in self._checkers.items():
            trusted.labels(key).set(checker.is_trusted)
            checker.start()

    def close(self) -> None:
        """Stop what runs."""
        for checker in self._checkers.values():
            checker.close()
        for tokens in self._asking:
            tokens.close()

    @staticmethod
    def _served_name(model: ModelConfig, ready: Callable[[], Sequence[Replica]]) -> str | None:
        """Return what a ready replica calls the model; None where none is ready."""
        for replica in ready():
            base = replica.facts.base
            return model.name if base is None else base.name
        return None

    def _told(self, key: str) -> Told:
        metrics, log = self._parts.metrics.index, self._parts.log

        def trust(is_given: bool, result: str) -> None:
            metrics.token_trusted.labels(key).set(is_given)
            if is_given:
                log.info("token_ids_trusted", model=key)
            else:
                log.warning("token_ids_distrusted", model=key, result=result, cure=_CURE)

        return Told(lambda result: metrics.token_check.labels(key, result).inc(), trust)


def _by_code(model: ModelConfig, loaded: Loaded) -> str | None:
    says_so = _SAID_SO if model.engine.renderer == "replica" else None
    if loaded.by_code == MISTRAL and loaded.tokenizer is not None:
        return says_so  # rendered here, by the engine's own library
    return loaded.by_code or says_so


_CURE = (
    "compare models[].tokenizer and models[].engine with the engines' command line: prompts are "
    "routed by their first bytes until the replicas' /tokenize says the same again"
)
