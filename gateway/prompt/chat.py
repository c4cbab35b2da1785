"""From the body of a chat to what its template gets, as vLLM builds it. Pure.

The other APIs' bodies are turned into the same `ChatRequest`: messages_api.py, responses_api.py.

Source: vLLM 0.32, the type of its chat request and renderers/params.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.config.engine import EngineConfig
from gateway.prompt.coercion import as_int, flag
from gateway.prompt.problem import REFUSED, PromptProblem
from gateway.prompt.sampling import check_sampling
from gateway.prompt.tools import shown_tools
from routing.value import value

_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
# Tuples: what a client sends in their place may be a list, which no set can be asked for.
_SIDES = ("left", "right")
# Values of template arguments that mean that there is none.
_UNSET = (None, "auto")
# Parameters of the functions between the request and the template: a second value is an error.
_TAKEN = frozenset({"self", "conversation", "tokenizer", "model_config"})
_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})
MAX_SALT_CHARS = 1024
"""Longest `cache_salt` that the engine takes."""


@value
class Truncation:
    """How a prompt is shortened.

    Attributes:
        num_tokens: Tokens to keep; -1 for as many as the model takes.
        side: Which end goes: `left` or `right`; None for the engine's default.
    """

    num_tokens: int
    side: str | None


@value
class Lengths:
    """What a body says about lengths.

    Attributes:
        max_output_tokens: Most tokens of the answer; 0 where it does not say.
        truncation: How the prompt is shortened; None where it is not.
    """

    max_output_tokens: int = 0
    truncation: Truncation | None = None


@value
class ChatRequest:
    """What of a request decides about its prompt.

    Attributes:
        messages: As the client, or the conversion from another API, gave them.
        tools: As the template gets them.
        own_arguments: The client's values for the template.
        arguments: Values that fields of the body give; they win over the client's.
        add_special_tokens: Whether the tokenizer adds its own to what the template writes.
        lengths: What it says about lengths.
        as_chat: The types of a chat were applied to its messages.
        template: The chat template that it brings along; None for the model's.
    """

    messages: Sequence[Any]
    tools: list[dict[str, Any]] | None
    own_arguments: Mapping[str, Any]
    arguments: Mapping[str, Any]
    add_special_tokens: bool = False
    lengths: Lengths = Lengths()
    as_chat: bool = True
    template: str | None = None


def chat_request(body: Mapping[str, Any], engine: EngineConfig) -> ChatRequest:
    """Read the body of a chat.

    Args:
        body: Its fields.
        engine: What the engines' command line says.

    Raises:
        PromptProblem: `refused`, where the engine will answer with an error; `unsupported` where
            it is not reproduced here.
    """
    _check_common(body, engine)
    own = own_arguments(body, engine)
    template = body.get("chat_template")
    if template is not None and not _is_trusted(template, engine):
        raise PromptProblem(REFUSED)
    return ChatRequest(
        messages=body["messages"],
        tools=shown_tools(body, engine),
        own_arguments=own,
        arguments={
            **_turn_arguments(body),
            "documents": _documents(body),
            **effort_arguments(body.get("reasoning_effort"), own),
        },
        # A template that is asked for ids at once gives them without the tokenizer's own.
        add_special_tokens=not own.get("tokenize")
        and flag(body, "add_special_tokens", default=False),
        lengths=lengths(body, "max_completion_tokens", "max_tokens"),
        template=template,
    )


def _check_common(body: Mapping[str, Any], engine: EngineConfig) -> None:
    if body.get("thinking_token_budget") is not None and not engine.reasoning_parser:
        raise PromptProblem(REFUSED)
    if body.get("stream_options") and not body.get("stream"):
        raise PromptProblem(REFUSED)
    check_salt(body)
    check_sampling(body, "max_completion_tokens", "max_tokens")


def check_salt(body: Mapping[str, Any]) -> None:
    """Check the `cache_salt` of a body.

    Raises:
        PromptProblem: `refused`.
    """
    salt = body.get("cache_salt")
    if salt is None:
        return
    if not isinstance(salt, str) or not 0 < len(salt) <= MAX_SALT_CHARS:
        raise PromptProblem(REFUSED)


def own_arguments(body: Mapping[str, Any], engine: EngineConfig) -> Mapping[str, Any]:
    """Return the client's own values for the template.

    Raises:
        PromptProblem: `refused`, or `unsupported` for what only the engine can do with them.
    """
    own = body.get("chat_template_kwargs")
    if own is None:
        return _NO_ARGUMENTS
    if not isinstance(own, dict) or _TAKEN & own.keys():
        raise PromptProblem(REFUSED)
    template = own.get("chat_template")
    if template is None:
        return own
    if not _is_trusted(template, engine):
        raise PromptProblem(REFUSED)
    if engine.chat_template is None:
        raise PromptProblem("unsupported")
    # The one of the command line wins over it.
    return {key: own[key] for key in own if key != "chat_template"}


def _is_trusted(template: Any, engine: EngineConfig) -> bool:
    return engine.trust_request_chat_template and isinstance(template, str)


def _turn_arguments(body: Mapping[str, Any]) -> Mapping[str, bool]:
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise PromptProblem(REFUSED)
    add = flag(body, "add_generation_prompt", default=True)
    go_on = flag(body, "continue_final_message", default=False)
    if add and go_on:
        raise PromptProblem(REFUSED)
    return {"add_generation_prompt": add, "continue_final_message": go_on}


def _documents(body: Mapping[str, Any]) -> Any:
    documents = body.get("documents")
    if documents is None:
        return None
    if not isinstance(documents, list):
        raise PromptProblem(REFUSED)
    for document in documents:
        if not isinstance(document, dict):
            raise PromptProblem(REFUSED)
        if not all(isinstance(text, str) for text in document.values()):
            raise PromptProblem(REFUSED)
    return documents


def effort_arguments(effort: Any, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a reasoning effort gives to the template: it also switches thinking on or off.

    Raises:
        PromptProblem: `refused`.
    """
    if effort is None:
        return _NO_ARGUMENTS
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise PromptProblem(REFUSED)
    if "enable_thinking" in own:
        return {"reasoning_effort": effort}
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def lengths(body: Mapping[str, Any], *output_keys: str) -> Lengths:
    """Return what a body says about lengths.

    Args:
        body: Its fields.
        output_keys: Where it limits its answer; the first one that is there wins.

    Raises:
        PromptProblem: `refused`.
    """
    given = (body[key] for key in output_keys if body.get(key) is not None)
    max_output_tokens = as_int(next(given, 0))
    number, side = body.get("truncate_prompt_tokens"), body.get("truncation_side")
    if side is not None and side not in _SIDES:
        raise PromptProblem(REFUSED)
    if number is None:
        return Lengths(max_output_tokens)
    num_tokens = as_int(number)
    if num_tokens < -1:
        raise PromptProblem(REFUSED)
    return Lengths(max_output_tokens, Truncation(num_tokens, side))


def template_arguments(request: ChatRequest, engine: EngineConfig) -> dict[str, Any]:
    """Return all arguments of the template but the messages.

    What is null or "auto" counts as not given, whoever says so.
    """
    arguments = dict(engine.default_chat_template_kwargs)
    if request.tools is not None:
        arguments["tools"] = request.tools
    asked = {**request.own_arguments}
    asked.update((key, item) for key, item in request.arguments.items() if item not in _UNSET)
    arguments.update((key, item) for key, item in asked.items() if item not in _UNSET)
    return arguments
