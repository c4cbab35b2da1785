"""A simulated replica for the whole session, and what a vLLM sent."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.simulators import Replica, running_replica

CAPTURES = Path(__file__).parents[1] / "data" / "vllm-0.32"


@pytest.fixture(scope="session")
def replica() -> Iterator[Replica]:
    """The plain case, twenty times as fast as the reference engine."""
    with running_replica("--speed", "20", "--kv-events-topic", "kv@sim") as running:
        yield running


@pytest.fixture
def capture() -> Callable[[str], str]:
    """Text of a captured file."""
    return lambda name: (CAPTURES / name).read_text(encoding="utf-8")
