"""Replay real logs: JSONL of chat calls with times and session ids, in a file or a folder.

Two clocks are rescaled, each by one factor: when sessions start, and the pauses within a session.
One clock would not do: logs of benchmarks hold one session after the other, and squeezing those
gives one user who types very fast, where a service has many users at once. The order of starts,
the order of calls within a session and every prompt stay as recorded.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Final

from loadtests.measurement import MeasurementError
from loadtests.workloads import log_fields
from loadtests.workloads.sessions import Message, Session, Turn

# What the demo tokenizer makes of real agent prompts: 2.3 to 2.8 characters a token (ORIGIN.md).
CHARS_PER_TOKEN: Final = 2.5
# A replica's context window in the demo, less room for the answer, tokens.
MAX_PROMPT_TOKENS: Final = 16_000
# Longer answers are cut: a replay is about prompts, and calls of a session wait for each other, so
# answers as long as in the log would make runs of minutes.
MAX_ANSWER_TOKENS: Final = 16
# The part of a run in which sessions start; in the rest the last ones come to their end.
STARTING_SHARE: Final = 0.4
# Gaps between starts above this many times the median one hold no traffic worth replaying.
_LONGEST_GAP: Final = 3.0
_SUFFIXES: Final = (".jsonl", ".ndjson")


class LogError(MeasurementError):
    """A path cannot be read as a log: one line that says what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log that was read.

    Attributes:
        sessions: In the order of their starts; times still in the log's own unit, from 0.
        num_calls: Calls in `sessions`.
        num_too_long: Calls left out because their prompt would not fit the context window.
    """

    sessions: tuple[Session, ...]
    num_calls: int
    num_too_long: int


def read(path: Path) -> Log:
    """Read a log file, or every log file of a folder and the folders in it.

    Args:
        path: A JSONL file, or a folder of them (`.jsonl`, `.ndjson`). Empty files are
            skipped. Without a session field a file of a folder is a session, and in a single file
            every call is one.

    Raises:
        LogError: Nothing there, nothing in it, or a line that is no call.
    """
    if not path.exists():
        raise LogError(f"{path}: no such file or folder; give a JSONL log or a folder of them")
    files = _files(path)
    calls = defaultdict[str, list[log_fields.LogLine]](list)
    num_too_long = 0
    for file in files:
        for number, line in _lines(file):
            session = line.session or (file.stem if path.is_dir() else f"{file.stem}-{number}")
            if _num_chars(line.messages) > MAX_PROMPT_TOKENS * CHARS_PER_TOKEN:
                num_too_long += 1
            else:
                calls[session].append(line)
    if not calls:
        raise LogError(
            f"{path}: no calls in {len(files)} file(s); each line should be one JSON call"
        )
    start = min(call.time for session in calls.values() for call in session)
    sessions = [_session(name, session, start) for name, session in calls.items()]
    sessions.sort(key=lambda session: session.start_s)
    return Log(tuple(sessions), sum(len(item.turns) for item in sessions), num_too_long)


def pick(sessions: Sequence[Session], count: int) -> list[Session]:
    """Return `count` sessions spread evenly over the log, in its order.

    A larger pick holds every smaller one, so that work grows with the count: sessions are taken in
    the order of van der Corput's sequence (first, middle, quarters, eighths, ...).
    """
    width = max(1, (len(sessions) - 1).bit_length())
    order = sorted(range(len(sessions)), key=lambda index: f"{index:0{width}b}"[::-1])
    return [sessions[index] for index in sorted(order[: max(1, count)])]


def rescale(sessions: Sequence[Session], seconds: float) -> list[Session]:
    """Return the sessions with times in seconds that fit a run.

    Args:
        sessions: As `read` gives them, by start, at least one.
        seconds: Length of the run. Starts fill its first part; the longest session, if the fleet
            answered at once, would end with the run.

    Returns:
        The same sessions and prompts, by start.
    """
    starts = _without_idle_gaps([session.start_s for session in sessions])
    longest = max(session.turns[-1].not_before_s - session.start_s for session in sessions)
    starts_factor = STARTING_SHARE * seconds / starts[-1] if starts[-1] else 0.0
    pauses_factor = (1 - STARTING_SHARE) * seconds / longest if longest else 0.0
    return [
        _moved(session, start * starts_factor, pauses_factor)
        for session, start in zip(sessions, starts, strict=True)
    ]


def _without_idle_gaps(starts: Sequence[float]) -> list[float]:
    """Return starts from 0 with the gaps cut at a few times the median one.

    Otherwise a log with a quiet night in it, or files recorded on different days, would become
    bursts with nothing between them.
    """
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    longest = _LONGEST_GAP * median(gaps) if gaps else 0.0
    return list(accumulate((min(gap, longest) for gap in gaps), initial=0.0))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(item for item in path.rglob("*") if item.suffix in _SUFFIXES and item.is_file())
    if not files:
        raise LogError(f"{path}: no {' or '.join(_SUFFIXES)} file in this folder")
    return files


def _lines(file: Path) -> Iterator[tuple[int, log_fields.LogLine]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(f"{file}: cannot be read as text ({error}); give JSONL in UTF-8") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, log_fields.parse(line)
        except ValueError as error:
            hint = (
                'each line should be one call, such as {"timestamp": 1, "body": {"messages": []}}'
            )
            raise LogError(f"{file}:{number}: {error}; {hint}") from None


def _session(name: str, calls: Sequence[log_fields.LogLine], start: float) -> Session:
    ordered = sorted(calls, key=lambda call: call.time)
    turns = tuple(
        Turn(
            messages=call.messages,
            max_tokens=_answer_tokens(call),
            not_before_s=call.time - start,
            fresh=True,
            extras=call.extras,
        )
        for call in ordered
    )
    return Session(name, "replay", turns)


def _answer_tokens(call: log_fields.LogLine) -> int:
    if call.num_output_chars is not None:
        tokens = round(call.num_output_chars / CHARS_PER_TOKEN)
    else:
        tokens = call.max_tokens or MAX_ANSWER_TOKENS
    return min(max(tokens, 1), MAX_ANSWER_TOKENS)


def _num_chars(messages: Sequence[Message]) -> int:
    return sum(len(str(message.get("content") or "")) for message in messages)


def _moved(session: Session, start_s: float, pauses_factor: float) -> Session:
    def at(turn: Turn) -> float:
        return start_s + (turn.not_before_s - session.start_s) * pauses_factor

    turns = tuple(replace(turn, not_before_s=at(turn)) for turn in session.turns)
    return replace(session, turns=turns)
