"""The golden recordings: that they are whole, and of the cases that the repository makes."""

import json
from pathlib import Path

import pytest

from loadtests.conformance import golden
from loadtests.conformance.cases import CHAT, spelled
from loadtests.conformance.engine import option_argv

FILES = [golden.GOLDEN / setup.file for setup in golden.SETUPS]


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text("ascii").splitlines()]


def test_cases_are_many_and_always_the_same():
    cases = golden.all_cases()
    assert cases == golden.all_cases()
    assert len({case.name for case in cases}) == len(cases) >= 120


def test_two_tokenizers_have_several_sets_of_flags_and_mistrals_the_one_that_counts():
    flags_by_tokenizer = {}
    for setup in golden.SETUPS:
        flags_by_tokenizer.setdefault(setup.tokenizer, []).append(setup.flags)
    assert {name: len(flags) for name, flags in flags_by_tokenizer.items()} == {
        "qwen3": 3,
        "smollm2": 3,
        "tekken3": 1,
        "tekken13": 1,
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recording_has_every_case_as_it_is_made_now(file: Path):
    header, *recorded = lines(file)
    assert {*header} == {"origin", "vllm", "transformers", "tokenizer", "flags", "recorded"}
    found = {line["name"]: line.get("raw_body") or json.dumps(line["body"]) for line in recorded}
    assert found == {case.name: case.body for case in golden.all_cases()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recording_has_ids_wherever_the_engine_answered(file: Path):
    _, *recorded = lines(file)
    for line in recorded:
        if line["status"] == 200:
            assert line["prompt_token_ids"], line["name"]
        else:
            assert line["prompt_token_ids"] is None, line["name"]
            assert 400 <= line["status"] < 500, line["name"]


def test_a_body_is_spelled_as_a_case_wants_it():
    case = spelled("x", CHAT, {"messages": ["RAW"], "n": 1}, {"RAW": "1e5"})
    assert '"messages": [1e5], "n": 1}' in case.body


def test_vllms_options_become_its_command_line():
    flags = {"a_switch": True, "some_json": {"b": False}, "length": 7}
    assert option_argv(flags) == ["--a-switch", "--some-json", '{"b": false}', "--length", "7"]
