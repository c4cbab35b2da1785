"""The fit, the sweep, the goals and the charts of `make measure-tiers`, in virtual time."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from loadtests.tiers import program, report
from loadtests.tiers.fit import Line, fit, fit_latency
from loadtests.tiers.goals import Figure, Measured, figures, loadable_tokens, missed_goals
from loadtests.tiers.plot import Chart, Series, round_step, svg
from loadtests.tiers.published import FITTED, OFF_THE_LINE, Point, from_saving
from loadtests.tiers.sweep import Cell, Way, break_even, cell, chats, prompts_of_clients
from loadtests.tiers.virtual import Replica, prompts
from routing.lab.engine_profile import A10G
from routing.lab.tiers import TierPool

LOOSE = Line(latency_s=0.100, token_s=100e-6)


def points_on(line: Line, *lengths: int) -> list[Point]:
    """Return what would have been published of replicas that load so."""
    cells = [cell(line.on(A10G), length, 1, requests_each=1) for length in lengths]
    return [
        Point(
            one.num_tokens,
            one.ratio(Way.IN_TURN),
            one.ttft_s[Way.COLD],
            one.ttft_s[Way.IN_TURN],
        )
        for one in cells
    ]


# The fit


def test_a_line_is_found_again_from_its_points():
    found = fit(A10G, points_on(LOOSE, 500, 1000, 2500))
    assert found.latency_s == pytest.approx(LOOSE.latency_s, rel=1e-9)
    assert found.token_s == pytest.approx(LOOSE.token_s, rel=1e-9)


def test_ratios_alone_are_enough():
    ratios_only = [Point(p.num_tokens, p.ratio) for p in points_on(LOOSE, 500, 2000)]
    assert fit(A10G, ratios_only).latency_s == pytest.approx(LOOSE.latency_s, rel=1e-9)


def test_the_latency_is_found_for_a_given_time_a_token():
    points = points_on(LOOSE, 500, 2500)
    assert fit_latency(A10G, LOOSE.token_s, points).latency_s == pytest.approx(0.100, rel=1e-9)


def test_the_a10g_profile_is_the_fit():
    found = fit(A10G)
    assert A10G.l2.latency_s == pytest.approx(found.latency_s, rel=0.01)
    assert A10G.l2.token_s == pytest.approx(found.token_s, rel=0.01)
    assert A10G.always_loads


def test_the_published_serial_points_come_out_within_15_percent():
    cells = [cell(A10G, length, 1) for length in (500, 1000, 2500)]
    found = figures(cells, FITTED)
    assert len(found) == 5
    assert all(figure.is_near for figure in found), [(f.name, f.error) for f in found]


def test_the_point_at_3000_tokens_is_not_on_the_line_of_the_others():
    assert OFF_THE_LINE.cold_s == pytest.approx(0.898, abs=0.001)
    assert OFF_THE_LINE.l2_s == pytest.approx(0.408, abs=0.001)
    found = figures([cell(A10G, 3000, 1)], [OFF_THE_LINE])
    assert not found[0].is_near
    assert not any(figure.is_goal for figure in found)


def test_a_ratio_and_a_saving_give_both_times():
    point = from_saving(100, ratio=3.0, saved_s=2.0)
    assert (point.cold_s, point.l2_s) == (3.0, 1.0)


# The sweep


def test_prompts_of_another_number_or_length_share_nothing():
    first = [prompt[:2] for length in (10, 20) for prompt in prompts(3, length)]
    assert len({tuple(start) for start in first}) == 6


def test_no_two_clients_ask_the_same_and_no_two_calls_do():
    asked = prompts_of_clients(10, 2, 3) + prompts_of_clients(10, 2, 3, first=6)
    assert len({tuple(prompt) for client in asked for prompt in client}) == 12


def test_a_second_replica_loads_what_the_first_one_computed():
    pool = TierPool(1000)
    Replica(A10G, pool).ask([prompts(1, 500)])
    (asked,) = Replica(A10G, pool).ask([prompts(1, 500)])
    assert asked.admission.l2_tokens == loadable_tokens(500) == 496
    # The load, and a step for the 4 tokens that are left.
    step_s = 25e-3 + 4 * 0.31e-3 + 0.1e-3
    assert asked.ttft_s == pytest.approx(A10G.l2.load_s(496) + step_s)


def test_each_client_asks_again_when_it_is_answered():
    replica = Replica(A10G, None)
    asked = replica.ask([prompts(2, 100), prompts(1, 100, first=2)])
    assert len(asked) == 3
    # The second call goes on where the first one ended, with warm memory.
    (again,) = replica.ask([prompts(1, 100)])
    assert again.admission.l0_tokens == 96


def test_loads_at_once_wait_out_their_latency_together():
    one = cell(A10G, 1000, clients=4, requests_each=1)
    # The last of four: four latencies in turn, or one; the bytes of four either way.
    spread = one.ttft_s[Way.IN_TURN] - one.ttft_s[Way.AT_ONCE]
    # On average 2.5 loads are behind a request, itself included: 1.5 latencies more.
    assert spread == pytest.approx(1.5 * A10G.l2.latency_s, rel=0.1)
    assert one.ratio(Way.AT_ONCE) > one.ratio(Way.IN_TURN)


def made(num_tokens: int, cold_s: float, l2_s: float, clients: int = 1) -> Cell:
    """Return a cell with these times, to the first token and to the last."""
    times = {Way.COLD: cold_s, Way.IN_TURN: l2_s, Way.AT_ONCE: l2_s}
    return Cell(num_tokens, clients, times, times)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([made(500, 1.0, 2.0), made(1000, 3.0, 2.0)], 750.0),  # 0.5 to 1.5 times
        ([made(500, 2.0, 1.0), made(1000, 3.0, 1.0)], 500.0),
        ([made(500, 1.0, 2.0), made(1000, 1.0, 2.0)], None),
        # It counts from where on L2 is faster for good.
        ([made(250, 2.0, 1.0), made(500, 1.0, 2.0), made(1000, 3.0, 2.0)], 750.0),
    ],
)
def test_break_even_lies_between_the_lengths(cells, expected):
    assert break_even(cells, Way.IN_TURN) == expected


def test_a_chat_that_moves_gains_more_with_every_turn():
    turns = chats(A10G, clients=1)
    gains = [turn.moved_cold_s / turn.moved_l2_s for turn in turns]
    assert gains == sorted(gains)
    assert gains[-1] > 2.0
    # Replayed turn by turn, only what a turn adds is loaded.
    assert turns[-1].replayed_s < turns[-1].moved_l2_s
    assert [turn.num_tokens for turn in turns] == [530, 1058, 1586, 2114]


# The goals


def measured(**changes) -> Measured:
    """Return a small run that misses nothing, changed."""
    cells = [
        made(length, 1.0, 1.0 / ratio)
        for length, ratio in ((500, 0.99), (1000, 1.7), (2500, 2.7), (3000, 3.1))
    ]
    cells[2] = made(2500, 0.774, 0.287)
    run = Measured(
        line=LOOSE,
        figures=figures(cells),
        other_line=LOOSE,
        other_figures=figures(cells, goals=()),
        cells=cells,
        chats={},
        processes=cells,
        virtual=cells,
        wrongly_served=0,
        total_s=100.0,
    )
    return replace(run, **changes)


def test_a_run_that_is_near_misses_no_goal():
    assert missed_goals(measured()) == []


def test_every_missed_goal_is_named():
    far = Figure("500 tokens, times faster", 0.99, 1.3, is_goal=True)
    (missed,) = missed_goals(measured(figures=[far]))
    assert missed == (
        "virtual time: 500 tokens, times faster within 15% of the published 0.99, is 1.3"
    )
    slower = [replace(one, ttft_s={way: 2.0 * s for way, s in one.ttft_s.items()})
              for one in measured().virtual]  # fmt: skip
    assert len(missed_goals(measured(virtual=slower))) == 4 * len(Way)
    (missed,) = missed_goals(measured(wrongly_served=16))
    assert missed == "every prompt from where it is meant, not 16 tokens"
    assert missed_goals(measured(total_s=361.0)) == ["at most 360 s, took 361"]


def test_the_goal_is_shown_beside_the_figure():
    assert Figure("", 1.0, 1.1, is_goal=True).goal == "within 15%, met"
    assert Figure("", 1.0, 1.2, is_goal=True).goal == "within 15%, MISSED"
    assert Figure("", 1.0, 1.2, is_goal=False).goal == "-"


# The report


@pytest.mark.parametrize(("about", "expected"), [(0.9, 1.0), (1.1, 2.0), (240.0, 500.0)])
def test_ticks_are_round(about, expected):
    assert round_step(about) == expected


def test_a_chart_has_a_mark_for_every_point_and_a_line_for_every_row():
    lines = Series("a < b", [(1.0, 2.0), (2.0, 4.0)])
    lone = Series("published", [(2.0, 3.0)], is_line=False, hollow=True)
    drawn = svg([Chart("Title", "x", "y", [lines, lone], log_x=True, level=1.0)])
    root = ET.fromstring(drawn)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags.count("polyline") == 1
    assert tags.count("circle") == 2 + 1  # and one in the legend
    assert tags.count("polygon") == 1 + 1
    assert "a < b" in [element.text for element in root.iter()]


def test_the_run_in_virtual_time_writes_figures_and_charts(tmp_path, monkeypatch, capsys):
    lengths, clients = (500, 1000, 2500, 3000), (1, 2)
    for module in (program, report):
        monkeypatch.setattr(module, "LENGTHS", lengths)
        monkeypatch.setattr(module, "CONCURRENCIES", clients)
    monkeypatch.setattr(program, "_CHATS_AT_ONCE", (1,))
    file = tmp_path / "tiers.json"
    assert program.main(["--virtual", "--json", str(file)]) == 0
    written = json.loads(file.read_text("utf-8"))
    assert written["missed"] == []
    assert len(written["sweep"]) == len(lengths) * len(clients)
    assert ET.fromstring(file.with_suffix(".svg").read_text("utf-8")).tag.endswith("svg")
    assert "within 15%, met" in capsys.readouterr().out
