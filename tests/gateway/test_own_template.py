"""Chat templates that come with requests, where the engines trust them."""

import time

import pytest

from gateway.config.engine import EngineConfig
from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.own_template import MAX_KEPT, MAX_TEMPLATE_CHARS, OwnTemplates
from gateway.prompt.problem import PromptProblem
from gateway.prompt.template import ChatCall
from gateway.prompt.tokenizer import PromptTokenizer

MODEL = "loadtests/demo_model"
BRIEF = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer():
    return PromptTokenizer.load(MODEL).for_engine(EngineConfig(trust_request_chat_template=True))


def chat(**fields):
    messages = [{"role": "user", "content": "Say hello"}]
    return RequestBody(BodyKind.CHAT, "m", {"messages": messages, **fields}, 100)


def problem_of(tokenizer, body):
    with pytest.raises(PromptProblem) as caught:
        tokenizer.tokenize(body)
    return caught.value.reason


def test_a_trusted_template_writes_the_prompt(tokenizer):
    expected = tokenizer.reference.encode("[user] Say hello", add_special_tokens=False)
    assert tokenizer.token_ids(chat(chat_template=BRIEF)) == expected
    assert tokenizer.token_ids(chat()) != expected


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"chat_template": "{% for %}"}, "template_refused"),
        ({"chat_template": "{{ raise_exception('no') }}"}, "template_refused"),
        ({"chat_template": "{{ ().__class__.__base__.__subclasses__() }}"}, "template_refused"),
        ({"chat_template": "x" * (MAX_TEMPLATE_CHARS + 1)}, "unsupported"),
        ({"chat_template": 7}, "refused"),
        ({"chat_template_kwargs": {"chat_template": BRIEF}}, "unsupported"),
        (
            {
                "chat_template": BRIEF,
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
            "unsupported",
        ),
    ],
)
def test_what_is_not_written_has_no_ids(tokenizer, fields, reason):
    assert problem_of(tokenizer, chat(**fields)) == reason


@pytest.mark.parametrize(
    "endless",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        (
            "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}"
            "{% endmacro %}{{ twice(60) }}"
        ),
    ],
    ids=["loops", "macros"],
)
def test_a_template_without_an_end_is_stopped(tokenizer, endless):
    started = time.thread_time()
    assert problem_of(tokenizer, chat(chat_template=endless)) == "timeout"
    assert time.thread_time() - started < 1.0


def test_without_the_flag_engines_refuse_it():
    assert problem_of(PromptTokenizer.load(MODEL), chat(chat_template=BRIEF)) == "refused"


def test_few_are_kept(tokenizer):
    own = OwnTemplates(tokenizer.reference)
    first = own.get("0")
    assert own.get("0") is first
    for number in range(1, MAX_KEPT + 1):
        own.get(str(number))
    again = own.get("0")
    assert again is not first
    assert again.engine.render(ChatCall([{"role": "user", "content": "x"}], {})) == "0"
