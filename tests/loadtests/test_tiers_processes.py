"""The processes of `make measure-tiers`: real replicas over a real directory."""

from loadtests.tiers.processes import running
from loadtests.tiers.sweep import Way
from loadtests.tiers.virtual import prompts
from routing.lab.engine_profile import REFERENCE


def test_each_way_is_served_from_where_it_is_called_after(tmp_path):
    asked = prompts(2, 100)
    with running(REFERENCE, tmp_path) as fleet:
        fleet.write(asked)
        served = {way: fleet.ask(way, [[prompt] for prompt in asked]) for way in Way}
    # 6 blocks of 16; the last 4 tokens are computed.
    assert {way: one.cached_tokens for way, one in served.items()} == {
        Way.COLD: 0,
        Way.IN_TURN: 2 * 96,
        Way.AT_ONCE: 2 * 96,
    }
    assert all(one.prompt_tokens == 200 and one.ttft_s > 0.0 for one in served.values())
    assert len(list((tmp_path / "l2").glob("*.data"))) == 12
