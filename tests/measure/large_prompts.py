"""A 2 MB prompt on its way holds up no other request: a whole gateway, with clients of its own.

Part of `make measure-prompts`, and of no test run: it needs a machine with nothing else to do.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from random import Random

import httpx

from tests.support.fixtures import replicas
from tests.support.processes import gateway_process

__all__ = ["replicas"]

CHAT = "/v1/chat/completions"
MODEL = "loadtests/demo_model"
NUM_REQUESTS = 300
PROMPT_BYTES = 2_000_000
MAX_DELAY_S = 5e-3

# Takes a body and answers, in a process of its own, so that only the gateway's work is measured.
SINK = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    do_GET = do_POST = answer
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""

# Sends a file as a chat again and again, each time with another beginning, and says how often.
SENDER = """
import http.client, sys, time
port, path, file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
body, number = open(file, "rb").read(), 0
connection = http.client.HTTPConnection("127.0.0.1", port)
while True:
    number += 1
    sent = body.replace(b"NUMBER", b"%06d" % number)
    connection.request("POST", path, sent, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    print(answer.status, flush=True)
    time.sleep(0.05)
"""


@contextlib.contextmanager
def program(source, *arguments):
    command = [sys.executable, "-c", source, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def large_body():
    rng = Random(3)
    words = ["".join(rng.choices("etaoinshrdlucm", k=rng.randint(2, 9))) for _ in range(9000)]
    text, length = ["NUMBER"], 0
    while length < PROMPT_BYTES:
        word = rng.choice(words)
        text.append(word)
        length += len(word.encode()) + 1
    messages = [{"role": "user", "content": " ".join(text)}]
    return json.dumps({"model": "large", "messages": messages}, ensure_ascii=False).encode()


def small_body(number):
    messages = [{"role": "user", "content": f"Question {number}, if there is any?"}]
    return {"model": "small", "messages": messages}


async def slowest_s(client):
    """Return the 99th percentile of small requests, one after the other."""
    took_s = []
    for number in range(NUM_REQUESTS):
        started = time.perf_counter()
        answer = await client.post(CHAT, json=small_body(number))
        took_s.append(time.perf_counter() - started)
        assert answer.status_code == 200
        await asyncio.sleep(0.002)
    return sorted(took_s)[NUM_REQUESTS * 99 // 100]


async def answers(conversation):
    await conversation.answer(b"{}")


async def test_a_2_mb_prompt_delays_no_other_request_by_more_than_5_ms(replicas, tmp_path):
    """Two models, so that replicas and clients of long prompts are not in the way of short ones."""
    (tmp_path / "body.json").write_bytes(large_body())
    [replica] = await replicas(answers)
    with program(SINK) as sink:
        sink_url = f"http://127.0.0.1:{sink.stdout.readline().strip()}"
        models = [
            {"name": name, "tokenizer": MODEL, "block_size": 16, "replicas": [{"url": url}]}
            for name, url in (("small", replica.url), ("large", sink_url))
        ]
        async with (
            gateway_process(tmp_path, {"models": models}) as gateway,
            httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client,
        ):
            await slowest_s(client)  # connections and code that are new
            alone_s = await slowest_s(client)
            port = gateway.url.rpartition(":")[2]
            with program(SENDER, port, CHAT, tmp_path / "body.json") as sender:
                for _ in range(3):
                    status = await asyncio.to_thread(sender.stdout.readline)
                    assert status == "200\n"
                beside_s = await slowest_s(client)
    print(f"p99 of short requests: {1e3 * alone_s:.1f} ms alone, {1e3 * beside_s:.1f} ms beside")
    assert beside_s - alone_s <= MAX_DELAY_S
