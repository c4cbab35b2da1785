"""Token ids by short cuts are those of the reference, and block keys those of the whole prompt."""

import json
import re
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import gateway.prompt.encoder as encoding
import gateway.prompt.keys as keeping
from gateway.prompt.body import BodyKind, read_body
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.encoder import AddedTokens, Encoder, squeeze, unsqueeze
from gateway.prompt.fast import FastTokenizer
from gateway.prompt.keys import BlockKeys
from gateway.prompt.prepare import prepare_now
from gateway.prompt.proof import corpus, proven_encoder
from gateway.prompt.tokenizer import PromptTokenizer
from routing.hashing import HashSpec, block_keys, pack_tokens

FOLDERS = ["loadtests/demo_model", "tests/data/tokenizers/qwen3", "tests/data/tokenizers/smollm2"]
TEXTS = st.text(max_size=60) | st.sampled_from(
    ["<|im_end|>", "<|im_start|>user\n", " <|im_end|>\n", "<think>", "<|im_", "a\u0301", "\x00", ""]
)
CHATS = st.lists(st.lists(TEXTS, max_size=3).map("".join), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=FOLDERS)
def loaded(request):
    tokenizer = AutoTokenizer.from_pretrained(request.param)
    cache = ByteCache(2**22)
    return SimpleNamespace(
        tokenizer=tokenizer, cache=cache, proven=proven_encoder(tokenizer, cache)
    )


# One token is the beginning of another.
ADDED = AddedTokens(re.compile(b"(<<a>>|<<a)"), {}, max_bytes=5)


def whole(tokenizer, text, *, add=False):
    return pack_tokens(tokenizer.encode(text, add_special_tokens=add))


def test_real_tokenizers_take_every_short_cut(loaded):
    assert (loaded.proven.not_faster, loaded.proven.not_kept) == (None, None)
    assert loaded.cache.hits > 100, "the proof has looked at kept segments"


@settings(max_examples=60, deadline=None)
@given(texts=CHATS, add=st.booleans())
def test_kept_segments_give_the_ids_of_the_whole_text(loaded, texts, add):
    text = "<|im_end|>\n<|im_start|>".join(texts)
    encoder = loaded.proven.encoder
    expected = whole(loaded.tokenizer, text, add=add)
    for _ in range(2):
        assert encoder.encode(text, add_special_tokens=add) == expected


@settings(max_examples=30, deadline=None)
@given(texts=CHATS, edit=TEXTS, data=st.data())
def test_an_edit_of_an_earlier_turn_gives_the_ids_of_the_edited_text(loaded, texts, edit, data):
    encoder = loaded.proven.encoder
    encoder.encode("<|im_end|>".join(texts))
    place = data.draw(st.integers(0, len(texts) - 1))
    edited = "<|im_end|>".join([*texts[:place], edit, *texts[place + 1 :]])
    assert encoder.encode(edited) == whole(loaded.tokenizer, edited)


def test_half_a_surrogate_pair_is_no_text_whichever_way(loaded):
    for encoder in (loaded.proven.encoder, Encoder(loaded.tokenizer)):
        with pytest.raises(UnicodeEncodeError):
            encoder.encode("a\ud83d<|im_end|>")


def test_a_new_turn_has_only_its_own_bytes_to_tokenize(loaded):
    encoder = loaded.proven.encoder
    first = "<|im_start|>user\nWho was it?<|im_end|>\n<|im_start|>assistant\n"
    encoder.encode(first)
    answer = "It was the seventh one."
    assert encoder.cut(first + answer + "<|im_end|>").num_new_bytes == len("assistant\n" + answer)


@given(st.text(max_size=30))
def test_long_texts_are_converted_in_slices(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "SLICE_CHARS", 4)
        assert encoding.utf8(text) == text.encode()
        assert encoding.from_utf8(text.encode()) == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"<<a>>", b"<<a", b"a>>", b"<", b"xyz"]), max_size=40))
def test_long_texts_are_cut_at_the_same_tokens_in_slices(parts):
    text = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "SLICE_CHARS", 4)
        assert ADDED.split(text) == ADDED.pattern.split(text)


def test_the_same_text_is_another_one_for_another_tokenizer():
    cache = ByteCache(2**20)
    demo, qwen = (
        proven_encoder(AutoTokenizer.from_pretrained(folder), cache).encoder
        for folder in FOLDERS[:2]
    )
    assert demo.encode("Hello there") != qwen.encode("Hello there")
    assert demo.encode("Hello there") == Encoder(AutoTokenizer.from_pretrained(FOLDERS[0])).encode(
        "Hello there"
    )


def made(*, pre=None, normalizer=None, **token):
    """A small tokenizer of characters, with one added token."""
    characters = sorted({c for text in corpus() for c in text if ord(c) < 0x2FF} | {"\u2581"})
    model = models.BPE({c: i for i, c in enumerate(characters)}, [], unk_token=None)
    tokenizer = Tokenizer(model)
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([AddedToken("<|x|>", normalized=False, **token)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (lambda: made(pre=pre_tokenizers.Metaspace(prepend_scheme="first")), "other ids"),
        (lambda: made(rstrip=True), "special tokens that take the space"),
        (lambda: made(lstrip=True), "special tokens that take the space"),
        (lambda: made(single_word=True), "special tokens that take the space"),
    ],
    ids=["metaspace", "rstrip", "lstrip", "single_word"],
)
def test_a_tokenizer_whose_segments_are_not_by_themselves_keeps_none(tokenizer, why):
    tokenizer = tokenizer()
    cache = ByteCache(2**20)
    proven = proven_encoder(tokenizer, cache)
    assert why in proven.not_kept
    text = " a b<|x|> c <|x|>d"
    assert proven.encoder.encode(text) == whole(tokenizer, text)


