"""From the sections of a configuration to replicas and models."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from gateway.config.errors import ConfigError, Problem
from gateway.config.models import GatewayConfig, ModelConfig
from gateway.kvevents.subscriber import Source
from gateway.models import Model, Models, build_model, model_key
from gateway.observability.logging import EventLog
from gateway.prompt.prepare import Preparer
from gateway.prompt.tokenizer import PromptTokenizer, TokenizerUnavailable
from gateway.proxy.transport import Origin
from gateway.replicas.discovery.base import Found
from gateway.replicas.registry import Replica
from routing.types import ReplicaId


def replica_builder(
    model: ModelConfig, tls: ssl.SSLContext
) -> Callable[[ReplicaId, Found], Replica]:
    """Return how a replica of a model is made of what a discovery found.

    Args:
        model: Its section of the configuration; a listed replica has its events there.
        tls: How to speak TLS to those with an https address.
    """
    listed = {replica.url: replica for replica in model.replicas}

    def build(replica_id: ReplicaId, found: Found) -> Replica:
        section = listed.get(found.url)
        events = section.kv_events if section is not None else "auto"
        source = None
        if not isinstance(events, str):
            source = Source(events.endpoint, events.replay_endpoint, events.topic)
        return Replica(
            replica_id=replica_id,
            model_key=model_key(model),
            url=found.url,
            origin=Origin.of(found.url, tls),
            upstream_key=model.api_key.get_secret_value() if model.api_key else None,
            configured_block_size=model.block_size,
            configured_events=source,
            read_events=events != "off",
            configured_weight=section.weight if section is not None else 1.0,
        )

    return build


class Tokenizers:
    """The tokenizers in use, each loaded once, in threads.

    Args:
        executor: Loads them.
        log: Gets one line for each that a gateway has to start without.
    """

    def __init__(self, executor: ThreadPoolExecutor, log: EventLog) -> None:
        self._executor = executor
        self._log = log
        self._tokenizer_by_name: dict[str, PromptTokenizer | None] = {}

    async def load(self, name: str, *, required: bool) -> PromptTokenizer | None:
        """Return a tokenizer by its folder or hub id.

        Args:
            name: As configured.
            required: It must load. Else one that cannot is None, and is tried again next time:
                its model is routed without token ids meanwhile.

        Raises:
            ConfigError: It is required and cannot be loaded.
        """
        known = self._tokenizer_by_name.get(name)
        if known is not None:
            return known
        loop = asyncio.get_running_loop()
        try:
            loaded = await loop.run_in_executor(self._executor, PromptTokenizer.load, name)
        except TokenizerUnavailable as problem:
            if required:
                raise ConfigError([Problem("", "tokenizer", str(problem))]) from None
            self._log.warning("tokenizer_unavailable", tokenizer=name, problem=str(problem))
            loaded = None
        self._tokenizer_by_name[name] = loaded
        return loaded

    def keep(self, names: Iterable[str]) -> None:
        """Drop those that no model uses any more: each takes hundreds of megabytes."""
        for name in self._tokenizer_by_name.keys() - set(names):
            del self._tokenizer_by_name[name]

    def is_known(self, name: str) -> bool:
        """Return whether a running model asked for it, in vain or not."""
        return name in self._tokenizer_by_name


async def build_models(
    config: GatewayConfig, tokenizers: Tokenizers, executor: ThreadPoolExecutor, *, first: bool
) -> Models:
    """Build all models of a configuration, with their tokenizers.

    Args:
        config: Validated.
        tokenizers: Those in use.
        executor: Prepares prompts.
        first: The gateway starts: a tokenizer that cannot be loaded is no reason not to.

    Raises:
        ConfigError: A tokenizer that no model used before cannot be loaded.
    """
    models: list[Model] = []
    prepare = config.prepare
    for model in config.models:
        tokenizer = None
        if model.tokenizer is not None:
            required = not first and not tokenizers.is_known(model.tokenizer)
            tokenizer = await tokenizers.load(model.tokenizer, required=required)
        preparer = Preparer(
            tokenizer, executor, prepare.timeout_s, prepare.inline_bytes, prepare.max_bytes
        )
        models.append(build_model(config, model, preparer))
    return Models(models, config.rules)
