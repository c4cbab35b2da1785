"""Laws of exact prompts: what may not change the ids, what must, and what is known of media."""

import json
from contextlib import suppress
from pathlib import Path

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config.engine import EngineConfig
from gateway.prompt.body import BodyKind, read_body
from gateway.prompt.detect import iterates_parts
from gateway.prompt.problem import PromptProblem
from gateway.prompt.tokenizer import PromptTokenizer, TokenizerUnavailable
from routing.hashing import HashSpec, block_keys, unpack_tokens

QWEN3 = str(Path(__file__).parents[1] / "data" / "tokenizers" / "qwen3")

KINDS = (BodyKind.CHAT, BodyKind.COMPLETION, BodyKind.MESSAGES, BodyKind.RESPONSES)
SLOW = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def tokenizer():
    return PromptTokenizer.load(QWEN3)


@pytest.fixture(scope="module")
def parts_tokenizer(tokenizer, tmp_path_factory):
    """A model that sees pictures: its template writes a mark for each."""
    file = tmp_path_factory.mktemp("template") / "parts.jinja"
    file.write_text(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% for part in message.content %}{% if part.type == 'image' %}"
        "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
        "{% endfor %}<|im_end|>\n{% endfor %}"
    )
    return tokenizer.for_engine(EngineConfig(chat_template=str(file)))


def body_of(kind, fields):
    return read_body(json.dumps({"model": "m", **fields}).encode(), kind)


def chat(*messages, **fields):
    return body_of(BodyKind.CHAT, {"messages": list(messages), **fields})


def user(content):
    return {"role": "user", "content": content}


def picture(url):
    return {"type": "image_url", "image_url": {"url": url}}


def text(content):
    return {"type": "text", "text": content}


# Anything that JSON can say, with words that mean something here more often than by chance.
words = st.sampled_from(
    [
        *("role", "content", "type", "text", "name", "user", "assistant", "tool", "system"),
        *("function", "tool_calls", "arguments", "parameters", "id", "input", "output", "auto"),
    ]
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 5), st.floats(allow_nan=False), words, st.text()
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(words | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)
roles = st.sampled_from(["user", "assistant", "system", "tool", "developer", "other"])
messages = st.lists(
    st.one_of(
        anything,
        st.fixed_dictionaries(
            {"role": roles},
            optional={
                "content": st.one_of(st.text(), st.lists(anything, max_size=3), anything),
                "tool_calls": anything,
                "name": scalars,
                "reasoning_content": scalars,
            },
        ),
    ),
    min_size=1,
    max_size=4,
)
FIELDS = (
    *("tools", "tool_choice", "documents", "chat_template_kwargs", "reasoning_effort", "thinking"),
    *("truncate_prompt_tokens", "truncation", "max_tokens", "system", "instructions", "suffix"),
    *("add_generation_prompt", "continue_final_message", "kv_transfer_params"),
)
bodies = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, anything))


@SLOW
@given(messages=messages, fields=bodies, prompt=anything, kind=st.sampled_from(KINDS))
def test_no_body_does_more_than_to_have_no_ids(tokenizer, messages, fields, prompt, kind):
    body = chat(user("x"))
    named = {"messages": messages, "input": messages, "prompt": prompt, "max_tokens": 5}
    body.fields.clear()
    body.fields.update({"model": "m", **named, **fields})
    body = type(body)(kind, "m", body.fields, 100)
    before = json.dumps(body.fields)
    with suppress(PromptProblem):
        tokenizer.tokenize(body, max_model_len=4096)
    assert json.dumps(body.fields) == before  # what is forwarded is never touched


spoken = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)


@SLOW
@given(texts=st.lists(spoken, min_size=1, max_size=4), fields=st.permutations(["a", "b", "c"]))
def test_the_spelling_of_json_does_not_matter(tokenizer, texts, fields):
    turns = [{"role": "user", "content": content} for content in texts]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"é": [1.0, 1e5]}}}
    body = {"model": "m", "messages": turns, "tools": [tool]}
    spellings = [
        json.dumps(body),
        json.dumps(body, ensure_ascii=False, indent=2),
        json.dumps({**dict.fromkeys(fields), **body}, separators=(",", ":")),
        json.dumps({"messages": [], **dict(reversed(body.items()))}),
    ]
    ids = {tuple(tokenizer.token_ids(read_body(s.encode(), BodyKind.CHAT))) for s in spellings}
    assert len(ids) == 1


@SLOW
@given(texts=st.lists(spoken, min_size=2, max_size=5), data=st.data())
def test_equal_beginnings_have_equal_keys_and_others_differ(tokenizer, texts, data):
    cut = data.draw(st.integers(1, len(texts) - 1))
    shorter, longer = (
        tokenizer.tokenize(chat(*map(user, turns), add_generation_prompt=False)).packed_tokens
        for turns in (texts[:cut], texts)
    )
    assert longer.startswith(shorter)
    spec = HashSpec("m", 4)
    keys = block_keys(longer, spec)
    assert keys[: len(block_keys(shorter, spec))] == block_keys(shorter, spec)
    assert len(set(keys)) == len(keys)
    salted = block_keys(longer, HashSpec("m", 4, cache_salt="a"))
    adapted = block_keys(longer, HashSpec("m", 4, lora="a"))
    other = block_keys(longer, HashSpec("n", 4))
    assert not set(keys) & set(salted)
    assert not set(salted) & set(adapted)
    assert not set(keys) & set(other)