def test_a_normalizer_works_on_each_segment_by_itself_and_is_no_hindrance():
    tokenizer = made(normalizer=normalizers.NFC())
    proven = proven_encoder(tokenizer, ByteCache(2**20))
    assert proven.not_kept is None
    text = "e<|x|>\u0301e\u0301"
    assert proven.encoder.encode(text) == whole(tokenizer, text)


def test_a_faster_tokenizer_with_other_ids_is_not_taken(monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(FOLDERS[0])
    packed = FastTokenizer.packed
    wrong = {"ab" * 300: b"\1\0\0\0"}
    monkeypatch.setattr(
        FastTokenizer,
        "packed",
        lambda self, texts: [
            wrong.get(t) or p for t, p in zip(texts, packed(self, texts), strict=True)
        ],
    )
    assert "other ids" in proven_encoder(tokenizer, ByteCache(2**20)).not_faster


def test_without_the_faster_tokenizer_there_is_the_reference(monkeypatch):
    def missing(self, tokenizer):
        raise ImportError("no fastokens")

    monkeypatch.setattr(FastTokenizer, "__init__", missing)
    tokenizer = AutoTokenizer.from_pretrained(FOLDERS[0])
    proven = proven_encoder(tokenizer, ByteCache(2**20))
    assert (proven.not_faster, proven.not_kept) == ("cannot be loaded: ImportError", None)
    assert proven.encoder.encode("Hi<|im_end|>") == whole(tokenizer, "Hi<|im_end|>")


def test_a_faster_tokenizer_that_fails_on_a_text_leaves_it_to_the_reference():
    tokenizer = AutoTokenizer.from_pretrained(FOLDERS[0])
    fast = FastTokenizer(tokenizer)

    class Failing:
        def encode_batch_flat(self, texts):
            raise RuntimeError("match limit")

    fast._native = Failing()
    assert fast.packed(["Hello", ""]) == [whole(tokenizer, "Hello"), b""]


@given(st.lists(st.lists(st.integers(0, 2**24 - 1), max_size=20), max_size=5))
def test_squeezed_ids_come_back(lists):
    packed = [pack_tokens(ids) for ids in lists]
    squeezed = list(map(squeeze, packed))
    assert unsqueeze(squeezed) == b"".join(packed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "_MANY_TOKENS", 1)  # by numpy, as long lists are
        assert list(map(squeeze, packed)) == squeezed
        assert unsqueeze(squeezed) == b"".join(packed)


@pytest.mark.parametrize("num_tokens", [0, 3, 4, 63, 64, 65, 128, 500])
def test_kept_block_keys_are_those_of_the_whole_prompt(monkeypatch, num_tokens):
    monkeypatch.setattr(keeping, "PAGE_BLOCKS", 8)
    keys = BlockKeys(ByteCache(2**20))
    packed = pack_tokens(range(num_tokens))
    for spec in (HashSpec("m", 4), HashSpec("m", 8), HashSpec("m", 4, "lora"), HashSpec("m", 1)):
        for _ in range(2):
            assert keys.of(packed, spec) == block_keys(packed, spec)


names = st.sampled_from(["", "a", "b", "ab", "m"])
specs = st.builds(HashSpec, names, st.sampled_from([2, 4]), names, names)
tokens = st.lists(st.integers(0, 1), max_size=40)
KEPT = BlockKeys(ByteCache(2**20))


@given(tokens, tokens, tokens, specs, specs)
def test_equal_prefixes_have_equal_keys_and_only_they(prefix, one, other, spec, other_spec):
    """LoRA, salt, model and block size separate; a page kept for one prompt serves another."""
    first, second = prefix + one, prefix + other
    keys = KEPT.of(pack_tokens(first), spec)
    others = KEPT.of(pack_tokens(second), other_spec)
    size = spec.block_size
    if spec != other_spec:
        assert not set(keys) & set(others)
        return
    common = sum(
        first[: (n + 1) * size] == second[: (n + 1) * size]
        for n in range(min(len(first), len(second)) // size)
    )
    assert keys[:common] == others[:common]
    assert not set(keys[common:]) & set(others[common:])


@pytest.fixture(scope="module")
def prepared():
    cache = ByteCache(2**22)
    tokenizer = PromptTokenizer.load(FOLDERS[0], cache)
    keys = BlockKeys(cache)
    plain = PromptTokenizer(tokenizer.reference)

    def prepare(messages):
        body = {"model": "m", "messages": messages}
        read = read_body(json.dumps(body).encode(), BodyKind.CHAT)
        fast = prepare_now(tokenizer, read, (SPEC,), keys)
        slow = prepare_now(plain, read)
        assert fast.packed_tokens == slow.packed_tokens
        assert fast.keys(SPEC) == slow.keys(SPEC)
        return fast

    return prepare


SPEC = HashSpec("m", 4)


@pytest.mark.parametrize("seed", range(5))
def test_growing_and_edited_chats_have_the_keys_of_a_fresh_gateway(prepared, monkeypatch, seed):
    """Twenty turns, some of them after a change of an earlier one, with and without kept parts."""
    monkeypatch.setattr(keeping, "PAGE_BLOCKS", 4)
    rng = Random(seed)
    messages = [{"role": "system", "content": "Be brief."}]
    for turn in range(20):
        text = " ".join(
            rng.choices(["one", "two", "\u4f60\u597d", "<|im_end|>", "3.14", "\n"], k=9)
        )
        role = ("user", "assistant")[turn % 2]
        messages.append({"role": role, "content": text})
        if rng.random() < 0.2:
            place = rng.randrange(len(messages))
            messages[place] = {**messages[place], "content": f"edited {turn}"}
        prepared(messages)
