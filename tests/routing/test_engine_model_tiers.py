"""L1 and L2 of the model engine: when they are used, what they cost, what is counted."""

from dataclasses import replace

import pytest

from routing.lab.engine_model import EngineModel
from routing.lab.engine_profile import REFERENCE, EngineProfile, StepCost, TierCost
from routing.lab.sequence import EngineRequest
from routing.lab.tiers import LoadPipe, TierPool, plan_load

# A token costs 1 s to compute; a load costs 2 s from L1 and 10 s from L2, whatever its size.
PROFILE = EngineProfile(
    name="slow prefill",
    step=StepCost(0.0, 1.0, 0.0, 0.0, 0.0),
    l0_tokens=64,
    l1=TierCost(64, 2.0, 0.0),
    l2=TierCost(64, 10.0, 0.0),
)


def replica(l1=None, l2=None, profile=PROFILE, **options):
    return EngineModel(profile, block_size=4, num_blocks=17, l1=l1, l2=l2, **options)


def run(model, name, prompt, now=0.0, outputs=(7,)):
    """Run one request alone; return its admission and the time of its first token."""
    model.submit(EngineRequest(name, prompt, list(outputs)))
    admission, first_at = None, None
    while True:
        duration = model.begin_step(now)
        if duration is None:
            if model.next_load_at is None:
                return admission, first_at
            now = model.next_load_at
            continue
        now += duration
        for token in model.finish_step().tokens:
            if token.is_first:
                admission, first_at = token.admission, now


@pytest.mark.parametrize(
    ("l1_run", "l2_run", "expected", "why"),
    [
        (0, 0, (0, 0), "nothing is held"),
        (1, 0, (1, 0), "2 s of loading beat 4 s of prefill"),
        (0, 2, (0, 0), "10 s of loading lose against 8 s of prefill"),
        (0, 3, (0, 3), "and beat 12 s"),
        (1, 2, (1, 0), "L1 is worth it, 8 s behind it are not"),
        (1, 3, (1, 3), "12 s are"),
    ],
)
def test_a_tier_is_used_only_where_loading_is_cheaper_than_prefilling(
    l1_run, l2_run, expected, why
):
    plan = plan_load(PROFILE, 4, start=0, l1_run=l1_run, l2_run=l2_run)
    assert (plan.l1_blocks, plan.l2_blocks) == expected, why


def test_an_engine_that_weighs_nothing_loads_what_it_finds():
    careless = replace(PROFILE, always_loads=True)
    # 10 s of loading, where computing takes 8.
    plan = plan_load(careless, 4, start=0, l1_run=0, l2_run=2)
    assert (plan.l2_blocks, plan.load_s, plan.latency_s) == (2, 10.0, 10.0)
    assert plan_load(careless, 4, start=0, l1_run=0, l2_run=0).latency_s == 0.0


def test_loads_wait_for_one_another_or_only_for_the_bytes():
    # Two loads of 5 s, 3 of which nothing moves, asked for at once; a third one much later.
    asked_at = (0.0, 0.0, 100.0)
    in_turn, at_once = LoadPipe(), LoadPipe(overlap=True)
    assert [in_turn.enqueue(now, 5.0, 3.0) for now in asked_at] == [5.0, 10.0, 105.0]
    assert [at_once.enqueue(now, 5.0, 3.0) for now in asked_at] == [5.0, 7.0, 105.0]


def test_blocks_are_written_through_and_found_after_the_gpu_forgot_them():
    model = replica(l1=TierPool(16))
    assert run(model, "a", range(13))[0].cached_tokens == 0
    assert model.reset_prefix_cache() is True
    admission, first_at = run(model, "b", range(13), now=100.0)
    assert admission[1:] == (0, 12, 0)
    assert first_at == 100.0 + 2.0 + 1.0  # the load, then the one token that is left


def test_another_replica_loads_from_the_shared_pool():
    pool = TierPool(16)
    first, second = replica(l2=pool), replica(l2=pool, hash_seed=5)
    run(first, "a", range(13))
    admission, first_at = run(second, "b", range(13))
    assert admission[1:] == (0, 0, 12)
    assert first_at == 11.0
    assert run(second, "c", range(13))[0][1:] == (12, 0, 0)
    assert second.counters.l2_hit_tokens == 12
    assert second.counters.external_query_tokens == 13 + 1


