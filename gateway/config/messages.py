"""Pydantic's errors in plain words: what is wrong, and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.errors import Finding, Path, did_you_mean
from gateway.config.fields import REFUSED, Section
from gateway.config.models import CROSS_CHECK, GatewayConfig
from gateway.config.schema import Place, is_secret, place, words

# Where a key may stand: values of requests' headers, and in a rule a key in place of its name.
_HIDDEN_KEYS = frozenset({"headers", "api_key"})

# Errors that only follow from another one, or that cross_findings tells by itself.
_IMPLIED = frozenset({"default_factory_not_called", CROSS_CHECK})

_MAPPING = "must be a mapping of keys to values"

# What would be right, by the type of pydantic's error and its context.
_TEXT_BY_TYPE: Mapping[str, Callable[[dict[str, Any]], str]] = MappingProxyType(
    {
        REFUSED: lambda ctx: str(ctx["text"]),
        "bool_type": lambda _: "must be true or false",
        "dict_type": lambda _: _MAPPING,
        "finite_number": lambda _: "must be a finite number",
        "float_type": lambda _: "must be a number",
        "greater_than": lambda ctx: f"must be > {ctx['gt']}",
        "greater_than_equal": lambda ctx: f"must be >= {ctx['ge']}",
        "int_type": lambda _: "must be a whole number",
        "less_than_equal": lambda ctx: f"must be <= {ctx['le']}",
        "model_attributes_type": lambda _: _MAPPING,
        "model_type": lambda _: _MAPPING,
        "tuple_type": lambda _: "must be a list",
    }
)


def findings_of(error: ValidationError, root: type[Section] = GatewayConfig) -> Iterator[Finding]:
    """Translate the errors of a failed validation of `root`, in their order."""
    for details in error.errors(include_url=False):
        if details["type"] not in _IMPLIED:
            translate = _TRANSLATORS.get(details["type"], _wrong_value)
            yield translate(place(root, details["loc"]), details)


def _wrong_value(where: Place, details: ErrorDetails) -> Finding:
    text_of = _TEXT_BY_TYPE.get(details["type"])
    text = text_of(details.get("ctx", {})) if text_of else str(details["msg"])
    is_key = details["loc"][-1:] == ("[key]",)  # pydantic's mark: the key is wrong, not its value
    return Finding(where.path, text, show_value=not is_key and not _is_hidden(where))


def _not_text(where: Place, details: ErrorDetails) -> Finding:
    quotes = ", put it in quotes" if isinstance(details["input"], int | float) else ""
    return Finding(where.path, "must be text", quotes, show_value=not _is_hidden(where))


def _missing(where: Place, _: ErrorDetails) -> Finding:
    key = where.path[-1]
    examples = where.owner.model_fields[str(key)].examples if where.owner else None
    example = f", add `{key}: {examples[0]}` or alike" if examples else ""
    return Finding(where.path, f"required but missing{example}", show_value=False)


def _missing_kind(where: Place, _: ErrorDetails) -> Finding:
    text = f"required but missing, add one of {', '.join(words(where.expected))}"
    return Finding((*where.path, "kind"), text, show_value=False)


def _unknown_key(where: Place, _: ErrorDetails) -> Finding:
    known = list(where.owner.model_fields) if where.owner else []
    hint = did_you_mean(str(where.path[-1]), known) or f", known here: {', '.join(known)}"
    return Finding(where.path, "unknown key", hint, show_value=False)


def _unknown_word(where: Place, details: ErrorDetails) -> Finding:
    return _not_among(where.path, words(where.expected), details["input"])


def _unknown_kind(where: Place, details: ErrorDetails) -> Finding:
    return _not_among((*where.path, "kind"), words(where.expected), details["ctx"]["tag"])


def _not_among(path: Path, known: Sequence[str], given: Any) -> Finding:
    hint = did_you_mean(given, known) if isinstance(given, str) else ""
    choice = "one of " if len(known) > 1 else ""
    return Finding(path, f"must be {choice}{', '.join(known)}", hint)


_TRANSLATORS: Mapping[str, Callable[[Place, ErrorDetails], Finding]] = MappingProxyType(
    {
        "extra_forbidden": _unknown_key,
        "literal_error": _unknown_word,
        "missing": _missing,
        "string_type": _not_text,
        "union_tag_invalid": _unknown_kind,
        "union_tag_not_found": _missing_kind,
    }
)


def _is_hidden(where: Place) -> bool:
    if _HIDDEN_KEYS & set(where.path):
        return True
    field = where.owner.model_fields.get(str(where.path[-1])) if where.owner else None
    return field is not None and is_secret(field)
