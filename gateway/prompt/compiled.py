"""Writes conversations by transformers' own compiled template, without the copies around it.

`apply_chat_template` rebuilds each conversation twice, as callers hand it arrays and images; ours
come from JSON. What is left is the compiled template itself, so nothing in a template's language
can come out otherwise (docs/adr/0024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2 import Environment
from jinja2.runtime import LoopContext
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from gateway.prompt.problem import PromptProblem
from gateway.prompt.template import ChatCall, ChatTemplate, TextEngine

# Parameters of `apply_chat_template` that do more than reach the template, unless they are false.
_OTHER_WAYS = (
    "continue_final_message",
    "sanitize_control_tokens",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
)
# Parameters that never reach it.
_OPTIONS = frozenset(
    {*_OTHER_WAYS, "padding", "truncation", "max_length", "return_tensors", "return_dict"}
)
_DICT_ATTRIBUTES = frozenset(dir(dict))
# Those that the sandbox hands out as they are; it wraps `format`, and what begins with _ it hides.
_PLAIN_ATTRIBUTES: Mapping[type, frozenset[str]] = MappingProxyType(
    {
        str: frozenset(
            ["startswith", "endswith", "split", "rsplit", "strip", "lstrip", "rstrip", "replace"]
        ),
        LoopContext: frozenset(
            ["index", "index0", "first", "last", "length", "revindex", "revindex0"]
        ),
    }
)
_PLAIN_VALUES = frozenset({bool, int, str, list, dict})
# A message's reasoning goes by all names that templates know; the first that it has is taken.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class CompiledTemplate:
    """One chat template, called directly.

    Args:
        tokenizer: Its special tokens are known to the template.
        reference: Writes what is not written directly.

    Raises:
        AttributeError: This transformers keeps its compiled templates elsewhere.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, reference: ChatTemplate) -> None:
        # There is no public way to it; the proof looks whether it does what it did.
        compiled = chat_template_utils._compile_jinja_template(reference.source)  # noqa: SLF001 - as said above
        environment = compiled.environment.overlay()
        vars(environment)["getattr"] = _quick_getattr(environment)
        self._write = self._compiled(environment, reference.source)
        self._special_tokens: Mapping[str, Any] = dict(tokenizer.special_tokens_map)
        self._reference = reference

    def render(self, call: ChatCall) -> str:
        """Return the text of a conversation; see `TextEngine`."""
        given = self._reference.accepted(call)
        if not _is_direct(call.messages, given):
            return self._otherwise(call)
        arguments: dict[str, Any] = {"tools": None, "documents": None, **self._special_tokens}
        arguments |= {key: given[key] for key in given if key not in _OPTIONS}
        arguments.setdefault("add_generation_prompt", False)
        try:
            return self._write(messages=_messages(call.messages), **arguments)
        except Exception as error:
            raise PromptProblem("template_refused") from error

    def _compiled(self, environment: Environment, source: str) -> Callable[..., str]:
        return environment.from_string(source).render

    def _otherwise(self, call: ChatCall) -> str:
        """Write what is not written directly."""
        return self._reference.render(call)


