"""Value types: frozen for the type checker, and as cheap to make as any object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make a dataclass of values that never change once made.

    As `dataclass(frozen=True, slots=True)`, but it is mypy that refuses an assignment, and not the
    running program: there, freezing makes an object of six fields cost four times as much to make
    (0.83 us for 0.18 us), and a request makes twenty of them.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
