"""The model engine, by tables of small numbers: times, order, room."""

import pytest

from routing.lab.engine_model import EngineModel, StepResult
from routing.lab.engine_profile import A10G, PROFILES, REFERENCE, EngineProfile, StepCost, TierCost
from routing.lab.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from routing.lab.sequence import EngineRequest

OUT = [9001, 9002, 9003, 9004, 9005, 9006, 9007, 9008]
ONE_SECOND_STEPS = EngineProfile(
    name="one second steps",
    step=StepCost(1.0, 0.0, 0.0, 0.0, 0.0),
    l0_tokens=64,
    l1=TierCost(1000, 0.0, 0.0),
    l2=TierCost(1000, 0.0, 0.0),
    chunk_tokens=8,
    max_sequences=3,
)


def engine(num_blocks=17, block_size=4, profile=ONE_SECOND_STEPS, **options):
    return EngineModel(profile, block_size=block_size, num_blocks=num_blocks, **options)


def request(name, prompt, outputs=1, **options):
    return EngineRequest(name, prompt, OUT[:outputs], **options)


def step(model, now=0.0) -> StepResult:
    assert model.begin_step(now) is not None
    return model.finish_step()


def run_to_end(model, now=0.0) -> list[StepResult]:
    results = []
    while model.begin_step(now) is not None:
        results.append(model.finish_step())
        assert len(results) < 1000
    return results


def cached(results, name) -> int:
    (admission,) = [
        t.admission for r in results for t in r.tokens if t.request_id == name and t.is_first
    ]
    return admission.cached_tokens


# Time


def test_a_prefill_step_costs_base_tokens_pairs_and_sequence():
    model = EngineModel(REFERENCE)
    model.submit(request("a", range(1900)))
    pairs = 1900 * 1901 // 2
    assert model.begin_step(0.0) == pytest.approx(
        0.008 + 1900 * 70e-6 + pairs * 4e-9 + 0.00008, abs=1e-12
    )


def test_1900_tokens_take_148_ms_to_prefill_on_the_reference_engine():
    model = EngineModel(REFERENCE)
    model.submit(request("a", range(1900)))
    assert model.begin_step(0.0) == pytest.approx(0.148, abs=0.001)


def test_a_second_chunk_pays_for_the_pairs_with_the_first():
    model = EngineModel(REFERENCE)
    model.submit(request("a", range(3000)))
    step(model)
    pairs = 952 * 2048 + 952 * 953 // 2
    assert model.begin_step(0.0) == pytest.approx(
        0.008 + 952 * 70e-6 + pairs * 4e-9 + 0.00008, abs=1e-12
    )


def test_a_decode_step_costs_base_sequences_and_kv_tokens():
    model = EngineModel(REFERENCE)
    model.submit(request("a", range(100), outputs=3))
    model.submit(request("b", range(1000, 1200), outputs=3))
    step(model)
    # Each computes its first output token: 101 and 201 tokens are read.
    assert model.begin_step(0.0) == pytest.approx(0.008 + 2 * 0.00008 + 302 * 52e-9, abs=1e-12)


def test_2500_tokens_take_774_ms_of_prefill_on_an_a10g():
    assert A10G.step.prefill_s(0, 2500) == pytest.approx(0.775, abs=0.001)


def test_profiles_go_by_name():
    assert PROFILES["reference"] is REFERENCE
    assert PROFILES["a10g"] is A10G


# Batching


def test_decodes_come_first_and_prefill_takes_the_rest_of_the_budget():
    model = engine()
    model.submit(request("a", range(4), outputs=3))
    step(model)
    model.submit(request("b", range(100, 112)))
    # Of 8 tokens one goes to a, so b prefills 7, and 5 in the step after.
    assert [t.request_id for t in step(model).tokens] == ["a"]
    assert [t.request_id for t in step(model).tokens] == ["a", "b"]


def test_requests_start_in_the_order_of_arrival():
    model = engine()
    for name, start in (("a", 0), ("b", 100), ("c", 200)):
        model.submit(request(name, range(start, start + 6)))
    # 8 tokens a step: a and 2 of b; 4 of b and 4 of c; 2 of c.
    assert [r.finished for r in run_to_end(model)] == [["a"], ["b"], ["c"]]


def test_no_more_sequences_run_than_the_profile_allows():
    model = engine()
    for start in (0, 10, 20, 30):
        model.submit(request(str(start), [start], outputs=2))
    step(model)
    assert (model.num_running, model.num_waiting) == (3, 1)
    assert step(model).finished == ["0", "10", "20"]
    step(model)
    assert (model.num_running, model.num_waiting) == (1, 0)


