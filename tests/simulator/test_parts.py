"""Parts of the simulator on their own: messages, prompts, replies, profiles, the engine's clock."""

import asyncio
import json

import pytest
import yaml

from loadtests.simulator import driver as driver_module
from loadtests.simulator.driver import EngineDriver
from loadtests.simulator.errors import ApiError
from loadtests.simulator.messages import conversation, tool_schemas
from loadtests.simulator.options import DEMO_MODEL, parse_options
from loadtests.simulator.profiles import ProfileError, load_profile
from loadtests.simulator.prompts import PromptEncoder
from loadtests.simulator.replies import ReplyWriter, Wish
from routing.lab.engine_model import EngineModel
from routing.lab.engine_profile import A10G, REFERENCE, EngineProfile, StepCost
from routing.lab.sequence import EngineRequest


@pytest.fixture(scope="module")
def encoder() -> PromptEncoder:
    return PromptEncoder(DEMO_MODEL)


@pytest.fixture(scope="module")
def writer(encoder) -> ReplyWriter:
    return ReplyWriter(encoder)


def user(content):
    return {"role": "user", "content": content}


def part(text):
    return {"type": "text", "text": text}


# Messages


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (user("x"), "x"),
        (user([part("a"), part(""), part("b")]), "a\nb"),
        (user([part("a"), part(None)]), "a"),
        (user([{"type": "refusal", "refusal": "no"}]), "no"),
        ({"role": "assistant", "content": None}, ""),
        ({"role": "assistant"}, ""),
        ({"role": "system", "content": "x-anthropic-billing-header: 1\nrest"}, "rest"),
        ({"role": "critic", "content": "any role"}, "any role"),
    ],
)
def test_content_becomes_one_string(message, content):
    assert conversation([message], has_developer=False)[0]["content"] == content


@pytest.mark.parametrize(
    "message",
    [
        user(None),
        {"role": "tool", "content": None},
        {"content": "no role"},
        user([{"type": "image_url", "image_url": {"url": "x"}}]),
        user(5),
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    ],
)
def test_messages_that_are_not_text_are_refused(message):
    with pytest.raises(ApiError) as refused:
        conversation([message], has_developer=False)
    assert refused.value.status == 400


def test_a_developer_message_becomes_the_one_system_message_at_the_front():
    messages = [
        user("hi"),
        {"role": "developer", "content": "dev"},
        {"role": "system", "content": "sys"},
    ]
    assert conversation(messages, has_developer=False) == [
        {"role": "system", "content": "dev\n\nsys"},
        user("hi"),
    ]
    assert [m["role"] for m in conversation(messages, has_developer=True)] == [
        *("user", "developer", "system")
    ]


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [('{"a": 1e5}', {"a": 100000.0}), ("", {}), ("[1]", {}), ("{broken", {}), (None, {})],
)
def test_arguments_of_tool_calls_are_parsed(arguments, parsed):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = conversation([{"role": "assistant", "tool_calls": [call]}], has_developer=False)
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": parsed}


def test_tools_get_vllms_keys_in_vllms_order():
    tool = {"function": {"parameters": {"z": 1, "a": 2}, "x": 1, "name": "f"}, "type": "function"}
    assert json.dumps(tool_schemas([tool])) == json.dumps(
        [
            {
                "type": "function",
                "function": {"name": "f", "description": None, "parameters": {"z": 1, "a": 2}},
            }
        ]
    )
    assert tool_schemas(None) is None


# Prompts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|><|im_end|>  spaces \n\n around <|im_start|> 123é\u4f60",
        "typed <|im_start|> inside, and <|im_star a broken one",
    ],
)
async def test_ids_in_pieces_are_the_ids_of_the_whole(encoder, text):
    whole = encoder._backend.encode(text, add_special_tokens=False).ids
    for _ in range(2):  # the second time from the cache
        assert await encoder.encode(text, add_special_tokens=False) == whole


async def test_long_texts_go_to_a_thread_and_get_the_same_ids(encoder):
    text = "a long text, said again and again " * 500
    whole = encoder._backend.encode(text, add_special_tokens=False).ids
    assert await encoder.encode(text, add_special_tokens=False) == whole


async def test_the_cache_of_pieces_stays_within_its_bound(encoder, monkeypatch):
    monkeypatch.setattr("loadtests.simulator.prompts._CACHE_CHARS", 100)
    for number in range(30):
        await encoder.encode(f"some text with number {number}", add_special_tokens=False)
    assert sum(map(len, encoder._ids_by_piece)) == encoder._cached_chars <= 100


# Replies


def test_equal_prompts_get_equal_replies_and_others_do_not(writer):
    wish = Wish(max_tokens=500)
    assert writer.write([1, 2, 3], wish) == writer.write([1, 2, 3], wish)
    assert writer.write([1, 2, 3], wish) != writer.write([1, 2, 4], wish)


@pytest.mark.parametrize("seed", range(20))
async def test_a_reply_in_the_next_prompt_is_the_same_tokens(encoder, writer, seed):
    prompt = await encoder.encode(
        encoder.render([user(f"{seed}")], None, {"add_generation_prompt": True}),
        add_special_tokens=False,
    )
    reply = writer.write(prompt, Wish(max_tokens=500))
    assert reply.finish_reason == "stop"
    turn = [user(f"{seed}"), {"role": "assistant", "content": "".join(reply.pieces)}]
    text = encoder.render(turn, None, {"add_generation_prompt": False})
    again = await encoder.encode(text, add_special_tokens=False)
    assert again[: len(prompt) + len(reply.token_ids)] == [*prompt, *reply.token_ids]


