"""Compares token ids with what a replica says: at the start, and for a sample of live requests.

Off the request path: a check is a task of its own with a deadline, and few of them run at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.loading import ModelTokenizer
from gateway.prompt.questions import Question
from gateway.prompt.tokenizer import Tokenized
from gateway.prompt.trust import EQUAL, FAILED, SKIPPED, Trust, difference
from gateway.replicas.tokens import NotTold, ReplicaTokens

# For one answer. Nobody waits for it, and a busy engine answers late.
ASK_TIMEOUT_S = 5.0
# At a time, for one model; a prompt that is drawn while these run is left out.
MAX_RUNNING = 2
# While ids are not trusted, one prompt in so many is compared, so that an engine that was repaired
# is soon believed again.
EVERY_WHEN_DISTRUSTED = 20
# Between two tries to make the first comparisons, as long as no replica is ready.
START_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """Whom a checker tells.

    Attributes:
        result: Each comparison's result.
        trust: Whether ids are used from now on, and the result that decided it.
    """

    result: Callable[[str], None]
    trust: Callable[[bool, str], None]


class Checker:
    """Checks one model's token ids.

    Args:
        model: What requests call it.
        tokenizer: Computes them.
        tokens: Asks its replicas.
        executor: Threads to compute in.
        every: One prompt in so many is compared; 0 for none.
        told: Told what comes out.
    """

    def __init__(
        self,
        model: Callable[[], str | None],
        tokenizer: ModelTokenizer,
        tokens: ReplicaTokens,
        executor: ThreadPoolExecutor,
        every: int,
        told: Told,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._executor = executor
        self._every = every
        self._told = told
        self._trust = Trust()
        self._num_offered = 0
        self._running: set[asyncio.Task[None]] = set()

    @property
    def is_trusted(self) -> bool:
        """Whether its token ids are to be used."""
        return self._trust.is_given

    def inherit(self, before: Checker) -> None:
        """Take over what comparisons said of the same token ids."""
        self._trust, self._num_offered = before._trust, before._num_offered

    def start(self) -> None:
        """Make the first comparisons, as soon as a replica is ready.

        Ids that are known to be wrong are compared with requests only: other prompts than these
        may have shown it.
        """
        if self._every and self.is_trusted:
            self._run(self._first())

    def offer(self, body: RequestBody) -> None:
        """Compare this prompt, if it is its turn."""
        if not self._every:
            return
        self._num_offered += 1
        every = self._every if self.is_trusted else min(self._every, EVERY_WHEN_DISTRUSTED)
        if self._num_offered % every == 0 and len(self._running) < MAX_RUNNING:
            self._run(self._check(body))

    def close(self) -> None:
        """Stop what runs."""
        for task in list(self._running):
            task.cancel()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name="token check")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _first(self) -> None:
        while self._model() is None:  # noqa: ASYNC110 - a look a second is less than being told
            await asyncio.sleep(START_RETRY_S)
        for fields in FIRST_PROMPTS:
            body = RequestBody(BodyKind.CHAT, self._model() or "", dict(fields), 0)
            await self._check(body)

    async def _check(self, body: RequestBody) -> None:
        result = await self.compare(body)
        self._told.result(result)
        if self._trust.note(result):
            self._told.trust(self._trust.is_given, result)

    async def compare(self, body: RequestBody) -> str:
        """Compare a prompt's token ids with a replica's, and return the result."""
        loop = asyncio.get_running_loop()
        here = await loop.run_in_executor(self._executor, self._here, body)
        if here is None:
            return SKIPPED
        tokenized, question = here
        try:
            there = await self._tokens.ask(question, ASK_TIMEOUT_S, keep=False)
        except NotTold as error:
            # What it refuses says nothing about the ids; a flag of its own may be the reason.
            return SKIPPED if 400 <= error.status < 500 else FAILED
        if there == tokenized.packed_tokens:
            return EQUAL
        reason = difference(
            memoryview(tokenized.packed_tokens).cast("I"),
            memoryview(there).cast("I"),
            has_tools=bool(body.fields.get("tools")),
            is_dated=tokenized.is_dated,
        )
        return f"different_{reason}"

    def _here(self, body: RequestBody) -> tuple[Tokenized, Question] | None:
        try:
            question = self._tokenizer.renderer.question(body, self._model() or body.model)
            tokenized = self._tokenizer.tokenize(body)
        except Exception:  # noqa: BLE001 - a template is foreign code, and may raise anything
            return None
        return (tokenized, question) if question is not None and tokenized.whole else None


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


FIRST_PROMPTS: Sequence[Mapping[str, Any]] = (
    {"messages": [_message("user", "What is a KV cache?")]},
    {
        "messages": [
            _message("system", "Be brief.\n\nAnswer in French."),
            _message("user", "  Hello \u00e9\u4e2d\U0001f600 <b>1e5</b>\t"),
            _message("assistant", "Bonjour!"),
            _message("user", "And in German?"),
        ]
    },
    {
        "messages": [_message("user", "What time is it?")],
        "tools": [{"type": "function", "function": {"name": "clock", "parameters": {}}}],
    },
)
"""Chats that are compared before any request was."""
