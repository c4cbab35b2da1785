"""What replicas say otherwise than the configuration or than each other. Pure.

The configuration wins, and what contradicts it is reported: a wrong block size or an adapter that
nobody loaded shows as a poor hit rate or a 404, which nobody would trace back to its cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from gateway.kvevents.subscriber import Source

if TYPE_CHECKING:
    from gateway.replicas.registry import Replica

T = TypeVar("T")


class Fact(StrEnum):
    """What a contradiction is about; also its metrics label."""

    NAME = "name"
    BLOCK_SIZE = "block_size"
    KV_EVENTS = "kv_events"
    MODEL_ROOT = "model_root"
    MAX_MODEL_LEN = "max_model_len"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """One fact, and both sides of it in a sentence for operators."""

    fact: Fact
    text: str


@dataclass(frozen=True, slots=True)
class Usual:
    """What most replicas of one model say; None where none says it.

    Attributes:
        root: Their weights' folder or hub id.
        max_model_len: Tokens of prompt and answer together.
    """

    root: str | None
    max_model_len: int | None


def usual(replicas: Sequence[Replica]) -> Usual:
    """Return what most of a model's replicas say; of equals, what the first of them says."""
    return Usual(
        root=_most_common(_root(replica) for replica in replicas),
        max_model_len=_most_common(replica.facts.max_model_len for replica in replicas),
    )


def contradictions(replica: Replica, names: Set[str], others: Usual) -> tuple[Contradiction, ...]:
    """Return what a replica says that cannot be right, or is not like its siblings.

    Args:
        replica: Which.
        names: What the configuration calls its model, aliases included.
        others: What most replicas of its model say.
    """
    length = replica.facts.max_model_len
    found = (
        _about_names(replica, names),
        _about_block_size(replica),
        _about_events(replica),
        _unlike_others(Fact.MODEL_ROOT, "weights", _root(replica), others.root),
        _unlike_others(Fact.MAX_MODEL_LEN, "max_model_len", length, others.max_model_len),
    )
    return tuple(contradiction for contradiction in found if contradiction is not None)


def _about_names(replica: Replica, names: Set[str]) -> Contradiction | None:
    served = {model.name for model in replica.facts.models}
    missing = sorted(names - served)
    if not served or not missing:
        return None
    text = f"configured as {', '.join(missing)}, but it serves {', '.join(sorted(served))}"
    return Contradiction(Fact.NAME, text)


def _about_block_size(replica: Replica) -> Contradiction | None:
    configured, said = replica.configured_block_size, replica.facts.block_size
    sent = replica.events_block_size
    if sent is not None and sent != (configured or said or sent):
        # Of hybrid models, where an engine names another group's size.
        origin = "configured as" if configured is not None else "the engine says"
        text = f"{origin} {configured or said}, but its KV events have {sent}, which is used"
        return Contradiction(Fact.BLOCK_SIZE, text)
    if configured is None or said is None or configured == said:
        return None
    return Contradiction(Fact.BLOCK_SIZE, f"configured as {configured}, but the engine has {said}")


def _about_events(replica: Replica) -> Contradiction | None:
    if replica.events_problem is not None:
        return Contradiction(Fact.KV_EVENTS, replica.events_problem)
    configured = replica.stated_events
    if configured is None or not replica.facts.tells_events:
        return None
    said = replica.published_events
    if said is None:
        text = f"configured as {configured.endpoint}, but it says that it publishes none"
        return Contradiction(Fact.KV_EVENTS, text)
    if _meets(configured, said):
        return None
    text = f"configured as {_shown(configured)}, but it says {_shown(said)}"
    return Contradiction(Fact.KV_EVENTS, text)


def _meets(configured: Source, said: Source) -> bool:
    # Hosts are not compared: one host has a name and addresses, and an engine knows only some.
    same_port = configured.endpoint.rpartition(":")[2] == said.endpoint.rpartition(":")[2]
    return same_port and said.topic.startswith(configured.topic)


def _shown(source: Source) -> str:
    return f"{source.endpoint} with topic {source.topic!r}" if source.topic else source.endpoint


def _root(replica: Replica) -> str | None:
    base = replica.facts.base
    return base.root if base is not None else None


def _most_common(values: Iterable[T | None]) -> T | None:
    said = Counter(value for value in values if value is not None)
    return said.most_common(1)[0][0] if said else None


def _unlike_others(
    fact: Fact, word: str, own: str | int | None, theirs: str | int | None
) -> Contradiction | None:
    if own is None or own == theirs:
        return None
    text = f"its {word} is {own}, but most replicas of the model have {theirs}"
    return Contradiction(fact, text)
