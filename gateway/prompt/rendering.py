"""From any body with a prompt to the text that the engine tokenizes, for one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gateway.config.engine import EngineConfig
from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.chat import ChatRequest, Lengths, chat_request, template_arguments
from gateway.prompt.completion import CompletionPrompt, completion_prompt, forwarded_ids
from gateway.prompt.messages_api import messages_request
from gateway.prompt.own_template import OwnTemplates
from gateway.prompt.problem import REFUSED, PromptProblem
from gateway.prompt.questions import Question, chat_question, completion_question
from gateway.prompt.render import conversation, fold_developer
from gateway.prompt.responses_api import responses_request
from gateway.prompt.template import CLOCK, ChatCall, ChatTemplate, TextEngine, disabled_effort
from routing.value import value

# Models have some more ids than their tokenizers, so that matrices have round sizes.
PADDED_IDS = 1024


@value
class Rendered:
    """A prompt before it is tokenized.

    Attributes:
        text: Its text, or as much of it as is known; None where the body holds token ids.
        token_ids: The ids that the body holds.
        add_special_tokens: Whether the tokenizer adds its own.
        lengths: What the body says about lengths.
        whole_text: What `text` is the beginning of, with a mark in the place of each media part;
            None where `text` is all there is.
        is_dated: Whether the day is in it.
    """

    text: str | None
    token_ids: list[int] | None
    add_special_tokens: bool
    lengths: Lengths
    whole_text: str | None = None
    is_dated: bool = False


@value
class Templates:
    """The templates of a model: it may have another one for chats with tools.

    Attributes:
        plain: For chats without tools.
        with_tools: For those with tools.
    """

    plain: ChatTemplate
    with_tools: ChatTemplate


class Renderer:
    """Renders one model's prompts.

    Args:
        templates: Its chat templates; None where it has none.
        engine: What its engines' command line says.
        num_ids: Ids in the tokenizer's vocabulary; 0 where that is not known.
        own: Templates that requests may bring along; None where they may not.
        today: The local time. Asked once a request, so that a day does not change within it.
    """

    def __init__(
        self,
        templates: Templates | None,
        engine: EngineConfig,
        num_ids: int = 0,
        own: OwnTemplates | None = None,
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._templates = templates
        self._engine = engine
        self._num_ids = num_ids
        self._own = own
        self._today = today
        self._text_engines: dict[int, TextEngine] = {}
        self._disabled_effort: str | None = None

    @property
    def templates(self) -> Sequence[ChatTemplate]:
        """Its different chat templates."""
        if self._templates is None:
            return ()
        plain, with_tools = self._templates.plain, self._templates.with_tools
        return (plain,) if plain is with_tools else (plain, with_tools)

    @property
    def is_dated(self) -> bool:
        """Whether the day is in its prompts."""
        return any(template.is_dated for template in self.templates)

    def use(self, template: ChatTemplate, engine: TextEngine) -> None:
        """Write by another engine what a template says; it gives the same text."""
        self._text_engines[id(template)] = engine

    def render(self, body: RequestBody) -> Rendered:
        """Return a body's prompt.

        Raises:
            PromptProblem: It cannot be known here, or the engine will refuse the body.
        """
        if body.kind is BodyKind.COMPLETION:
            return self._completion(completion_prompt(body.fields))
        request = self.request(body)
        ids = forwarded_ids(body.fields) if body.kind is BodyKind.CHAT else None
        if ids is not None and conversation(request.messages, keep_parts=False).marked is None:
            return Rendered(None, ids, False, Lengths())  # they run, and not the messages
        return self._chat(request)

    def question(self, body: RequestBody, model: str) -> Question | None:
        """Return what to ask a replica about a body's token ids; None where it cannot tell.

        Raises:
            PromptProblem: The engine will refuse the body, or it cannot be read here.
        """
        if body.kind is BodyKind.COMPLETION:
            return completion_question(model, completion_prompt(body.fields))
        request = self.request(body)
        chat = conversation(request.messages, keep_parts=True, as_chat=request.as_chat)
        if forwarded_ids(body.fields) is not None or chat.marked is not None:
            return None  # of media /tokenize tells how many ids they have, and not which they are
        return chat_question(model, request)

    def _completion(self, prompt: CompletionPrompt) -> Rendered:
        if self._num_ids and max(prompt.token_ids or (0,)) >= self._num_ids + PADDED_IDS:
            raise PromptProblem(REFUSED)
        return Rendered(prompt.text, prompt.token_ids, prompt.add_special_tokens, prompt.lengths)

    def request(self, body: RequestBody) -> ChatRequest:
        """Return what of a body decides about its prompt; not of a completion's.

        Raises:
            PromptProblem: The engine will refuse it, or it cannot be read here.
        """
        fields, engine = body.fields, self._engine
        if body.kind is BodyKind.CHAT:
            return chat_request(fields, engine)
        if body.kind is BodyKind.RESPONSES:
            return responses_request(fields, engine)
        if body.kind is BodyKind.MESSAGES:
            merge = any(template.wants_system_first for template in self.templates)
            effort = self._effort_of_disabled(fields)
            return messages_request(fields, engine, merge_system=merge, disabled_effort=effort)
        raise PromptProblem("no_prompt")

    def _effort_of_disabled(self, fields: Mapping[str, Any]) -> str:
        if self._engine.disabled_thinking_effort != "auto":
            return self._engine.disabled_thinking_effort
        if not isinstance(fields.get("thinking"), dict):
            return "none"  # not asked for
        if self._disabled_effort is None:
            self._disabled_effort = disabled_effort(self._short_chat)
        return self._disabled_effort

    def _short_chat(self, effort: str) -> str | None:
        fields = {"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": effort}
        try:
            return self._chat(chat_request(fields, self._engine)).text
        except PromptProblem:
            return None

    def _chat(self, request: ChatRequest) -> Rendered:
        template, engine = self._template(request)
        chat = conversation(
            request.messages, keep_parts=self._keeps_parts(template), as_chat=request.as_chat
        )
        arguments = template_arguments(request, self._engine)
        if template.is_dated:
            arguments.setdefault(CLOCK, self._today().strftime)
        text = _written(template, engine, chat.messages, arguments)
        known = text
        if chat.marked is not None:
            marked = _written(template, engine, chat.marked, arguments)
            known = _common_beginning(text, marked)
        return Rendered(
            text=known,
            token_ids=None,
            add_special_tokens=request.add_special_tokens,
            lengths=request.lengths,
            whole_text=None if chat.marked is None else text,
            is_dated=template.is_dated,
        )

    def _template(self, request: ChatRequest) -> tuple[ChatTemplate, TextEngine]:
        if request.template is not None:
            if self._own is None:
                raise PromptProblem("unsupported")
            own = self._own.get(request.template)
            return own.template, own.engine
        if self._templates is None:
            raise PromptProblem("no_chat_template")
        template = self._templates.plain if request.tools is None else self._templates.with_tools
        return template, self._text_engines.get(id(template), template)

    def _keeps_parts(self, template: ChatTemplate) -> bool:
        if self._engine.content_format == "auto":
            return template.keeps_parts
        return self._engine.content_format == "openai"


def _written(
    template: ChatTemplate,
    engine: TextEngine,
    messages: list[dict[str, Any]],
    arguments: Mapping[str, Any],
) -> str:
    if not template.knows_developer:
        messages = fold_developer(messages)
    return engine.render(ChatCall(messages, arguments))


def _common_beginning(one: str, other: str) -> str:
    same = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return one[: next(same, min(len(one), len(other)))]
