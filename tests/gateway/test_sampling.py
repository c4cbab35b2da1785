"""Asking for usage where the client does not, and taking the answer out again."""

import itertools
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import config_from_flags
from gateway.prompt.body import BodyKind, read_body, splice_field
from gateway.proxy.sampling import UsageFilter, asks_usage, with_usage
from tests.support.gateways import quick
from tests.support.replicas import until

EVENT = b'data: {"choices":[{"delta":{"content":"say \\"choices\\":[] \\"usage\\":{"}}]}\n\n'
USAGE = (
    b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":32,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":16}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def body(**fields):
    return read_body(
        json.dumps({"model": "m", "prompt": "a", **fields}).encode(), BodyKind.COMPLETION
    )


@pytest.mark.parametrize(
    ("fields", "share", "expected", "why"),
    [
        ({"stream": True}, 1.0, True, "a stream without usage"),
        ({"stream": True}, 0.0, False, "off"),
        ({}, 1.0, False, "no stream: usage comes by itself"),
        ({"stream": True, "stream_options": {"include_usage": True}}, 1.0, False, "asked"),
        ({"stream": True, "stream_options": {"include_usage": False}}, 1.0, False, "declined"),
        ({"stream": True, "stream_options": None}, 1.0, False, "left as it is"),
    ],
)
def test_who_is_asked(fields, share, expected, why):
    assert asks_usage(body(**fields), share, Random(1)) is expected, why


def test_about_the_share_of_requests_is_asked():
    rng = Random(1)
    assert 60 < sum(asks_usage(body(stream=True), 0.1, rng) for _ in range(1000)) < 140


@given(st.text(max_size=40), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_a_field_more_and_nothing_else_changes(text, encoding):
    sent = {"model": text, "stream": True}
    given_bytes = json.dumps(sent, ensure_ascii=True, indent=1).encode(encoding)
    spliced = with_usage(given_bytes)
    assert json.loads(spliced) == sent | {"stream_options": {"include_usage": True}}


def test_every_other_byte_stays():
    assert splice_field(b'{ "a" : 1.10 }  ', "b", b"2") == b'{ "a" : 1.10 ,"b":2}  '


@given(st.lists(st.integers(0, len(EVENT + EVENT + USAGE + DONE)), max_size=8))
def test_however_the_stream_is_cut_the_usage_event_alone_is_missing(cuts):
    stream = EVENT + EVENT + USAGE + DONE
    removed = []
    usage_filter = UsageFilter(removed.append)
    edges = sorted({0, *cuts, len(stream)})
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    passed = b"".join(map(usage_filter.feed, pieces)) + usage_filter.end()
    assert passed == EVENT + EVENT + DONE
    assert removed == [USAGE]


def test_whole_events_are_not_held_up_and_long_ones_not_kept():
    usage_filter = UsageFilter(lambda _: None)
    assert usage_filter.feed(EVENT + EVENT[:9]) == EVENT
    assert usage_filter.feed(EVENT[9:]) == EVENT
    endless = b"x" * 70_000
    assert usage_filter.feed(endless) == endless
    assert usage_filter.feed(b"rest") == b""
    assert usage_filter.end() == b"rest"


def test_windows_line_ends():
    usage_filter = UsageFilter(lambda _: None)
    stream = (EVENT + USAGE + DONE).replace(b"\n", b"\r\n")
    assert usage_filter.feed(stream) == (EVENT + DONE).replace(b"\n", b"\r\n")


async def test_a_client_sees_nothing_of_it_and_the_metrics_all(replicas, gateways, chat):
    async def streams(conversation):
        assert json.loads(conversation.request.body)["stream_options"] == {"include_usage": True}
        await conversation.start_stream()
        for piece in [EVENT[:30], EVENT[30:], USAGE, DONE]:
            await conversation.chunk(piece)
        await conversation.end()

    [replica] = await replicas(streams)
    config = quick(config_from_flags([replica.url]))
    index = config.index.model_copy(update={"usage_sample": 1.0})
    gateway = await gateways(config.model_copy(update={"index": index}))
    sent = chat(stream=True)
    answer = await gateway.client.post("/v1/chat/completions", json=sent)
    assert answer.content == EVENT + DONE
    [line] = await until(gateway.requests)
    assert (line["prompt_tokens"], line["cached_tokens"]) == (32, 16)
    own = chat(stream=True, stream_options={"include_usage": True})
    answer = await gateway.client.post("/v1/chat/completions", json=own)
    assert answer.content == EVENT + USAGE + DONE
    ours, theirs = replica.received
    assert ours.header(b"accept-encoding") is None, "what is compressed cannot be taken out of"
    assert theirs.header(b"accept-encoding") is not None
