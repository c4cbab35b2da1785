"""Token ids go along to engines that run them, where they are known to be theirs."""

import json

import pytest

from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig
from gateway.prompt.body import BodyKind, read_body
from gateway.prompt.forwarding import is_forwardable, splice_token_ids, takes_token_ids
from gateway.prompt.prepare import Prompt
from routing.hashing import pack_tokens
from tests.support.engines import Engine

CHAT = "/v1/chat/completions"
MODEL = "loadtests/demo_model"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.28.0", True),
        ("0.33.0rc1", True),
        ("1.0.0", True),
        ("0.27.9", False),
        ("0.9.2", False),
        ("dev", False),
        (None, False),
    ],
)
def test_engines_from_0_28_on_run_them(version, expected):
    assert takes_token_ids(version) is expected


def test_every_byte_of_the_body_stays():
    body = b' {"messages" : [1.10, "\\u00e9"],"kv_transfer_params":null} \n'
    spliced = splice_token_ids(body, pack_tokens([1, 151_643, 7]))
    added = b',"kv_transfer_params":{"prompt_token_ids":[1,151643,7]}'
    assert spliced == body[:-3] + added + body[-3:]
    assert json.loads(spliced)["kv_transfer_params"] == {"prompt_token_ids": [1, 151_643, 7]}


def prompt(kind=BodyKind.CHAT, fields=None, packed=b"\0\0\0\0", **changes):
    given = {"model": "m", "messages": [{"role": "user", "content": "x"}], "prompt": "x"}
    body = read_body(json.dumps({**given, **(fields or {})}).encode(), kind)
    return Prompt(packed, 1, body, None, **changes)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (prompt(), True),
        (prompt(fields={"truncate_prompt_tokens": None, "echo": False}), True),
        (prompt(BodyKind.COMPLETION), False),
        (prompt(packed=None), False),
        (prompt(whole=False), False),
        (prompt(is_dated=True), False),
        (prompt(fields={"truncate_prompt_tokens": 5}), False),
        (prompt(fields={"kv_transfer_params": {"do_remote_prefill": True}}), False),
        (prompt(fields={"echo": True}), False),
    ],
    ids=[
        "chat", "nothing asked", "completion", "unknown", "media", "dated", "truncated", "own",
        "echo",
    ],
)  # fmt: skip
def test_only_what_the_engine_would_compute_itself_is_forwarded(asked, expected):
    assert is_forwardable(asked) is expected


class Received(Engine):
    """Keeps the bodies of its chats."""

    def bodies(self):
        return [request.body for request in self.received if CHAT.encode() in request.line]


def config(fleet, **changes):
    values = config_from_flags([engine.url for engine in fleet], MODEL).model_dump()
    values["models"][0].update(block_size=16, **changes)
    return GatewayConfig.model_validate(values)


async def ask(gateway, body):
    headers = {"content-type": "application/json"}
    answer = await gateway.client.post(CHAT, content=body, headers=headers)
    assert answer.status_code == 200


BODY = b'{ "model":"m", "messages":[{"role":"user","content":"Say hello"}] }'


async def test_a_gateway_forwards_ids_only_where_it_is_told_to(engines, gateways):
    [engine] = await engines(Received())
    await ask(await gateways(config([engine])), BODY)
    await ask(await gateways(config([engine], forward_token_ids=True)), BODY)
    plain, spliced = engine.bodies()
    assert plain == BODY
    added = json.loads(spliced)["kv_transfer_params"]
    assert len(added["prompt_token_ids"]) > 5
    assert spliced == splice_token_ids(BODY, pack_tokens(added["prompt_token_ids"]))


async def test_one_old_engine_among_the_replicas_is_enough_to_forward_none(engines, gateways):
    old = Received(statuses={})
    old._page = lambda path: (
        b'{"version":"0.27.1"}' if path == "/version" else Engine._page(old, path)
    )
    fleet = await engines(Received(), old)
    gateway = await gateways(config(fleet, forward_token_ids=True))
    for _ in range(4):
        await ask(gateway, BODY)
    assert {body for engine in fleet for body in engine.bodies()} == {BODY}
