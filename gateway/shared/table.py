"""The table of lives: who follows which replica, under which life number. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.replicas.replica import Told
from routing.types import ReplicaId
from routing.value import value

NOBODY = "-"
"""Stands for the owner of a replica that its owner has let go."""
# An entry of the index has 4 bytes for a life. A server whose clock is decades ahead gives higher
# ones, and nothing may fail by that.
_MAX_LIFE = 2**32 - 1
_REPLICA = b"r:"
_COUNTER = b"life"


def encode_told(told: Told) -> str:
    """Return what an owner says as it stands in the table."""
    return f"{told.follows_events:d} {told.is_partly_known:d} {told.block_size or 0}"


def decode_told(text: str) -> Told:
    """Read what an owner wrote; nothing is known of what cannot be read."""
    parts = text.split(" ")
    if len(parts) < 3 or not all(part.isdecimal() for part in parts[:3]):
        return Told()
    return Told(parts[0] == "1", parts[1] == "1", int(parts[2]) or None)


@value
class Row:
    """One replica.

    Attributes:
        life: Number of its cache's present life; entries of any other one do not count.
        owner: Gateway that follows it, or `NOBODY`.
        told: What that says of its KV events.
    """

    life: int
    owner: str
    told: Told = Told()


@value
class Table:
    """All rows, as of one version.

    Attributes:
        version: Changes whenever the table does.
        high_water: The highest life number that was given out.
    """

    version: bytes
    high_water: int
    row_by_replica: Mapping[ReplicaId, Row]


EMPTY = Table(b"", 0, {})


def read_table(version: bytes, flat: Sequence[bytes]) -> Table:
    """Return the table of a flat reply; rows that nobody can read are left out."""
    high_water, rows = 0, {}
    for field, text in pairs(flat):
        if field == _COUNTER and text.isdigit():
            high_water = int(text)
        elif field.startswith(_REPLICA):
            row = _read_row(text.decode("utf-8", "replace"))
            if row is not None:
                rows[_replica(field)] = row
    return Table(version, high_water, rows)


def read_stamped(flat: Sequence[bytes]) -> dict[str, tuple[int, bytes]]:
    """Return by field rows of the form 13 digits of ms, then a text."""
    return {
        field.decode("utf-8", "replace"): (int(text[:13]), text[13:])
        for field, text in pairs(flat)
        if text[:13].isdigit()
    }


def pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (field, value) of a flat reply."""
    return zip(flat[::2], flat[1::2], strict=False)


def _replica(field: bytes) -> ReplicaId:
    return ReplicaId(field[len(_REPLICA) :].decode("utf-8", "replace"))


def _read_row(text: str) -> Row | None:
    life, _, rest = text.partition(" ")
    owner, _, told = rest.partition(" ")
    if not life.isdecimal() or int(life) > _MAX_LIFE or not owner:
        return None
    return Row(int(life), owner, decode_told(told))