def _quick_getattr(environment: Environment) -> Callable[[Any, str], Any]:
    """Return a sandbox's `getattr` with short ways, which take a third of a template's time off.

    What a message or a text is asked for is nearly always a key, or a method that no sandbox
    forbids. The sandbox would first try a dict's attributes, and then look at all that is
    forbidden; both come to the same.
    """
    whole_way = environment.getattr
    undefined = environment.undefined
    namespace = environment.globals["namespace"]

    def quick(obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return undefined(obj=obj, name=attribute)
        if attribute in _PLAIN_ATTRIBUTES.get(kind, ()):
            return getattr(obj, attribute)
        if kind is namespace and (held := _held(obj, attribute)) is not None:
            return held
        return whole_way(obj, attribute)

    return quick


def _held(namespace: Any, attribute: str) -> Any:
    """Return what a template's namespace holds, where the sandbox hands it out as it is."""
    try:
        held = None if attribute.startswith("_") else getattr(namespace, attribute)
    except AttributeError:
        return None
    return held if type(held) in _PLAIN_VALUES else None


def _is_direct(messages: Sequence[Any], given: Mapping[str, Any]) -> bool:
    if not messages or "messages" in given or any(given.get(way) for way in _OTHER_WAYS):
        return False
    lists = (messages, given.get("tools") or (), given.get("documents") or ())
    return all(isinstance(item, dict) for items in lists for item in items)


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as transformers hands them to a template."""
    plain = []
    for message in messages:
        item = {key: held for key, held in message.items() if held is not None}
        reasoning = next((item[key] for key in _REASONING if key in item), None)
        if reasoning is not None:
            item = {"thinking": reasoning, **item, "reasoning_content": reasoning}
        plain.append(item)
    return plain


_SYSTEM: Mapping[str, Any] = MappingProxyType(
    {"role": "system", "content": "Be brief. <|x|> {{ no }} \u00e9 \U0001f600"}
)
_TURNS: Sequence[Mapping[str, Any]] = (
    MappingProxyType({"role": "user", "content": " Hi\nthere\t", "name": "n"}),
    MappingProxyType({"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"}),
    MappingProxyType({"role": "user", "content": ""}),
    MappingProxyType({"role": "assistant", "content": "x", "reasoning": "r", "tool_calls": None}),
    MappingProxyType({"role": "user", "content": "<a href='x'>\u00a0\u2028&amp;</a>\r\n"}),
)
_CALLS: Sequence[Mapping[str, Any]] = (
    MappingProxyType(
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call00001",
                    "type": "function",
                    "function": {"name": "f", "arguments": {"a": [1, 2.5, None, "\u00e9<"]}},
                }
            ],
        }
    ),
    MappingProxyType({"role": "tool", "content": "42", "tool_call_id": "call00001"}),
)
_TOOL: Mapping[str, Any] = MappingProxyType(
    {
        "type": "function",
        "function": {"name": "f", "description": None, "parameters": {"type": "object"}},
    }
)


def _calls() -> list[ChatCall]:
    """Return the conversations on which the compiled template is compared."""
    conversations = (
        _TURNS[:1],
        (_SYSTEM, *_TURNS[:1]),
        _TURNS,
        (_SYSTEM, *_TURNS, _SYSTEM),
        (*_TURNS[:1], *_CALLS),
        (_SYSTEM, *_TURNS[:1], *_CALLS, *_TURNS[1:3]),
        ({"role": "user", "content": [{"type": "text", "text": "a part"}]},),
        ({"role": "developer", "content": "d"}, *_TURNS[:1]),
        _TURNS[1:2],
        ({"role": "unknown", "content": "?"},),
    )
    arguments: tuple[dict[str, Any], ...] = (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False, "tools": None, "continue_final_message": False},
        {"add_generation_prompt": True, "tools": [dict(_TOOL)]},
        {"add_generation_prompt": True, "enable_thinking": False, "documents": [{"text": "t"}]},
        {"add_generation_prompt": True, "reasoning_effort": "low", "bos_token": "B"},
        {"continue_final_message": True, "add_generation_prompt": False},
    )
    return [
        ChatCall([dict(message) for message in conversation], given)
        for conversation in conversations
        for given in arguments
    ]


def proven_template(
    tokenizer: PreTrainedTokenizerBase, reference: ChatTemplate
) -> CompiledTemplate | None:
    """Return the direct way to a template; None where it would write anything else."""
    try:
        compiled = CompiledTemplate(tokenizer, reference)
    except Exception:  # noqa: BLE001 - another transformers; the reference remains
        return None
    if any(_written(compiled, call) != _written(reference, call) for call in _calls()):
        return None
    return compiled


def _written(engine: TextEngine, call: ChatCall) -> str | None:
    try:
        return engine.render(call)
    except PromptProblem:
        return None