LONG = "Look at this closely, and then tell me what you see there. " * 5


def known(tokenizer, *parts):
    found = tokenizer.tokenize(chat({"role": "system", "content": LONG}, user(list(parts))))
    return found, unpack_tokens(found.packed_tokens)


def test_ids_are_known_up_to_the_first_picture(parts_tokenizer):
    one, ids = known(parts_tokenizer, text(LONG), picture("a"), text("b"))
    other, same_ids = known(parts_tokenizer, text(LONG), picture("c"), text("d"), picture("e"))
    assert (one.whole, other.whole) == (False, False)
    assert ids == same_ids
    assert len(ids) > 100
    assert one.num_tokens > len(ids)
    written = parts_tokenizer.reference.decode(ids)
    assert LONG.strip()[:250] in written
    assert "vision" not in written


def test_texts_before_a_picture_that_differ_have_other_ids(parts_tokenizer):
    _, ids = known(parts_tokenizer, text(LONG), picture("a"))
    _, others = known(parts_tokenizer, text("No. " + LONG), picture("a"))
    assert ids != others
    assert ids[:50] == others[:50]


def test_where_texts_are_joined_only_earlier_messages_are_known(tokenizer):
    _, ids = known(tokenizer, text(LONG * 2), picture("a"))
    written = tokenizer.reference.decode(ids)
    assert written.startswith("<|im_start|>system\nLook at this")
    assert "user" not in written


def test_the_end_of_a_prompt_with_pictures_is_not_known(parts_tokenizer):
    with pytest.raises(PromptProblem) as caught:
        parts_tokenizer.tokenize(chat(user([picture("a")]), truncate_prompt_tokens=5))
    assert caught.value.reason == "multimodal"


MACRO = "{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
EACH = "{% for m in messages %}BODY{% endfor %}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (EACH.replace("BODY", "{{ m.content }}"), False),
        (EACH.replace("BODY", "{% for p in m.content %}{% endfor %}"), True),
        (EACH.replace("BODY", "{% for p in m['content'] %}{% endfor %}"), True),
        (EACH.replace("BODY", "{% for p in m.content|list %}{% endfor %}"), True),
        (EACH.replace("BODY", "{% for c in m.tool_calls %}{% endfor %}"), False),
        ("{% for m in messages[1:] %}{% for p in m.content %}{% endfor %}{% endfor %}", True),
        ("{% set x = messages %}" + EACH.replace("messages", "x"), False),
        (
            "{% set x = messages %}"
            + EACH.replace("messages", "x").replace("BODY", "{% for p in m.content %}{% endfor %}"),
            True,
        ),
        ("{% for p in content %}{% endfor %}", True),
        (MACRO + EACH.replace("BODY", "{{ f(m.content) }}"), True),
        (MACRO + EACH.replace("BODY", "{{ f(c=m.content) }}"), True),
        (MACRO + EACH.replace("BODY", "{{ f(m.role) }}"), False),
        ("{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}", False),
    ],
)
def test_templates_that_want_parts(template, expected):
    assert iterates_parts(jinja2.Environment().parse(template)) is expected


def test_templates_that_ask_for_the_day_are_known(tokenizer, tmp_path):
    file = tmp_path / "dated.jinja"
    file.write_text("{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    dated = tokenizer.for_engine(EngineConfig(chat_template=str(file)))
    found = dated.tokenize(chat(user("hello")))
    assert found.is_dated
    assert dated.renderer.is_dated
    assert not tokenizer.tokenize(chat(user("hello"))).is_dated


@pytest.mark.parametrize("content", [None, "{% for %}"])
def test_a_chat_template_that_cannot_be_used_says_so(tokenizer, tmp_path, content):
    file = tmp_path / "broken.jinja"
    if content is not None:
        file.write_text(content)
    with pytest.raises(TokenizerUnavailable, match=r"chat_template .* cannot be used"):
        tokenizer.for_engine(EngineConfig(chat_template=str(file)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"truncate_prompt_tokens": 2}, [4, 5]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [1, 2]),
        ({"truncate_prompt_tokens": 9}, [1, 2, 3, 4, 5]),
        ({"truncate_prompt_tokens": -1}, [1, 2, 3, 4, 5]),
    ],
)
def test_prompts_are_cut_as_the_engine_cuts_them(tokenizer, fields, expected):
    body = body_of(BodyKind.COMPLETION, {"prompt": [1, 2, 3, 4, 5], **fields})
    assert unpack_tokens(tokenizer.tokenize(body, max_model_len=100).packed_tokens) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1] * 11},
        {"prompt": "word " * 50},
        {"prompt": [1], "max_tokens": 11},
        {"prompt": [1], "truncate_prompt_tokens": 11},
        {"prompt": [10**7]},
        {"prompt": [[1], []]},
        {"prompt": ""},
    ],
)
def test_prompts_that_do_not_fit_are_refused(tokenizer, fields):
    with pytest.raises(PromptProblem) as caught:
        tokenizer.tokenize(body_of(BodyKind.COMPLETION, fields), max_model_len=10)
    assert caught.value.reason == "refused"