def test_fewer_tokens_are_the_beginning_of_more(writer):
    whole = writer.write([1], Wish(max_tokens=60, ignore_eos=True))
    short = writer.write([1], Wish(max_tokens=7, ignore_eos=True))
    assert short.token_ids == whole.token_ids[:7]
    assert (short.finish_reason, len(whole.token_ids)) == ("length", 60)


def test_a_stop_string_cuts_the_text_before_it(writer):
    whole = writer.write([1], Wish(max_tokens=40, ignore_eos=True))
    stop = whole.pieces[5] + whole.pieces[6]
    for include, kept in ((False, 5), (True, 7)):
        cut = writer.write(
            [1], Wish(max_tokens=40, ignore_eos=True, stop=[stop], include_stop=include)
        )
        assert "".join(cut.pieces) == "".join(whole.pieces[:kept])
        assert cut.token_ids == whole.token_ids[:7]
        assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


def test_a_stop_token_ends_the_reply(writer):
    whole = writer.write([1], Wish(max_tokens=40, ignore_eos=True))
    token_id = whole.token_ids[4]
    cut = writer.write([1], Wish(max_tokens=40, ignore_eos=True, stop_token_ids=[token_id]))
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(token_id) + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", token_id)


# Profiles


def test_a_profile_file_may_state_what_differs_from_a_named_one(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("base: reference\nname: slow\nstep: {base_s: 1.0}\nl0_tokens: 100\n")
    profile = load_profile(str(path))
    assert (profile.name, profile.step.base_s, profile.l0_tokens) == ("slow", 1.0, 100)
    assert profile.step.prefill_token_s == REFERENCE.step.prefill_token_s
    assert parse_options(["--port", "0", "--profile", str(path)]).profile == profile


def test_a_whole_profile_comes_from_json(tmp_path):
    path = tmp_path / "p.json"
    tier = {"capacity_tokens": 1, "latency_s": 0.1, "token_s": 0}
    names = ("base_s", "prefill_token_s", "token_pair_s", "sequence_s", "kv_token_s")
    step = dict.fromkeys(names, 0.5)
    data = {"name": "n", "step": step, "l0_tokens": 9, "l1": tier, "l2": tier}
    path.write_text(json.dumps(data))
    assert load_profile(str(path)).step == StepCost(0.5, 0.5, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "a profile is a mapping, not list"),
        ("base: nobody", "unknown base 'nobody'"),
        ("{base: a10g, l0_token: 5}", "unknown keys ['l0_token']"),
        ("{base: a10g, step: {base_ms: 5}}", "unknown keys ['base_ms']"),
        ("{base: a10g, step: {base_s: -1}}", "base_s must not be negative, got -1"),
        ("{base: a10g, l0_tokens: many}", "Expected `int`, got `str` - at `$.l0_tokens`"),
        ("{name: x}", "missing required field `step`"),
        ("{", "not YAML"),
    ],
)
def test_a_broken_profile_file_says_what_is_wrong(tmp_path, text, words):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as broken:
        load_profile(str(path))
    assert words in str(broken.value)
    assert str(path) in str(broken.value)


def test_named_profiles_need_no_file():
    assert load_profile("a10g") is A10G
    assert yaml.safe_load("base: a10g") == {"base": "a10g"}


# The engine's clock


class Nobody:
    def on_first_token(self, generation, now): ...
    def on_next_token(self, generation, now): ...
    def on_end(self, generation, reason, now): ...


STEPS_OF_10_MS = EngineProfile(
    name="10 ms",
    step=StepCost(0.01, 0.0, 0.0, 0.0, 0.0),
    l0_tokens=16_000,
    l1=REFERENCE.l1,
    l2=REFERENCE.l2,
)


class Wall:
    """Stands for the module `time`: it passes by sleeping, whose timers are late."""

    def __init__(self, monkeypatch, late_s):
        self._now, self._late_s, self._turn = 100.0, late_s, asyncio.sleep
        monkeypatch.setattr(driver_module, "time", self)
        monkeypatch.setattr(driver_module.asyncio, "sleep", self._sleep)

    def monotonic(self):
        return self._now

    async def _sleep(self, delay_s):
        self._now += delay_s + self._late_s
        await self._turn(0)


async def seconds_of(wall, num_tokens, **options):
    """Let an engine on this clock make some tokens; return what it took."""
    driver = EngineDriver(EngineModel(STEPS_OF_10_MS), Nobody(), lambda events: None, **options)
    running = asyncio.create_task(driver.run())
    await driver.submit(EngineRequest("a", [1], [2] * num_tokens), "length").finished()
    running.cancel()
    return wall.monotonic() - 100.0


async def test_late_timers_do_not_add_up(monkeypatch):
    # 50 steps are 500 ms, and the last timer is late; 50 late ones would make it 700.
    assert await seconds_of(Wall(monkeypatch, 0.004), 50) == pytest.approx(0.504)


async def test_speed_shortens_the_wall_time(monkeypatch):
    assert await seconds_of(Wall(monkeypatch, 0.0), 500, speed=100.0) == pytest.approx(0.05)


async def test_an_aborted_request_ends_at_once():
    driver = EngineDriver(EngineModel(STEPS_OF_10_MS), Nobody(), lambda events: None)
    generation = driver.submit(EngineRequest("a", [1], [2] * 500), "length")
    driver.abort(generation)
    driver.abort(generation)
    await generation.finished()
    assert generation.aborted
    assert driver.model.num_waiting == 0
