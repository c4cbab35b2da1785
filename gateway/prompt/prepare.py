"""Prepares prompts, long ones off the event loop, with a deadline; what fails, fails open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from xxhash import xxh3_64_intdigest

from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.keys import BlockKeys
from gateway.prompt.loading import ModelTokenizer
from gateway.prompt.problem import PromptProblem
from gateway.prompt.tokenizer import Tokenized, given_ids
from routing.hashing import TOKEN_BYTES, HashSpec, block_keys, max_matched_blocks, pack_tokens
from routing.types import BlockKey
from routing.value import value

# A message takes a template 20 us, however short it is, so a body's length alone does not tell.
INLINE_MESSAGES = 16
# What is left of the 1 ms that may run on the event loop when a prompt has been rendered there.
INLINE_S = 0.5e-3


@value
class Prompt:
    """What is known about one request's prompt.

    Attributes:
        packed_tokens: Token ids, packed, of the whole or of its beginning; None where they are not
            known.
        num_tokens: Prompt length; an estimate where not all ids are known.
        body: What it was read from.
        problem: Why the ids are not known, in one word; None where they are.
        whole: Whether `packed_tokens` are all: a picture's are not known, nor what follows it.
        is_dated: Whether the day is in it.
        keys_by_spec: Block keys that are worked out already; None for none.
    """

    packed_tokens: bytes | None
    num_tokens: int
    body: RequestBody
    problem: str | None
    whole: bool = True
    is_dated: bool = False
    keys_by_spec: Mapping[HashSpec, list[BlockKey]] | None = None

    def head_key(self) -> int | None:
        """Return 64 bits that prompts with the same first bytes share; None without a prompt."""
        if not self.body.has_prompt:
            return None
        # The salt comes first: tenants that must not share a cache need not share a replica.
        salt = self.body.cache_salt.encode(errors="surrogatepass")
        return int(xxh3_64_intdigest(self.body.head(), xxh3_64_intdigest(salt)))

    def keys(self, spec: HashSpec) -> list[BlockKey]:
        """Return the keys of the blocks that a cache can serve; empty without token ids."""
        known = self.keys_by_spec.get(spec) if self.keys_by_spec else None
        if known is not None:
            return known
        if self.packed_tokens is None:
            return []
        return block_keys(usable(self.packed_tokens, self.num_tokens, spec), spec)


def usable(packed: bytes, num_tokens: int, spec: HashSpec) -> bytes:
    """Return the known token ids of the blocks that a cache can serve.

    Args:
        packed: The known ids.
        num_tokens: Length of the whole prompt; a cache never serves its last token.
        spec: Whose blocks.
    """
    num_blocks = max_matched_blocks(num_tokens, spec.block_size)
    return packed[: num_blocks * spec.block_size * TOKEN_BYTES]


class Preparer:
    """Renders and tokenizes one model's prompts, and works out their block keys.

    Args:
        tokenizer: The model's; None where it has none, or it could not be loaded.
        executor: Threads that all models share.
        timeout_s: For one prompt, the wait for a thread included.
        inline_bytes: Bodies below this are rendered on the event loop, and tokenized there where
            that takes no time worth a change of threads.
        max_bytes: Larger bodies are routed without token ids.
        block_keys: Works out block keys; None for without keeping any.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer | None,
        executor: ThreadPoolExecutor,
        timeout_s: float,
        inline_bytes: int,
        max_bytes: int,
        block_keys: BlockKeys | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._executor = executor
        self._timeout_s = timeout_s
        self._inline_bytes = inline_bytes
        self._max_bytes = max_bytes
        self._block_keys = block_keys

    @property
    def max_bytes(self) -> int:
        """Larger bodies are routed without token ids."""
        return self._max_bytes

    @property
    def has_tokenizer(self) -> bool:
        """Whether its prompts get exact token ids."""
        return self._tokenizer is not None

    async def prepare(
        self,
        body: RequestBody,
        specs: Sequence[HashSpec] = (),
        max_model_len: int | None = None,
    ) -> Prompt:
        """Return what can be known about a prompt. Never raises for a prompt's sake.

        Args:
            body: Any.
            specs: Whose block keys will be asked for.
            max_model_len: Tokens of prompt and answer together, where the configuration does not
                say.
        """
        tokenizer = self._tokenizer
        if body.num_bytes > self._max_bytes:
            return without_ids(body, "too_large")
        if tokenizer is None and body.kind is not BodyKind.COMPLETION:
            return without_ids(body, "no_tokenizer")
        job = _Job(tokenizer, body, specs, max_model_len, self._block_keys)
        work: Callable[[], Prompt] = job.run
        if body.num_bytes < self._inline_bytes and _is_short(body):
            begun = job.begin()
            if isinstance(begun, Prompt):
                return begun
            if job.seconds(begun) <= INLINE_S:
                return job.finish(begun)
            work = partial(job.finish, begun)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._executor, work)
        except TimeoutError:
            # A thread that has begun goes on, and what it finds is known for the next turn.
            return without_ids(body, "timeout")


