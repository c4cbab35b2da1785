"""What every kind of tokenizer does for a model, and which kind a model has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from gateway.config.engine import EngineConfig
from gateway.prompt.body import RequestBody
from gateway.prompt.bycode import MISTRAL, rendered_by_code
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.mistral import MistralTokenizer
from gateway.prompt.rendering import Renderer
from gateway.prompt.tokenizer import PromptTokenizer, Tokenized, TokenizerUnavailable
from routing.value import value


class ModelTokenizer(Protocol):
    """Token ids of one model's prompts, as its engines would compute them."""

    @property
    def renderer(self) -> Renderer:
        """Says what to ask a replica about a body."""
        ...

    @property
    def short_cuts(self) -> Mapping[str, bool]:
        """Which of the short cuts were proven equal to the reference, and are taken."""
        ...

    @property
    def facts(self) -> Mapping[str, str | bool]:
        """What the log says about how it tokenizes."""
        ...

    def for_engine(self, engine: EngineConfig) -> ModelTokenizer:
        """Return the same tokenizer for engines with other flags.

        Raises:
            TokenizerUnavailable: The configured chat template cannot be used.
        """
        ...

    def begin(self, body: RequestBody) -> Any:
        """Do all but to tokenize, and return what `finish` takes.

        Raises:
            PromptProblem: The ids cannot be known here, or the engine will refuse the body.
        """
        ...

    def seconds(self, begun: Any) -> float:
        """Return about how long `finish` takes."""
        ...

    def finish(self, begun: Any, max_model_len: int | None = None) -> Tokenized:
        """Return what is known of a begun prompt's token ids.

        Args:
            begun: What `begin` returned.
            max_model_len: Tokens of prompt and answer together, where the configuration does not
                say.

        Raises:
            PromptProblem: As `begin`.
        """
        ...

    def tokenize(self, body: RequestBody, max_model_len: int | None = None) -> Tokenized:
        """Return what is known of a prompt's token ids: `begin` and `finish` in one."""
        ...


Files = frozenset[tuple[str, int, int]]
"""Names, times and sizes of a folder's files: others are there where these differ."""


def files_of(source: str) -> Files | None:
    """Return what a tokenizer's folder looks like; None where there is no such folder."""
    try:
        with os.scandir(source) as entries:
            seen = ((entry.name, entry.stat()) for entry in entries if entry.is_file())
            return frozenset((name, stat.st_mtime_ns, stat.st_size) for name, stat in seen)
    except OSError:
        return None


@value
class Loaded:
    """What there is of a model's tokenizer.

    Attributes:
        tokenizer: None where it cannot be loaded.
        by_code: What renders chats at its engines in place of a template; None for the template,
            or where nobody can tell.
        problem: Why it cannot be loaded.
        files: What its folder looked like; None where it has none.
    """

    tokenizer: ModelTokenizer | None = None
    by_code: str | None = None
    problem: str = ""
    files: Files | None = None

    def for_engine(self, engine: EngineConfig) -> Loaded:
        """Return the same for engines with other flags; with a problem where these do not fit."""
        if self.tokenizer is None:
            return self
        try:
            return replace(self, tokenizer=self.tokenizer.for_engine(engine))
        except TokenizerUnavailable as problem:
            return Loaded(None, self.by_code, str(problem))


def load_tokenizer(
    source: str, engine: EngineConfig, cache: ByteCache, *, offline: bool = False
) -> Loaded:
    """Load a model's tokenizer from a local folder or a hub id.

    Args:
        source: Which.
        engine: What the engines' command line says.
        cache: Keeps token ids of texts.
        offline: Leave the hub alone: its files are in the local cache, or nowhere.
    """
    by_code: str | None = MISTRAL
    if engine.renderer != "mistral":
        is_said = engine.renderer == "template"
        by_code = None if is_said else rendered_by_code(source, offline=offline)
    kind = MistralTokenizer if by_code == MISTRAL else PromptTokenizer
    try:
        return Loaded(kind.load(source, cache, offline=offline), by_code)
    except TokenizerUnavailable as problem:
        return Loaded(None, by_code, str(problem))
