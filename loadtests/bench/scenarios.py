"""What is sent, and which figures are good enough."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

BODIES: Final = Path(__file__).with_name("bodies")
PATH: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load.

    Attributes:
        name: Also the name of its request body.
        connections: Each sends its next request when the last one is answered.
        events: `data:` lines of an answer; 0 where it is no stream.
        max_ratio: Most CPU, as a multiple of the baseline's; None where nothing is promised.
    """

    name: str
    connections: int
    events: int = 0
    max_ratio: float | None = None

    @property
    def body(self) -> Path:
        """The file with the request's body."""
        return BODIES / f"{self.name}.json"

    @property
    def unit(self) -> str:
        """What the CPU is divided by."""
        return "event" if self.events else "request"


# 64 events, usage, [DONE].
_STREAM_EVENTS: Final = 66

# The goals are those of the data plane's issue; 64 KB is there to be watched.
SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (
            Scenario("short", connections=32, max_ratio=2.5),
            Scenario("8k", connections=32, max_ratio=2.5),
            Scenario("64k", connections=16),
            # 64 streams with 5 ms between events: 12,800 events/s are offered.
            Scenario("s64p", connections=64, events=_STREAM_EVENTS, max_ratio=1.8),
            # Events back to back: shows how reads and writes merge. Not run unless asked for.
            Scenario("s64", connections=16, events=_STREAM_EVENTS),
        )
    }
)
# Every token reaches the client as it came: 1.0, and a little more where the client itself waits
# for a core. Well above it, something holds tokens back.
MAX_EVENTS_PER_READ: Final = 1.1
