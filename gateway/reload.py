"""Live configuration: the whole file is loaded, checked whole, and put in force in one step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.certificates import tls_files
from gateway.config.differences import Difference, differences, restart_values
from gateway.config.errors import ConfigError
from gateway.config.load import load_config
from gateway.config.models import GatewayConfig
from gateway.config.watch import WatchedFile, WatchedFiles
from gateway.errors import ConfigInvalid, NoConfigFile
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics

# Between two looks at the file: a change counts within a second, and a look costs 20 microseconds.
LOOK_INTERVAL_S = 1.0
# After a refusal: what was missing, a folder, a key file or a certificate, may be there by then.
RETRY_INTERVAL_S = 30.0
# A fleet of 10,000 listed replicas takes 1 MiB.
MAX_FILE_BYTES = 16 * 1024 * 1024
# Of one reload, in a log line; the admin API's answer has them all.
MAX_LOGGED_CHANGES = 50

_RETRY = "retry"

Commit = Callable[[], None]
"""Puts a configuration in force in one step.

Raises:
    ConfigError: A certificate is another one than a moment ago, and no good. Nothing has changed.
"""
Prepare = Callable[[GatewayConfig], Awaitable[Commit]]
"""Builds all that a configuration needs and that can fail; the result puts it in force.

Raises:
    ConfigError: It cannot be used. Nothing has changed.
"""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload did.

    Attributes:
        changes: Against the configuration before; empty where the file says the same.
        waiting: Those, of this reload and earlier ones, that a restart has to put in force.
    """

    changes: tuple[Difference, ...]
    waiting: tuple[Difference, ...]

    def report(self) -> dict[str, Any]:
        """Return it for people."""
        return {
            "result": "applied" if self.changes else "unchanged",
            "changes": [str(change) for change in self.changes],
            "needs_restart": [str(change) for change in self.waiting],
        }


class Reloader:
    """Reloads one gateway's configuration, one reload at a time.

    Args:
        file: Where it came from; None where it was given by flags.
        config: In force now.
        prepare: See `Prepare`.
        metrics: Shows what became of reloads.
        log: Gets one line for each that changed or refused something.
        adapt: Makes the one to run of what the file says; None where that is the same.
    """

    def __init__(
        self,
        file: Path | None,
        config: GatewayConfig,
        prepare: Prepare,
        metrics: Metrics,
        log: EventLog,
        adapt: Callable[[GatewayConfig], GatewayConfig] | None = None,
    ) -> None:
        self._file = file
        self._adapt = adapt or (lambda said: said)
        self._wanted = config  # as the file said when it was last good
        self._running = config
        self._prepare = prepare
        self._metrics = metrics.config
        self._log = log
        self._turn = asyncio.Lock()
        self._problem: str | None = None  # why the file was refused when it was last loaded
        self._retry_at = 0.0
        self._metrics.valid.set(1)
        self._metrics.needs_restart.set(0)
        self._metrics.loaded_at.set_to_current_time()

    async def reload(self, trigger: str, *, anew: bool = True) -> Reloaded:
        """Load the file and put it in force. Running requests end as they began.

        Args:
            trigger: Who asked, in one word: `file`, `signal`, `operator` or `retry`.
            anew: Also where it says what it said before: the files that it names may be others.

        Raises:
            NoConfigFile: There is none.
            ConfigInvalid: It cannot be used. Nothing has changed.
        """
        if self._file is None:
            raise NoConfigFile("The gateway was started by flags; start it with --config FILE.")
        async with self._turn:
            try:
                # 300 replicas of YAML take 40 ms: in a thread, or every stream would stop so long.
                said = await asyncio.to_thread(load_config, str(self._file), os.environ)
                wanted = self._adapt(said)
                changes = tuple(differences(self._wanted, wanted))
                if changes or anew:
                    running = restart_values(self._running, wanted)
                    (await self._prepare(running))()
                    self._wanted, self._running = wanted, running
            except ConfigError as error:
                self._refused(trigger, error)
                raise ConfigInvalid([str(problem) for problem in error.problems]) from None
            return self._applied(trigger, changes)

    async def watch(self) -> None:
        """Reload whenever the file changes, or a certificate that it names, until cancelled.

        A file that was refused is tried again now and then.
        """
        if self._file is None:
            return
        file, certificates = WatchedFile(self._file, MAX_FILE_BYTES), WatchedFiles(MAX_FILE_BYTES)
        while True:
            renewed = certificates.look(tls_files(self._running))
            if file.look() is not None or renewed:
                await self.reload_quietly("file", anew=renewed)
            elif self._is_due() and file.problem is None:
                await self.reload_quietly(_RETRY)
            if file.just_lost:
                self._refused("file", file.problem)
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def reload_quietly(self, trigger: str, *, anew: bool = True) -> None:
        """Reload where nobody waits for an answer: the log and the metrics tell what came of it."""
        try:
            await self.reload(trigger, anew=anew)
        except NoConfigFile as error:
            self._log.warning("config_not_reloaded", trigger=trigger, problem=error.message)
        except ConfigInvalid:
            return  # told already
        except Exception:  # noqa: BLE001 - the watch must outlive a bug in one reload
            self._log.exception("config_reload_crashed", trigger=trigger)

    def _is_due(self) -> bool:
        return self._problem is not None and asyncio.get_running_loop().time() >= self._retry_at

    def _applied(self, trigger: str, changes: tuple[Difference, ...]) -> Reloaded:
        # The running one has the running values of what needs a restart, so these are left.
        waiting = tuple(differences(self._running, self._wanted))
        self._metrics.reloads.labels("applied" if changes else "unchanged").inc()
        self._metrics.valid.set(1)
        self._metrics.needs_restart.set(len(waiting))
        self._metrics.loaded_at.set_to_current_time()
        if changes:
            shown = [str(change) for change in changes[:MAX_LOGGED_CHANGES]]
            fields = {"trigger": trigger, "num_changes": len(changes), "changes": shown}
            self._log.info("config_applied", **fields)
        elif self._problem is not None:
            self._log.info("config_recovered", trigger=trigger)
        self._problem = None
        if waiting and changes:
            self._log.warning("config_needs_restart", changes=[str(change) for change in waiting])
        return Reloaded(changes, waiting)

    def _refused(self, trigger: str, error: object) -> None:
        problem = str(error)
        is_told = trigger == _RETRY and problem == self._problem
        self._problem = problem
        self._retry_at = asyncio.get_running_loop().time() + RETRY_INTERVAL_S
        if is_told:
            return
        self._metrics.reloads.labels("invalid").inc()
        self._metrics.valid.set(0)
        self._log.warning("config_refused", trigger=trigger, problem=problem)
