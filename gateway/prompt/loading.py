"""What every kind of tokenizer does for a model, and which kind a model has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.config.engine import EngineConfig
from gateway.prompt.body import RequestBody
from gateway.prompt.bycode import MISTRAL, rendered_by_code
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.mistral import MistralTokenizer
from gateway.prompt.rendering import Renderer
from gateway.prompt.tokenizer import PromptTokenizer, Tokenized


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


def load_tokenizer(source: str, engine: EngineConfig, cache: ByteCache) -> ModelTokenizer:
    """Load a model's tokenizer from a local folder or a hub id.

    Args:
        source: Which.
        engine: What the engines' command line says.
        cache: Keeps token ids of texts.

    Raises:
        TokenizerUnavailable: It is missing or broken, or a package that it needs is.
    """
    is_mistral = engine.renderer == "mistral" or (
        engine.renderer != "template" and rendered_by_code(source) == MISTRAL
    )
    if is_mistral:
        return MistralTokenizer.load(source, cache)
    return PromptTokenizer.load(source, cache)