def test_tokens_come_one_a_step_with_first_and_last_marked():
    model = engine()
    model.submit(request("a", range(5), outputs=3))
    tokens = [t for r in run_to_end(model) for t in r.tokens]
    assert [(t.token_id, t.position, t.is_first, t.is_last) for t in tokens] == [
        (9001, 0, True, False),
        (9002, 1, False, False),
        (9003, 2, False, True),
    ]
    assert [t.admission is not None for t in tokens] == [True, False, False]


def test_an_idle_engine_has_nothing_to_do():
    assert engine().begin_step(5.0) is None
    assert engine().next_load_at is None


def test_steps_cannot_overlap():
    model = engine()
    model.submit(request("a", range(5)))
    model.begin_step(0.0)
    with pytest.raises(RuntimeError, match="begin_step before finish_step"):
        model.begin_step(0.0)
    model.finish_step()
    with pytest.raises(RuntimeError, match="finish_step before begin_step"):
        model.finish_step()


@pytest.mark.parametrize(
    ("prompt", "output", "why"),
    [
        ([], [1], "at least one token"),
        ([1], [], "at least one token"),
        (list(range(64)), [1, 2], "66 tokens, room for 65"),
    ],
)
def test_a_request_that_can_never_run_is_refused(prompt, output, why):
    with pytest.raises(ValueError, match=why):
        engine(17).submit(EngineRequest("a", prompt, output))


def test_an_id_in_use_is_refused():
    model = engine()
    model.submit(request("a", [1]))
    with pytest.raises(ValueError, match="'a' is already here"):
        model.submit(request("a", [2]))


def test_an_engine_needs_a_block_besides_the_null_block():
    with pytest.raises(ValueError, match="1 blocks of 4 tokens"):
        engine(num_blocks=1)


# Cache


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [
        (range(9), range(9), 8),
        (range(8), range(8), 4),  # never the whole prompt
        (range(8), range(9), 8),
        (range(9), [*range(6), 77, 78, 79], 4),
        (range(9), range(1, 9), 0),
        (range(3), range(3), 0),
    ],
)
def test_a_hit_is_whole_blocks_and_never_the_last_token(first, second, hit):
    model = engine()
    model.submit(request("first", first))
    run_to_end(model)
    model.submit(request("second", second))
    assert cached(run_to_end(model), "second") == hit
    assert model.counters.l0_hit_tokens == hit
    assert model.counters.prompt_tokens == len(first) + len(second)


def test_output_tokens_are_cached_but_for_the_last():
    model = engine()
    model.submit(request("a", range(5), outputs=8))
    run_to_end(model)
    # 5 + 7 computed tokens fill 3 blocks; the next turn hits them all.
    model.submit(request("b", [*range(5), *OUT[:8], 55]))
    assert cached(run_to_end(model), "b") == 12


def test_salts_and_adapters_do_not_share_blocks():
    model = engine()
    model.submit(request("a", range(9), cache_salt="s"))
    run_to_end(model)
    for name, options, hit in (
        ("none", {}, 0),
        ("other", {"cache_salt": "t"}, 0),
        ("lora", {"cache_salt": "s", "lora_name": "l"}, 0),
        ("same", {"cache_salt": "s"}, 8),
    ):
        model.submit(request(name, range(9), **options))
        assert cached(run_to_end(model), name) == hit, name


def test_a_request_admitted_in_the_same_step_shares_the_first_ones_blocks():
    model = engine(profile=REFERENCE)
    model.submit(request("a", range(9)))
    model.submit(request("b", range(9)))
    assert cached([step(model)], "b") == 8


@pytest.mark.parametrize(("start", "hit"), [(0, 8), (100, 12)])
def test_the_end_of_the_oldest_prompt_is_evicted_first(start, hit):
    model = engine(num_blocks=9)
    # Two prompts of 4 blocks fill the cache; 2 new blocks cost the last two of the first prompt.
    for name, prompt in (("a", range(16)), ("b", range(100, 116)), ("c", range(200, 208))):
        model.submit(request(name, prompt))
        run_to_end(model)
    model.submit(request("again", range(start, start + 16)))
    assert cached(run_to_end(model), "again") == hit


def test_memory_without_content_is_reused_before_cached_blocks():
    model = engine(num_blocks=5)
    model.submit(request("a", range(5)))
    model.submit(request("b", range(100, 105)))
    run_to_end(model)
    # Two of the four blocks hold one token each and were let go last.
    model.submit(request("c", range(200, 205)))
    assert [e for r in run_to_end(model) for e in r.events if isinstance(e, BlockRemoved)] == []


