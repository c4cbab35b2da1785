"""What was published of L2 by LMCache and Curvine, in August 2026.

Qwen2-7B-Instruct in fp16 on one GPU a replica, two replicas on two nodes, chunks of 256 tokens and
partial ones kept, 5 tokens of answer, one request at a time, no router: one replica computes a
prompt, the other one is asked for it. Some figures are given as ratios only.

Source:
    "Tiered KV cache on SageMaker HyperPod with Curvine", curvineio.github.io/blog, 2026-08-13.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Point:
    """One prompt length of the sweep on two ml.g5.4xlarge (A10G).

    Attributes:
        num_tokens: Of the prompt.
        ratio: TTFT without L2 over TTFT from L2.
        cold_s: TTFT without L2, seconds; None where it is not given.
        l2_s: TTFT from L2, seconds; None where it is not given.
    """

    num_tokens: int
    ratio: float
    cold_s: float | None = None
    l2_s: float | None = None


def from_saving(num_tokens: int, ratio: float, saved_s: float) -> Point:
    """Return a point that is given as a ratio and the seconds saved."""
    l2_s = saved_s / (ratio - 1)
    return Point(num_tokens, ratio, l2_s + saved_s, l2_s)


# These three lie on a straight line.
FITTED: Final[Sequence[Point]] = (
    Point(500, 0.99),
    Point(1000, 1.7),
    Point(2500, 2.7, 0.774, 0.287),
)
# This one does not: 2.2 times and 490 ms saved are 898 ms against 408 ms, so that the last 500
# tokens take 121 ms from L2, after 1,500 tokens that took 105. The source speaks of growing
# cross-node read times.
OFF_THE_LINE: Final = from_saving(3000, 2.2, 0.490)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a chat of four, on other GPUs: ml.g6e.4xlarge and ml.g6.16xlarge.

    Attributes:
        num_tokens: Of the prompt.
        ratio: First pass over replay on the other replica; None where it is not given.
    """

    num_tokens: int
    ratio: float | None = None


# 530 to 2,114 tokens are given, with what each turn adds taken to be the same.
TURNS: Final[Sequence[Turn]] = (Turn(530, 1.22), Turn(1058), Turn(1586), Turn(2114, 1.34))
# All four turns, 4.21 s against 3.25 s.
TURNS_RATIO: Final = 1.30

# On yet other machines, two G6e nodes: 1,925 tokens loaded in 55.75 ms.
LOADED_TOKENS: Final = 1925
LOADED_S: Final = 55.75e-3
