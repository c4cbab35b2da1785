"""What a workload is made of: sessions of turns, and the timed requests that they become.

A turn of a chat holds the reply that was really received, so requests cannot be written down
beforehand. A workload is therefore a list of `Session`s, and whoever drives one asks for the next
request with the replies so far. Between sessions the workload is open (they start at their times,
however slow the fleet is); within a session it is closed (nobody asks before the answer is read).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

Message = Mapping[str, Any]
"""One chat message as OpenAI's API has it: role, content and, with tools, calls or their id."""

EMBEDDINGS: Final = "embeddings"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """One HTTP request and when to send it.

    Attributes:
        at_s: Earliest time to send, in seconds from the start of the run.
        session_id: Requests of one session follow each other.
        kind: chat, rag, agent, hot, one_shot, embeddings or replay.
        path: The endpoint, such as `/v1/chat/completions`.
        body: The JSON body.
    """

    at_s: float
    session_id: str
    kind: str
    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session before the replies are known.

    Attributes:
        messages: What is said in addition to the conversation so far.
        max_tokens: Upper bound of the answer, tokens.
        pause_s: Think time: seconds from the end of the reply before to this request.
        not_before_s: Earliest time to send, in seconds from the start of the run.
        fresh: The messages are the whole prompt, as logs have it; nothing is carried over.
        tool_calls: Calls that the reply before made, which these messages answer.
        extras: More fields of the body, such as `tools`.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    pause_s: float = 0.0
    not_before_s: float = 0.0
    fresh: bool = False
    tool_calls: tuple[Message, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Session:
    """Turns of one user or agent, each sent after the reply to the one before.

    Attributes:
        session_id: Unique in a workload.
        kind: chat, rag, agent, hot, one_shot, embeddings or replay.
        turns: At least one.
    """

    session_id: str
    kind: str
    turns: tuple[Turn, ...]

    @property
    def start_s(self) -> float:
        """When the first request is due, in seconds from the start of the run."""
        return self.turns[0].not_before_s

    def due_s(self, index: int, last_end_s: float) -> float:
        """Return when turn `index` is to be sent, in seconds from the start of the run.

        Args:
            index: Which turn, from 0.
            last_end_s: When the reply before ended; ignored for the first turn.
        """
        turn = self.turns[index]
        return max(turn.not_before_s, last_end_s + turn.pause_s) if index else turn.not_before_s

    def request(self, index: int, replies: Sequence[str], model: str, at_s: float) -> TimedRequest:
        """Return turn `index` with the conversation so far.

        Args:
            index: Which turn, from 0.
            replies: The texts received for turns 0 to `index - 1`.
            model: The model's served name.
            at_s: When it is sent, in seconds from the start of the run.
        """
        turn = self.turns[index]
        if self.kind == EMBEDDINGS:
            inputs = [message["content"] for message in turn.messages]
            body: dict[str, Any] = {"model": model, "input": inputs}
            return TimedRequest(at_s, self.session_id, self.kind, "/v1/embeddings", body)
        body = {
            **turn.extras,
            "model": model,
            "messages": self._conversation(index, replies),
            "max_tokens": turn.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return TimedRequest(at_s, self.session_id, self.kind, "/v1/chat/completions", body)

    def _conversation(self, index: int, replies: Sequence[str]) -> list[Message]:
        messages: list[Message] = []
        for number, turn in enumerate(self.turns[: index + 1]):
            if turn.fresh:
                messages = []
            elif number:
                calls = {"tool_calls": list(turn.tool_calls)} if turn.tool_calls else {}
                messages.append({"role": "assistant", "content": replies[number - 1], **calls})
            messages += turn.messages
        return messages
