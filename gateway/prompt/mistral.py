"""Token ids of models in Mistral's own format: chats that no template writes, but mistral-common.

vLLM (`--tokenizer-mode mistral`) hands a chat to transformers' wrapper of that package, and gets
token ids from it without a text in between. Here the same wrapper gets the same messages.

Source: vLLM 0.32, tokenizers/mistral and renderers/mistral; what it made of the golden cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from gateway.config.engine import EngineConfig
from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.chat import ChatRequest, Lengths, template_arguments
from gateway.prompt.completion import forwarded_ids
from gateway.prompt.encoder import NAME_BYTES, REFERENCE_BYTE_S
from gateway.prompt.hub import why_not
from gateway.prompt.problem import REFUSED, PromptProblem
from gateway.prompt.render import MEDIA_MARKS, conversation, first_media, read_call
from gateway.prompt.rendering import Rendered, Renderer
from gateway.prompt.shapes import read_message
from gateway.prompt.tokenizer import (
    MEDIA_TOKENS,
    UNSURE_TOKENS,
    Tokenized,
    TokenizerUnavailable,
    fit,
)
from routing.hashing import TOKEN_BYTES, pack_tokens, unpack_tokens
from routing.value import value

# Its checks of a chat, whatever its length: pydantic models of every message.
_CHAT_S = 1e-3
# Calls have ids of nine characters in Mistral's format; vLLM keeps the end of longer ones.
_CALL_ID_CHARS = 9
# Shorter texts are tokenized faster than looked up.
_MIN_KEPT_CHARS = 256


@value
class MistralChat:
    """A chat that is read and checked, and not yet tokenized.

    Attributes:
        messages: As mistral-common gets them.
        arguments: What else it gets.
        lengths: What the body says about lengths.
        media: Number of the first message with a media part; None for none.
        num_bytes: Length of the body.
    """

    messages: list[dict[str, Any]]
    arguments: Mapping[str, Any]
    lengths: Lengths
    media: int | None
    num_bytes: int


class MistralTokenizer:
    """Token ids as vLLM computes them with mistral-common.

    Args:
        backend: transformers' wrapper of mistral-common.
        engine: What the engines' command line says.

    Attributes:
        renderer: Reads completions, and says what to ask a replica about a body.
    """

    def __init__(self, backend: Any, engine: EngineConfig | None = None) -> None:
        engine = EngineConfig() if engine is None else engine
        # Tools need no parser where the tokenizer is Mistral's.
        self._engine = engine.model_copy(update={"tool_parser": True})
        self._backend = backend
        self._encode: Callable[..., list[int]] = (
            backend.tokenizer.instruct_tokenizer.tokenizer.encode
        )
        self.renderer = Renderer(None, self._engine, backend.vocab_size)

    @classmethod
    def load(
        cls, source: str, cache: ByteCache | None = None, *, offline: bool = False
    ) -> MistralTokenizer:
        """Load from a local folder or a hub id.

        Args:
            source: Which.
            cache: Keeps token ids of texts.
            offline: Leave the hub alone: its files are in the local cache, or nowhere.

        Raises:
            TokenizerUnavailable: It is missing or broken, or mistral-common is not installed.
        """
        try:
            import mistral_common  # noqa: F401, PLC0415 - an extra, and only for such a model
            from transformers.tokenization_mistral_common import (  # noqa: PLC0415 - needs it
                MistralCommonBackend,
            )
        except ImportError as error:
            message = (
                f"tokenizer {source!r} is in Mistral's format, which needs mistral-common: "
                "install warmroute[mistral], or its chats are rendered by a replica"
            )
            raise TokenizerUnavailable(message) from error
        try:
            backend = MistralCommonBackend.from_pretrained(source, local_files_only=offline)
        except Exception as error:  # mistral-common raises whatever its parts raise
            files = "tekken.json or tokenizer.model.v3"
            raise TokenizerUnavailable(why_not(source, files, error, offline=offline)) from error
        if cache is not None:
            _keep(backend.tokenizer.instruct_tokenizer.tokenizer, cache)
        return cls(backend)

    def for_engine(self, engine: EngineConfig) -> MistralTokenizer:
        """Return the same tokenizer for engines with other flags."""
        return MistralTokenizer(self._backend, engine)

    @property
    def short_cuts(self) -> Mapping[str, bool]:
        """None: mistral-common itself does the work."""
        return {"fastokens": False, "segments": False, "template": False}

    @property
    def facts(self) -> Mapping[str, str | bool]:
        """What the log says about how it tokenizes."""
        return {"faster": "Mistral's format", "keeps_segments": "long texts"}

    def begin(self, body: RequestBody) -> MistralChat | Rendered:
        """Read and check a prompt: all but to tokenize.

        Raises:
            PromptProblem: It cannot be known here, or the engine will refuse the body.
        """
        if body.kind is not BodyKind.COMPLETION:
            return self._chat(body)
        rendered = self.renderer.render(body)
        if rendered.text is not None and rendered.lengths.truncation is not None:
            raise PromptProblem("unsupported")  # the first token stays, whichever end is cut
        return rendered

    def seconds(self, begun: MistralChat | Rendered) -> float:
        """Return about how long `finish` takes."""
        if isinstance(begun, MistralChat):
            return _CHAT_S + begun.num_bytes * REFERENCE_BYTE_S
        return len(begun.text or "") * REFERENCE_BYTE_S

    def finish(self, begun: MistralChat | Rendered, max_model_len: int | None = None) -> Tokenized:
        """Return what is known of a begun prompt's token ids.

        Args:
            begun: What `begin` returned.
            max_model_len: Tokens of prompt and answer together, where the configuration does not
                say.

        Raises:
            PromptProblem: The engine will refuse the body.
        """
        if isinstance(begun, MistralChat):
            if begun.media is not None:
                return self._beginning(begun, begun.media)
            ids = self._ids(begun.messages, begun.arguments)
        elif begun.text is not None:
            ids = self._encode(begun.text, bos=begun.add_special_tokens, eos=False)
        else:
            ids = begun.token_ids or []
        packed = fit(pack_tokens(ids), begun.lengths, self._engine.max_model_len or max_model_len)
        return Tokenized(packed, len(packed) // TOKEN_BYTES, whole=True, is_dated=False)

    def tokenize(self, body: RequestBody, max_model_len: int | None = None) -> Tokenized:
        """Return what is known of a prompt's token ids; see `begin` and `finish`."""
        return self.finish(self.begin(body), max_model_len)

    def _chat(self, body: RequestBody) -> MistralChat | Rendered:
        request = self.renderer.request(body)
        takes_none = body.kind is not BodyKind.RESPONSES
        has_own = takes_none and body.fields.get("chat_template_kwargs") is not None
        if has_own or not request.messages:
            raise PromptProblem(REFUSED)
        # The engine reads the messages for its own use first, and refuses what it cannot read.
        conversation(request.messages, keep_parts=False, as_chat=request.as_chat)
        read = [read_message(m) for m in request.messages] if request.as_chat else request.messages
        media = first_media(read)
        ids = forwarded_ids(body.fields) if body.kind is BodyKind.CHAT else None
        if ids is not None and media is None:
            return Rendered(None, ids, False, Lengths())
        messages = [_message(message) for message in read]
        arguments = self._arguments(request, str(messages[-1].get("role")))
        return MistralChat(messages, arguments, request.lengths, media, body.num_bytes)

    def _arguments(self, request: ChatRequest, last_role: str) -> Mapping[str, Any]:
        given = template_arguments(request, self._engine)
        adds, goes_on = given["add_generation_prompt"], given["continue_final_message"]
        if (adds and last_role == "assistant") or (goes_on and last_role != "assistant"):
            raise PromptProblem(REFUSED)
        arguments = {"tools": given.get("tools"), "continue_final_message": goes_on}
        version = self._backend.tokenizer.instruct_tokenizer.tokenizer.version
        if version.supports_model_settings:
            arguments["reasoning_effort"] = given.get("reasoning_effort")
        return arguments

    def _ids(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> list[int]:
        try:
            ids: list[int] = self._backend.apply_chat_template(
                list(messages), tokenize=True, return_dict=False, **arguments
            )
        except Exception as error:
            # The engine answers with 400, whatever mistral-common raises.
            raise PromptProblem(REFUSED) from error
        return ids

    def _beginning(self, chat: MistralChat, media: int) -> Tokenized:
        """Return the token ids up to the first message with a media part."""
        if chat.lengths.truncation is not None:
            raise PromptProblem("multimodal")  # which end is cut depends on the media's size
        one, other = (
            self._ids(_with_content(chat.messages, media, mark), chat.arguments)
            for mark in MEDIA_MARKS
        )
        same = (
            number for number, pair in enumerate(zip(one, other, strict=False)) if len({*pair}) > 1
        )
        known = one[: max(0, next(same, len(one)) - UNSURE_TOKENS)]
        num_tokens = len(one) + MEDIA_TOKENS
        return Tokenized(pack_tokens(known), num_tokens, whole=False, is_dated=False)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as vLLM hands it over."""
    handed = {key: message[key] for key in message if key != "reasoning_content"}
    if handed.get("reasoning") is None and message.get("reasoning_content") is not None:
        handed["reasoning"] = message["reasoning_content"]
    if handed["role"] == "assistant":
        # Reading the messages for its own use, the engine reads arguments in place.
        calls = map(read_call, handed.get("tool_calls") or ())
        handed["tool_calls"] = [{**call, "id": call["id"][-_CALL_ID_CHARS:]} for call in calls]
    elif handed["role"] == "tool" and isinstance(handed.get("tool_call_id"), str):
        handed["tool_call_id"] = handed["tool_call_id"][-_CALL_ID_CHARS:]
    return handed


def _with_content(
    messages: Sequence[Mapping[str, Any]], position: int, content: str
) -> list[Mapping[str, Any]]:
    """Return messages with another content at a position, and no media behind it."""
    without = [
        {**message, "content": content} if first_media((message,)) is not None else message
        for message in messages[position:]
    ]
    return [*messages[:position], *without]


def _keep(tokenizer: Any, cache: ByteCache) -> None:
    """Let a tokenizer keep the ids of long texts: those of a chat come again with every turn."""
    encode, tag = tokenizer.encode, cache.new_tag()

    def kept(s: str, bos: bool, eos: bool) -> list[int]:
        if len(s) < _MIN_KEPT_CHARS or bos or eos:
            return list(encode(s, bos=bos, eos=eos))
        name = sha256(s.encode(errors="surrogatepass")).digest()[:NAME_BYTES] + tag
        packed = cache.get(name)
        if packed is None:
            packed = pack_tokens(encode(s, bos=False, eos=False))
            cache.put(name, packed)
        return unpack_tokens(packed)

    tokenizer.encode = kept
