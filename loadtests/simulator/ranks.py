"""The data-parallel ranks of one replica: engines with a KV cache each, behind one address."""

from collections.abc import Sequence

from loadtests.simulator.driver import EngineDriver
from loadtests.simulator.errors import bad_request

# Pins a request to a rank, as in vLLM from 0.12 on.
RANK_HEADER = b"x-data-parallel-rank"


class Ranks:
    """Says which engine takes a request: the one that it names, or the next in turn.

    vLLM itself takes the one with the shortest queue. For a request alone that is always the first,
    which would hide that nobody chooses by what is cached.

    Args:
        drivers: One a rank, in order.
    """

    def __init__(self, drivers: Sequence[EngineDriver]) -> None:
        self._drivers = drivers
        self._turn = 0

    def choose(self, named: str | None) -> EngineDriver:
        """Return the engine for a request.

        Args:
            named: The value of its rank header.

        Raises:
            ApiError: 400, there is no such rank.
        """
        if named is not None:
            if not named.isdecimal() or int(named) >= len(self._drivers):
                text = f"data_parallel_rank {named} is out of range [0, {len(self._drivers)})."
                raise bad_request(text)
            return self._drivers[int(named)]
        self._turn += 1
        return self._drivers[(self._turn - 1) % len(self._drivers)]
