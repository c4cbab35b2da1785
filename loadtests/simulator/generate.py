"""Chat and completions: from a request body to an answer, through the engine."""

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from loadtests.simulator.driver import Generation
from loadtests.simulator.errors import (
    ApiError,
    bad_request,
    parse_body,
    prompt_too_long,
    too_many_tokens,
    unknown_model,
)
from loadtests.simulator.exchange import Exchange
from loadtests.simulator.messages import tool_schemas
from loadtests.simulator.prompts import PromptEncoder
from loadtests.simulator.ranks import RANK_HEADER, Ranks
from loadtests.simulator.replies import ReplyWriter, Wish
from loadtests.simulator.schemas import ChatRequest, CompletionRequest, TokenizeChatRequest
from loadtests.simulator.shapes import (
    DONE,
    CacheCounts,
    ChatShape,
    Choice,
    CompletionShape,
    Fields,
    Head,
    Shape,
    usage_counts,
)
from routing.lab.sequence import EngineRequest

# vLLM's default for completions; chat has none but the room that is left.
_COMPLETION_MAX_TOKENS = 16
_REQUEST_ID_HEADER = b"x-request-id"

GenerateRequest = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a client can learn about the model."""

    name: str
    root: str
    max_model_len: int
    fingerprint: str
    started_s: int


class Generator:
    """Serves the two generating endpoints."""

    def __init__(
        self,
        model: ServedModel,
        encoder: PromptEncoder,
        writer: ReplyWriter,
        ranks: Ranks,
        *,
        block_size: int,
        show_details: bool,
    ) -> None:
        self._model = model
        self._encoder = encoder
        self._writer = writer
        self._ranks = ranks
        self._block_size = block_size
        self._show_details = show_details
        self._numbers = itertools.count()

    async def chat(self, exchange: Exchange, body: Any) -> None:
        """Answer POST /v1/chat/completions.

        Raises:
            ApiError: The request cannot be served.
        """
        request = parse_body(ChatRequest, body)
        self._check(request)
        ids = await self._chat_ids(request)
        asked = request.max_completion_tokens
        if asked is None:
            asked = request.max_tokens
        choices = [self._choice(request, 0, ids, asked)]
        shape = ChatShape(self._head(exchange, request, "chatcmpl"))
        await self._serve(exchange, request, shape, choices)

    async def completions(self, exchange: Exchange, body: Any) -> None:
        """Answer POST /v1/completions.

        Raises:
            ApiError: The request cannot be served.
        """
        request = parse_body(CompletionRequest, body)
        self._check(request)
        if request.echo:
            raise bad_request("echo is not supported", "echo")
        prompts = await self._completion_ids(request)
        asked = _COMPLETION_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        choices = [self._choice(request, i, ids, asked) for i, ids in enumerate(prompts)]
        shape = CompletionShape(self._head(exchange, request, "cmpl"))
        await self._serve(exchange, request, shape, choices)

    def check_model(self, name: str | None) -> None:
        """Refuse models that are not served here.

        Raises:
            ApiError: 404.
        """
        if name is not None and name != self._model.name:
            raise unknown_model(name, self._model.name)

    def render(self, request: ChatRequest | TokenizeChatRequest) -> str:
        """Return the prompt text of a chat.

        Raises:
            ApiError: 400, messages, tools or template arguments are not possible.
        """
        kwargs = dict(request.chat_template_kwargs or {})
        if "messages" in kwargs:
            raise bad_request("chat_template_kwargs must not hold messages", "chat_template_kwargs")
        if request.chat_template is not None or "chat_template" in kwargs:
            raise bad_request(
                "Chat template is passed with request, but --trust-request-chat-template is not "
                "set. Refused request with untrusted chat template."
            )
        if request.continue_final_message and request.add_generation_prompt:
            raise bad_request(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            )
        messages = request.messages
        if isinstance(request, ChatRequest):
            kwargs = _run_only_kwargs(request) | kwargs
        else:
            # A run renames this key and uses it; /tokenize drops it.
            dropped = "reasoning_content"
            messages = [{k: v for k, v in m.items() if k != dropped} for m in messages]
        kwargs["add_generation_prompt"] = request.add_generation_prompt
        kwargs["continue_final_message"] = request.continue_final_message
        return self._encoder.render(messages, tool_schemas(request.tools), kwargs)

    def _check(self, request: GenerateRequest) -> None:
        self.check_model(request.model)
        if request.stream_options is not None and not request.stream:
            message = "Stream options can only be defined when `stream=True`."
            raise ApiError(400, "Bad Request", message, "stream_options")
        if request.n not in {None, 1}:
            raise bad_request(f"n must be 1, got {request.n}.", "n")

    async def _chat_ids(self, request: ChatRequest) -> Sequence[int]:
        if request.tools is not None and not request.tools:
            raise bad_request("tools must not be an empty list", "tools")
        given = (request.kv_transfer_params or {}).get("prompt_token_ids")
        if given is not None:
            if not isinstance(given, list) or not all(type(i) is int and i >= 0 for i in given):
                raise bad_request("prompt_token_ids must be token ids", "kv_transfer_params")
            self._encoder.check_ids(given, "kv_transfer_params")
            return given
        text = self.render(request)
        return await self._encoder.encode(text, add_special_tokens=request.add_special_tokens)

    async def _completion_ids(self, request: CompletionRequest) -> list[Sequence[int]]:
        prompt: Any = request.prompt
        if not prompt:
            message = "Either prompt or prompt_embeds must be provided and non-empty."
            raise ApiError(400, "Bad Request", message, "prompt")
        if isinstance(prompt, str) or isinstance(prompt[0], int):
            prompt = [prompt]
        ids: list[Sequence[int]] = []
        for one in prompt:
            if isinstance(one, str):
                special = request.add_special_tokens
                ids.append(await self._encoder.encode(one, add_special_tokens=special))
            else:
                self._encoder.check_ids(one, "prompt")
                ids.append(one)
        return ids

    def _choice(
        self, request: GenerateRequest, index: int, ids: Sequence[int], asked: int | None
    ) -> Choice:
        """Write the reply to one prompt, within the room that there is."""
        ids = _truncate(ids, request, self._model.max_model_len)
        if not ids:
            raise bad_request("the prompt has no tokens", "prompt")
        room = self._model.max_model_len - len(ids)
        if room < 1:
            raise prompt_too_long(self._model.max_model_len)
        if asked is not None and asked < 1:
            raise bad_request(f"max_tokens must be at least 1, got {asked}.", "max_tokens")
        if asked is not None and asked > room:
            raise too_many_tokens(self._model.max_model_len, asked)
        if asked is not None and request.min_tokens > asked:
            message = f"min_tokens must be at most max_tokens={asked}, got {request.min_tokens}."
            raise bad_request(message, "min_tokens")
        stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
        wish = Wish(
            max_tokens=room if asked is None else asked,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop=stop,
            stop_token_ids=request.stop_token_ids or [],
            include_stop=request.include_stop_str_in_output,
        )
        return Choice(index, ids, self._writer.write(ids, wish))

    def _head(self, exchange: Exchange, request: GenerateRequest, kind: str) -> Head:
        own_id = uuid.uuid4().hex[:16]
        public_id = exchange.header(_REQUEST_ID_HEADER) or request.request_id or own_id
        return Head(
            response_id=f"{kind}-{public_id}",
            created_s=int(time.time()),
            model=self._model.name,
            fingerprint=self._model.fingerprint,
            show_token_ids=bool(request.return_token_ids),
            show_details=self._show_details,
        )

    async def _serve(
        self, exchange: Exchange, request: GenerateRequest, shape: Shape, choices: list[Choice]
    ) -> None:
        async with self._running(exchange, request, choices) as generations:
            if request.stream:
                await _stream(exchange, request, shape, choices, generations, self._counts)
                return
            for generation in generations:
                await generation.finished()
            if not any(generation.aborted for generation in generations):
                await exchange.reply(shape.whole(choices, self._counts(generations)))

    @asynccontextmanager
    async def _running(
        self, exchange: Exchange, request: GenerateRequest, choices: Sequence[Choice]
    ) -> AsyncIterator[list[Generation]]:
        """Have the engine work on the choices; drop them the moment the client leaves."""
        driver = self._ranks.choose(exchange.header(RANK_HEADER))
        generations = [
            driver.submit(
                EngineRequest(
                    request_id=str(next(self._numbers)),
                    prompt_token_ids=choice.prompt_ids,
                    output_token_ids=choice.reply.token_ids,
                    cache_salt=request.cache_salt,
                ),
                choice.reply.finish_reason,
            )
            for choice in choices
        ]

        def abort(_: object = None) -> None:
            for generation in generations:
                driver.abort(generation)

        watch = asyncio.create_task(exchange.client_left())
        watch.add_done_callback(abort)
        try:
            yield generations
        finally:
            watch.cancel()
            abort()

    def _counts(self, generations: Sequence[Generation]) -> CacheCounts:
        block_size = self._block_size
        cached = created = 0
        for generation in generations:
            full = len(generation.request.prompt_token_ids) // block_size * block_size
            found = generation.admission.cached_tokens if generation.admission else 0
            cached += found
            created += max(0, full - found)
        return CacheCounts(cached, created)


def _run_only_kwargs(request: ChatRequest) -> dict[str, Any]:
    """Return template arguments that act in a run and not in /tokenize."""
    kwargs: dict[str, Any] = {}
    if request.documents is not None:
        kwargs["documents"] = request.documents
    if request.reasoning_effort is not None:
        kwargs["reasoning_effort"] = request.reasoning_effort
        kwargs["enable_thinking"] = request.reasoning_effort != "none"
    return kwargs


def _truncate(ids: Sequence[int], request: GenerateRequest, max_model_len: int) -> Sequence[int]:
    limit = request.truncate_prompt_tokens
    if limit is None:
        return ids
    limit = max_model_len if limit < 0 else limit
    if len(ids) <= limit:
        return ids
    return ids[:limit] if request.truncation_side == "right" else ids[len(ids) - limit :]


async def _stream(
    exchange: Exchange,
    request: GenerateRequest,
    shape: Shape,
    choices: Sequence[Choice],
    generations: Sequence[Generation],
    count: Callable[[Sequence[Generation]], CacheCounts],
) -> None:
    options = request.stream_options
    per_event = bool(options and options.continuous_usage_stats and options.include_usage)
    await exchange.start_stream()
    sent = [0] * len(choices)
    while True:
        for choice, generation in zip(choices, generations, strict=True):
            while sent[choice.index] < generation.num_tokens:
                await _send_token(exchange, shape, choice, sent[choice.index], per_event=per_event)
                sent[choice.index] += 1
        if any(generation.aborted for generation in generations):
            return
        waiting = [g for g, n in zip(generations, sent, strict=True) if n == g.num_tokens]
        unfinished = [g for g in waiting if not g.ended]
        if len(waiting) == len(generations):
            if not unfinished:
                break
            await _any_changed(unfinished)
    if options is not None and options.include_usage:
        await exchange.send(shape.usage_event(choices, count(generations)))
    await exchange.send(DONE)
    await exchange.end_stream()


async def _send_token(
    exchange: Exchange, shape: Shape, choice: Choice, at: int, *, per_event: bool
) -> None:
    prompt_tokens = len(choice.prompt_ids)

    def usage(completion_tokens: int) -> Fields | None:
        return usage_counts(prompt_tokens, completion_tokens) if per_event else None

    if at == 0:
        opening = shape.opening(choice, usage(0))
        if opening:
            await exchange.send(opening)
    await exchange.send(shape.token(choice, at, usage(at + 1)))


async def _any_changed(generations: Sequence[Generation]) -> None:
    if len(generations) == 1:
        await generations[0].changed()
        return
    waits = [asyncio.ensure_future(generation.changed()) for generation in generations]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
