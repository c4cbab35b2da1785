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
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.loading import ModelTokenizer, load_tokenizer
from gateway.prompt.problem import PromptProblem
from routing.hashing import unpack_tokens

DATA = Path(__file__).parents[1] / "data"
FILES = sorted((DATA / "golden").glob("*.jsonl"))

# The gateway gives no ids where the engine has some: of Mistral's tokenizers vLLM keeps the first
# token of a text that it cuts, and takes an empty text among others.
NOT_KNOWN_OF_TEKKEN = frozenset(
    {
        "completions/keep_3",
        "completions/keep_3_left",
        "completions/too_long_cut",
        "completions/texts_one_empty",
    }
)
# Refused by the engine for what is not about the prompt: the gateway answers the first itself.
REFUSED_FOR_OTHER_REASONS = frozenset({"chat/refused/unknown_model"})
# The run went well and only its answer could not be written, so nothing is known of its ids.
NO_CLAIM = "Error serializing to JSON"


@pytest.fixture(scope="module")
def tokenizers():
    return {folder.name: loaded(folder) for folder in (DATA / "tokenizers").glob("*/")}


def loaded(folder: Path) -> ModelTokenizer:
    is_mistral = (folder / "tekken.json").is_file()
    engine = EngineConfig(renderer="mistral" if is_mistral else "template")
    tokenizer = load_tokenizer(str(folder), engine, ByteCache(0)).tokenizer
    assert tokenizer is not None
    return tokenizer


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


def ids_here(tokenizer: ModelTokenizer, case: dict) -> list[int] | None:
    try:
        found = tokenizer.tokenize(read_body(raw(case), find(case["path"]).kind))
    except (PromptProblem, InvalidRequest):
        return None
    return unpack_tokens(found.packed_tokens) if found.whole else None


def differences(
    tokenizer: ModelTokenizer, cases: list[dict], not_known: frozenset[str]
) -> Iterator[str]:
    for case in cases:
        if NO_CLAIM in (case.get("message") or "") or case["name"] in REFUSED_FOR_OTHER_REASONS:
            continue
        expected = case["prompt_token_ids"] if case["status"] == 200 else None
        found = ids_here(tokenizer, case)
        if found is None and case["name"] in not_known:
            continue
        if found != expected:
            yield f"{case['name']}: {found and found[:50]} for {expected and expected[:50]}"


def test_all_tokenizers_were_recorded_with_several_sets_of_flags():
    headers = [read(file)[0] for file in FILES]
    recorded = {header["tokenizer"] for header in headers}
    assert recorded == {"qwen3", "smollm2", "tekken3", "tekken13"}
    assert len({json.dumps(header["flags"]) for header in headers}) >= 3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_ids_are_those_of_the_run(tokenizers, file):
    header, cases = read(file)
    assert sum(case["status"] == 200 for case in cases) >= 120
    tokenizer = tokenizers[header["tokenizer"]].for_engine(engine_of(header["flags"]))
    of_mistral = header["flags"].get("tokenizer_mode") == "mistral"
    not_known = NOT_KNOWN_OF_TEKKEN if of_mistral else frozenset()
    assert list(differences(tokenizer, cases, not_known)) == []
