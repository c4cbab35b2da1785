"""Finds one's way in the configuration's types: from pydantic's error locations to keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr, Tag
from pydantic.fields import FieldInfo

from gateway.config.errors import Path
from gateway.config.fields import Section


@dataclass(frozen=True, slots=True)
class Place:
    """What the types say about one location.

    Attributes:
        path: The location as the file's author knows it: without the tags of unions.
        owner: The section that the last key belongs to; None in a list or a free mapping.
        expected: Type of the value there; None for an unknown key.
    """

    path: Path
    owner: type[Section] | None
    expected: Any


def place(root: type[Section], location: tuple[str | int, ...]) -> Place:
    """Resolve pydantic's location of an error.

    Args:
        root: The type that was validated.
        location: Keys, list positions and the tags that pydantic puts in for chosen members of a
            union.
    """
    path: Path = ()
    owner: type[Section] | None = None
    expected: Any = root
    for step in location:
        expected = bare(expected)
        if is_section(expected):
            owner, path = expected, (*path, step)
            field = owner.model_fields.get(str(step))
            expected = field.annotation if field else None
        elif get_origin(expected) in (tuple, dict):
            owner, path = None, (*path, step)
            expected = get_args(expected)[0 if isinstance(step, int) else 1]
        else:  # the tag of a union's member is no key
            expected = _tagged_member(expected, step)
    return Place(path, owner, bare(expected))


def bare(expected: Any) -> Any:
    """Return a type without `Annotated` and without `| None`; a larger union stays one."""
    if get_origin(expected) is Annotated:
        return bare(get_args(expected)[0])
    if get_origin(expected) in (Union, UnionType):
        members = [member for member in get_args(expected) if member is not NoneType]
        return bare(members[0]) if len(members) == 1 else expected
    return expected


def members(expected: Any) -> list[Any]:
    """Return the members of a union, or the type itself, bare."""
    expected = bare(expected)
    if get_origin(expected) in (Union, UnionType):
        return [bare(member) for member in get_args(expected) if member is not NoneType]
    return [expected]


def is_section(expected: Any) -> bool:
    """Return whether a type is a mapping with fixed keys."""
    return isinstance(expected, type) and issubclass(expected, Section)


def is_secret(field: FieldInfo) -> bool:
    """Return whether a field's value must never be shown."""
    return SecretStr in members(field.annotation)


def sections_of(field: FieldInfo) -> Iterator[type[Section]]:
    """Yield the sections that a field holds: itself, in a list, in a mapping or in a union."""
    for member in members(field.annotation):
        inner = (
            get_args(member)[-1 if get_origin(member) is dict else 0]
            if get_args(member)
            else member
        )
        yield from (found for found in members(inner) if is_section(found))


def words(expected: Any) -> tuple[str, ...]:
    """Return the words of a `Literal`, or of the `kind`s of a union of sections."""
    found: list[str] = []
    for member in members(expected):
        if get_origin(member) is Literal:
            found += get_args(member)
        elif is_section(member) and "kind" in member.model_fields:
            found += words(member.model_fields["kind"].annotation)
    return tuple(found)


def _tagged_member(expected: Any, tag: str | int) -> Any:
    for member in get_args(expected):
        tags = [mark.tag for mark in getattr(member, "__metadata__", ()) if isinstance(mark, Tag)]
        if tag in tags or tag in words(bare(member)):
            return bare(member)
    return None
