"""What one engine costs in time and memory: step times, cache sizes, load times.

An EngineProfile is plain data. Two are named here; programs may build others from files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that one engine step takes, as a sum of five terms.

    A step holds at most one chunk of prefill a sequence and one token for each decoding sequence:

        base_s + prefill_token_s * P + token_pair_s * A + sequence_s * S + kv_token_s * K

    with P prefill tokens, A attended token pairs of those tokens (a chunk of n tokens behind c
    computed ones has n * c + n * (n + 1) / 2), S sequences in the step, and K tokens of KV cache
    read by the decoding sequences. Prefill pays for pairs and decoding for KV reads, never both.
    """

    base_s: float
    prefill_token_s: float
    token_pair_s: float
    sequence_s: float
    kv_token_s: float

    def step_s(
        self, prefill_tokens: int, token_pairs: int, sequences: int, kv_tokens: int
    ) -> float:
        """Return the duration of one step in seconds."""
        return (
            self.base_s
            + self.prefill_token_s * prefill_tokens
            + self.token_pair_s * token_pairs
            + self.sequence_s * sequences
            + self.kv_token_s * kv_tokens
        )

    def prefill_s(self, computed_tokens: int, num_tokens: int) -> float:
        """Return the seconds that `num_tokens` of prefill add behind `computed_tokens`."""
        pairs = prefill_pairs(computed_tokens, num_tokens)
        return self.prefill_token_s * num_tokens + self.token_pair_s * pairs


def prefill_pairs(computed_tokens: int, num_tokens: int) -> int:
    """Return how many token pairs a causal chunk attends to, itself included."""
    return num_tokens * computed_tokens + num_tokens * (num_tokens + 1) // 2


@dataclass(frozen=True, slots=True)
class TierCost:
    """Size of one cache tier and the time to load tokens from it into the GPU."""

    capacity_tokens: int
    latency_s: float
    token_s: float

    def load_s(self, num_tokens: int) -> float:
        """Return the seconds to load `num_tokens`, without waiting for the pipe."""
        return self.latency_s + self.token_s * num_tokens if num_tokens else 0.0


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine on one kind of machine.

    Attributes:
        name: How people call it, for example on a command line.
        step: Step times.
        l0_tokens: GPU cache size in tokens.
        l1: The replica's host memory.
        l2: The pool shared by all replicas; its size is that of the whole pool.
        chunk_tokens: Token budget of a step, shared by decodes and prefill chunks.
        max_sequences: Most sequences that run at once.
        store_output_blocks: Whether generated blocks go to L1 and L2 too. LMCache keeps prompts
            only, unless save_decode_cache is set.
        always_loads: Whether everything that L1 and L2 hold is loaded, even where computing takes
            less. LMCache does so, unless min_retrieve_tokens is set.
        loads_overlap: Whether loads wait out their latency at the same time, so that only the
            bytes go one after another. LMCache's in-process form loads request after request.
    """

    name: str
    step: StepCost
    l0_tokens: int
    l1: TierCost
    l2: TierCost
    # vLLM's max_num_batched_tokens and max_num_seqs for an OpenAI server (0.32).
    chunk_tokens: int = 2048
    max_sequences: int = 256
    store_output_blocks: bool = False
    always_loads: bool = False
    loads_overlap: bool = False


# The engine that the routing rule was studied on (design note "routing-rule", section "Engine
# model used"): 1,900 tokens take 148 ms to prefill and 56 ms from L2.
REFERENCE = EngineProfile(
    name="reference",
    step=StepCost(
        base_s=8e-3,
        prefill_token_s=70e-6,
        token_pair_s=4e-9,
        sequence_s=0.08e-3,
        kv_token_s=52e-9,
    ),
    l0_tokens=410_000,
    l1=TierCost(capacity_tokens=2_050_000, latency_s=1e-3, token_s=6e-6),
    l2=TierCost(capacity_tokens=20_500_000, latency_s=3e-3, token_s=22.6e-6),
)

# Qwen2-7B in fp16 on one A10G (24 GB), after the published two-node measurement with Curvine as L2
# (vLLM 0.11.1, LMCache; 57,344 bytes of KV a token). Of L2 it gives ratios: 0.99 at 500 tokens, 1.7
# at 1,000, 2.7 at 2,500 with 287 ms left of 774. loadtests/tiers fits these two numbers to them.
A10G = EngineProfile(
    name="a10g",
    step=StepCost(
        # 15.2 GB of weights at 600 GB/s: what a decode step cannot go below.
        base_s=25e-3,
        # 774 ms for 2,500 tokens; the pairs are in that figure already.
        prefill_token_s=0.31e-3,
        token_pair_s=0.0,
        sequence_s=0.1e-3,
        # 57,344 bytes at 600 GB/s.
        kv_token_s=96e-9,
    ),
    # 4.7 GB of the 24 are left for KV after weights and activations.
    l0_tokens=81_920,
    # LMCache's default of 5 GB; 1,925 tokens move over PCIe in 10.7 ms.
    l1=TierCost(capacity_tokens=87_040, latency_s=1e-3, token_s=5.6e-6),
    # The latency is what makes 500 tokens not worth it. 1.08 GB/s; on other machines, G6e, the same
    # source has 1,925 tokens in 55.75 ms.
    l2=TierCost(capacity_tokens=8_700_000, latency_s=124.5e-3, token_s=53e-6),
    always_loads=True,
)

PROFILES: Mapping[str, EngineProfile] = MappingProxyType({p.name: p for p in (REFERENCE, A10G)})
