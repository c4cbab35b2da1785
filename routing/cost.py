"""Prices: how long a replica needs to prefill, to load cached tokens, and to decode."""

from __future__ import annotations

from math import ceil, sqrt

from routing.types import PrefixMatch, Tier
from routing.value import value


@value
class CostModel:
    """Seconds that work costs on one model's replicas.

    The defaults are the `reference` profile: constants under which 1,900 tokens take 148 ms to
    prefill and 56 ms to load from L2, which fits the measurements published with the HyperPod
    pattern (1,925 tokens: 55.75 ms from L2). Absolute values matter less than their ratios: a
    policy compares sums of them.
    """

    prefill_token_s: float = 70e-6
    prefill_pair_s: float = 4e-9  # a pair of (new token, token it attends to)
    decode_sequence_s: float = 0.08e-3  # a sequence adds this to every step
    decode_kv_token_s: float = 52e-9  # a resident KV token adds this to every step
    l1_latency_s: float = 1e-3
    l1_token_s: float = 6e-6
    l2_latency_s: float = 3e-3
    l2_token_s: float = 22.6e-6

    def prefill_s(self, num_tokens: int, num_before: int) -> float:
        """Return seconds to prefill `num_tokens` that follow `num_before` tokens."""
        pairs = num_tokens * (num_before + num_tokens / 2)
        return self.prefill_token_s * num_tokens + self.prefill_pair_s * pairs

    def decode_step_s(self, in_flight: float, kv_tokens: float) -> float:
        """Return the seconds that the sequences of a replica add to one decode step."""
        return self.decode_sequence_s * in_flight + self.decode_kv_token_s * kv_tokens

    def usable(
        self, match: PrefixMatch, num_prompt_tokens: int, prefill_weight: float = 1.0
    ) -> TierCost:
        """Price a match: a tier counts only where loading beats computing.

        L2 continues where L1 ends. So an L1 too short to be worth its latency counts all the same
        where both together are: a replica is never dearer for what it holds.

        Args:
            match: What the tiers hold, whole blocks from the prompt's start.
            num_prompt_tokens: Prompt length in tokens.
            prefill_weight: What a second of computing costs, in seconds of loading. Whoever adds
                both up with another weight than 1 has to compare them with it too, or a prefix in
                GPU memory that makes the rest too short to load would make a replica dearer.

        Returns:
            The tokens that are worth taking from each tier, and the seconds of both ways, without
            the weight.
        """
        l1, l2 = match.l1_tokens, match.l2_tokens
        l1_s = self.l1_latency_s + self.l1_token_s * l1 if l1 else 0.0
        l2_s = self.l2_latency_s + self.l2_token_s * l2 if l2 else 0.0
        if l2 and l2_s >= prefill_weight * self.prefill_s(l2, match.l0_tokens + l1):
            l2, l2_s = 0, 0.0
        if l1 and l1_s + l2_s >= prefill_weight * self.prefill_s(l1 + l2, match.l0_tokens):
            l1, l1_s, l2, l2_s = 0, 0.0, 0, 0.0
        matched = match.l0_tokens + l1 + l2
        miss = max(0, num_prompt_tokens - matched)
        return TierCost(
            l0_tokens=match.l0_tokens,
            l1_tokens=l1,
            l2_tokens=l2,
            miss_tokens=miss,
            load_s=l1_s + l2_s,
            prefill_s=self.prefill_s(miss, matched),
            l1_s=l1_s,
            l2_s=l2_s,
        )

    def break_even_tokens(self, tier: Tier) -> int | None:
        """Return from how many tokens on loading a prompt's beginning beats computing it.

        Args:
            tier: L1 or L2; L0 costs nothing to load.

        Returns:
            At least 1; None where loading never does.
        """
        if tier is Tier.L0:
            return 1
        is_l1 = tier is Tier.L1
        latency_s = self.l1_latency_s if is_l1 else self.l2_latency_s
        # Solve latency < gain * n + pair / 2 * n^2 for n.
        gain_s = self.prefill_token_s - (self.l1_token_s if is_l1 else self.l2_token_s)
        if self.prefill_pair_s > 0.0:
            root = sqrt(gain_s * gain_s + 2 * self.prefill_pair_s * latency_s)
            return max(1, ceil((root - gain_s) / self.prefill_pair_s))
        return max(1, ceil(latency_s / gain_s)) if gain_s > 0.0 else None


@value
class TierCost:
    """What one prompt costs on one replica: tokens by source, and seconds to load and compute.

    Attributes:
        load_s: Of both tiers together.
    """

    l0_tokens: int
    l1_tokens: int
    l2_tokens: int
    miss_tokens: int
    load_s: float
    prefill_s: float
    l1_s: float = 0.0
    l2_s: float = 0.0
