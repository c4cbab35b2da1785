"""Laws of the model engine that hold for any requests, in any order, cancelled at any moment."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.lab.block_chain import published_hash
from routing.lab.engine_model import EngineModel
from routing.lab.engine_profile import EngineProfile, StepCost, TierCost
from routing.lab.kv_events import AllBlocksCleared, BlockStored
from routing.lab.sequence import EngineRequest
from routing.lab.tiers import TierPool

BLOCK = 2
PROFILE = EngineProfile(
    name="tiny",
    step=StepCost(1.0, 0.5, 0.0, 0.0, 0.0),
    l0_tokens=24,
    l1=TierCost(16, 0.1, 0.0),
    l2=TierCost(32, 0.2, 0.0),
    chunk_tokens=5,
    max_sequences=3,
)
# Two token values make shared prefixes, duplicates and evictions likely.
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
REQUESTS = st.tuples(TOKENS, st.lists(st.integers(0, 1), min_size=1, max_size=6))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), REQUESTS, st.sampled_from([None, "salt"])),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("step")),
        st.tuples(st.just("step")),
        st.tuples(st.just("reset")),
    ),
    max_size=40,
)


class Replay:
    """What a listener knows: physical copies of each block, as a prefix of token ids."""

    def __init__(self):
        self.copies: Counter[int] = Counter()
        self.prefix_by_hash: dict[int | None, tuple[int, ...]] = {None: ()}

    def apply(self, events):
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.copies.clear()
            elif isinstance(event, BlockStored):
                assert event.parent_hash is None or self.copies[event.parent_hash] > 0
                prefix = self.prefix_by_hash[event.parent_hash]
                for i, block_hash in enumerate(event.block_hashes):
                    prefix += event.token_ids[i * BLOCK : (i + 1) * BLOCK]
                    assert self.prefix_by_hash.setdefault(block_hash, prefix) == prefix
                    self.copies[block_hash] += 1
            else:
                assert self.copies[event.block_hash] > 0
                self.copies[event.block_hash] -= 1

    def longest_prefix(self, prompt) -> int:
        held = {self.prefix_by_hash[h] for h, n in self.copies.items() if n}
        limit = (len(prompt) - 1) // BLOCK
        blocks = 0
        while blocks < limit and tuple(prompt[: (blocks + 1) * BLOCK]) in held:
            blocks += 1
        return blocks * BLOCK


def holdings(model):
    live = [*model._running, *model._waiting, *model._landed, *(e[2] for e in model._loading)]
    return Counter(block for sequence in live for block in sequence.blocks), live


def check(model, replay):
    pool = model._cache.pool
    held, live = holdings(model)
    assert {s.request_id for s in live} == set(model._by_id)
    assert [held[b] for b in range(pool.num_blocks)] == pool._refs
    assert set(pool._free) == {b for b in range(pool.num_blocks) if not held[b]}
    assert sum(s.promised for s in live) == model._cache._promised_blocks
    assert all(s.promised >= 0 for s in live)
    # The cache index and the blocks' own keys agree, copies included.
    by_key = Counter(k for k in pool._key_by_block if k is not None)
    assert set(by_key) == set(pool._block_by_key)
    for key, count in by_key.items():
        assert pool._key_by_block[pool._block_by_key[key]] == key
        assert 1 + len(pool._copies_by_key.get(key, [])) == count
    # What was reported, and is about to be, is the cache.
    known = Replay()
    known.copies = replay.copies.copy()
    known.prefix_by_hash = dict(replay.prefix_by_hash)
    known.apply(model._cache._events)
    held = Counter({published_hash(key, model._cache._hash_seed): n for key, n in by_key.items()})
    assert +known.copies == held


class Run:
    """A model, its listener, and what every request should get."""

    def __init__(self, **tiers):
        self.model = EngineModel(PROFILE, block_size=BLOCK, num_blocks=11, **tiers)
        self.replay = Replay()
        self.now = 0.0
        self.emitted: dict[str, list[int]] = {}
        self.wanted: dict[str, list[int]] = {}

    def submit(self, request, salt):
        name = str(len(self.emitted))
        self.model.submit(EngineRequest(name, *request, cache_salt=salt))
        self.emitted[name], self.wanted[name] = [], request[1]

    def cancel(self, number, inside_a_step):
        self.wanted.pop(str(number), None)
        if inside_a_step:
            self.step(cancel=str(number))
        else:
            self.model.cancel(str(number))

    def reset(self):
        self.model.reset_prefix_cache()

    def step(self, cancel=None) -> bool:
        model = self.model
        duration = model.begin_step(self.now)
        if duration is None:
            self.now = model.next_load_at or self.now
            return model.next_load_at is not None
        if cancel is not None:
            model.cancel(cancel)
            check(model, self.replay)
        self.now += duration
        result = model.finish_step()
        self.replay.apply(result.events)
        for token in result.tokens:
            assert token.position == len(self.emitted[token.request_id])
            self.emitted[token.request_id].append(token.token_id)
        assert result.finished == [t.request_id for t in result.tokens if t.is_last]
        return True


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.booleans(), st.booleans())
def test_blocks_and_events_are_conserved_whatever_happens(actions, with_l1, with_l2):
    run = Run(l1=TierPool(8) if with_l1 else None, l2=TierPool(16) if with_l2 else None)
    for name, *arguments in actions:
        getattr(run, name)(*arguments)
        check(run.model, run.replay)
    while run.step():
        check(run.model, run.replay)
    assert all(run.emitted[name] == output for name, output in run.wanted.items())
    assert run.model.kv_usage_ratio == 0.0
    assert (run.model.num_running, run.model.num_waiting) == (0, 0)
    assert run.model._cache._promised_blocks == 0


@settings(max_examples=150, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=8))
def test_cached_tokens_are_the_longest_resident_prefix(requests):
    model = EngineModel(PROFILE, block_size=BLOCK, num_blocks=11)
    replay = Replay()
    for number, (prompt, output) in enumerate(requests):
        expected = replay.longest_prefix(prompt)
        model.submit(EngineRequest(str(number), prompt, output))
        while model.begin_step(0.0) is not None:
            result = model.finish_step()
            replay.apply(result.events)
            for token in result.tokens:
                if token.is_first:
                    assert token.admission.cached_tokens == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), REQUESTS), min_size=1, max_size=10))
def test_two_replicas_report_the_tokens_that_each_of_them_holds_or_the_pool_does(requests):
    pool = TierPool(1000)
    free_loads = EngineProfile(
        name="free loads",
        step=PROFILE.step,
        l0_tokens=24,
        l1=PROFILE.l1,
        l2=TierCost(2000, 0.0, 0.0),
        store_output_blocks=True,
    )
    models = [EngineModel(free_loads, block_size=BLOCK, num_blocks=11, l2=pool) for _ in range(2)]
    replays = [Replay(), Replay()]
    everything = Replay()
    for number, (which, (prompt, output)) in enumerate(requests):
        model, replay = models[which], replays[which]
        resident = replay.longest_prefix(prompt)
        anywhere = everything.longest_prefix(prompt)
        model.submit(EngineRequest(str(number), prompt, output))
        admission = None
        while model._by_id:
            if model.begin_step(0.0) is None:
                continue
            result = model.finish_step()
            replay.apply(result.events)
            everything.apply(e for e in result.events if isinstance(e, BlockStored))
            admission = next((t.admission for t in result.tokens if t.is_first), admission)
        assert admission.l0_tokens == resident
        assert admission.cached_tokens == max(resident, anywhere)
