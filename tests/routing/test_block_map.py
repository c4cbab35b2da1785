"""The block map against a naive model, and its bounds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from routing.block_map import BlockMap
from routing.types import NO_MATCH, PrefixMatch, ReplicaId, Tier

A, B, C = (ReplicaId(name) for name in "abc")


def block_map(max_blocks=1000, max_predicted=1000):
    return BlockMap(max_blocks, max_predicted)


def test_the_longest_prefix_of_every_replica():
    blocks = block_map()
    blocks.store(A, [1, 2, 3], Tier.L0)
    blocks.store(B, [1], Tier.L0)
    blocks.store(C, [2, 3], Tier.L0)
    assert blocks.longest_prefix([1, 2, 3, 4], 16, 0.0) == {
        A: PrefixMatch(48, confirmed_tokens=48),
        B: PrefixMatch(16, confirmed_tokens=16),
    }, "c holds blocks, but not the first one"


def test_a_hole_ends_the_prefix():
    blocks = block_map()
    blocks.store(A, [1, 2, 3], Tier.L0)
    blocks.remove(A, [2], Tier.L0)
    assert blocks.longest_prefix([1, 2, 3], 16, 0.0)[A].l0_tokens == 16


def test_tiers_follow_each_other():
    blocks = block_map()
    blocks.store(A, [1, 2], Tier.L0)
    blocks.store(A, [1, 2, 3], Tier.L1)
    blocks.store(B, [1, 2, 3, 4], Tier.L2)
    assert blocks.longest_prefix([1, 2, 3, 4, 5], 10, 0.0) == {
        A: PrefixMatch(20, 10, 10, confirmed_tokens=20),
        B: PrefixMatch(0, 0, 40),
    }
    blocks.remove(A, [1, 2], Tier.L0)
    assert blocks.longest_prefix([1, 2, 3, 4], 10, 0.0)[A] == PrefixMatch(0, 30, 10)
    blocks.remove(A, [1], Tier.L2)
    assert blocks.longest_prefix([1, 2, 3, 4], 10, 0.0) == {A: PrefixMatch(0, 30, 10)}


def test_predictions_count_until_they_expire():
    blocks = block_map()
    blocks.store(A, [1], Tier.L0)
    blocks.predict(A, [1, 2, 3], until=2.0)
    assert blocks.longest_prefix([1, 2, 3], 1, 1.9) == {A: PrefixMatch(3, confirmed_tokens=1)}
    assert blocks.longest_prefix([1, 2, 3], 1, 2.0) == {A: PrefixMatch(1, confirmed_tokens=1)}


def test_a_renewed_prediction_outlives_the_first_one():
    blocks = block_map()
    blocks.predict(A, [1], until=2.0)
    blocks.predict(A, [1, 2], until=5.0)
    assert blocks.longest_prefix([1, 2], 1, 3.0)[A].l0_tokens == 2
    assert blocks.longest_prefix([1, 2], 1, 5.0) == {}


def test_what_a_replica_says_settles_a_prediction():
    blocks = block_map()
    blocks.predict(A, [1, 2], until=9.0)
    blocks.store(A, [1, 2], Tier.L0)
    blocks.remove(A, [2], Tier.L0)
    assert blocks.longest_prefix([1, 2], 1, 0.0) == {A: PrefixMatch(1, confirmed_tokens=1)}


def test_predictions_are_bounded_and_the_soonest_go_first():
    blocks = block_map(max_predicted=3)
    blocks.predict(A, [1, 2], until=9.0)
    blocks.predict(B, [1, 2], until=5.0)
    assert blocks.longest_prefix([1, 2], 1, 0.0) == {A: PrefixMatch(2)}


def test_more_predictions_than_a_cache_has_room_for_leave_as_its_blocks_do():
    """The least recently used first, of one prompt the end first: vLLM's free queue."""
    blocks = block_map()
    blocks.predict(A, [1, 2, 3], until=99.0, max_blocks=4)
    blocks.predict(A, [7, 8], until=99.0, max_blocks=4)
    assert blocks.longest_prefix([1, 2, 3], 1, 0.0)[A].l0_tokens == 2
    blocks.predict(A, [1, 2], until=99.0, max_blocks=4)  # used again
    blocks.predict(A, [9, 10], until=99.0, max_blocks=4)
    assert blocks.longest_prefix([7, 8], 1, 0.0) == {}
    assert blocks.longest_prefix([1, 2, 3], 1, 0.0)[A].l0_tokens == 2
    blocks.predict(B, [1, 2, 3], until=99.0, max_blocks=4)
    assert blocks.longest_prefix([9, 10], 1, 0.0)[A].l0_tokens == 2, "each cache has its own room"