def prepare_now(
    tokenizer: ModelTokenizer | None,
    body: RequestBody,
    specs: Sequence[HashSpec] = (),
    block_keys: BlockKeys | None = None,
) -> Prompt:
    """Return what can be known about a prompt, without a deadline and in this thread."""
    return _Job(tokenizer, body, specs, None, block_keys).run()


@value
class _Job:
    """One prompt to prepare, in one step or in two."""

    tokenizer: ModelTokenizer | None
    body: RequestBody
    specs: Sequence[HashSpec]
    max_model_len: int | None
    block_keys: BlockKeys | None

    def run(self) -> Prompt:
        """Do all."""
        begun = self.begin()
        return begun if isinstance(begun, Prompt) else self.finish(begun)

    def begin(self) -> Any:
        """Render, and look up what is known; a `Prompt` where nothing is left to do."""
        if self.tokenizer is None:
            return self._guarded(self._given)
        try:
            return self.tokenizer.begin(self.body)
        except PromptProblem as problem:
            return without_ids(self.body, problem.reason)
        except Exception:  # noqa: BLE001 - fail open: a template is foreign code
            return without_ids(self.body, "failed")

    def seconds(self, begun: Any) -> float:
        """Return about how long `finish` takes."""
        return 0.0 if self.tokenizer is None else self.tokenizer.seconds(begun)

    def finish(self, begun: Any) -> Prompt:
        """Tokenize what is new, and work out the block keys."""
        return self._guarded(partial(self._tokenized, begun))

    def _guarded(self, tokenize: Callable[[], Tokenized]) -> Prompt:
        try:
            found = tokenize()
            packed, num_tokens = found.packed_tokens, found.num_tokens
            keys = {spec: self._keys(usable(packed, num_tokens, spec), spec) for spec in self.specs}
        except PromptProblem as problem:
            return without_ids(self.body, problem.reason)
        except Exception:  # noqa: BLE001 - fail open: a tokenizer is foreign code
            return without_ids(self.body, "failed")
        return Prompt(packed, num_tokens, self.body, None, found.whole, found.is_dated, keys)

    def _tokenized(self, begun: Any) -> Tokenized:
        assert self.tokenizer is not None  # noqa: S101 - without one nothing is begun
        return self.tokenizer.finish(begun, self.max_model_len)

    def _given(self) -> Tokenized:
        packed = pack_tokens(given_ids(self.body.fields.get("prompt")))
        return Tokenized(packed, len(packed) // TOKEN_BYTES, whole=True, is_dated=False)

    def _keys(self, packed: bytes, spec: HashSpec) -> list[BlockKey]:
        kept = self.block_keys
        return block_keys(packed, spec) if kept is None else kept.of(packed, spec)


def _is_short(body: RequestBody) -> bool:
    """Return whether a body is rendered in no time: few messages, by a template that is known."""
    fields = body.fields
    lists = (fields.get("messages"), fields.get("tools"), fields.get("input"))
    num_messages = sum(len(items) for items in lists if isinstance(items, list))
    return num_messages <= INLINE_MESSAGES and fields.get("chat_template") is None


def without_ids(body: RequestBody, problem: str) -> Prompt:
    """Return what is known of a prompt whose token ids are not.

    Args:
        body: What it is read from.
        problem: Why, in one word.
    """
    return Prompt(None, body.estimated_tokens, body, problem)
