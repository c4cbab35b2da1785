"""What is wrong with a configuration, said so that the reader can mend it.

A `Finding` knows the place in the configuration's tree; a `Problem` also knows where the reader
finds that place: a file and line, or a command-line flag.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Keys and list positions from the root of the configuration; () is the whole file."""


# Between difflib's default of 0.6, which takes `redis` for `rules`, and `hots` for `host` at 0.75.
_MIN_SIMILARITY = 0.7


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong at one place.

    Attributes:
        path: The place.
        text: What is wrong and what would be right, without the value.
        hint: Follows the value, such as `, did you mean chat?`.
        show_value: Whether the message may repeat the value found there. Never for secrets.
        line: Where the reader must look, if that is not where the path leads.
    """

    path: Path
    text: str
    hint: str = ""
    show_value: bool = True
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One line for the person who wrote the configuration.

    Attributes:
        source: `file:line`; empty for the command line.
        key: Dotted path such as `models[0].replicas[1].url`, or a flag such as `--replica`.
        text: What is wrong, and what would be right.
    """

    source: str
    key: str
    text: str

    def __str__(self) -> str:
        prefix = f"{self.source}: " if self.source else ""
        return f"{prefix}{self.key}: {self.text}"


class ConfigError(Exception):
    """The configuration cannot be used; `problems` lists everything that was found.

    `str()` is one line a problem. No message ever holds a secret's value.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def key_text(path: Path) -> str:
    """Write a path as the reader would: `models[0].url`; the whole file is `(file)`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    # A lone surrogate, which YAML can escape, must not break the printing of its own problem.
    return text.encode(errors="backslashreplace").decode().removeprefix(".") or "(file)"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean X?` for the closest of the known words, or nothing."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=_MIN_SIMILARITY)
    return f", did you mean {close[0]}?" if close else ""
