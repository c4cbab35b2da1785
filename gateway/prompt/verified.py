"""Prompts as a model's engines have them: computed here, told by a replica, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.bycode import HARMONY
from gateway.prompt.checking import Checker
from gateway.prompt.prepare import Preparer, Prompt, without_ids
from gateway.prompt.problem import PromptProblem
from gateway.prompt.questions import render_question
from gateway.prompt.rendering import Renderer
from gateway.replicas.tokens import NotTold, ReplicaTokens
from routing.hashing import TOKEN_BYTES, HashSpec

# Problems that are the gateway's own: an engine may well know the ids.
_NOT_KNOWN_HERE = frozenset({"unsupported", "no_chat_template", "no_tokenizer", "failed"})
# Answers of an engine that renders for others only where it is told to, by --enable-scale-out.
_CLOSED = frozenset({403, 404})


class Prompts(Protocol):
    """Prepares one model's prompts."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether its prompts get exact token ids."""
        ...

    async def prepare(
        self,
        body: RequestBody,
        specs: Sequence[HashSpec] = (),
        max_model_len: int | None = None,
    ) -> Prompt:
        """Return what can be known about a prompt; see `Preparer.prepare`."""
        ...


class CheckedPrompts:
    """Prompts computed here, as long as they are those of the engines.

    Args:
        inner: Computes them.
        checker: Compares some of them with a replica's.
    """

    def __init__(self, inner: Prompts, checker: Checker) -> None:
        self._inner = inner
        self._checker = checker

    @property
    def has_tokenizer(self) -> bool:
        """Whether its prompts get exact token ids."""
        return self._inner.has_tokenizer and self._checker.is_trusted

    async def prepare(
        self,
        body: RequestBody,
        specs: Sequence[HashSpec] = (),
        max_model_len: int | None = None,
    ) -> Prompt:
        """Return what can be known about a prompt; see `Preparer.prepare`."""
        if body.has_prompt:
            self._checker.offer(body)
            if not self._checker.is_trusted:
                return without_ids(body, "distrusted")
        return await self._inner.prepare(body, specs, max_model_len)


class ToldPrompts:
    """Prompts that a replica renders where they cannot be computed here.

    Args:
        inner: Computes those that can be.
        tokens: Asks a replica.
        renderer: Says what to ask.
        timeout_s: For an answer.
        by_code: How the engine renders chats, so that none can be rendered here; None where it
            does so by a template.
    """

    def __init__(
        self,
        inner: Preparer,
        tokens: ReplicaTokens,
        renderer: Renderer,
        timeout_s: float,
        by_code: str | None,
    ) -> None:
        self._inner = inner
        self._tokens = tokens
        self._renderer = renderer
        self._timeout_s = timeout_s
        self._by_code = by_code
        self._renders = True

    @property
    def has_tokenizer(self) -> bool:
        """Whether its prompts get exact token ids."""
        return True

    async def prepare(
        self,
        body: RequestBody,
        specs: Sequence[HashSpec] = (),
        max_model_len: int | None = None,
    ) -> Prompt:
        """Return what can be known about a prompt; see `Preparer.prepare`."""
        asks = body.has_prompt and body.num_bytes <= self._inner.max_bytes
        if self._by_code is not None and asks and body.kind is not BodyKind.COMPLETION:
            return await self._told(body)
        prompt = await self._inner.prepare(body, specs, max_model_len)
        if asks and prompt.problem in _NOT_KNOWN_HERE:
            return await self._told(body)
        return prompt

    async def _told(self, body: RequestBody) -> Prompt:
        try:
            packed = await self._rendered(body) if self._renders else None
            if packed is None:
                packed = await self._tokenized(body)
        except NotTold as error:
            return without_ids(body, error.reason)
        except PromptProblem as problem:
            return without_ids(body, problem.reason)
        return Prompt(packed, len(packed) // TOKEN_BYTES, body, None)

    async def _rendered(self, body: RequestBody) -> bytes | None:
        """Return what an engine makes of the whole request; None where it does not tell that."""
        try:
            question = render_question(body.kind, body.fields)
            return await self._tokens.ask(question, self._timeout_s, keep=True)
        except NotTold as error:
            if error.status not in _CLOSED:
                raise
            self._renders = False
            return None

    async def _tokenized(self, body: RequestBody) -> bytes:
        """Return what /tokenize says."""
        # vLLM's /tokenize knows nothing of Harmony: its ids are not those of the run.
        is_harmony = self._by_code == HARMONY and body.kind is not BodyKind.COMPLETION
        question = None if is_harmony else self._renderer.question(body, body.model)
        if question is None:
            raise PromptProblem("unsupported")
        return await self._tokens.ask(question, self._timeout_s, keep=True)
