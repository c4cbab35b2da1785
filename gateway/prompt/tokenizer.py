"""One model's tokenizer: from a request body to the engine's token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from gateway.config.engine import EngineConfig
from gateway.prompt.body import RequestBody
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.chat import Lengths
from gateway.prompt.compiled import proven_template
from gateway.prompt.completion import given_ids
from gateway.prompt.encoder import Encoder, Pieces
from gateway.prompt.hub import why_not
from gateway.prompt.own_template import OwnTemplates
from gateway.prompt.problem import REFUSED, PromptProblem
from gateway.prompt.proof import Proven, proven_encoder
from gateway.prompt.rendering import Rendered, Renderer, Templates
from gateway.prompt.template import ChatTemplate
from routing.hashing import TOKEN_BYTES, pack_tokens, unpack_tokens
from routing.value import value

__all__ = ["PromptTokenizer", "Tokenized", "TokenizerUnavailable", "given_ids"]

# Where a text is cut that goes on, its last tokens may be others in the whole text. Tokenizers
# split at spaces first, and no vocabulary of ours has a token of more than 16 words or symbols.
UNSURE_TOKENS = 16
# Tokens of one picture, for the estimate of a prompt's length: Qwen-VL has 256 to 1,280 of them.
MEDIA_TOKENS = 512
# As vLLM loads tokenizers of models that generate.
_DEFAULT_SIDE = "left"


class TokenizerUnavailable(Exception):
    """A tokenizer cannot be loaded; the message says which, and what to do."""


@value
class Tokenized:
    """What is known of a prompt's token ids.

    Attributes:
        packed_tokens: All of them, or the first ones, packed.
        num_tokens: Prompt length; an estimate where it is not whole.
        whole: Whether these are all.
        is_dated: Whether the day is in them.
    """

    packed_tokens: bytes
    num_tokens: int
    whole: bool
    is_dated: bool


@value
class Begun:
    """A prompt that is written and cut, and not yet tokenized.

    Attributes:
        rendered: What is to be tokenized, or the token ids that the body held.
        pieces: Its text, cut; None where the body held token ids.
    """

    rendered: Rendered
    pieces: Pieces | None


class PromptTokenizer:
    """Token ids as the engine would compute them.

    Args:
        tokenizer: transformers' fast tokenizer, with its chat template.
        engine: What the engines' command line says.
        proven: How its texts are tokenized; None for by itself.

    Attributes:
        reference: The tokenizer itself.
        proven: How its texts are tokenized.
        is_direct: Whether its templates are called without transformers' detours.
        renderer: Writes prompts as text.

    Raises:
        TokenizerUnavailable: The configured chat template cannot be used.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        engine: EngineConfig | None = None,
        proven: Proven | None = None,
    ) -> None:
        self.reference = tokenizer
        self.proven = Proven(Encoder(tokenizer), "", "") if proven is None else proven
        self._encoder = self.proven.encoder
        engine = EngineConfig() if engine is None else engine
        own = OwnTemplates(tokenizer) if engine.trust_request_chat_template else None
        templates = _templates(tokenizer, engine.chat_template)
        self.renderer = Renderer(templates, engine, len(tokenizer), own)
        self.is_direct = True
        for template in self.renderer.templates:
            direct = proven_template(tokenizer, template)
            if direct is None:
                self.is_direct = False
            else:
                self.renderer.use(template, direct)
        self._max_model_len = engine.max_model_len

    @classmethod
    def load(
        cls, source: str, cache: ByteCache | None = None, *, offline: bool = False
    ) -> PromptTokenizer:
        """Load from a local folder or a hub id.

        Args:
            source: Which.
            cache: Keeps token ids of texts; without it there are no short cuts.
            offline: Leave the hub alone: its files are in the local cache, or nowhere.

        Raises:
            TokenizerUnavailable: It is missing, broken, or no fast tokenizer.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=offline)
        except Exception as error:  # transformers raises whatever its parts raise
            files = "tokenizer.json and tokenizer_config.json"
            raise TokenizerUnavailable(why_not(source, files, error, offline=offline)) from error
        if not tokenizer.is_fast:
            message = f"tokenizer {source!r} is no fast tokenizer: its tokenizer.json is missing"
            raise TokenizerUnavailable(message)
        return cls(tokenizer, proven=None if cache is None else proven_encoder(tokenizer, cache))

    def for_engine(self, engine: EngineConfig) -> PromptTokenizer:
        """Return the same tokenizer for engines with other flags.

        Raises:
            TokenizerUnavailable: The configured chat template cannot be used.
        """
        return PromptTokenizer(self.reference, engine, self.proven)

    @property
    def short_cuts(self) -> Mapping[str, bool]:
        """Which of the short cuts were proven equal to the reference, and are taken."""
        return {
            "fastokens": self.proven.not_faster is None,
            "segments": self.proven.not_kept is None,
            "template": self.is_direct,
        }

    @property
    def facts(self) -> Mapping[str, str | bool]:
        """What the log says about how it tokenizes."""
        return {
            "faster": self.proven.not_faster or "yes",
            "keeps_segments": self.proven.not_kept or "yes",
            "direct_template": self.is_direct,
        }

    def token_ids(self, body: RequestBody) -> list[int]:
        """Return the token ids of a prompt.

        Raises:
            PromptProblem: They cannot be known here, or the engine will refuse the body.
        """
        tokenized = self.tokenize(body)
        if not tokenized.whole:
            raise PromptProblem("multimodal")
        return unpack_tokens(tokenized.packed_tokens)

    def tokenize(self, body: RequestBody, max_model_len: int | None = None) -> Tokenized:
        """Return what is known of a prompt's token ids.

        Args:
            body: Any that has a prompt.
            max_model_len: Tokens of prompt and answer together, where the configuration does not
                say.

        Raises:
            PromptProblem: Nothing is known, or the engine will refuse the body.
        """
        return self.finish(self.begin(body), max_model_len)

    def begin(self, body: RequestBody) -> Begun:
        """Write a prompt as text and look up what of it is known: all but to tokenize.

        Raises:
            PromptProblem: As `tokenize`; `not_text`: there is half a surrogate pair in it.
        """
        rendered = self.renderer.render(body)
        if rendered.text is None:
            return Begun(rendered, None)
        try:
            add = rendered.add_special_tokens
            return Begun(rendered, self._encoder.cut(rendered.text, add_special_tokens=add))
        except UnicodeEncodeError as error:
            raise PromptProblem("not_text") from error

    def seconds(self, begun: Begun) -> float:
        """Return about how long `finish` takes."""
        return 0.0 if begun.pieces is None else self._encoder.seconds(begun.pieces)

    def finish(self, begun: Begun, max_model_len: int | None = None) -> Tokenized:
        """Return what is known of a begun prompt's token ids; see `tokenize`."""
        rendered = begun.rendered
        if begun.pieces is None:
            packed = pack_tokens(rendered.token_ids or ())
        else:
            packed = self._encoder.join(begun.pieces)
        if rendered.whole_text is not None:
            return self._beginning(rendered, packed)
        packed = fit(packed, rendered.lengths, self._max_model_len or max_model_len)
        num_tokens = len(packed) // TOKEN_BYTES
        return Tokenized(packed, num_tokens, whole=True, is_dated=rendered.is_dated)

    def _beginning(self, rendered: Rendered, known: bytes) -> Tokenized:
        """Return the token ids up to the first media part.

        Source: vLLM puts as many tokens as a medium has in the place of its mark, and hashes what
        the medium is into the blocks from there on.
        """
        if rendered.lengths.truncation is not None:
            raise PromptProblem("multimodal")  # which end is cut depends on the media's size
        known = known[: max(0, len(known) - UNSURE_TOKENS * TOKEN_BYTES)]
        rest = len(rendered.whole_text or "") - len(rendered.text or "")
        num_tokens = len(known) // TOKEN_BYTES + MEDIA_TOKENS + rest // 4 + 1
        return Tokenized(known, num_tokens, whole=False, is_dated=rendered.is_dated)


