"""Sessions of every kind, made from a seed: chats, RAG, agents, a hot prompt, one-shot, embeddings.

Sizes are in words of the demo model's lists; with punctuation a word is about 1.2 tokens. They are
those of small assistants: openings of a few hundred tokens, documents of two thousand, answers of
some dozens, so that 4 replicas of the slow `a10g` profile are busy at rates that 2 cores can make.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtests.demo_model import prose, words
from loadtests.workloads.sessions import EMBEDDINGS, Message, Session, Turn

# The average sentence of prose.sentence has 9 words; paragraphs of 8 read like real ones.
_WORDS_A_SENTENCE: Final = 9
_SENTENCES_A_PARAGRAPH: Final = 8

NUM_ASSISTANTS: Final = 3  # applications with a system prompt of their own
NUM_DOCUMENTS: Final = 30  # the shared documents of the RAG questions
# Popularity of document k is proportional to 1 / (k + 1) ** 1.1. Web pages have 0.64 to 0.83
# (Breslau et al., "Web Caching and Zipf-like Distributions", 1999); a team's questions over half a
# minute are about fewer things.
_ZIPF_EXPONENT: Final = 1.1


def text(rng: random.Random, num_words: int) -> str:
    """Return paragraphs of about `num_words` words."""
    sentences = [prose.sentence(rng) for _ in range(max(1, num_words // _WORDS_A_SENTENCE))]
    paragraphs = [
        " ".join(sentences[start : start + _SENTENCES_A_PARAGRAPH])
        for start in range(0, len(sentences), _SENTENCES_A_PARAGRAPH)
    ]
    return "\n\n".join(paragraphs)


def tool(rng: random.Random) -> Message:
    """Return one tool as the API's `tools` field has it, with three parameters."""
    verb, noun = rng.choice(words.VERBS), rng.choice(words.NOUNS)
    properties = {
        name: {"type": "string", "description": prose.sentence(rng)}
        for name in rng.sample(words.NOUNS, 3)
    }
    parameters = {"type": "object", "properties": properties, "required": [next(iter(properties))]}
    function = {
        "name": f"{verb}_{noun}",
        "description": prose.sentence(rng),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Shared:
    """The texts that many sessions have in common, and that a cache can therefore hold.

    Attributes:
        assistants: System prompts of ordinary chats, about 300 tokens each.
        documents: What RAG questions are about, about 2,500 tokens each.
        hot_prompt: One long system prompt, about 2,700 tokens.
        agent_prompt: The agents' system prompt, about 600 tokens.
        tools: The agents' tools, about 190 tokens each.
    """

    assistants: tuple[str, ...]
    documents: tuple[str, ...]
    hot_prompt: str
    agent_prompt: str
    tools: tuple[Message, ...]


def shared(seed: int) -> Shared:
    """Return the shared texts of `seed`."""
    rng = random.Random(f"{seed}/shared")
    return Shared(
        assistants=tuple(text(rng, 250) for _ in range(NUM_ASSISTANTS)),
        documents=tuple(text(rng, 2_000) for _ in range(NUM_DOCUMENTS)),
        hot_prompt=text(rng, 2_200),
        agent_prompt=text(rng, 500),
        tools=tuple(tool(rng) for _ in range(8)),
    )


def chat(rng: random.Random, common: Shared) -> Sequence[Turn]:
    """A conversation of 4 to 7 turns about something that the user pasted."""
    opening = f"{text(rng, rng.randint(200, 450))}\n\n{prose.question(rng)}"
    first = Turn((_system(rng.choice(common.assistants)), _user(opening)), rng.randint(25, 60))
    later = [
        Turn(
            (_user(f"{text(rng, rng.randint(20, 80))} {prose.question(rng)}"),),
            max_tokens=rng.randint(25, 60),
            pause_s=_pause(rng, 0.5),
        )
        for _ in range(rng.randint(3, 6))
    ]
    return [first, *later]


def rag(rng: random.Random, common: Shared) -> Sequence[Turn]:
    """One question about one of the shared documents, the document first."""
    weights = [1 / (rank + 1) ** _ZIPF_EXPONENT for rank in range(len(common.documents))]
    (document,) = rng.choices(common.documents, weights)
    ask = f"Document:\n\n{document}\n\nQuestion: {prose.question(rng)}"
    system = _system("Answer from the document only, and cite the passage.")
    return [Turn((system, _user(ask)), max_tokens=rng.randint(30, 70))]


def agent(rng: random.Random, common: Shared) -> Sequence[Turn]:
    """A task in 4 to 6 steps; every step but the first brings the result of a tool call."""
    # vLLM without a tool parser refuses `tools` unless tool_choice is "none".
    extras = {"tools": list(common.tools), "tool_choice": "none"}
    task = _user(f"Task: {text(rng, 60)}")
    turns = [Turn((_system(common.agent_prompt), task), rng.randint(30, 60), extras=extras)]
    for number in range(rng.randint(3, 5)):
        call = _call(rng, common.tools, f"call_{number}")
        result = {"role": "tool", "tool_call_id": call["id"], "content": _tool_result(rng)}
        turns.append(
            Turn(
                (result,),
                max_tokens=rng.randint(30, 60),
                pause_s=_pause(rng, 0.3),
                tool_calls=(call,),
                extras=extras,
            )
        )
    return turns


def hot(rng: random.Random, common: Shared) -> Sequence[Turn]:
    """One question under the one long system prompt that everybody uses."""
    ask = f"{text(rng, rng.randint(20, 80))} {prose.question(rng)}"
    return [Turn((_system(common.hot_prompt), _user(ask)), max_tokens=rng.randint(20, 60))]


def one_shot(rng: random.Random, _common: Shared) -> Sequence[Turn]:
    """A prompt that shares nothing with any other: no cache helps it."""
    return [Turn((_user(text(rng, rng.randint(150, 500))),), max_tokens=rng.randint(20, 60))]


def embeddings(rng: random.Random, _common: Shared) -> Sequence[Turn]:
    """Four short texts to embed."""
    return [Turn(tuple(_user(text(rng, 40)) for _ in range(4)), max_tokens=1)]


MAKERS: Final[Mapping[str, Callable[[random.Random, Shared], Sequence[Turn]]]] = {
    "chat": chat,
    "rag": rag,
    "agent": agent,
    "hot": hot,
    "one_shot": one_shot,
    EMBEDDINGS: embeddings,
}


@dataclass(frozen=True, slots=True)
class Stream:
    """One kind's share of a workload.

    Attributes:
        kind: A key of `MAKERS`.
        sessions_per_s: Mean of the Poisson process of session starts.
        quiet_end_s: No session starts in this last part of the run, seconds: about as long as a
            session lasts, so that the run ends when it should. At most half of the run.
    """

    kind: str
    sessions_per_s: float
    quiet_end_s: float = 0.0


# The demo's traffic: 14 requests/s, 27,000 prompt tokens/s. In virtual time (routing.lab, 4 `a10g`
# replicas with 2,200 blocks, 24 s, seeds 1 to 5) queues form under round robin and drain again:
# mean TTFT 0.57 to 0.99 s, against 0.22 to 0.28 s under expected_ttft.
DEMO_MIX: Final = (
    Stream("chat", 1.6, quiet_end_s=10.0),
    Stream("rag", 4.4),
    Stream("agent", 0.7, quiet_end_s=6.0),
    Stream("hot", 1.1),
    Stream("one_shot", 0.3),
)


def workload(seed: int, seconds: float, mix: Sequence[Stream] = DEMO_MIX) -> list[Session]:
    """Return the sessions of a run in the order of their starts.

    Args:
        seed: The same seed gives the same sessions; a kind keeps its own when others change.
        seconds: Length of the run; sessions start before it ends.
        mix: The kinds and their rates.
    """
    common = shared(seed)
    sessions = [session for stream in mix for session in _sessions(stream, seed, seconds, common)]
    return sorted(sessions, key=lambda session: session.start_s)


def _sessions(stream: Stream, seed: int, seconds: float, common: Shared) -> Iterator[Session]:
    rng = random.Random(f"{seed}/{stream.kind}")
    at_s = rng.expovariate(stream.sessions_per_s)
    end_s = seconds - min(stream.quiet_end_s, seconds / 2)
    number = 0
    while at_s < end_s:
        yield session_at(rng, stream.kind, f"{stream.kind}-{number}", at_s, common)
        at_s += rng.expovariate(stream.sessions_per_s)
        number += 1


def session_at(
    rng: random.Random, kind: str, session_id: str, at_s: float, common: Shared
) -> Session:
    """Return one session of `kind` that starts at `at_s` seconds from the start of the run."""
    first, *later = MAKERS[kind](rng, common)
    started = Turn(first.messages, first.max_tokens, not_before_s=at_s, extras=first.extras)
    return Session(session_id, kind, (started, *later))


def _system(content: str) -> Message:
    return {"role": "system", "content": content}


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _pause(rng: random.Random, mean_s: float) -> float:
    """Think time: exponential around the mean, cut at three times it so that runs end."""
    return min(rng.expovariate(1 / mean_s), 3 * mean_s)


def _call(rng: random.Random, tools: Sequence[Message], call_id: str) -> dict[str, Any]:
    name = rng.choice(tools)["function"]["name"]
    arguments = json.dumps({rng.choice(words.NOUNS): rng.choice(words.ADJECTIVES)})
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _tool_result(rng: random.Random) -> str:
    rows = [
        {rng.choice(words.NOUNS): rng.randrange(1000), "note": prose.sentence(rng)}
        for _ in range(rng.randint(3, 10))
    ]
    return json.dumps(rows, indent=1)
