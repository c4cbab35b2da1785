"""From the sections of a configuration to replicas and models."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from gateway.config.engine import EngineConfig
from gateway.config.errors import ConfigError, Problem
from gateway.config.fleet import model_key
from gateway.config.models import GatewayConfig, ModelConfig
from gateway.kvevents.subscriber import Source
from gateway.models import Model, Models, build_model
from gateway.observability.logging import EventLog
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.hub import hub_answers, is_hub_id
from gateway.prompt.keys import BlockKeys
from gateway.prompt.loading import Loaded, files_of, load_tokenizer
from gateway.prompt.prepare import Preparer
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


# For one tokenizer. A large one is read and tried in 5 s, and 20 MB from the hub take 100 s at 200
# kB/s. A mount that hangs would hold the start up for ever.
LOAD_TIMEOUT_S = 120.0

_Format = tuple[str, str]
_Wanted = tuple[str, str | None]
"""A tokenizer's name and its chat template's file: what may be missing."""


def _format(name: str, engine: EngineConfig) -> _Format:
    """Return which of a folder's tokenizers is meant: it may have one in Mistral's format too."""
    is_said = engine.renderer in ("template", "mistral")
    return name, engine.renderer if is_said else "auto"


class Tokenizers:
    """The tokenizers in use, each loaded once in threads, and again where its files are others.

    Args:
        log: Gets one line for each, also where a gateway has to start without.
        cache_bytes: Bound on what is kept of prompts.

    Attributes:
        cache: What is kept of prompts, of all models.
    """

    def __init__(self, log: EventLog, cache_bytes: int) -> None:
        self.cache = ByteCache(cache_bytes)
        self._log = log
        self._loaded_by_format: dict[_Format, Loaded] = {}
        self._missing: set[_Wanted] = set()

    async def need_absent_hub(self, models: Iterable[ModelConfig]) -> bool:
        """Return whether a tokenizer has to come from the hub, and that does not answer."""
        wanted = ((model.tokenizer, model.engine) for model in models if model.tokenizer)
        unknown = (
            name for name, engine in wanted if _format(name, engine) not in self._loaded_by_format
        )
        return any(map(is_hub_id, unknown)) and not await hub_answers()

    async def load(self, name: str, engine: EngineConfig, *, first: bool, offline: bool) -> Loaded:
        """Return a tokenizer by its folder or hub id.

        Args:
            name: As configured.
            engine: What its model's engines' command line says.
            first: The gateway starts: one that cannot be loaded is no reason not to. It is tried
                again with each reload, and its model is routed without token ids meanwhile.
            offline: Leave the hub alone.

        Raises:
            ConfigError: It cannot be loaded, and was not missing before.
        """
        wanted = (name, engine.chat_template)
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                loaded = await self._loaded(name, engine, offline=offline)
        except TimeoutError:
            loaded = Loaded(problem=_SLOW.format(name=name, timeout_s=LOAD_TIMEOUT_S))
        if loaded.tokenizer is not None:
            self._missing.discard(wanted)
            return loaded
        if not first and wanted not in self._missing:
            raise ConfigError([Problem("", "tokenizer", loaded.problem)])
        self._missing.add(wanted)
        self._log.warning(
            "tokenizer_unavailable", tokenizer=name, problem=loaded.problem, cure=_CURE
        )
        return loaded

    async def _loaded(self, name: str, engine: EngineConfig, *, offline: bool) -> Loaded:
        which = _format(name, engine)
        files = await run_apart(partial(files_of, name), "load")
        known = self._loaded_by_format.get(which)
        if known is None or files not in (None, known.files):
            load = partial(load_tokenizer, name, engine, self.cache, offline=offline)
            loaded = await run_apart(load, "load")
            if loaded.tokenizer is None:
                return loaded
            self._loaded_by_format[which] = known = replace(loaded, files=files)
            self._log.info("tokenizer_loaded", tokenizer=name, **loaded.tokenizer.facts)
        return await run_apart(partial(known.for_engine, engine), "load")

    def keep(self, names: Iterable[str]) -> None:
        """Drop those that no model uses any more: each takes hundreds of megabytes."""
        wanted = set(names)
        for which in [each for each in self._loaded_by_format if each[0] not in wanted]:
            del self._loaded_by_format[which]
        self._missing = {each for each in self._missing if each[0] in wanted}


_SLOW = (
    "tokenizer {name!r} did not load within {timeout_s:g} s: the hub is slow, or the mount of its "
    "folder hangs"
)
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
        ConfigError: A tokenizer cannot be loaded, and was not missing before.
    """
    models: list[Model] = []
    prepare = config.prepare
    block_keys = BlockKeys(tokenizers.cache)
    offline = await tokenizers.need_absent_hub(config.models)
    for model in config.models:
        loaded = Loaded()
        if model.tokenizer is not None:
            name, engine = model.tokenizer, model.engine
            loaded = await tokenizers.load(name, engine, first=first, offline=offline)
        tokenizer = loaded.tokenizer
        preparer = Preparer(
            tokenizer,
            executor,
            prepare.timeout_s,
            prepare.inline_bytes,
            prepare.max_bytes,
            block_keys,
        )
        built = build_model(config, model, prompting.prompts(model, loaded, preparer))
        built.short_cuts = tokenizer.short_cuts if tokenizer is not None else {}
        models.append(built)
    return Models(models, config.rules)
