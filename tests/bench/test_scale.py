"""What a decision costs in a fleet of 300 replicas, measured in a whole gateway."""

import statistics
import time

import pytest

from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig
from gateway.placement import Placer
from tests.support.fixtures import chat, gateways, replicas

__all__ = ["chat", "gateways", "replicas"]

pytestmark = pytest.mark.alone

CHAT = "/v1/chat/completions"
NUM_REPLICAS = 300
NUM_REQUESTS = 200
MAX_DECISION_S = 1e-3


async def answers(conversation):
    await conversation.answer(b"{}")


async def test_a_snapshot_and_a_decision_over_300_replicas_take_at_most_1_ms(
    replicas, gateways, chat, monkeypatch
):
    """The median with every replica busy, and matches on some: every second request has a past.

    Of the quietest quarter: what else runs on the machine only ever adds.
    """
    took_s, decisions = [], []
    decide = Placer.decide

    def timed(placer, asked):
        if not decisions:
            for replica in placer._registry:
                placer._book.begin(replica.replica_id, 5.0, 500, placer._now())
        started = time.thread_time()
        decision = decide(placer, asked)
        took_s.append(time.thread_time() - started)
        decisions.append(decision)
        return decision

    monkeypatch.setattr(Placer, "decide", timed)
    fleet = await replicas(*[answers] * NUM_REPLICAS)
    values = config_from_flags([r.url for r in fleet], "loadtests/demo_model").model_dump()
    values["models"][0]["block_size"] = 16
    config = GatewayConfig.model_validate(values)
    gateway = await gateways(config, health={"interval_s": 30.0})
    for number in range(NUM_REQUESTS):
        text = f"topic {number // 2 % 20}: " + "what was said before, and more of it. " * 30
        answer = await gateway.client.post(CHAT, json=chat(f"{text} {number}"))
        assert answer.status_code == 200
    assert {decision.policy for decision in decisions} == {"expected_ttft"}
    assert {len(decision.ranked) for decision in decisions} == {NUM_REPLICAS}
    assert all(ranked.candidate.load.in_flight for ranked in decisions[-1].ranked)
    assert any(d.match_of(d.replica).total_tokens > 0 for d in decisions)
    quarters = [
        took_s[i : i + NUM_REQUESTS // 4] for i in range(0, NUM_REQUESTS, NUM_REQUESTS // 4)
    ]
    median_s = min(statistics.median(quarter) for quarter in quarters)
    print(f"p50 {1e3 * median_s:.2f} ms")
    assert median_s <= MAX_DECISION_S
