"""Fixtures of the proofs: a gateway for all examples, and the usual ones."""

import pytest

from tests.support.fixtures import gateways, replicas
from tests.support.stage import Stage

__all__ = ["gateways", "replicas", "stage"]


@pytest.fixture(scope="module")
def stage():
    """Return a gateway between raw clients and two scripted replicas; see `Stage`."""
    with Stage(
        # No example may take the replicas out, or the next one would prove nothing.
        ejection={"failures": 1_000_000},
        # Silence ends after this; everything else takes a millisecond.
        timeouts={"first_byte_s": 0.1, "idle_s": 0.1},
        limits={"max_in_flight": 16, "queue_timeout_s": 5.0},
    ) as started:
        yield started
