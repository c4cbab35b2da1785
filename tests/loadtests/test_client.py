"""The client of the demo against real sockets."""

import asyncio
import socket

import pytest

from loadtests.demo.client import Failure, ask, ask_blocking
from loadtests.workloads.sessions import TimedRequest


def chat(said: str, max_tokens: int = 3) -> TimedRequest:
    body = {"messages": [{"role": "user", "content": said}], "max_tokens": max_tokens}
    return TimedRequest(0.0, "s", "chat", "/v1/chat/completions", body)


async def test_a_stream_is_read_to_its_end_with_text_usage_and_replica(stand_in):
    answer = await ask(stand_in.url, chat("hello"), timeout_s=5)
    assert (answer.failure, answer.status, answer.text) == (None, 200, " w0 w1 w2")
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (10, 4, 3)
    assert answer.replica == "replica-1"
    assert 0 < answer.ttft_s <= answer.end_s - answer.sent_s


async def test_the_blocking_form_reads_the_same(stand_in):
    answer = await asyncio.to_thread(ask_blocking, stand_in.url, chat("hello"), 5)
    assert (answer.failure, answer.text, answer.cached_tokens) == (None, " w0 w1 w2", 4)


async def test_a_role_chunk_is_not_the_first_token(stand_in):
    answer = await ask(stand_in.url, chat("hello", max_tokens=0), timeout_s=5)
    assert (answer.failure, answer.ttft_s) == (None, None)


@pytest.mark.parametrize(
    ("said", "failure", "detail"),
    [
        ("refuse", Failure.STATUS, "HTTP 503: no replica"),
        ("close early", Failure.BROKEN, "the connection closed in the middle of the answer"),
        ("leave out [DONE]", Failure.BROKEN, "the stream ended without [DONE]"),
        ("send an error", Failure.BROKEN, "error event: engine died"),
    ],
)
async def test_every_way_to_fail_has_its_name(stand_in, said, failure, detail):
    answer = await ask(stand_in.url, chat(said), timeout_s=5)
    assert (answer.failure, answer.detail) == (failure, detail)


async def test_a_path_that_is_not_there_keeps_its_status_and_one_line(stand_in):
    request = TimedRequest(0.0, "s", "embeddings", "/v1/embeddings", {"input": ["a"]})
    answer = await ask(stand_in.url, request, timeout_s=5)
    assert (answer.failure, answer.status) == (Failure.STATUS, 404)
    assert answer.detail == "HTTP 404: no such path"


async def test_a_closed_port_is_unreachable():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        answer = await ask(url, chat("hello"), timeout_s=5)
    assert answer.failure == Failure.UNREACHABLE


async def test_a_server_that_never_answers_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        answer = await ask(url, chat("hello"), timeout_s=0.05)
        blocking = await asyncio.to_thread(ask_blocking, url, chat("hello"), 0.05)
    assert answer.failure == blocking.failure == Failure.TIMEOUT


async def test_bytes_that_are_not_http_are_a_broken_answer():
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        url = "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
        answer = await ask(url, chat("hello"), timeout_s=5)
    assert answer.failure == Failure.BROKEN
