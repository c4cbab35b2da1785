"""Read one line of a request log, whatever its fields are called.

Known shapes: an OpenAI chat body with a time beside it (`{"timestamp", "body": {...}}`, as gateways
and the batch API write), the body's own fields at the top level, and flat text (`input`, `output`,
as LMCache's agent traces have it).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from loadtests.workloads.sessions import Message

_TIMES: Final = ("timestamp", "ts", "time", "arrival_time", "start_time", "created_at", "created")
_SESSIONS: Final = ("session_id", "session", "conversation_id", "chat_id", "trace_id", "user")
_BODIES: Final = ("body", "request", "request_body")
_PROMPTS: Final = ("messages", "input", "prompt")
_OUTPUTS: Final = ("output", "response", "completion", "response_body")
# What a replayed request keeps of its body; sampling is of no interest to routing, and fields that
# a server may refuse (`n`, `logprobs`, a vendor's own) would turn a replay into errors.
_KEPT: Final = ("tools", "chat_template_kwargs", "cache_salt")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One call as the log has it.

    Attributes:
        time: When it was sent, in the log's own unit: a replay rescales time anyway.
        session: The log's session id; None where it has none.
        messages: The prompt, at least one message.
        extras: Other fields of the body that shape the prompt, such as `tools`.
        num_output_chars: Length of the recorded answer; None where it was not recorded.
        max_tokens: The body's own bound on the answer; None without one.
    """

    time: float
    session: str | None
    messages: tuple[Message, ...]
    extras: Mapping[str, Any]
    num_output_chars: int | None
    max_tokens: int | None


def parse(line: str) -> LogLine:
    """Return one line of a log as a call.

    Raises:
        ValueError: The line is no call; the message says what is missing.
    """
    row = _json_object(line, "the line")
    body = _body(row)
    extras = {name: body[name] for name in _KEPT if body.get(name)}
    if "tools" in extras:
        # vLLM without a tool parser refuses `tools` unless tool_choice is "none".
        extras["tool_choice"] = "none"
    session = _first(row, _SESSIONS, _first(body, _SESSIONS, None))
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return LogLine(
        time=_time(_first(row, _TIMES, _first(body, _TIMES, None))),
        session=None if session is None else str(session),
        messages=_messages(body),
        extras=extras,
        num_output_chars=_output_chars(_first(row, _OUTPUTS, None)),
        max_tokens=limit if isinstance(limit, int) else None,
    )


def _first(row: Mapping[str, Any], names: Sequence[str], default: Any) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), default)


def _json_object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{what} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} is JSON, but not an object")  # noqa: TRY004 - one type for callers
    return value


def _body(row: Mapping[str, Any]) -> Mapping[str, Any]:
    body = _first(row, _BODIES, row)
    if isinstance(body, str):
        return _json_object(body, "the request body")
    return body if isinstance(body, dict) else row


def _time(value: Any) -> float:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            raise ValueError(f"the time {value!r} is neither a number nor ISO 8601") from None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"there is no time; it is looked for in {', '.join(_TIMES)}")


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    prompt = _first(body, _PROMPTS, None)
    if isinstance(prompt, str):
        # Flat text has lost its roles. As one user message it keeps its prefixes, which is what
        # routing is about.
        return ({"role": "user", "content": prompt},)
    if isinstance(prompt, list) and prompt and all(_is_message(item) for item in prompt):
        return tuple(prompt)
    raise ValueError(f"there is no prompt; it is looked for in {', '.join(_PROMPTS)}")


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str)


def _output_chars(output: Any) -> int | None:
    if output is None or isinstance(output, str):
        return None if output is None else len(output)
    try:
        return len(output["choices"][0]["message"]["content"] or "")
    except (KeyError, IndexError, TypeError):
        return len(json.dumps(output))
