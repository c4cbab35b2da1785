"""A page of another origin talks to the gateway, in a real browser."""

import asyncio
import contextlib
import json

import pytest

from tests.support.api_replicas import DONE, chat_event, says_hello
from tests.support.browser import CHROMIUM, Page, chromium
from tests.support.replicas import until

KEY = "sk-team-a-0123456789"
AUTH = {"keys": [{"name": "team-a", "key": KEY}]}
ASK = """
const ask = (path, key, body) => fetch("%(url)s" + path, {
  method: "POST",
  headers: {"content-type": "application/json", "authorization": "Bearer " + key},
  body: JSON.stringify({model: "m", messages: [{role: "user", content: "hello"}], ...body}),
});
"""
READ_EVENTS = """
const answer = await ask("/v1/chat/completions", "%(key)s", {stream: true});
await tell({
  status: answer.status,
  replica: answer.headers.get("x-warmroute-replica"),
  matched: answer.headers.get("x-warmroute-matched-tokens"),
  requestId: answer.headers.get("x-request-id"),
  kind: answer.headers.get("content-type"),
});
const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
for (;;) {
  const {done, value} = await reader.read();
  if (done) break;
  await tell({piece: value});
}
await tell({done: true});
"""
READ_REFUSAL = """
const answer = await ask("%(path)s", "%(key)s", {});
await tell({
  status: answer.status,
  body: await answer.json(),
  retryAfter: answer.headers.get("retry-after"),
});
"""


@pytest.fixture
async def browse(require):
    """Open a page with a script in Chromium: `page = await browse(script)`."""
    require("Chromium", CHROMIUM is not None, "apt-get install chromium")
    async with contextlib.AsyncExitStack() as stack:

        async def show(script, page=None):
            page = page or await Page("").start()
            page.script = script
            stack.push_async_callback(page.stop)
            await stack.enter_async_context(chromium(page.origin))
            return page

        yield show


def script(gateway, text, **values):
    return (ASK + text) % {"url": gateway.gateway.url, "key": KEY, **values}


async def test_a_page_reads_a_stream_as_it_comes(replicas, gateways, browse):
    gates = [asyncio.Event() for _ in range(3)]
    events = [chat_event({"content": "a"}), chat_event({"content": "ü"}), DONE]

    async def answers(conversation):
        await conversation.start_stream()
        for event, gate in zip(events, gates, strict=True):
            await gate.wait()
            await conversation.chunk(event)
        await conversation.end()

    [replica] = await replicas(answers)
    page = await Page("").start()
    gateway = await gateways(replica, auth=AUTH, cors={"origins": [page.origin]})
    await browse(script(gateway, READ_EVENTS), page)
    gates[0].set()
    told = await page.next()
    assert told.pop("requestId")
    assert told == {
        "status": 200,
        "replica": replica.name,
        "matched": "0",
        "kind": "text/event-stream; charset=utf-8",
    }
    for number, event in enumerate(events):
        assert await page.next() == {"piece": event.decode()}
        if number + 1 < len(gates):  # the next one is sent only because this one was read
            gates[number + 1].set()
    assert await page.next() == {"done": True}
    [line] = await until(gateway.requests)
    assert line["status"] == 200, "the preflight before it is no request of the books"
    [received] = replica.received
    assert received.line.startswith(b"POST")


@pytest.mark.parametrize(
    ("path", "key", "status", "reason"),
    [
        ("/v1/chat/completions", "sk-wrong", 401, "unauthorized"),
        ("/v1/nothing", KEY, 404, "path_not_found"),
    ],
)
async def test_a_page_can_read_what_was_wrong(
    replicas, gateways, browse, path, key, status, reason
):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth=AUTH, cors={"origins": ["*"]})
    page = await browse(script(gateway, READ_REFUSAL, path=path, key=key))
    told = await page.next()
    assert (told["status"], told["body"]["error"]["reason"]) == (status, reason)
    assert replica.received == []


async def test_a_page_can_read_when_to_come_back(replicas, gateways, browse):
    [replica] = await replicas(says_hello, healthy=False)
    gateway = await gateways(replica, auth=AUTH, cors={"origins": ["*"]}, wait_ready=False)
    page = await browse(script(gateway, READ_REFUSAL, path="/v1/chat/completions"))
    told = await page.next()
    assert (told["status"], told["retryAfter"]) == (503, "1")
    assert told["body"]["error"]["reason"] == "no_eligible_replica"


@pytest.mark.parametrize("origins", [[], ["https://app.example"]], ids=["off", "others"])
async def test_a_page_that_is_not_allowed_gets_nothing(replicas, gateways, browse, origins):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth=AUTH, cors={"origins": origins})
    page = await browse(script(gateway, READ_REFUSAL, path="/v1/chat/completions"))
    assert await page.next() == {"error": "TypeError: Failed to fetch"}
    assert replica.received == [], "the preflight was refused, so nothing was sent"


async def test_a_page_that_goes_away_ends_its_request(replicas, gateways, browse):
    left = asyncio.Event()

    async def answers(conversation):
        await conversation.start_stream()
        await conversation.chunk(chat_event({"content": "a"}))
        await conversation.client_left()
        left.set()

    [replica] = await replicas(answers)
    gateway = await gateways(replica, cors={"origins": ["*"]})
    text = """
    const stop = new AbortController();
    const options = {method: "POST", signal: stop.signal, body: JSON.stringify(%s)};
    const answer = await fetch("%s/v1/chat/completions", options);
    await answer.body.getReader().read();
    await tell({read: true});
    stop.abort();
    """
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    page = await browse(text % (json.dumps(body), gateway.gateway.url))
    assert await page.next() == {"read": True}
    async with asyncio.timeout(1.0):
        await left.wait()
    assert await until(gateway.requests)
    assert await gateway.in_flight() == 0