def fit(packed: bytes, lengths: Lengths, max_model_len: int | None) -> bytes:
    """Return the token ids that run: shortened where the body asks for it.

    Args:
        packed: Token ids of the whole prompt.
        lengths: What the body says about lengths.
        max_model_len: Tokens of prompt and answer together; None where that is not known.

    Raises:
        PromptProblem: `refused`: the engine does not take so many, or none at all.
    """
    packed = _truncated(packed, lengths, max_model_len)
    num_tokens = len(packed) // TOKEN_BYTES
    too_long = max_model_len is not None and max_model_len < max(
        num_tokens, lengths.max_output_tokens
    )
    if not packed or too_long:
        raise PromptProblem(REFUSED)
    return packed


def _truncated(packed: bytes, lengths: Lengths, max_model_len: int | None) -> bytes:
    if lengths.truncation is None:
        return packed
    keep = lengths.truncation.num_tokens
    if keep < 0:
        if max_model_len is None:
            raise PromptProblem("unsupported")
        # One place is left for the answer's first token.
        keep = max_model_len - (1 if lengths.max_output_tokens else 0)
    elif max_model_len is not None and keep > max_model_len:
        raise PromptProblem(REFUSED)
    keep_bytes = keep * TOKEN_BYTES
    if keep_bytes >= len(packed):
        return packed
    side = lengths.truncation.side or _DEFAULT_SIDE
    return packed[:keep_bytes] if side == "right" else packed[len(packed) - keep_bytes :]


def _templates(tokenizer: PreTrainedTokenizerBase, file: str | None) -> Templates | None:
    """Return a model's templates: those of the tokenizer, or the one in a file."""
    if file is not None:
        try:
            template = ChatTemplate(tokenizer, Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError, jinja2.TemplateSyntaxError) as error:
            message = f"chat_template {file!r} cannot be used: {error}"
            raise TokenizerUnavailable(message) from error
        return Templates(template, template)
    known: dict[str, ChatTemplate] = {}
    try:
        for kind, source in _sources(tokenizer.chat_template):
            known[kind] = ChatTemplate(tokenizer, source)
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerUnavailable(f"its chat template cannot be used: {error}") from error
    plain = known.get("default")
    return None if plain is None else Templates(plain, known.get("tool_use", plain))


def _sources(template: Any) -> Iterator[tuple[str, str]]:
    """Yield a tokenizer's templates by what they are for."""
    if isinstance(template, str) and template:
        yield "default", template
    elif isinstance(template, dict):
        for kind in ("default", "tool_use"):
            if isinstance(template.get(kind), str):
                yield kind, template[kind]
