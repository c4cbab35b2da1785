"""The committed tokenizer is what its script makes, and loads the same way everywhere."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from loadtests.demo_model import corpus, prose, train, words

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "loadtests" / "demo_model"


@pytest.fixture(scope="module")
def plain() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def auto():
    return AutoTokenizer.from_pretrained(str(FOLDER), local_files_only=True)


def test_training_again_gives_the_committed_files(tmp_path: Path):
    # In a process of its own, with other string hashes: nothing may depend on the order of a set.
    subprocess.run(
        [sys.executable, "-m", "loadtests.demo_model.train", "--out", str(tmp_path)],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env={"PYTHONHASHSEED": "12345"},
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert digest(tmp_path / name) == digest(FOLDER / name), name


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_vocabulary_has_the_special_tokens_and_every_byte(plain: Tokenizer):
    assert plain.get_vocab_size() == train.VOCAB_SIZE
    assert [plain.token_to_id(text) for text in train.SPECIAL_TOKENS] == [0, 1, 2]
    assert plain.encode("<|im_start|>user<|im_end|>").ids[0::2] == [1, 2]
    # A script that the training never saw falls back to its bytes.
    assert len(plain.encode("\N{CUNEIFORM SIGN A}").ids) == len("\N{CUNEIFORM SIGN A}".encode())


def test_transformers_gives_the_same_ids(plain: Tokenizer, auto):
    assert auto.eos_token_id == 2
    for text in corpus.documents(seed=99, count=60):
        marked = f"<|im_start|>user\n{text}<|im_end|>\n"
        assert auto.encode(marked, add_special_tokens=False) == plain.encode(marked).ids


@given(st.text())
def test_any_text_comes_back_from_its_ids(text: str):
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_listed_words_are_single_tokens(plain: Tokenizer):
    for listed in (words.NOUNS, words.VERBS, words.ADJECTIVES, words.ADVERBS):
        assert [word for word in listed if len(plain.encode(f" {word}").ids) != 1] == []


def test_made_text_has_as_many_characters_a_token_as_english(plain: Tokenizer):
    texts = list(corpus.documents(seed=7, count=40))
    num_tokens = sum(len(plain.encode(text).ids) for text in texts)
    assert 4.0 < sum(map(len, texts)) / num_tokens < 5.5


def test_a_chat_is_rendered_with_special_tokens_between_messages(auto):
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None},
    ]
    assert render(auto, chat) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_and_their_calls_are_rendered_as_json(auto):
    tool = {"type": "function", "function": {"name": "look_up", "description": "é"}}
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": {"a": 1}}}
    as_text = {**call, "function": {"name": "look_up", "arguments": '{"a": 1}'}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call, as_text]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    text = render(auto, chat, tools=[tool])
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call")
    assert '\n{"type": "function", "function": {"name": "look_up", "description": "é"}}\n' in text
    one = '<tool_call>\n{"name": "look_up", "arguments": {"a": 1}}\n</tool_call>'
    assert f"<|im_start|>assistant\nLet me see.\n{one}\n{one}<|im_end|>\n" in text
    assert text.endswith("<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n")


def render(auto, chat, tools=None) -> str:
    return auto.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("form", "word", "expected"),
    [
        (prose.plural, "city", "cities"),
        (prose.plural, "key", "keys"),
        (prose.plural, "box", "boxes"),
        (prose.past, "stop", "stopped"),
        (prose.past, "cover", "covered"),
        (prose.past, "carry", "carried"),
        (prose.past, "send", "sent"),
        (prose.gerund, "plan", "planning"),
        (prose.gerund, "make", "making"),
        (prose.gerund, "wait", "waiting"),
        (prose.adverb, "simple", "simply"),
        (prose.adverb, "happy", "happily"),
        (prose.adverb, "slow", "slowly"),
    ],
)
def test_words_are_inflected(form, word, expected):
    assert form(word) == expected


def test_word_lists_are_read_by_section():
    text = "# a comment\n[one]\na b\nc\n\n[two]\nd\n"
    assert words.read_lists(text) == {"one": ("a", "b", "c"), "two": ("d",)}
