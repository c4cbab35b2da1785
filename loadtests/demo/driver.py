"""Drive a workload against one address and keep every outcome."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from loadtests.demo.client import Answer, ask
from loadtests.workloads.sessions import Session

# No request of these workloads takes minutes, even in a long queue; one that does is an error.
REQUEST_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request of a workload and its answer; times in seconds from the start of the run."""

    kind: str
    session_id: str
    answer: Answer


@dataclass(slots=True)
class Tally:
    """What has happened so far; the driver counts, whoever shows progress reads.

    Attributes:
        total: Requests in the workload.
        sent: Requests begun.
        outcomes: Requests ended.
        failures: Those of them that failed.
    """

    total: int
    sent: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    failures: int = 0

    @property
    def in_flight(self) -> int:
        """Requests begun and not ended."""
        return self.sent - len(self.outcomes)


def tally_of(sessions: Sequence[Session]) -> Tally:
    """Return the tally of a run that has not begun."""
    return Tally(total=sum(len(session.turns) for session in sessions))


async def drive(sessions: Sequence[Session], base_url: str, model: str, tally: Tally) -> None:
    """Send every request of `sessions` at its time, and return when the last answer has ended.

    Args:
        sessions: Their times count from this call.
        base_url: A gateway or a replica, such as `http://127.0.0.1:8000`.
        model: Served model name.
        tally: Counts as the run goes on; its outcomes are in the order in which they ended.
    """
    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for session in sessions:
            group.create_task(_converse(session, base_url, model, start, tally))


async def _converse(
    session: Session, base_url: str, model: str, start: float, tally: Tally
) -> None:
    replies: list[str] = []
    end_s = 0.0
    for index in range(len(session.turns)):
        due_s = session.due_s(index, end_s)
        await asyncio.sleep(max(0.0, start + due_s - time.monotonic()))
        request = session.request(index, replies, model, due_s)
        tally.sent += 1
        answer = await ask(base_url, request, REQUEST_TIMEOUT_S)
        tally.outcomes.append(Outcome(session.kind, session.session_id, answer))
        tally.failures += answer.failure is not None
        # After a broken stream the user goes on with what was received.
        replies.append(answer.text)
        end_s = answer.end_s - start
