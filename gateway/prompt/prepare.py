"""Prepares prompts off the event loop, with a deadline; whatever fails, the request goes on."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from xxhash import xxh3_64_intdigest

from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.render import PromptProblem
from gateway.prompt.tokenizer import PromptTokenizer, given_ids
from routing.hashing import TOKEN_BYTES, HashSpec, block_keys, max_matched_blocks, pack_tokens
from routing.types import BlockKey
from routing.value import value


@value
class Prompt:
    """What is known about one request's prompt.

    Attributes:
        packed_tokens: Token ids, packed; None where they are not known.
        num_tokens: Prompt length; an estimate where the ids are not known.
        body: What it was read from.
        problem: Why the ids are not known, in one word; None where they are.
    """

    packed_tokens: bytes | None
    num_tokens: int
    body: RequestBody
    problem: str | None

    def head_key(self) -> int | None:
        """Return 64 bits that prompts with the same first bytes share; None without a prompt."""
        if not self.body.has_prompt:
            return None
        # The salt comes first: tenants that must not share a cache need not share a replica.
        salt = self.body.cache_salt.encode(errors="surrogatepass")
        return int(xxh3_64_intdigest(self.body.head(), xxh3_64_intdigest(salt)))

    def keys(self, spec: HashSpec) -> list[BlockKey]:
        """Return the keys of the blocks that a cache can serve; empty without token ids."""
        if self.packed_tokens is None:
            return []
        usable_blocks = max_matched_blocks(self.num_tokens, spec.block_size)
        return block_keys(self.packed_tokens[: usable_blocks * spec.block_size * TOKEN_BYTES], spec)


class Preparer:
    """Renders and tokenizes one model's prompts.

    Args:
        tokenizer: The model's; None where it has none, or it could not be loaded.
        executor: Threads that all models share.
        timeout_s: For one prompt, the wait for a thread included.
        inline_bytes: Bodies below this are prepared on the event loop: a change of threads would
            cost more than the work.
        max_bytes: Larger bodies are routed without token ids.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer | None,
        executor: ThreadPoolExecutor,
        timeout_s: float,
        inline_bytes: int,
        max_bytes: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._executor = executor
        self._timeout_s = timeout_s
        self._inline_bytes = inline_bytes
        self._max_bytes = max_bytes

    @property
    def has_tokenizer(self) -> bool:
        """Whether its prompts get exact token ids."""
        return self._tokenizer is not None

    async def prepare(self, body: RequestBody) -> Prompt:
        """Return what can be known about a prompt. Never raises for a prompt's sake."""
        tokenizer = self._tokenizer
        if body.num_bytes > self._max_bytes:
            return _without_ids(body, "too_large")
        if tokenizer is None and body.kind is not BodyKind.COMPLETION:
            return _without_ids(body, "no_tokenizer")
        if body.num_bytes < self._inline_bytes:
            return _with_ids(tokenizer, body)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._executor, _with_ids, tokenizer, body)
        except TimeoutError:
            return _without_ids(body, "timeout")


def _with_ids(tokenizer: PromptTokenizer | None, body: RequestBody) -> Prompt:
    try:
        token_ids = _given_ids(body) if tokenizer is None else tokenizer.token_ids(body)
        packed = pack_tokens(token_ids)
    except PromptProblem as problem:
        return _without_ids(body, problem.reason)
    except Exception:  # noqa: BLE001 - fail open: a template is foreign code, and may raise anything
        return _without_ids(body, "failed")
    return Prompt(packed, len(token_ids), body, None)


def _given_ids(body: RequestBody) -> list[int]:
    return given_ids(body.fields.get("prompt"))


def _without_ids(body: RequestBody, problem: str) -> Prompt:
    return Prompt(None, body.estimated_tokens, body, problem)
