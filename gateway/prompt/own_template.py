"""Chat templates that come with requests, for engines with `--trust-request-chat-template`.

They are as foreign as any text of a client's. They run in transformers' sandbox, as the engine runs
them, but with an end: every round of a loop looks at the clock, as no thread can be stopped from
outside.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock, local

from jinja2 import Environment, nodes
from transformers import PreTrainedTokenizerBase

from gateway.prompt.compiled import CompiledTemplate
from gateway.prompt.problem import PromptProblem
from gateway.prompt.template import ChatCall, ChatTemplate
from routing.value import value

# CPU seconds for one conversation, ten times what 22,000 tokens take a real template.
MAX_RENDER_S = 0.02
# Templates of models have up to 30 KB.
MAX_TEMPLATE_CHARS = 64 * 1024
# Clients have a few of them; a compiled one takes some 100 KB.
MAX_KEPT = 16

_CLOCK = "__warmroute_clock"
# What a template can do again and again.
_REPEATED = (nodes.For, nodes.Macro, nodes.CallBlock)


class _TooLong(Exception):
    """A template took longer than it may."""


@value
class OwnTemplate:
    """One request's template.

    Attributes:
        template: What it says about itself.
        engine: Writes conversations by it.
    """

    template: ChatTemplate
    engine: BoundedTemplate


class OwnTemplates:
    """Compiles templates of requests, and keeps the last ones. Any thread may use it.

    Args:
        tokenizer: Its special tokens are known to the templates.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._kept: OrderedDict[str, OwnTemplate] = OrderedDict()
        self._lock = Lock()

    def get(self, source: str) -> OwnTemplate:
        """Return a template by its text.

        Raises:
            PromptProblem: `template_refused`: it is none; `unsupported`: it is very long.
        """
        if len(source) > MAX_TEMPLATE_CHARS:
            raise PromptProblem("unsupported")
        with self._lock:
            known = self._kept.get(source)
            if known is not None:
                self._kept.move_to_end(source)
                return known
        made = self._made(source)
        with self._lock:
            self._kept[source] = made
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return made

    def _made(self, source: str) -> OwnTemplate:
        try:
            template = ChatTemplate(self._tokenizer, source)
            return OwnTemplate(template, BoundedTemplate(self._tokenizer, template))
        except Exception as error:
            # Compiling is foreign code, too; the engine will say so itself.
            raise PromptProblem("template_refused") from error


class BoundedTemplate(CompiledTemplate):
    """Writes conversations by a template that may not take long."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, reference: ChatTemplate) -> None:
        self._until = local()
        super().__init__(tokenizer, reference)

    def render(self, call: ChatCall) -> str:
        """Return the text of a conversation; see `TextEngine`.

        Raises:
            PromptProblem: `template_refused`; `timeout`; `unsupported`: only the engine can do it.
        """
        self._until.thread_s = time.thread_time() + MAX_RENDER_S
        try:
            return super().render(call)
        except PromptProblem as problem:
            if isinstance(problem.__cause__, _TooLong):
                raise PromptProblem("timeout") from problem
            raise

    def _compiled(self, environment: Environment, source: str) -> Callable[..., str]:
        parsed = environment.parse(source)
        for node in parsed.find_all(nodes.Stmt):
            if isinstance(node, _REPEATED):
                look = nodes.Call(nodes.Name(_CLOCK, "load"), [], [], None, None)
                node.body.insert(0, nodes.ExprStmt(look))
        parsed.set_environment(environment)
        return environment.from_string(parsed, globals={_CLOCK: self._look}).render

    def _otherwise(self, call: ChatCall) -> str:  # noqa: ARG002 - whatever it is
        raise PromptProblem("unsupported")  # it would run without an end

    def _look(self) -> None:
        if time.thread_time() > self._until.thread_s:
            raise _TooLong
