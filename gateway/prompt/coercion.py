"""How the engine's types read JSON values that are nearly right: as pydantic does. Pure.

Source: pydantic's conversion table (not strict), https://docs.pydantic.dev, "Conversion Table".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.prompt.problem import REFUSED, PromptProblem

_BOOL_BY_WORD: Mapping[str, bool] = MappingProxyType(
    {
        **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
        **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
    }
)


def as_bool(given: Any) -> bool:
    """Return a value as a flag.

    Raises:
        PromptProblem: `refused`.
    """
    if isinstance(given, bool):
        return given
    if isinstance(given, int | float) and given in (0, 1):
        return bool(given)
    found = _BOOL_BY_WORD.get(given.lower()) if isinstance(given, str) else None
    if found is None:
        raise PromptProblem(REFUSED)
    return found


def as_int(given: Any) -> int:
    """Return a value as an integer.

    Raises:
        PromptProblem: `refused`.
    """
    if isinstance(given, int):
        return int(given)
    try:
        if isinstance(given, float) and given.is_integer():
            return int(given)
        if isinstance(given, str):
            return int(given.strip())
    except ValueError:
        pass
    raise PromptProblem(REFUSED)


def as_float(given: Any) -> float:
    """Return a value as a number.

    Raises:
        PromptProblem: `refused`.
    """
    if isinstance(given, int | float | str):
        try:
            return float(given)
        except (ValueError, OverflowError):
            pass
    raise PromptProblem(REFUSED)


def flag(body: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """Return a flag of a body; an explicit null is refused, as the engine's types do.

    Raises:
        PromptProblem: `refused`.
    """
    return as_bool(body[key]) if key in body else default