def test_a_prompt_longer_than_the_cache_keeps_its_beginning():
    blocks = block_map()
    blocks.predict(A, [1, 2, 3, 4, 5], until=99.0, max_blocks=3)
    assert blocks.longest_prefix([1, 2, 3, 4, 5], 1, 0.0) == {A: PrefixMatch(3)}


def test_a_prediction_is_taken_back_but_not_what_others_renewed_or_had_before():
    blocks = block_map()
    assert blocks.predict(A, [1], until=5.0) == 0
    num_known = blocks.predict(A, [1, 2, 3], until=6.0)
    assert num_known == 1
    blocks.predict(A, [1, 2], until=7.0)
    blocks.withdraw(A, [1, 2, 3][num_known:], until=6.0)
    assert blocks.longest_prefix([1, 2, 3], 1, 0.0) == {A: PrefixMatch(2)}
    blocks.withdraw(B, [1], until=7.0)  # never heard of: nothing


def test_what_a_replica_was_reported_to_hold():
    blocks = block_map()
    blocks.store(A, [1, 2], Tier.L0)
    blocks.store(A, [3], Tier.L2)
    blocks.predict(A, [4], until=9.0)
    assert blocks.held(A, [1, 2, 3, 4], Tier.L0) == {1, 2}
    assert blocks.held(A, [1], Tier.L1) == set()
    assert blocks.held(B, [1], Tier.L0) == set()
    assert blocks.held(A, [3], Tier.L2) == set(), "the pool is everybody's"
    blocks.clear(A, [1, 2])
    assert blocks.held(A, [1, 2], Tier.L0) == set()


def test_a_cleared_replica_counts_no_longer_and_is_swept_later():
    blocks = block_map()
    blocks.store(A, [1, 2, 3], Tier.L0)
    blocks.store(B, [1], Tier.L0)
    blocks.predict(A, [1, 2, 3, 4], until=99.0)
    blocks.clear(A, [1, 2, 3])
    assert blocks.longest_prefix([1, 2, 3], 1, 0.0) == {B: PrefixMatch(1, confirmed_tokens=1)}
    assert blocks.num_blocks(Tier.L0) == 3, "nothing was swept in the call itself"
    assert blocks.sweep(2)
    while blocks.sweep(2):
        pass
    assert blocks.num_blocks(Tier.L0) == 1


def test_a_cleared_replica_comes_back_clean_before_and_after_the_sweep():
    blocks = block_map()
    blocks.store(A, [1, 2], Tier.L0)
    blocks.predict(A, [7], until=99.0)
    blocks.clear(A, [1, 2])
    blocks.store(A, [2], Tier.L0)
    assert blocks.longest_prefix([1], 1, 0.0) == {}
    assert blocks.longest_prefix([2], 1, 0.0) == {A: PrefixMatch(1, confirmed_tokens=1)}
    while blocks.sweep(1):
        pass
    blocks.store(B, [2], Tier.L0)  # takes the freed bit: it must not inherit a's prediction
    assert blocks.longest_prefix([7], 1, 0.0) == {}
    assert blocks.longest_prefix([2], 1, 0.0).keys() == {A, B}


def test_clearing_leaves_the_shared_pool_alone():
    blocks = block_map()
    blocks.store(A, [1], Tier.L2)
    blocks.store(B, [9], Tier.L0)
    blocks.clear(A, [1])
    while blocks.sweep(1):
        pass
    assert blocks.longest_prefix([1], 1, 0.0) == {B: PrefixMatch(0, 0, 1)}


def test_more_blocks_than_the_bound_are_refused_and_counted():
    blocks = block_map(max_blocks=2)
    blocks.store(A, [1, 2, 3], Tier.L0)
    blocks.store(B, [1, 4], Tier.L0)
    assert (blocks.num_blocks(Tier.L0), blocks.num_refused) == (2, 2)
    assert blocks.longest_prefix([1, 2, 3], 1, 0.0)[A].l0_tokens == 2
    assert blocks.longest_prefix([1], 1, 0.0)[B].l0_tokens == 1, "known blocks take new holders"


