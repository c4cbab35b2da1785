"""What an ended request teaches about its model's prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.calibration import Observed

if TYPE_CHECKING:
    from gateway.observability.record import RequestRecord

# How far the engine's word may be from what was expected: beyond that nobody knows which tier
# served what. A chunk of LMCache's that was just written, or not yet.
_MAX_SURPRISE_TOKENS = 256


def learn_prices(record: RequestRecord, cached_tokens: int) -> None:
    """Let a request's model learn from it, where it is clear what took the time.

    Only streams tell when their first token came, and only where one replica was asked.
    """
    decision, choice, prompt = record.decision, record.choice, record.prompt
    if decision is None or choice is None or prompt is None or record.ttft_s is None:
        return
    if not record.stream or record.retries or record.replica != decision.replica:
        return
    match = decision.match_of(decision.replica)
    if choice.model.shared is None and not match.l1_tokens and not match.l2_tokens:
        return  # a fleet without tiers has nothing to weigh
    if abs(match.total_tokens - cached_tokens) > _MAX_SURPRISE_TOKENS:
        return
    # What was not there was not loaded: the farthest tier lost it.
    l0_tokens = min(match.l0_tokens, cached_tokens)
    l1_tokens = min(match.l1_tokens, cached_tokens - l0_tokens)
    choice.model.observe(
        Observed(
            first_token_s=record.received_at + record.ttft_s - record.decided_at,
            num_prompt_tokens=prompt.num_tokens,
            l0_tokens=l0_tokens,
            l1_tokens=l1_tokens,
            l2_tokens=min(match.l2_tokens, cached_tokens - l0_tokens - l1_tokens),
            load=decision.chosen.candidate.load,
        )
    )
