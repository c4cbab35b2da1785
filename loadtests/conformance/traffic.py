"""Twelve conversations that grow turn by turn: chats, tools, salts, long documents, completions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from loadtests.conformance.cases import (
    CHAT,
    COMPLETIONS,
    SEARCH,
    WEATHER,
    assistant,
    call,
    result,
    system,
    user,
)
from loadtests.conformance.cases_chat import prose

MODEL: Final = "smollm2-135m"
TURNS: Final = 5
# More than a block of 32, so that tokens of the answer are cached too.
ANSWER_TOKENS: Final = 40
# About 1,500 tokens: a prefill of some seconds on one core.
_DOCUMENT_WORDS: Final = 900
# SmolLM2 has 49,152; the first 1,000 hold the special ones.
_IDS: Final = range(1_000, 40_000)


@dataclass(slots=True)
class Conversation:
    """One conversation: what is asked next grows by what was answered.

    Attributes:
        name: Unique.
        path: Of the API.
        fields: Of every request.
        prompt: So far: messages, text or token ids.
        turns: What is added before each request, in the prompt's own form.
    """

    name: str
    path: str
    fields: Mapping[str, Any]
    prompt: Any
    turns: Sequence[Any]
    _next: int = field(default=0)

    def body(self) -> dict[str, Any]:
        """Return the next request's body."""
        self.prompt = self.prompt + self.turns[self._next]
        self._next += 1
        key = "messages" if self.path == CHAT else "prompt"
        body = {"model": MODEL, key: self.prompt, "temperature": 0, **self.fields}
        return {"max_tokens": ANSWER_TOKENS, "return_token_ids": True, **body}

    def answered(self, text: str, token_ids: Sequence[int]) -> None:
        """Take the answer into the prompt."""
        if self.path == CHAT:
            self.prompt = [*self.prompt, assistant(text)]
        elif isinstance(self.prompt, str):
            self.prompt += text
        else:
            self.prompt = [*self.prompt, *token_ids]


def conversations() -> list[Conversation]:
    """Return twelve conversations of five turns."""
    shared = system(f"You answer questions about caches. {prose(500, 150)}")
    document = prose(501, _DOCUMENT_WORDS)
    return [
        *(_chat(f"chat-{n}", [shared], n, {}) for n in (1, 2, 3)),
        _tools("tools-1", [WEATHER, SEARCH], 4),
        _tools("tools-2", [SEARCH, WEATHER], 5),
        *(_chat(f"salt-{s}", [shared], 6, {"cache_salt": f"tenant-{s}"}) for s in ("a", "b")),
        *(_chat(f"document-{n}", [user(document), assistant("Read.")], n, {}) for n in (7, 8)),
        _chat("document-9", [user(prose(502, _DOCUMENT_WORDS)), assistant("Read.")], 9, {}),
        Conversation(
            "text", COMPLETIONS, {}, "", [f" {prose(100 + turn, 80)}" for turn in range(TURNS)]
        ),
        Conversation("ids", COMPLETIONS, {}, [], list(_ids(11))),
    ]


def document(number: int, question: int = 0) -> dict[str, Any]:
    """Return a question about a long document, which is answered with few tokens.

    Args:
        number: Of the document; each has a text of its own.
        question: Of the questions about it, which come last.
    """
    text = f"Document {number}. {prose(1_000 + number, _DOCUMENT_WORDS)}\nQuestion {question}."
    return {"model": MODEL, "messages": [user(text)], "temperature": 0, "max_tokens": 4}


def _chat(
    name: str, start: Sequence[Mapping[str, Any]], seed: int, fields: Mapping[str, Any]
) -> Conversation:
    turns = [[user(prose(seed * 10 + turn, 30))] for turn in range(TURNS)]
    return Conversation(name, CHAT, fields, list(start), turns)


def _tools(name: str, tools: Sequence[Mapping[str, Any]], seed: int) -> Conversation:
    fields = {"tools": tools, "tool_choice": "auto"}
    first = [user(f"What is the weather in Köln? {prose(seed, 20)}")]
    called = assistant(None, tool_calls=[call('{"city":"Köln",  "unit":"celsius"}')])
    rounds = [
        [called, result(f"{turn} °C, {prose(seed * 10 + turn, 20)}"), user("And tomorrow?")]
        for turn in range(1, TURNS)
    ]
    return Conversation(name, CHAT, fields, [], [first, *rounds])


def _ids(seed: int) -> Iterator[list[int]]:
    random = Random(seed)
    for _ in range(TURNS):
        yield [random.choice(_IDS) for _ in range(90)]