# Room


def test_a_prompt_waits_until_all_of_it_fits():
    model = engine(num_blocks=5)
    model.submit(request("a", range(9), outputs=2))
    step(model)
    model.submit(request("b", range(100, 109)))
    step(model)
    assert (model.num_running, model.num_waiting) == (1, 1)
    assert [r.finished for r in run_to_end(model)] == [["a"], [], ["b"]]


def test_the_youngest_is_preempted_when_decodes_need_room_and_finishes_later():
    model = engine(num_blocks=5)
    model.submit(request("a", range(4), outputs=8))
    model.submit(request("b", range(100, 104), outputs=8))
    results = run_to_end(model)
    assert model.counters.preemptions > 0
    tokens = [t for r in results for t in r.tokens]
    assert [t.token_id for t in tokens if t.request_id == "a"] == OUT
    assert [t.token_id for t in tokens if t.request_id == "b"] == OUT
    # A resumed prompt is not counted a second time.
    assert model.counters.prompt_tokens == 8


def test_usage_is_the_share_of_blocks_in_use():
    model = engine(num_blocks=9)
    model.submit(request("a", range(5), outputs=2))
    step(model)
    assert model.kv_usage_ratio == 2 / 8
    step(model)
    assert model.kv_usage_ratio == 0.0


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_cancel_frees_everything_at_any_step(steps):
    model = engine()
    model.submit(request("a", range(12), outputs=4))
    for _ in range(steps):
        step(model)
    assert model.cancel("a") is True
    assert model.cancel("a") is False
    assert (model.num_running, model.num_waiting, model.kv_usage_ratio) == (0, 0, 0.0)
    assert model.begin_step(0.0) is None


def test_cancel_inside_a_step_leaves_the_others_alone():
    model = engine()
    model.submit(request("a", range(3), outputs=2))
    model.submit(request("b", range(100, 103), outputs=2))
    model.begin_step(0.0)
    model.cancel("a")
    assert [t.request_id for t in model.finish_step().tokens] == ["b"]
    assert run_to_end(model)[-1].finished == ["b"]


# Events


def test_a_prefill_step_stores_its_full_blocks_under_their_parent():
    model = engine()
    model.submit(request("a", range(13)))
    (first,), (second,) = (r.events for r in run_to_end(model))
    assert first.token_ids == tuple(range(8))
    assert first.parent_hash is None
    assert second.token_ids == tuple(range(8, 12))
    assert second.parent_hash == first.block_hashes[-1]
    assert all(0 <= h < 2**64 for h in first.block_hashes)


def test_a_decode_step_stores_the_block_that_it_fills():
    model = engine()
    model.submit(request("a", range(3), outputs=3))
    events = [r.events for r in run_to_end(model)]
    assert events[0] == []
    assert [e.token_ids for e in events[1]] == [(0, 1, 2, 9001)]
    assert events[2] == []


def test_evicted_blocks_are_reported_one_by_one_before_what_takes_their_place():
    model = engine(num_blocks=3)
    model.submit(request("a", range(8)))
    (stored,) = run_to_end(model)[0].events
    model.submit(request("b", range(100, 108)))
    events = run_to_end(model)[0].events
    assert events[:2] == [BlockRemoved(h) for h in reversed(stored.block_hashes)]
    assert events[2].token_ids == tuple(range(100, 108))


def test_a_reset_is_reported_with_the_next_step_only():
    model = engine()
    model.submit(request("a", range(5)))
    run_to_end(model)
    assert model.reset_prefix_cache() is True
    assert model.begin_step(0.0) is None
    model.submit(request("b", range(5)))
    results = run_to_end(model)
    assert [type(e) for e in results[0].events] == [AllBlocksCleared, BlockStored]
    assert cached(results, "b") == 0


def test_a_reset_fails_while_blocks_are_held():
    model = engine()
    model.submit(request("a", range(5), outputs=2))
    step(model)
    assert model.reset_prefix_cache() is False


def test_hashes_mean_nothing_outside_one_replica():
    hashes = []
    for seed in (1, 2):
        model = engine(hash_seed=seed)
        model.submit(request("a", range(4)))
        hashes.append(run_to_end(model)[0].events[0].block_hashes)
    assert hashes[0] != hashes[1]


def test_events_can_be_switched_off():
    model = engine(kv_events=False)
    model.submit(request("a", range(13)))
    assert [r.events for r in run_to_end(model)] == [[], []]