def test_more_replicas_than_bits_in_a_machine_word():
    blocks = block_map()
    fleet = [ReplicaId(f"r{i}") for i in range(300)]
    for replica in fleet:
        blocks.store(replica, [1], Tier.L0)
    assert blocks.longest_prefix([1, 2], 16, 0.0).keys() == set(fleet)


KEYS = st.lists(st.integers(1, 12), max_size=8, unique=True)
REPLICAS = st.sampled_from([A, B, C])


class Maps(RuleBasedStateMachine):
    """Any history of stores, removals, clears, predictions and time equals sets of blocks."""

    def __init__(self):
        super().__init__()
        self.real = block_map()
        self.held = {(r, t): set() for r in (A, B, C) for t in (Tier.L0, Tier.L1)}
        self.pool, self.until, self.now = set(), {}, 0.0
        self.known = set()

    @rule(replica=REPLICAS, keys=KEYS, tier=st.sampled_from(Tier))
    def store(self, replica, keys, tier):
        self.real.store(replica, keys, tier)
        self.known.add(replica)
        (self.pool if tier is Tier.L2 else self.held[replica, tier]).update(keys)
        self.settle(replica, keys, tier)

    @rule(replica=REPLICAS, keys=KEYS, tier=st.sampled_from(Tier))
    def remove(self, replica, keys, tier):
        self.real.remove(replica, keys, tier)
        held = self.pool if tier is Tier.L2 else self.held[replica, tier]
        held.difference_update(keys)
        if replica in self.known:
            self.settle(replica, keys, tier)

    def settle(self, replica, keys, tier):
        if tier is Tier.L0:
            for key in keys:
                self.until.pop((replica, key), None)

    @rule(replica=REPLICAS)
    def clear(self, replica):
        held = self.held[replica, Tier.L0] | self.held[replica, Tier.L1]
        self.real.clear(replica, list(held))
        self.known.discard(replica)
        self.held[replica, Tier.L0], self.held[replica, Tier.L1] = set(), set()
        self.until = {k: u for k, u in self.until.items() if k[0] != replica}

    @rule(replica=REPLICAS, keys=KEYS, ttl=st.floats(0.1, 5))
    def predict_and_withdraw(self, replica, keys, ttl):
        until = self.now + ttl
        before = {k: u for k, u in self.until.items() if u > self.now}
        num_known = self.real.predict(replica, keys, until)
        self.known.add(replica)
        self.real.withdraw(replica, keys[num_known:], until)
        for key in keys[:num_known]:
            self.until[replica, key] = max(until, self.until.get((replica, key), 0))
        for key in keys[num_known:]:
            if before.get((replica, key), -1) == until:
                self.until.pop((replica, key))
            elif (replica, key) in before and before[replica, key] < until:
                self.until.pop((replica, key))  # renewed by the one that was taken back

    @rule(replica=REPLICAS, keys=KEYS, ttl=st.floats(0.1, 5))
    def predict(self, replica, keys, ttl):
        self.real.predict(replica, keys, self.now + ttl)
        self.known.add(replica)
        for key in keys:
            self.until[replica, key] = max(self.now + ttl, self.until.get((replica, key), 0))

    @rule(seconds=st.floats(0, 3))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(number=st.integers(0, 5))
    def sweep(self, number):
        self.real.sweep(number)

    @invariant()
    def equal(self):
        prompt = list(range(1, 13))
        found = self.real.longest_prefix(prompt, 1, self.now)
        for replica in (A, B, C):
            for tier in (Tier.L0, Tier.L1):
                held = self.held[replica, tier] & set(prompt)
                assert self.real.held(replica, prompt, tier) == held
        for replica in self.known:
            assert found.get(replica, NO_MATCH) == self.expected(replica, prompt)
        assert found.keys() <= self.known

    def expected(self, replica, prompt):
        predicted = {k for (r, k), until in self.until.items() if r == replica and until > self.now}
        l0, l1 = self.held[replica, Tier.L0], self.held[replica, Tier.L1]

        def run(*sets):
            union = set().union(*sets)
            return next((i for i, k in enumerate(prompt) if k not in union), len(prompt))

        in_l0, in_l1 = run(l0, predicted), run(l0, predicted, l1)
        in_l2 = run(l0, predicted, l1, self.pool)
        return PrefixMatch(in_l0, in_l1 - in_l0, in_l2 - in_l1, run(l0))


TestMaps = Maps.TestCase
TestMaps.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
