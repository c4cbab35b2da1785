"""A model's chat template: what it says about itself, and how it writes a conversation as text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

import jinja2
import jinja2.meta
import jinja2.sandbox
from jinja2 import ext, nodes, parser
from transformers import PreTrainedTokenizerBase

from gateway.prompt.detect import iterates_parts
from gateway.prompt.problem import PromptProblem
from routing.value import value

# How templates ask for the day. The engine's clock may be on another one.
CLOCK = "strftime_now"
# A conversation that templates which want the system message first will not write.
_LATE_SYSTEM = tuple({"role": role, "content": "t"} for role in ("system", "user") * 2)


@value
class ChatCall:
    """One use of a chat template.

    Attributes:
        messages: The conversation.
        arguments: All else that it gets, `tools` included.
    """

    messages: list[dict[str, Any]]
    arguments: Mapping[str, Any]


class TextEngine(Protocol):
    """Writes conversations as text, by one template."""

    def render(self, call: ChatCall) -> str:
        """Return the text.

        Raises:
            PromptProblem: `template_refused`: the engine will answer with an error.
        """
        ...


class _Generation(ext.Extension):
    """The block by which transformers marks an answer's tokens; for a prompt it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: parser.Parser) -> nodes.Node | list[nodes.Node]:
        """Return what is inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One chat template, written by transformers: the reference.

    Args:
        tokenizer: Its special tokens are known to the template.
        source: The template's text.

    Raises:
        jinja2.TemplateSyntaxError: It is no template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
        self.source = source
        self._tokenizer = tokenizer
        parsed = _environment().parse(source)
        variables = jinja2.meta.find_undeclared_variables(parsed)
        known = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
        # The engine leaves out what neither the template nor transformers knows.
        self._accepted = (variables | known.keys()) - {"self", "chat_template", "tokenize"}
        self.keeps_parts = iterates_parts(parsed)
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self.is_dated = CLOCK in variables

    @cached_property
    def wants_system_first(self) -> bool:
        """Whether it refuses a system message behind another. Renders: not for foreign ones."""
        return _wants_system_first(self.source)

    def accepted(self, call: ChatCall) -> dict[str, Any]:
        """Return those of a call's arguments that the engine hands on."""
        return {key: call.arguments[key] for key in call.arguments if key in self._accepted}

    def render(self, call: ChatCall) -> str:
        """Return the text of a conversation; see `TextEngine`."""
        arguments = self.accepted(call)
        if callable(arguments.get(CLOCK)):
            del arguments[CLOCK]  # transformers would make a text of it, and has a clock itself
        arguments |= {"chat_template": self.source, "tokenize": False, "return_dict": False}
        try:
            return str(self._tokenizer.apply_chat_template(call.messages, **arguments))
        except Exception as error:
            # A template is foreign code and may raise anything; the engine will say so itself.
            raise PromptProblem("template_refused") from error


def _environment() -> jinja2.Environment:
    # As transformers makes it, whose own is private.
    return jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols]
    )


def _wants_system_first(source: str) -> bool:
    # vLLM asks a bare environment, without the functions that transformers adds: a template that
    # calls `raise_exception` fails there, and so does one that calls any other of them.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols]
    )
    try:
        template = environment.from_string(source)
        template.render(messages=[*_LATE_SYSTEM], add_generation_prompt=False)
    except Exception:  # noqa: BLE001 - foreign code
        return True
    return False


def disabled_effort(render: Callable[[str], list[int] | str | None]) -> str:
    """Return the reasoning effort that disabled thinking stands for: `none`, or else `low`.

    vLLM finds out whether the template tells `none` from the efforts that it knows.

    Args:
        render: Gives what a short chat is with an effort; None where it is refused.
    """
    without = render("none")
    if without is None:
        return "low"
    efforts = ("low", "medium", "high", "xhigh", "max")
    return "low" if any(render(effort) == without for effort in efforts) else "none"
