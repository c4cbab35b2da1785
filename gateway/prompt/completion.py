"""The prompt of a completion, in all its forms. Pure.

Source: vLLM 0.32, the type of its completion request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.prompt.chat import Lengths, check_salt, lengths
from gateway.prompt.coercion import flag
from gateway.prompt.problem import REFUSED, PromptProblem
from gateway.prompt.sampling import check_sampling
from routing.value import value


@value
class CompletionPrompt:
    """The first of a completion's prompts: the engine runs them one by one.

    Attributes:
        text: Its text; None where it is given by token ids.
        token_ids: Its token ids; None where it is text.
        add_special_tokens: Whether the tokenizer adds its own to a text.
        lengths: What the body says about lengths.
    """

    text: str | None
    token_ids: list[int] | None
    add_special_tokens: bool
    lengths: Lengths


def completion_prompt(body: Mapping[str, Any]) -> CompletionPrompt:
    """Read the body of a completion.

    Raises:
        PromptProblem: `refused`, where the engine will answer with an error; `embeds` and
            `unsupported` where it is not reproduced here.
    """
    check_salt(body)
    check_sampling(body, "max_tokens")
    if body.get("stream_options") and not body.get("stream"):
        raise PromptProblem(REFUSED)
    if body.get("prompt_embeds"):
        raise PromptProblem("embeds")  # they come first, and have no ids
    if body.get("suffix") is not None:
        raise PromptProblem("unsupported")
    prompt = first_prompt(body.get("prompt"))
    is_text = isinstance(prompt, str)
    if not prompt:
        raise PromptProblem(REFUSED)
    return CompletionPrompt(
        text=prompt if is_text else None,
        token_ids=None if is_text else _ids(prompt),
        add_special_tokens=flag(body, "add_special_tokens", default=True),
        lengths=lengths(body, "max_tokens"),
    )


def first_prompt(prompt: Any) -> Any:
    """Return the first prompt of a list of them, and anything else as it is."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        kind = type(prompt[0])
        return prompt[0] if all(isinstance(other, kind) and other for other in prompt) else None
    return prompt


def given_ids(prompt: Any) -> list[int]:
    """Return the token ids of a completion's prompt that holds them itself.

    Raises:
        PromptProblem: `no_tokenizer` where it is text, `refused` where it is nothing of the kind.
    """
    ids = first_prompt(prompt)
    if isinstance(ids, str):
        raise PromptProblem("no_tokenizer")
    return _ids(ids)


def forwarded_ids(body: Mapping[str, Any]) -> list[int] | None:
    """Return the token ids that a chat brings along for its text; None for none.

    Raises:
        PromptProblem: `refused`.
    """
    forwarded = body.get("kv_transfer_params")
    if not isinstance(forwarded, dict) or body.get("echo"):
        return None
    ids = forwarded.get("prompt_token_ids")
    return None if ids is None else _ids(ids)


def _ids(ids: Any) -> list[int]:
    if not isinstance(ids, list) or not ids:
        raise PromptProblem(REFUSED)
    # The engine's types read 11.0 as 11, and true as 1.
    if all(isinstance(i, int) and 0 <= i < 2**32 for i in ids):
        return [int(i) for i in ids]
    if all(isinstance(i, int | float) and 0 <= i < 2**32 and i == int(i) for i in ids):
        return [int(i) for i in ids]
    raise PromptProblem(REFUSED)
