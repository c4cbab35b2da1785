"""What is tried with the fleet."""

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from loadtests.children import wait_until
from loadtests.conformance.cases import CHAT, user
from loadtests.conformance.traffic import MODEL
from loadtests.conformance_l2.asking import Reply, ask
from loadtests.conformance_l2.counters import found_tokens
from loadtests.conformance_l2.figures import Seen, Timed, Way
from loadtests.conformance_l2.fleet import CHUNK_TOKENS, NAMES, Fleet
from loadtests.conformance_l2.prompts import Body, Crossing

# LMCache counts through a queue of events.
_COUNTED_DEADLINE_S: Final = 3.0
# What the gateway did not find is asked for again after a second (`absent_s`): nobody comes back
# with a prompt that soon.
_LOOKED_UP_S: Final = 1.2
_TIMEOUT_S: Final = 30.0


class Run:
    """Asks prompts from one replica and then from the other, and compares.

    Args:
        fleet: The running fleet.
        tell: Gets a line for each prompt.
    """

    def __init__(self, fleet: Fleet, tell: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._tell = tell
        self._files: dict[str, int] = {}
        # Of each family: ids of its last prompt that was written.
        self._ids: dict[str, Sequence[int]] = {}

    def num_tokens(self, body: Body) -> int:
        """Return a chat's prompt tokens, as an engine counts them."""
        return len(self._tokenized(body))

    def warm_up(self) -> None:
        """Ask each replica something, as an engine's first requests are slow."""
        for name in NAMES:
            self._fleet.only(name)
            self._ask({"model": MODEL, "max_tokens": 4, "messages": [user(f"Hello {name}. " * 60)]})

    def timed(self, crossing: Crossing, number: int) -> tuple[Seen, Timed]:
        """Take a prompt through all tiers: cold, L0 and L1 on one replica, L2 on the other."""
        writer, reader = _roles(number)
        replies: dict[Way, Reply] = {}
        found: dict[Way, int] = {}
        self._fleet.only(writer)
        replies[Way.COLD] = self._write(crossing)
        replies[Way.L0] = self._ask(crossing.written)
        self._fleet.engines[writer].reset_prefix_cache()
        expected = self._files[crossing.name] * CHUNK_TOKENS
        before = self._found(writer)
        replies[Way.L1] = self._ask(crossing.written)
        found[Way.L1] = self._counted(writer, before, expected)[Way.L1]
        self._fleet.only(reader)
        before = self._found(reader)
        seen, replies[Way.L2] = self._read(crossing, reader)
        found[Way.L2] = self._counted(reader, before, expected)[Way.L2]
        timed = Timed(
            name=crossing.name,
            prompt_tokens=seen.prompt_tokens,
            ttft_s={way: reply.ttft_s for way, reply in replies.items()},
            cached_tokens={way: reply.cached_tokens for way, reply in replies.items()},
            found_tokens=found,
        )
        times = "  ".join(f"{way} {1e3 * reply.ttft_s:.0f} ms" for way, reply in replies.items())
        self._tell(f"{crossing.name:16} {times}")
        return seen, timed

    def crossed(self, crossings: Sequence[Crossing]) -> Iterator[Seen]:
        """Have every prompt computed, and then ask the other replica for it."""
        number_by_name = numbers(crossings)
        for name in NAMES:
            self._fleet.only(name)
            for crossing in crossings:
                if _roles(number_by_name[crossing.name])[0] == name:
                    self._write(crossing)
        time.sleep(_LOOKED_UP_S)
        for name in NAMES:
            self._fleet.only(name)
            for crossing in crossings:
                if _roles(number_by_name[crossing.name])[1] == name:
                    yield self._read(crossing, name)[0]

    def _write(self, crossing: Crossing) -> Reply:
        """Have a prompt computed, and note how many of its chunks are in the directory then."""
        pool, body = self._fleet.pool, crossing.written
        before = pool.names()
        ids = self._tokenized(body)
        there = num_shared(ids, self._ids.get(crossing.family, ())) // CHUNK_TOKENS
        reply = self._ask(body)
        new = pool.wait_written(before, len(ids) // CHUNK_TOKENS - there)
        self._files[crossing.name] = there + len(new)
        if crossing.family:
            self._ids[crossing.family] = ids
        return reply

    def _read(self, crossing: Crossing, name: str) -> tuple[Seen, Reply]:
        """Ask the replica that has not seen a prompt, and compare."""
        body = crossing.read
        told = self._fleet.observer.explain(CHAT, body)
        (match,) = (c["matched_tokens"] for c in told["candidates"] if c["replica"] == name)
        before = self._found(name)
        reply = self._ask(body)
        own = match["L0"] + match["L1"]
        files = 0 if crossing.kind in ("short", "other salt") else self._files[crossing.name]
        seen = Seen(
            kind=crossing.kind,
            name=crossing.name,
            replica=reply.replica,
            prompt_tokens=reply.prompt_tokens,
            files=files,
            chunk_tokens=CHUNK_TOKENS,
            explained=own + match["L2"],
            predicted=reply.matched_tokens,
            own_tokens=own,
            tier=reply.tier,
            found=self._counted(name, before, files * CHUNK_TOKENS).total(),
            actual=reply.cached_tokens,
        )
        wrong = f"  <- {seen.cause}" if seen.cause else ""
        self._tell(
            f"{seen.name:16} {seen.replica}: {seen.prompt_tokens:5} tokens, {seen.files} files, "
            f"predicted {seen.predicted:4} ({seen.tier}), LMCache found {seen.found:4}, "
            f"had {seen.actual:4}{wrong}"
        )
        return seen, reply

    def _ask(self, body: Body) -> Reply:
        return ask(self._fleet.observer.url, body)

    def _found(self, name: str) -> Counter[Way]:
        return found_tokens(self._fleet.lmcache_metrics(name))

    def _counted(self, name: str, before: Counter[Way], expected: int) -> Counter[Way]:
        """Return the tokens that LMCache found since, once there are as many as expected.

        After a deadline those that there are.
        """
        wait_until(lambda: (self._found(name) - before).total() >= expected, _COUNTED_DEADLINE_S)
        return self._found(name) - before

    def _tokenized(self, body: Body) -> Sequence[int]:
        """Return a chat's token ids, asked from an engine past the gateway."""
        fields: Mapping[str, Any] = {key: body[key] for key in ("model", "messages")}
        url = f"{self._fleet.engines[NAMES[0]].url}/tokenize"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(fields).encode(), headers)  # noqa: S310 - our own child
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            ids: Sequence[int] = json.loads(answer.read())["tokens"]
        return ids


def _roles(number: int) -> tuple[str, str]:
    """Return writer and reader: they take turns."""
    writer = number % len(NAMES)
    return NAMES[writer], NAMES[1 - writer]


def numbers(crossings: Sequence[Crossing]) -> Mapping[str, int]:
    """Return a number for each prompt; the same one for all of a family."""
    groups: dict[str, int] = {}
    for crossing in crossings:
        groups.setdefault(crossing.family or crossing.name, len(groups))
    return {crossing.name: groups[crossing.family or crossing.name] for crossing in crossings}


def num_shared(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many leading ids are the same."""
    shared = 0
    for one, other in zip(ids, others, strict=False):
        if one != other:
            break
        shared += 1
    return shared
