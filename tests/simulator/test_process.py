"""A simulated replica as a process: its options, its clients, its end."""

import json
import socket
import subprocess
import sys

import httpx
import pytest

from tests.support.simulators import ROOT, Replica, running_replica, wait_until

LONG = {"prompt": [5, 6, 7], "max_tokens": 4000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def keyed():
    with running_replica(
        *("--speed", "1", "--api-key", "k", "--no-kv-events", "--model", "served"),
        *("--no-enable-prompt-tokens-details", "--max-model-len", "5000", "--l1"),
    ) as running:
        yield running


def raw_post(replica, path, body) -> socket.socket:
    host, port = replica.url.removeprefix("http://").split(":")
    payload = json.dumps(body).encode()
    client = socket.create_connection((host, int(port)), timeout=10)
    client.sendall(
        b"POST %s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        % (path.encode(), len(payload), payload)
    )
    return client


@pytest.mark.parametrize("stream", [True, False])
def test_the_engine_drops_a_request_when_its_client_leaves(keyed, stream):
    aborts = keyed.metric("request_success_total", finished_reason="abort")
    client = raw_post(keyed, "/v1/completions", LONG | {"stream": stream})
    wait_until(lambda: keyed.metric("num_requests_running") == 1)
    client.close()
    wait_until(lambda: keyed.metric("num_requests_running") == 0)  # by itself it runs on for 32 s
    assert keyed.metric("request_success_total", finished_reason="abort") == aborts + 1
    assert keyed.metric("kv_cache_usage_perc") == 0.0


def test_tokens_come_at_the_engines_pace(keyed):
    headers = {"authorization": "Bearer k"}
    answer = keyed.post(
        "/v1/completions", LONG | {"max_tokens": 50, "stream": False}, headers=headers
    )
    # 50 steps of 8 ms and a little.
    assert 0.4 <= answer.elapsed.total_seconds() <= 1.5


def test_the_key_guards_v1_and_nothing_else(keyed):
    refused = keyed.get("/v1/models")
    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert keyed.get("/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
    assert keyed.post("/tokenize", {"prompt": "x"}).status_code == 200
    assert keyed.get("/metrics").status_code == 200


def test_details_and_events_can_be_off(keyed):
    assert keyed.kv_events is keyed.replay is None
    assert keyed.get("/kv_event_sources").json() == {}
    body = {"prompt": "x", "max_tokens": 1}
    usage = keyed.post("/invocations", body).json()["usage"]
    assert usage["prompt_tokens_details"] is None
    streamed = keyed.post(
        "/invocations", {**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert '"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}' in streamed.text


def test_the_model_length_is_the_one_asked_for(keyed):
    assert keyed.post("/tokenize", {"prompt": "x"}).json()["max_model_len"] == 5000


def test_l1_serves_what_a_reset_took_from_the_gpu(keyed):
    body = {"prompt": list(range(100, 140)), "max_tokens": 1}
    keyed.post("/invocations", body)
    assert keyed.post("/reset_prefix_cache", {}).json() == {"success": True}
    keyed.post("/invocations", body)
    assert keyed.metric("external_prefix_cache_hits_total") == 32


def test_many_connections_get_their_own_answers(replica):
    with httpx.Client(base_url=replica.url, timeout=20) as client:
        bodies = [{"prompt": [i], "max_tokens": 5} for i in range(300, 320)]
        alone = [client.post("/v1/completions", json=body).json() for body in bodies]
    sockets = [raw_post(replica, "/v1/completions", body) for body in bodies]
    for one, expected in zip(sockets, alone, strict=True):
        with one, one.makefile("rb") as answer:
            length = 0
            while (line := answer.readline()) != b"\r\n":
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = json.loads(answer.read(length))
        assert body["choices"][0]["text"] == expected["choices"][0]["text"]


@pytest.fixture
def program():
    """Run the program itself, where other tests run a fork of it."""
    argv = [sys.executable, "-W", "error::ResourceWarning", "-m", "loadtests.simulator"]
    argv += ["--port", "0", "--speed", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as process:
        ready = json.loads(process.stdout.readline())
        yield Replica(ready["url"], ready["kv_events"], ready["replay"], process)
        process.kill()


def test_sigterm_ends_it_cleanly_even_with_streams_open(program):
    client = raw_post(program, "/v1/completions", LONG)
    wait_until(lambda: program.metric("num_requests_running") == 1)
    program.process.terminate()
    assert program.process.wait(10) == 0
    client.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--tokenizer", "/nowhere"],
            "--tokenizer: tokenizer folder /nowhere does not exist",
        ),
        (["--num-blocks", "10", "--max-model-len", "200"], "more than the 144 tokens of KV cache"),
        (["--num-blocks", "1"], "1 blocks of 16 tokens leave none to use"),
        (["--profile", "fast"], "profile 'fast' is neither a file nor one of a10g, reference"),
        (["--speed", "0"], "must be above 0"),
        (["--kv-events-endpoint", "tcp://nowhere.invalid:1"], "cannot publish KV events"),
    ],
)
def test_a_wrong_option_is_one_clear_line_and_exit_2(arguments, words):
    done = subprocess.run(
        [sys.executable, "-m", "loadtests.simulator", "--port", "0", *arguments],
        capture_output=True,
        cwd=ROOT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
