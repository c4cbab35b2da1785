"""The C programs: they compile, answer, and see what goes wrong."""

import asyncio
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.bench import native
from loadtests.bench.gateways import environment, port_of, start_mocks
from loadtests.bench.native import NativeError, Programs
from loadtests.bench.scenarios import BODIES, PATH
from loadtests.children import Children


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, require) -> Programs:
    require("a C compiler", shutil.which("cc") is not None, "apt-get install gcc")
    return native.build(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def mock_url(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Children(environment(()), tmp_path_factory.mktemp("mocks")) as children:
        yield start_mocks(children, programs)[0]


def post(url: str, body: bytes, chunked: bool = False) -> bytes:
    data = iter([body[:20], body[20:]]) if chunked else body
    request = urllib.request.Request(url + PATH, data)
    if chunked:
        request.add_header("transfer-encoding", "chunked")
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read()


@pytest.mark.parametrize("chunked", [False, True])
def test_the_mock_answers_whole(mock_url: str, chunked: bool):
    answer = json.loads(post(mock_url, (BODIES / "short.json").read_bytes(), chunked))
    assert answer["usage"]["completion_tokens"] == 16


def test_the_mock_numbers_its_events(mock_url: str):
    body = b'{"model": "mock", "stream": true, "max_tokens": 3, "seed": 1000}'
    lines = [line for line in post(mock_url, body).decode().split("\n\n") if line]
    contents = [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in lines[:3]]
    assert contents == [" 000000", " 000001", " 000002"]
    assert json.loads(lines[3][6:])["usage"]["completion_tokens"] == 3
    assert lines[4:] == ["data: [DONE]"]


def test_the_mock_counts_what_it_was_sent(mock_url: str):
    def count() -> int:
        with urllib.request.urlopen(f"{mock_url}/_count", timeout=5) as answer:
            return json.load(answer)["requests"]

    before = count()
    post(mock_url, b'{"model": "mock"}')
    assert count() - before == 1


def test_lg_counts_answers_and_events(programs: Programs, mock_url: str):
    arguments = [port_of(mock_url), PATH, BODIES / "s64.json", 2, 0.2, 66]
    found = native.run(programs.lg, arguments)
    assert found["done"] > 0
    assert found["events"] == 66 * found["done"]
    assert (found["errors"], found["short"], found["unfinished"]) == (0, 0, 0)
    assert 0 < found["latency_s"]["p50"] <= found["latency_s"]["max"]


def test_lg_sees_answers_with_too_few_events(programs: Programs, mock_url: str):
    found = native.run(programs.lg, [port_of(mock_url), PATH, BODIES / "s64.json", 1, 0.1, 67])
    assert found["short"] == found["done"] > 0


def test_streams_sees_whole_streams(programs: Programs, mock_url: str):
    arguments = [port_of(mock_url), PATH, BODIES / "s64p.json", 5, 64, 0.005, 0.05, 5]
    found = native.run(programs.streams, arguments)
    assert (found["complete"], found["unfinished"], found["events"]) == (5, 0, 5 * 64)


EVENT = b'data: {"choices":[{"delta":{"content":" %06d"}}]}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        (STREAM + EVENT % 0 + EVENT % 1 + DONE, "complete"),
        (STREAM + EVENT % 1 + EVENT % 0 + DONE, "out_of_order"),
        (STREAM + EVENT % 0 + EVENT % 0 + DONE, "out_of_order"),
        (STREAM + EVENT % 0 + EVENT % 1, "cut"),
        (STREAM + EVENT % 0 + DONE, "cut"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno", "refused_503"),
        (b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", "other_status"),
        (b"", "closed"),
    ],
)
async def test_streams_sees_what_went_wrong(programs: Programs, answer: bytes, counted: str):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        arguments = [port, PATH, BODIES / "short.json", 1, 2, 0.0, 0.0, 5]
        found = await asyncio.to_thread(native.run, programs.streams, arguments)
    assert found[counted] == 1


def test_a_missing_compiler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeError, match=r"^a C compiler \(cc\) is missing") as error:
        native.build(tmp_path / "native")
    assert "\n" not in str(error.value)


def test_a_program_that_fails_says_why(programs: Programs):
    with pytest.raises(NativeError, match="lg failed: usage"):
        native.run(programs.lg, [])
