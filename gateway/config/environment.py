"""`${NAME}` in a configuration's values."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<inside>[^}]*)\}|(?P<open>\{))")
_INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)


class SubstitutionError(ValueError):
    """A reference cannot be resolved; the text says why and what would be right."""


def has_reference(text: str) -> bool:
    """Return whether `substitute` would change the text or refuse it."""
    return _REFERENCE.search(text) is not None


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${NAME}` and `${NAME:-default}` by the environment's values, and `$$` by `$`.

    An empty variable counts as unset, as in the shell's `:-`: it is what a forgotten secret looks
    like. `${NAME:-}` asks for the empty text. Values are not looked into again.

    Raises:
        SubstitutionError: A variable is unset and has no default, or a reference is malformed.
    """

    def value(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        reference = _INSIDE.fullmatch(match["inside"] or "")
        if match["open"] or reference is None:
            raise SubstitutionError(
                "malformed reference, write ${NAME} or ${NAME:-default}, and $$ for a dollar sign"
            )
        name, default = reference["name"], reference["default"]
        found = environ.get(name) or default
        if found is None:
            raise SubstitutionError(
                f"environment variable {name} is unset or empty, "
                f"set it or write ${{{name}:-default}}"
            )
        return found

    return _REFERENCE.sub(value, text)
