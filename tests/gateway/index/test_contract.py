"""Every index finds what `routing.block_map` finds, whatever it was told and in whatever order."""

import asyncio
import itertools
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.index.memory import MemoryIndex
from gateway.index.redis import RedisIndex
from gateway.observability.metrics import Metrics
from gateway.redis.link import RedisLink
from gateway.redis.node import LinkState
from routing.block_map import BlockMap
from routing.types import ReplicaId, Tier
from tests.support.background import some_background
from tests.support.lives import Board, SomeLives
from tests.support.redis_servers import LogLines, cluster_url, dialing
from tests.support.replicas import until

A, B, C = REPLICAS = [ReplicaId(name) for name in "abc"]
NUMBERS = itertools.count()


def prompts():
    """Chains of one tree: a trunk of three segments, and branches in the middle of two of them."""
    numbers = itertools.count(1)

    def blocks(count, anchors=()):
        return [next(numbers) * 64 + (n not in anchors) for n in range(count)]

    trunk = blocks(14, anchors=(4, 5, 9))
    return [trunk, trunk[:7] + blocks(5, anchors=(3,)), trunk[:2] + blocks(3), blocks(3, (0, 1, 2))]


PROMPTS = prompts()


class InMemory:
    """One gateway: what it is told it finds."""

    def __init__(self):
        self.told = self.asked = MemoryIndex(BlockMap(1000, 1000), time.monotonic)

    async def settle(self):
        pass

    def close(self):
        pass


class InRedis:
    """Two gateways: one is told, and the other one is asked."""

    def __init__(self, url):
        board = Board(*REPLICAS)
        namespace = f"contract{next(NUMBERS)}"
        self.links = [
            RedisLink(dialing(url, reply_timeout_s=10.0), namespace, Metrics().redis, LogLines())
            for _ in range(2)
        ]
        for link in self.links:
            link.start(some_background())
        self.told, self.asked = (
            RedisIndex(
                link=link,
                lives=SomeLives(board, owned),
                blocks=BlockMap(1000, 1000),
                timeout_s=lambda: 10.0,
                entry_ttl_s=60.0,
                metrics=Metrics().shared_index,
                now=time.monotonic,
            )
            for link, owned in zip(self.links, (REPLICAS, ()), strict=True)
        )

    async def settle(self):
        await until(lambda: all(link.state is LinkState.UP for link in self.links))
        while not self.told.is_written:
            await self.told._writer._turn()
        self.asked._reader._kept.clear()

    def close(self):
        for link in self.links:
            link.close()


class Histories(RuleBasedStateMachine):
    """Any history that a translator can make of an engine's events."""

    def __init__(self, kind):
        super().__init__()
        self.runner = asyncio.Runner()
        self.index = self.runner.run(self.make(kind))
        self.model = BlockMap(1000, 1000)
        self.held = {(replica, tier): set() for replica in REPLICAS for tier in Tier}
        for replica in REPLICAS:
            self.model.store(replica, [], Tier.L0)
            self.index.told.store(replica, [], Tier.L0, [])

    async def make(self, kind):
        return kind()

    def knows(self, replica, key):
        return any(key in self.held[replica, tier] for tier in Tier)

    @rule(
        replica=st.sampled_from(REPLICAS),
        prompt=st.sampled_from(PROMPTS),
        tier=st.sampled_from(Tier),
        start=st.integers(0, 13),
        count=st.integers(1, 14),
    )
    def store(self, replica, prompt, tier, start, count):
        if start and (start >= len(prompt) or not self.knows(replica, prompt[start - 1])):
            start = 0  # a block whose parent is unknown is an orphan, and never told
        keys = prompt[start : start + count]
        parents = [prompt[start - 1] if start else None, *keys[:-1]]
        self.model.store(replica, keys, tier)
        self.index.told.store(replica, keys, tier, parents)
        self.held[replica, tier].update(keys)

    @rule(
        replica=st.sampled_from(REPLICAS),
        keys=st.sets(st.sampled_from(sorted(set().union(*PROMPTS))), max_size=5),
        tier=st.sampled_from(Tier),
    )
    def remove(self, replica, keys, tier):
        gone = [key for key in keys if key in self.held[replica, tier]]
        self.model.remove(replica, gone, tier)
        self.index.told.remove(replica, gone, tier)
        for each in REPLICAS if tier is Tier.L2 else [replica]:
            self.held[each, tier].difference_update(gone)

    @rule(replica=st.sampled_from(REPLICAS))
    def clear(self, replica):
        held = set().union(*(self.held[replica, tier] for tier in Tier))
        self.model.clear(replica, list(held))
        self.index.told.clear(replica, list(held))
        self.model.store(replica, [], Tier.L0)
        self.index.told.store(replica, [], Tier.L0, [])
        for tier in Tier:
            self.held[replica, tier] = set()

    @invariant()
    def finds_the_same(self):
        self.runner.run(self.compare())

    async def compare(self):
        await self.index.settle()
        for prompt in PROMPTS:
            expected = self.model.longest_prefix(prompt, 16, 0.0)
            assert await self.index.asked.lookup({16: prompt}) == expected

    def teardown(self):
        self.index.close()
        self.runner.run(asyncio.sleep(0))
        self.runner.close()


def check(kind, max_examples):
    run_state_machine_as_test(
        lambda: Histories(kind),
        settings=settings(max_examples=max_examples, stateful_step_count=20, deadline=None),
    )


def test_memory():
    check(InMemory, 40)


@pytest.mark.parametrize("kind", ["redis_server", "valkey_server"])
def test_a_single_server(kind, request):
    url = request.getfixturevalue(kind).url
    check(lambda: InRedis(url), 25)


def test_a_cluster(redis_cluster):
    url = cluster_url(redis_cluster)
    check(lambda: InRedis(url), 10)