def test_what_came_from_l2_stays_in_l1():
    pool = TierPool(16)
    run(replica(l2=pool), "a", range(13))
    second = replica(l1=TierPool(16), l2=pool)
    run(second, "b", range(13))
    second.reset_prefix_cache()
    assert run(second, "c", range(13))[0][1:] == (0, 12, 0)


def test_a_load_continues_the_gpu_hit():
    model = replica(l1=TierPool(16))
    run(model, "a", range(17))
    model.reset_prefix_cache()
    model.submit(EngineRequest("short", range(5), [7]))
    model.begin_step(0.0)  # 2 s for one block: worth it
    assert model.next_load_at == 2.0
    assert run(model, "b", range(17), now=2.0)[0][1:] == (4, 12, 0)


def test_loads_pass_one_pipe_in_order():
    pool = TierPool(16)
    first, second = replica(l2=pool), replica(l2=pool)
    run(first, "a", range(13))
    run(first, "b", range(100, 113))
    for name, start in (("c", 0), ("d", 100)):
        second.submit(EngineRequest(name, range(start, start + 13), [7]))
    assert second.begin_step(0.0) is None
    assert second.next_load_at == 10.0
    assert second.num_waiting == second.num_loading == 2
    assert second.begin_step(10.0) == 1.0
    assert [t.request_id for t in second.finish_step().tokens] == ["c"]
    assert second.begin_step(11.0) is None
    assert second.next_load_at == 20.0


def test_others_run_while_a_load_is_under_way():
    pool = TierPool(16)
    run(replica(l2=pool), "a", range(13))
    second = replica(l2=pool)
    second.submit(EngineRequest("b", range(13), [7]))
    second.submit(EngineRequest("c", range(100, 103), [7]))
    assert second.begin_step(0.0) == 3.0
    assert second.finish_step().finished == ["c"]


def test_a_cancelled_load_frees_its_blocks():
    pool = TierPool(16)
    run(replica(l2=pool), "a", range(13))
    second = replica(l2=pool)
    second.submit(EngineRequest("b", range(13), [7]))
    second.begin_step(0.0)
    assert second.kv_usage_ratio == 3 / 16
    assert second.cancel("b") is True
    assert (second.kv_usage_ratio, second.num_waiting, second.next_load_at) == (0.0, 0, None)
    assert second.begin_step(20.0) is None


def test_landed_blocks_are_reported_with_the_step_that_follows():
    pool = TierPool(16)
    run(replica(l2=pool), "a", range(18))
    second = replica(l2=pool)
    second.submit(EngineRequest("b", [*range(16), 55, 56, 57, 58, 59], [7]))
    second.begin_step(0.0)
    second.begin_step(10.0)
    loaded, computed = second.finish_step().events
    assert loaded.token_ids == tuple(range(16))
    assert computed.token_ids == (55, 56, 57, 58)
    assert computed.parent_hash == loaded.block_hashes[-1]


def test_generated_blocks_are_not_written_through_unless_the_profile_says_so():
    for store_output_blocks, hit in ((False, 4), (True, 8)):
        profile = EngineProfile(
            name="p",
            step=PROFILE.step,
            l0_tokens=64,
            l1=PROFILE.l1,
            l2=PROFILE.l2,
            store_output_blocks=store_output_blocks,
        )
        model = replica(l1=TierPool(16), profile=profile)
        run(model, "a", range(5), outputs=(5, 6, 7, 8, 9))
        model.reset_prefix_cache()
        assert run(model, "b", range(10))[0].cached_tokens == hit


def test_an_external_reset_empties_the_tiers_too():
    model = replica(l1=TierPool(16))
    run(model, "a", range(13))
    model.reset_prefix_cache(external=True)
    assert run(model, "b", range(13))[0].cached_tokens == 0


def test_a_tier_drops_the_end_of_the_longest_unused_prompt():
    pool = TierPool(4)
    pool.store([1, 2, 3])
    pool.store([11, 12])
    assert [key in pool for key in (1, 2, 3, 11, 12)] == [True, True, False, True, True]
    pool.store([1])
    pool.store([21, 22])
    assert [key in pool for key in (1, 2, 11, 12, 21, 22)] == [True, False, True, False, True, True]


def test_1900_tokens_come_from_l2_in_56_ms_on_the_reference_engine():
    pool = TierPool(1000)
    run(EngineModel(REFERENCE, l2=pool), "a", range(1900))
    admission, first_at = run(EngineModel(REFERENCE, l2=pool), "b", range(1900))
    assert admission.l2_tokens == 1888
    assert first_at == pytest.approx(0.056, abs=0.0015)
