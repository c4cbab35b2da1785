"""Token ids as a real vLLM computed them: tests/data/golden, recorded by `make golden`.

Each file holds the requests of one tokenizer and one set of server flags, with the ids of the run
itself or the engine's refusal. All have to come out here, but for those named below.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.api.endpoints import find
from gateway.config.engine import EngineConfig
from gateway.errors import InvalidRequest
from gateway.prompt.body import read_body
from gateway.prompt.problem import PromptProblem
from gateway.prompt.tokenizer import PromptTokenizer

DATA = Path(__file__).parents[1] / "data"
FILES = sorted((DATA / "golden").glob("*.jsonl"))

# The gateway gives no ids where the engine would have some: a template in the request would have
# to be compiled for it alone.
NOT_KNOWN_HERE = frozenset({"chat/arguments/template", "chat/arguments/kwargs_template"})
# Refused by the engine for what is not about the prompt: the gateway answers the first itself.
REFUSED_FOR_OTHER_REASONS = frozenset({"chat/refused/unknown_model"})
# The run went well and only its answer could not be written, so nothing is known of its ids.
NO_CLAIM = "Error serializing to JSON"


@pytest.fixture(scope="module")
def tokenizers():
    folders = [folder for folder in (DATA / "tokenizers").iterdir() if folder.is_dir()]
    return {folder.name: PromptTokenizer.load(str(folder)) for folder in folders}


def engine_of(flags: dict) -> EngineConfig:
    template = flags.get("chat_template")
    return EngineConfig(
        max_model_len=flags["max_model_len"],
        tool_parser=flags.get("enable_auto_tool_choice", False),
        reasoning_parser="reasoning_parser" in flags,
        default_chat_template_kwargs=flags.get("default_chat_template_kwargs", {}),
        exclude_tools_when_tool_choice_none=flags.get("exclude_tools_when_tool_choice_none", False),
        trust_request_chat_template=flags.get("trust_request_chat_template", False),
        chat_template=None if template is None else str(DATA / "golden" / template),
    )


def read(file: Path) -> tuple[dict, list[dict]]:
    header, *cases = [json.loads(line) for line in file.read_text().splitlines()]
    return header, cases


def raw(case: dict) -> bytes:
    text = case.get("raw_body") or json.dumps(case["body"])
    return text.encode()


def ids_here(tokenizer: PromptTokenizer, case: dict) -> list[int] | None:
    try:
        return tokenizer.token_ids(read_body(raw(case), find(case["path"]).kind))
    except (PromptProblem, InvalidRequest):
        return None


def differences(tokenizer: PromptTokenizer, cases: list[dict]) -> Iterator[str]:
    for case in cases:
        if NO_CLAIM in (case.get("message") or "") or case["name"] in REFUSED_FOR_OTHER_REASONS:
            continue
        expected = case["prompt_token_ids"] if case["status"] == 200 else None
        found = ids_here(tokenizer, case)
        if found is None and case["name"] in NOT_KNOWN_HERE:
            continue
        if found != expected:
            yield f"{case['name']}: {found and found[:50]} for {expected and expected[:50]}"


def test_both_tokenizers_were_recorded_with_several_sets_of_flags():
    headers = [read(file)[0] for file in FILES]
    assert {header["tokenizer"] for header in headers} == {"qwen3", "smollm2"}
    assert len({json.dumps(header["flags"]) for header in headers}) >= 3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_ids_are_those_of_the_run(tokenizers, file):
    header, cases = read(file)
    assert sum(case["status"] == 200 for case in cases) >= 120
    tokenizer = tokenizers[header["tokenizer"]].for_engine(engine_of(header["flags"]))
    assert list(differences(tokenizer, cases)) == []
