"""Notices that nothing ever matches in a pool's directory, and says why.

A name has six parts that have to agree with the engines'. One that does not is silent: every
look-up finds nothing, as in an empty pool. So while nothing matches, some names of the directory
are read and compared.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from gateway.l2.file_form import Mode, NameForm, ParsedName, parse_name
from gateway.l2.mount import Mount
from gateway.l2.names import FileNames, why_no_match
from gateway.observability.logging import EventLog

# Look-ups without a single match from which on it looks wrong: a few are new prompts.
MIN_LOOKUPS = 20
# Between two readings of the directory while nothing matches: the first ones soon, so that a pool
# that fills up is understood, then ever fewer, as a listing of millions is not free.
FIRST_INTERVAL_S = 2.0
MAX_INTERVAL_S = 600.0
# The same while nothing of LMCache's is there, and so nothing tells how names are made: a pool may
# stay empty for long and fill within a minute.
MAX_EMPTY_INTERVAL_S = 30.0
# Entries read of a directory that may have millions.
MAX_ENTRIES = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """What names in the directory say where the configuration does not, with LMCache's defaults."""

    world_size: int = 1
    dtype: str = "bfloat16"
    form: NameForm = NameForm.CURRENT


class Canary:
    """Compares the names that we compute with some that are there.

    Args:
        mode: Which LMCache.
        log: Gets one line when it finds a reason, and one when something matched after all.
        model: For the log.

    Attributes:
        sample: What the names say.
        found: The names that were read last.
        problem: Why nothing ever matches; None where something did, or nothing is known.
    """

    def __init__(self, mode: Mode, log: EventLog, model: str) -> None:
        self._mode = mode
        self._log = log
        self._model = model
        self._num_lookups = 0
        self._has_matched = False
        self.sample = Sample()
        self.found: Sequence[ParsedName] = ()
        self.problem: str | None = None

    def looked(self, num_chunks: int) -> None:
        """Take the result of a look-up in the directory."""
        self._num_lookups += 1
        if num_chunks and not self._has_matched:
            self._has_matched = True
            if self.problem is not None:
                self.problem = None
                self._log.info("shared_cache_matches", model=self._model)

    async def watch(self, mount: Mount, names: Callable[[], FileNames | None]) -> None:
        """Read the directory now and then while nothing has matched, for ever."""
        interval_s = FIRST_INTERVAL_S
        while not self._has_matched:
            if mount.down_reason is None:
                await self.read(mount, names())
                longest_s = MAX_INTERVAL_S if self.found else MAX_EMPTY_INTERVAL_S
                interval_s = min(2 * interval_s, longest_s)
            await asyncio.sleep(interval_s)

    async def read(self, mount: Mount, names: FileNames | None) -> None:
        """Read some names, and draw the conclusions."""
        listed = await mount.ask(lambda: read_names(mount.paths))
        if listed:
            self._take(listed, names)

    def _take(self, found: Sequence[ParsedName], names: FileNames | None) -> None:
        self.found = found
        alike = [name for name in found if name.mode is self._mode]
        if names is not None:
            alike = [name for name in alike if name.model == names.told_model] or alike
        if alike:
            one = alike[0]
            self.sample = Sample(one.world_size, one.dtype or self.sample.dtype, one.form)
        if names is None or self._has_matched or self._num_lookups < MIN_LOOKUPS:
            return
        problem = why_no_match(names, found)
        if problem != self.problem:
            self.problem = problem
            self._log.warning("shared_cache_never_matches", model=self._model, problem=problem)


def read_names(paths: Sequence[str]) -> list[ParsedName]:
    """Return what the first names of some directories say; those that LMCache did not make are out.

    Raises:
        OSError: A directory cannot be read.
    """
    found: list[ParsedName] = []
    for path in paths:
        with os.scandir(path) as entries:
            parsed = (parse_name(entry.name) for entry in islice(entries, MAX_ENTRIES))
            found += [name for name in parsed if name is not None]
    return found
