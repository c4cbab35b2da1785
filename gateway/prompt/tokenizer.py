"""One model's tokenizer and chat template: from a request body to the engine's token ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jinja2
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from gateway.prompt import render
from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.render import PromptProblem


class TokenizerUnavailable(Exception):
    """A tokenizer cannot be loaded; the message says which, and what to do."""


class PromptTokenizer:
    """Token ids as the engine would compute them, by the reference implementation.

    Args:
        tokenizer: transformers' fast tokenizer, with its chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        template = tokenizer.chat_template
        self._template = template if isinstance(template, str) else ""
        self._keep_parts = _iterates_parts(self._template)
        self._knows_developer = "developer" in self._template

    @classmethod
    def load(cls, source: str) -> PromptTokenizer:
        """Load from a local folder or a hub id.

        Raises:
            TokenizerUnavailable: It is missing, broken, or no fast tokenizer.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(source)
        except Exception as error:  # transformers raises whatever its parts raise
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            message = (
                f"tokenizer {source!r} cannot be loaded: give a folder with tokenizer.json and "
                f"tokenizer_config.json, or the id of a model on the hub ({first_line[:200]})"
            )
            raise TokenizerUnavailable(message) from error
        if not tokenizer.is_fast:
            message = f"tokenizer {source!r} is no fast tokenizer: its tokenizer.json is missing"
            raise TokenizerUnavailable(message)
        return cls(tokenizer)

    def token_ids(self, body: RequestBody) -> list[int]:
        """Return the token ids of a prompt.

        Raises:
            PromptProblem: They cannot be known here, or the engine will refuse the body.
        """
        if body.kind is BodyKind.CHAT:
            add = body.fields.get("add_special_tokens") is True
            return self._encode(self._render(body.fields), add_special_tokens=add)
        if body.kind is BodyKind.COMPLETION:
            add = body.fields.get("add_special_tokens") is not False
            return self._completion_ids(body.fields.get("prompt"), add_special_tokens=add)
        raise PromptProblem("no_prompt")

    def _render(self, fields: Mapping[str, Any]) -> str:
        if not self._template:
            raise PromptProblem("no_chat_template")
        messages = render.conversation(fields["messages"], keep_parts=self._keep_parts)
        if not self._knows_developer:
            messages = render.fold_developer(messages)
        tools: list[Any] | None = render.tools(fields)
        arguments = render.template_arguments(fields)
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, **arguments
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            # A template raises for conversations it does not take; the engine will say so itself.
            raise PromptProblem("template_refused") from error
        return str(text)

    def _completion_ids(self, prompt: Any, *, add_special_tokens: bool) -> list[int]:
        first = _first_prompt(prompt)
        if isinstance(first, str):
            return self._encode(first, add_special_tokens=add_special_tokens)
        return given_ids(first)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:  # lone surrogates are no text
            raise PromptProblem("not_text") from error
        return list(ids)


def given_ids(prompt: Any) -> list[int]:
    """Return the token ids of a completion's prompt that holds them itself.

    Raises:
        PromptProblem: `no_tokenizer` where it is text, `refused` where it is nothing of the kind.
    """
    ids = _first_prompt(prompt)
    if isinstance(ids, str):
        raise PromptProblem("no_tokenizer")
    if not isinstance(ids, list) or not ids:
        raise PromptProblem("refused")
    if all(isinstance(i, int) and 0 <= i < 2**32 for i in ids):
        return [int(i) for i in ids]
    raise PromptProblem("refused")


def _first_prompt(prompt: Any) -> Any:
    """Return the first prompt of a list of them: the engine runs them one by one."""
    while isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    return prompt


def _iterates_parts(template: str) -> bool:
    """Return whether a chat template loops over the parts of a message's content.

    vLLM decides its content format so: a template with such a loop gets the parts, any other one
    gets their texts joined.
    """
    return (
        re.search(r"{%-?\s*for\s+\w+\s+in\s+message(\.content|\[['\"]content['\"]\])", template)
        is not None
    )
