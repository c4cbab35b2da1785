"""Templates that are called directly write what transformers writes."""

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

import gateway.prompt.compiled as directly
from gateway.prompt.compiled import CompiledTemplate, proven_template
from gateway.prompt.problem import PromptProblem
from gateway.prompt.template import ChatCall, ChatTemplate

FOLDERS = ["loadtests/demo_model", "tests/data/tokenizers/qwen3", "tests/data/tokenizers/smollm2"]
# What templates do with what they get, and what a sandbox forbids.
TRICKY = {
    "missing keys": "{{ messages[0].nothing }}|{{ messages[0].nothing is defined }}",
    "keys named as methods": "{{ messages[0].items is string }}{{ messages[0]['items'] }}",
    "methods": "{{ messages[0].content.strip().upper().split('A')|join('-') }}",
    "format": "{{ '%s'|format(messages[0].content) }}{{ '{}'.format(messages[0].content) }}",
    "forbidden format": "{{ '{0.__class__}'.format(messages[0].content) }}",
    "forbidden attribute": "{{ messages[0].content.__class__ }}",
    "forbidden of a dict": "{{ messages[0].__class__.__mro__ }}",
    "change of a list": "{{ messages.append(1) }}",
    "change of a dict": "{{ messages[0].update({'a': 1}) }}",
    "namespace": "{% set n = namespace(a=[1], f='{}'.format) %}{{ n.a }}{{ n.f('x') }}{{ n.b }}",
    "hidden in a namespace": "{% set n = namespace(a=1) %}{{ n._x }}{{ n.__class__ }}",
    "loop": "{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.cycle(1, 2) }}"
    "{{ loop.previtem is defined }}{{ loop.nothing }}{% endfor %}",
    "loop control": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
    "x{% endfor %}",
    "json": "{{ messages|tojson }}{{ messages[0]|tojson(indent=1) }}",
    "raised": "{{ raise_exception('no') }}",
    "generation": "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "options": "{{ padding }}{{ return_dict }}{{ tokenize }}{{ continue_final_message }}",
    "special tokens": "{{ eos_token }}{{ bos_token }}{{ pad_token }}",
    "all arguments": "{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ enable_thinking }}",
    "reasoning": "{{ messages[0].thinking }}{{ messages[0].reasoning_content }}",
}


@pytest.fixture(scope="module", params=FOLDERS)
def both(request):
    tokenizer = AutoTokenizer.from_pretrained(request.param)
    reference = ChatTemplate(tokenizer, tokenizer.chat_template)
    return reference, proven_template(tokenizer, reference)


def written(engine, call):
    try:
        return engine.render(call)
    except PromptProblem as problem:
        return problem.reason


texts = st.text(max_size=20) | st.sampled_from(
    ["<think>a</think>b", "</think>", "<tool_response>x</tool_response>", "\n\n", "{{ x }}"]
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "x"])},
    optional={
        "content": texts
        | st.none()
        | st.lists(st.builds(lambda t: {"type": "text", "text": t}, texts)),
        "reasoning": texts | st.none(),
        "reasoning_content": texts,
        "name": texts,
        "tool_calls": st.just(
            [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
        ),
        "items": texts,
        "get": texts,
    },
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "add_generation_prompt": st.booleans(),
        "continue_final_message": st.booleans(),
        "enable_thinking": st.booleans() | st.just("false"),
        "tools": st.none() | st.just([{"type": "function", "function": {"name": "f"}}]),
        "documents": st.none() | st.just([{"title": "t", "text": "x"}]),
        "bos_token": texts,
        "padding": st.just(True),
    },
)


@settings(max_examples=150, deadline=None)
@given(conversation=st.lists(messages, max_size=5), given_arguments=arguments)
def test_any_conversation_comes_out_the_same(both, conversation, given_arguments):
    reference, direct = both
    assert direct is not None
    call = ChatCall(conversation, given_arguments)
    assert written(direct, call) == written(reference, call)


@pytest.mark.parametrize("source", TRICKY.values(), ids=TRICKY)
def test_a_template_comes_out_the_same_whatever_it_does(source):
    tokenizer = AutoTokenizer.from_pretrained(FOLDERS[0])
    reference = ChatTemplate(tokenizer, source)
    direct = CompiledTemplate(tokenizer, reference)
    message = {"role": "user", "content": " a{}b ", "items": "i", "reasoning": "r", "gone": None}
    for given_arguments in ({}, {"enable_thinking": True, "tools": [], "padding": True}):
        call = ChatCall([message, {"role": "assistant", "content": ""}], given_arguments)
        assert written(direct, call) == written(reference, call)


def test_the_request_s_clock_is_the_template_s():
    tokenizer = AutoTokenizer.from_pretrained(FOLDERS[0])
    source = "{{ strftime_now('%d %b %Y') }}"
    direct = CompiledTemplate(tokenizer, ChatTemplate(tokenizer, source))
    clock = {"strftime_now": datetime(2026, 11, 29).strftime}  # noqa: DTZ001 - local, as engines have it
    assert direct.render(ChatCall([{"role": "user", "content": "x"}], clock)) == "29 Nov 2026"


def test_a_template_that_comes_out_otherwise_is_left_to_transformers(monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(FOLDERS[0])
    reference = ChatTemplate(tokenizer, tokenizer.chat_template)
    monkeypatch.setattr(directly, "_messages", lambda messages: [*messages, *messages])
    assert proven_template(tokenizer, reference) is None


def test_a_transformers_without_compiled_templates_is_used_as_it_is(monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(FOLDERS[0])
    reference = ChatTemplate(tokenizer, tokenizer.chat_template)
    monkeypatch.delattr(directly.chat_template_utils, "_compile_jinja_template")
    assert proven_template(tokenizer, reference) is None
