"""Golden cases of the chat API: text, roles, parts, thinking, and fields that change the prompt."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from loadtests.conformance.cases import (
    CHAT,
    Case,
    assistant,
    case,
    chat,
    spelled,
    system,
    text,
    user,
)

# Texts in many scripts by name, and words for prose. In a file, as its escapes are JSON's.
_DATA: Final = json.loads(Path(__file__).with_name("texts.json").read_text("utf-8"))
_TEXTS: Final[Mapping[str, str]] = _DATA["texts"]
_WORDS: Final[Sequence[str]] = _DATA["words"]
# 4,400 tokens: over the recorded engines' limit of 4,096.
TOO_LONG: Final = "many words " * 2200


def prose(seed: int, words: int) -> str:
    """Return words in an order that depends on the seed alone."""
    random = Random(seed)
    return " ".join(random.choice(_WORDS) for _ in range(words))


def cases() -> Iterator[Case]:
    """Yield the cases."""
    for name, content in _TEXTS.items():
        yield chat(f"text/{name}", system("Be brief."), user(content))
    yield from _shapes()
    yield from _roles()
    yield from _content()
    yield from _parts()
    yield from _thinking()
    yield from _arguments()
    yield from _effort()
    yield from _limits()
    yield from _refused()


def _shapes() -> Iterator[Case]:
    yield chat("shape/user_only", user("Hello"))
    yield chat("shape/system_only", system("You are terse."))
    yield chat("shape/assistant_first", assistant("Hi, I begin."), user("Hello"))
    yield chat("shape/two_turns", user("Hello"), assistant("Hi!"), user("How are you?"))
    yield chat("shape/ends_with_assistant", user("Hello"), assistant("Hi, how"))
    yield chat("shape/two_users", user("Hello"), user("Are you there?"))
    turns: list[dict[str, Any]] = []
    for turn in range(20):
        turns += [user(prose(turn, 12)), assistant(prose(100 + turn, 20))]
    yield chat("shape/forty_messages", system("Be brief."), *turns, user("And now?"))
    yield chat("shape/long_system", system(prose(7, 900)), user("Summarise."))
    yield chat("shape/long_user", user(prose(8, 1200)))


def _roles() -> Iterator[Case]:
    developer = {"role": "developer", "content": "Use metric units."}
    yield chat("role/developer", developer, user("Hello"))
    yield chat("role/developer_and_system", system("Be brief."), developer, user("Hello"))
    yield chat("role/developer_late", user("Hello"), assistant("Hi"), developer, user("Go on"))
    late = (user("Hello"), system("Late rule."), user("Go on"))
    yield chat("role/system_late", *late)
    yield chat("role/system_late_with_developer", developer, *late)
    yield chat("role/two_systems", system("One."), system("Two."), user("Hello"))
    parts = {"role": "developer", "content": [text("Use"), text("metric units.")]}
    yield chat("role/developer_in_parts", parts, system("Be brief."), user("Hello"))
    yield chat("role/unknown", {"role": "critic", "content": "Too long."}, user("Hello"))
    yield chat("role/empty", {"role": "", "content": "Who?"}, user("Hello"))
    yield chat("role/upper_case", {"role": "User", "content": "Hello"})
    yield chat("role/missing", {"content": "Hello"})
    yield chat("role/function", user("Hi"), {"role": "function", "name": "f", "content": "1"})
    yield chat("role/name", user("Hello", name="ada"), assistant("Hi", name="bot"), user("Yes"))
    billing = "x-anthropic-billing-header: cc_version=1.2.3"
    yield chat("role/billing_header", system(f"{billing}\nBe brief."), user("Hello"))
    yield chat("role/billing_header_only", system(billing), user("Hello"))
    yield chat("role/billing_header_second", system("Be brief."), system(billing), user("Hello"))


def _content() -> Iterator[Case]:
    for role in ("user", "system", "assistant", "tool"):
        null = {"role": role, "content": None}
        missing = {"role": role}
        if role == "tool":
            null["tool_call_id"] = missing["tool_call_id"] = "call_1"
        yield chat(f"content/null_{role}", user("Hello"), null, user("Go on"))
        yield chat(f"content/missing_{role}", user("Hello"), missing, user("Go on"))
        empty = {**missing, "content": ""}
        yield chat(f"content/empty_{role}", user("Hello"), empty, user("Go on"))
        yield chat(f"content/no_parts_{role}", user("Hello"), {**missing, "content": []}, user("x"))
    yield chat("content/number", user(5))
    yield chat("content/object", user({"a": 1}))
    yield chat("content/unknown_field", user("Hello", mood="curious", content_type="text"))


def _parts() -> Iterator[Case]:
    yield chat("parts/one", user([text("Hello")]))
    yield chat("parts/two", user([text("Hello"), text("world")]))
    yield chat("parts/empty_between", user([text("Hello"), text(""), text("world")]))
    yield chat("parts/only_empty", user([text("")]))
    yield chat("parts/null_text", user([{"type": "text", "text": None}, text("Hello")]))
    yield chat("parts/missing_text", user([{"type": "text"}, text("Hello")]))
    yield chat("parts/untyped", user([{"text": "Hello"}]))
    yield chat("parts/string_in_list", user(["Hello", "world"]))
    yield chat("parts/input_text", user([{"type": "input_text", "text": "Hello"}]))
    yield chat("parts/output_text", assistant([{"type": "output_text", "text": "Hi"}]), user("?"))
    yield chat("parts/refusal", assistant([{"type": "refusal", "refusal": "No."}]), user("Why?"))
    thinking = {"type": "thinking", "thinking": "Hmm."}
    yield chat("parts/thinking", assistant([thinking, text("Yes.")]), user("Sure?"))
    closed = [{**thinking, "closed": True}, text("Yes.")]
    yield chat("parts/thinking_closed", assistant(closed), user("Sure?"))
    yield chat("parts/system", system([text("Be"), text("brief.")]), user("Hello"))
    yield chat("parts/all_roles", system([text("S")]), user([text("U")]), assistant([text("A")]))
    yield chat("parts/newlines", user([text("a\n"), text("\nb"), text(" c ")]))
    yield chat("parts/unknown_type", user([{"type": "poem", "poem": "Roses"}]))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    yield chat("parts/image", user([text("What is this?"), image]))
    cached = {**text("Hello"), "cache_control": {"type": "ephemeral"}}
    yield chat("parts/cache_control", user([cached, text("world")]))


def _thinking() -> Iterator[Case]:
    first, again = user("What is 2+2?"), user("And 3+3?")
    reasoning = {"reasoning_content": "Two and two make four."}
    yield chat("thinking/reasoning_content", first, assistant("4", **reasoning), again)
    renamed = {"reasoning": "Two and two make four."}
    yield chat("thinking/reasoning", first, assistant("4", **renamed), again)
    both = {"reasoning": "A.", "reasoning_content": "B."}
    yield chat("thinking/both", first, assistant("4", **both), again)
    yield chat("thinking/empty", first, assistant("4", reasoning_content=""), again)
    yield chat("thinking/null", first, assistant("4", reasoning_content=None), again)
    yield chat("thinking/last", first, assistant("4", **reasoning))
    yield chat("thinking/null_content", first, assistant(None, **reasoning), again)
    tags = "<think>\nTwo and two make four.\n</think>\n\n4"
    yield chat("thinking/in_content", first, assistant(tags), again)
    yield chat("thinking/in_content_last", first, assistant(tags))
    for name, value in (("on", True), ("off", False), ("string", "false"), ("null", None)):
        kwargs = {"enable_thinking": value}
        yield chat(f"thinking/enable_{name}", first, chat_template_kwargs=kwargs)
    yield chat("thinking/enable_top_level", first, enable_thinking=False)
    off = {"enable_thinking": False}
    turns = (first, assistant("4", **reasoning), again)
    yield chat("thinking/off_with_reasoning", *turns, chat_template_kwargs=off)
    yield chat("thinking/include_reasoning", *turns, include_reasoning=False)
    yield chat("thinking/budget", first, thinking_token_budget=5)


def _effort() -> Iterator[Case]:
    first = user("What is 2+2?")
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", "huge"):
        yield chat(f"effort/{effort}", first, reasoning_effort=effort)
    yield chat("effort/null", first, reasoning_effort=None)
    on, off = {"enable_thinking": True}, {"enable_thinking": False}
    yield chat("effort/none_but_on", first, reasoning_effort="none", chat_template_kwargs=on)
    yield chat("effort/high_but_off", first, reasoning_effort="high", chat_template_kwargs=off)
    inside = {"reasoning_effort": "none"}
    yield chat("effort/inside", first, chat_template_kwargs=inside)


def _arguments() -> Iterator[Case]:
    turns = (user("Hello"), assistant("Hi, how"))
    go_on = {"continue_final_message": True}
    yield chat("arguments/no_prompt", *turns, add_generation_prompt=False)
    yield chat("arguments/no_prompt_string", *turns, add_generation_prompt="false")
    inside = {"add_generation_prompt": False}
    yield chat("arguments/no_prompt_inside", *turns, chat_template_kwargs=inside)
    both = {"chat_template_kwargs": inside, "add_generation_prompt": True}
    yield chat("arguments/no_prompt_both", *turns, **both)
    yield chat("arguments/continue", *turns, **go_on, add_generation_prompt=False)
    yield chat("arguments/continue_alone", *turns, **go_on)
    yield chat("arguments/continue_string", *turns, **go_on, add_generation_prompt="false")
    spaced = (user("Hello"), assistant("Hi, how "))
    yield chat("arguments/continue_space", *spaced, **go_on, add_generation_prompt=False)
    yield chat("arguments/continue_user", user("Hel"), **go_on, add_generation_prompt=False)
    parts = (user("Hello"), assistant([text("Hi,"), text("how")]))
    yield chat("arguments/continue_parts", *parts, **go_on, add_generation_prompt=False)
    for name, kwargs in (
        ("messages", {"messages": []}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "planted"}}]}),
        ("bos_token", {"bos_token": "BOS"}),
        ("unknown", {"mood": "curious"}),
        ("template", {"chat_template": "{{ messages[0].content }}"}),
        ("tokenize", {"tokenize": False}),
        ("empty", {}),
        ("null", None),
    ):
        yield chat(f"arguments/kwargs_{name}", user("Hello"), chat_template_kwargs=kwargs)
    yield chat("arguments/template", user("Hello"), chat_template="{{ messages[0].content }}")
    documents = [{"title": "Caches", "text": "A cache keeps things."}]
    yield chat("arguments/documents", user("Hello"), documents=documents)
    yield chat("arguments/special_tokens", user("Hello"), add_special_tokens=True)
    yield chat("arguments/salt", user("Hello"), cache_salt="tenant-a")
    yield chat("arguments/salt_empty", user("Hello"), cache_salt="")
    yield chat("arguments/json_answer", user("Hello"), response_format={"type": "json_object"})
    ids = {"prompt_token_ids": [11, 22, 33, 44]}
    yield chat("arguments/ids", user("Hello"), kv_transfer_params=ids)
    yield chat("arguments/session", user("Hello"), session_id="s-1", priority=0, user="u-1")


def _limits() -> Iterator[Case]:
    long = user(prose(9, 60))
    yield chat("limits/keep_10", long, truncate_prompt_tokens=10)
    yield chat("limits/keep_1", long, truncate_prompt_tokens=1)
    yield chat("limits/keep_0", long, truncate_prompt_tokens=0)
    yield chat("limits/keep_all", long, truncate_prompt_tokens=-1)
    yield chat("limits/keep_more", long, truncate_prompt_tokens=100_000)
    for side in ("left", "right", "middle"):
        name = f"limits/keep_10_{side}"
        yield chat(name, long, truncate_prompt_tokens=10, truncation_side=side)
    yield chat("limits/side_alone", long, truncation_side="left")
    yield chat("limits/max_tokens_0", user("Hello"), max_tokens=0)
    yield chat("limits/max_tokens_huge", user("Hello"), max_tokens=1_000_000)
    yield chat("limits/max_completion", user("Hello"), max_completion_tokens=1, max_tokens=None)
    yield chat("limits/too_long", user(TOO_LONG))
    cut = {"truncate_prompt_tokens": 4000}
    yield chat("limits/too_long_cut", user(TOO_LONG), **cut)
    yield chat("limits/too_long_all", user(TOO_LONG), truncate_prompt_tokens=-1)


def _refused() -> Iterator[Case]:
    yield case("chat/refused/no_messages", CHAT, {"messages": []})
    yield case("chat/refused/messages_missing", CHAT, {})
    yield case("chat/refused/messages_text", CHAT, {"messages": "Hello"})
    yield case("chat/refused/message_text", CHAT, {"messages": ["Hello"]})
    yield chat("refused/temperature", user("Hello"), temperature=-1)
    yield chat("refused/temperature_text", user("Hello"), temperature="warm")
    yield chat("refused/top_p", user("Hello"), top_p=2)
    yield chat("refused/n_0", user("Hello"), n=0)
    yield chat("refused/unknown_model", user("Hello"), model="other")
    yield chat("refused/unknown_field", user("Hello"), flavour="vanilla")
    yield chat("refused/stream_options", user("Hello"), stream_options={"include_usage": True})
    two = {"role": "ROLE", "content": "Hello"}
    raw = {"ROLE": '"system","role":"user"'}
    yield spelled("chat/spelling/duplicate_key", CHAT, {"messages": [two]}, raw)
    escaped = {"TEXT": '"\\u00fc\\ud83d\\ude00\\/"'}
    yield spelled("chat/spelling/escapes", CHAT, {"messages": [user("TEXT")]}, escaped)
    half = {"TEXT": '"x\\ude00y"'}
    yield spelled("chat/spelling/low_surrogate", CHAT, {"messages": [user("TEXT")]}, half)
