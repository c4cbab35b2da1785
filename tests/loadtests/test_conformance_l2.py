"""What the L2 conformance run makes of what it saw, without an engine."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from loadtests.conformance import environment
from loadtests.conformance.engine import Engine
from loadtests.conformance.observe import NotAnswered
from loadtests.conformance_l2 import fleet, program
from loadtests.conformance_l2.asking import read_stream
from loadtests.conformance_l2.counters import found_tokens
from loadtests.conformance_l2.figures import (
    UNKNOWN,
    Seen,
    Timed,
    Way,
    missed_goals,
    ratios,
    right_ratio,
)
from loadtests.conformance_l2.pool import Pool
from loadtests.conformance_l2.prompts import Body, crossings, strangers
from loadtests.conformance_l2.stages import num_shared, numbers

# 600 tokens: two files of 256, of which everything agrees.
RIGHT = Seen(
    kind="document",
    name="document-1",
    replica="b",
    prompt_tokens=600,
    files=2,
    chunk_tokens=256,
    explained=512,
    predicted=512,
    own_tokens=0,
    tier="L2",
    found=512,
    actual=512,
)
STRANGER = replace(RIGHT, files=0, explained=0, predicted=0, tier="none", found=0, actual=0)
TIMED = Timed(
    name="long-0",
    prompt_tokens=600,
    ttft_s={Way.COLD: 2.0, Way.L0: 0.1, Way.L1: 0.2, Way.L2: 0.4},
    cached_tokens={Way.COLD: 0, Way.L0: 576, Way.L1: 512, Way.L2: 512},
    found_tokens={Way.L1: 512, Way.L2: 512},
)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (RIGHT, ""),
        # Its one chunk is full: the last token is computed all the same.
        (replace(RIGHT, prompt_tokens=512, explained=511, predicted=511, actual=511), ""),
        # 544 tokens of its own memory reach beyond the two files.
        (replace(RIGHT, own_tokens=544, explained=544, predicted=544, actual=544, tier="L0"), ""),
        (replace(RIGHT, predicted=0, tier="none"), "the look-up came after the decision"),
        (
            replace(RIGHT, explained=256, predicted=256),
            "the gateway did not find files that are there",
        ),
        (
            replace(RIGHT, files=1, actual=256, found=256),
            "the gateway counted on missing files",
        ),
        (replace(RIGHT, found=256, actual=256), "LMCache did not find files that are there"),
        (replace(RIGHT, actual=256), "the engine did not take what LMCache found"),
        (
            replace(RIGHT, files=1, explained=256, predicted=256),
            "written while it was asked for",
        ),
        (replace(RIGHT, actual=544), UNKNOWN),
    ],
)
def test_a_difference_has_a_cause_or_is_unknown(seen: Seen, expected: str):
    assert seen.cause == expected
    assert seen.is_right is (expected == "")


def test_a_run_without_mistakes_misses_no_goal():
    assert missed_goals([RIGHT] * 40, [STRANGER], [TIMED], 600.0) == []


def test_two_wrong_requests_of_forty_are_enough_and_three_are_not():
    wrong = replace(RIGHT, actual=256)
    assert missed_goals([wrong] * 2 + [RIGHT] * 38, [], [TIMED], 600.0) == []
    (missed,) = missed_goals([wrong] * 3 + [RIGHT] * 37, [], [TIMED], 600.0)
    assert missed == "95% foreseen rightly, were 92.5%"
    assert right_ratio([]) == 0.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"crossed": [RIGHT] * 39}, "at least 40 requests, made 39"),
        (
            {"crossed": [RIGHT] * 40 + [replace(RIGHT, name="odd", actual=544)]},
            "every difference explained, not odd",
        ),
        (
            {"strangers": [replace(STRANGER, name="salt", actual=256)]},
            "nothing for other salts and short prompts, but for salt",
        ),
        (
            {"timed": [replace(TIMED, found_tokens={Way.L1: 512, Way.L2: 0})]},
            "each time from the tier that it is called after, not long-0",
        ),
        (
            {"timed": [replace(TIMED, ttft_s={**TIMED.ttft_s, Way.L2: 2.5})]},
            "L2 faster than cold, was 0.80 times",
        ),
        ({"total_s": 1201.0}, "at most 1200 s, took 1201"),
    ],
)
def test_a_missed_goal_is_named(change, expected: str):
    run = {"crossed": [RIGHT] * 40, "strangers": [STRANGER], "timed": [TIMED], "total_s": 600.0}
    assert missed_goals(**{**run, **change}) == [expected]


def test_ratios_are_the_medians_over_the_prompts():
    slower = replace(TIMED, ttft_s={**TIMED.ttft_s, Way.COLD: 4.0})
    assert ratios([TIMED, TIMED, slower])[Way.L2] == pytest.approx(5.0)


def test_a_stream_is_read_to_its_end():
    usage = b'{"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}'
    lines = [
        b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n',
        b"\n",
        b'data: {"choices": [{"delta": {"content": "Yes"}}]}\n',
        b'data: {"choices": [], "usage": %s}\n' % usage,
        b"data: [DONE]\n",
    ]
    reply = read_stream(lines, began=0.0)
    assert (reply.prompt_tokens, reply.cached_tokens) == (9, 8)
    assert reply.ttft_s > 0.0
    with pytest.raises(NotAnswered, match="ended early"):
        read_stream(lines[:-1], began=0.0)
    with pytest.raises(NotAnswered, match="says"):
        read_stream([b'data: {"error": {"message": "no"}}\n'], began=0.0)


def test_lmcaches_own_counters_are_added_up_over_salts():
    # Lines of LMCache 0.5.6.
    page = (
        'lmcache_mp_lookup_requested_tokens_total{cache_salt="",model_name="/m"} 2048.0\n'
        'lmcache_mp_lookup_hit_l1_tokens_total{cache_salt="",model_name="/m"} 512.0\n'
        'lmcache_mp_lookup_hit_l2_tokens_total{cache_salt="",model_name="/m"} 1024.0\n'
        'lmcache_mp_lookup_hit_l2_tokens_total{cache_salt="tenant-1",model_name="/m"} 256.0\n'
    )
    assert found_tokens(page) == Counter({Way.L1: 512, Way.L2: 1280})
    assert found_tokens("") == Counter()


def test_only_whole_files_count_and_the_wait_ends_with_the_last_one(tmp_path: Path):
    pool = Pool(tmp_path / "l2")
    pool.make_empty()
    before = pool.names()
    (pool.folder / "a.data").write_bytes(b"12")
    (pool.folder / "b.data.tmp").write_bytes(b"1")
    assert pool.wait_written(before, expected=1) == {"a.data"}
    assert pool.num_bytes() == 2
    pool.make_empty()
    assert pool.names() == set()


@pytest.fixture(scope="module")
def count() -> Callable[[Body], int]:
    """Return a count of tokens: one a word and 20 for the template."""
    return lambda body: sum(len(m["content"].split()) for m in body["messages"]) + 20


def test_there_are_forty_crossings_that_fill_at_least_a_chunk(count):
    made = crossings(count, 128)
    assert len(made) >= 40
    assert len({crossing.name for crossing in made}) == len(made)
    assert all(count(crossing.written) > 128 for crossing in made)
    assert sum(crossing.timed for crossing in made) == 8
    assert {count(c.written) % 128 for c in made if c.kind == "exact"} == {0}
    assert [made[at].written for at in range(3)] == [
        again.written for again in crossings(count, 128)[:3]
    ]


def test_strangers_are_short_or_of_another_salt(count):
    for crossing in strangers():
        if crossing.kind == "short":
            assert count(crossing.written) < 128
        else:
            assert crossing.written["messages"] == crossing.read["messages"]
            assert crossing.written["cache_salt"] != crossing.read.get("cache_salt")


def test_a_family_has_one_writer(count):
    made = crossings(count, 128)
    number_by_name = numbers(made)
    families = {c.family for c in made if c.family}
    for family in families:
        assert len({number_by_name[c.name] for c in made if c.family == family}) == 1
    assert {number % 2 for number in number_by_name.values()} == {0, 1}


def test_shared_tokens_end_at_the_first_difference():
    assert num_shared([1, 2, 3], [1, 2, 4]) == 2
    assert num_shared([1, 2], [1, 2, 4]) == 2
    assert num_shared([1, 2], []) == 0


def test_each_engine_has_an_lmcache_and_both_write_to_one_directory(tmp_path: Path):
    argv = fleet.lmcache_argv(Path("/py"), "a", 5555, 9090, tmp_path)
    options = dict(pairwise(argv))
    assert options["--chunk-size"] == "256"
    assert options["--supported-transfer-mode"] == "engine_driven"
    assert json.loads(options["--l2-adapter"]) == {"type": "fs", "base_path": str(tmp_path)}
    engines = {"a": Engine("engine-a", Path("/py"), Path("/m"), "m", 8001)}
    config = fleet.gateway_config(Path("/m"), engines, tmp_path)
    (served,) = config["models"]
    assert served["shared_cache"]["paths"] == [str(tmp_path)]
    assert [replica["id"] for replica in served["replicas"]] == ["a"]


def test_a_skipped_run_says_so_in_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys):
    monkeypatch.setattr(environment, "MIN_MEMORY_BYTES", 1 << 60)
    file = tmp_path / "conformance-l2.json"
    assert program.main(["--json", str(file)]) == 0
    assert "skipped: " in capsys.readouterr().out
    assert '"skipped": ' in file.read_text("utf-8")
