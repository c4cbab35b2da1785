"""From the sections of a configuration to replicas and models."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gateway.config.engine import EngineConfig
from gateway.config.errors import ConfigError, Problem
from gateway.config.fleet import model_key
from gateway.config.models import GatewayConfig, ModelConfig
from gateway.kvevents.subscriber import Source
from gateway.models import Model, Models, build_model
from gateway.observability.logging import EventLog
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.keys import BlockKeys
from gateway.prompt.loading import ModelTokenizer, load_tokenizer
from gateway.prompt.prepare import Preparer
from gateway.prompt.tokenizer import TokenizerUnavailable
from gateway.prompting import Prompting
from gateway.proxy.transport import Origin
from gateway.replicas.discovery.base import Found
from gateway.replicas.registry import Replica
from gateway.threads import run_apart
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


_Format = tuple[str, str]


def _format(name: str, engine: EngineConfig) -> _Format:
    """Return which of a folder's tokenizers is meant: it may have one in Mistral's format too."""
    is_said = engine.renderer in ("template", "mistral")
    return name, engine.renderer if is_said else "auto"


class Tokenizers:
    """The tokenizers in use, each loaded once, in threads.

    Args:
        log: Gets one line for each, also where a gateway has to start without.
        cache_bytes: Bound on what is kept of prompts.

    Attributes:
        cache: What is kept of prompts, of all models.
    """

    def __init__(self, log: EventLog, cache_bytes: int) -> None:
        self.cache = ByteCache(cache_bytes)
        self._log = log
        self._tokenizer_by_format: dict[_Format, ModelTokenizer | None] = {}

    async def load(
        self, name: str, engine: EngineConfig, *, required: bool
    ) -> ModelTokenizer | None:
        """Return a tokenizer by its folder or hub id.

        Args:
            name: As configured.
            engine: What its model's engines' command line says.
            required: It must load. Else one that cannot is None, and is tried again next time:
                its model is routed without token ids meanwhile.

        Raises:
            ConfigError: It is required and cannot be loaded.
        """
        which = _format(name, engine)
        known = self._tokenizer_by_format.get(which)
        try:
            if known is None:
                known = await run_apart(partial(load_tokenizer, name, engine, self.cache), "load")
                self._tokenizer_by_format[which] = known
                self._tell(name, known)
            return await run_apart(partial(known.for_engine, engine), "load")
        except TokenizerUnavailable as problem:
            if required:
                raise ConfigError([Problem("", "tokenizer", str(problem))]) from None
            self._log.warning(
                "tokenizer_unavailable", tokenizer=name, problem=str(problem), cure=_CURE
            )
            self._tokenizer_by_format.setdefault(which, None)
            return None

    def _tell(self, name: str, loaded: ModelTokenizer) -> None:
        self._log.info("tokenizer_loaded", tokenizer=name, **loaded.facts)

    def keep(self, names: Iterable[str]) -> None:
        """Drop those that no model uses any more: each takes hundreds of megabytes."""
        wanted = set(names)
        for which in [each for each in self._tokenizer_by_format if each[0] not in wanted]:
            del self._tokenizer_by_format[which]

    def is_known(self, name: str) -> bool:
        """Return whether a running model asked for it, in vain or not."""
        return any(which[0] == name for which in self._tokenizer_by_format)


_CURE = (
    "until `warmroute reload` or a restart finds it, its models' prompts are routed by their first "
    "bytes"
)


async def build_models(
    config: GatewayConfig,
    tokenizers: Tokenizers,
    executor: ThreadPoolExecutor,
    prompting: Prompting,
    *,
    first: bool,
) -> Models:
    """Build all models of a configuration, with their tokenizers.

    Args:
        config: Validated.
        tokenizers: Those in use.
        executor: Prepares prompts.
        prompting: Asks replicas about them.
        first: The gateway starts: a tokenizer that cannot be loaded is no reason not to.

    Raises:
        ConfigError: A tokenizer that no model used before cannot be loaded.
    """
    models: list[Model] = []
    prepare = config.prepare
    block_keys = BlockKeys(tokenizers.cache)
    for model in config.models:
        tokenizer = None
        if model.tokenizer is not None:
            required = not first and not tokenizers.is_known(model.tokenizer)
            tokenizer = await tokenizers.load(model.tokenizer, model.engine, required=required)
        preparer = Preparer(
            tokenizer,
            executor,
            prepare.timeout_s,
            prepare.inline_bytes,
            prepare.max_bytes,
            block_keys,
        )
        prompts = await prompting.prompts(model, tokenizer, preparer)
        built = build_model(config, model, prompts)
        built.short_cuts = tokenizer.short_cuts if tokenizer is not None else {}
        models.append(built)
    return Models(models, config.rules)
