"""A 2 MB prompt on its way holds up no other request: a whole gateway, with clients of its own.

The programs that send and take the long bodies share the machine's cores with the gateway, so two
controls are measured in the same run: the same bytes sent past the gateway, and through it without
being read (as a form). What a prompt's preparation itself adds is the difference to the latter.

Most of the judged prompts are new and miss the deadline of their preparation, so that no index
hears of them. Beside prompts that are known, and do not miss it, a last figure is told.

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
FORMS = "/v1/audio/transcriptions"
FORM_HEAD = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nlarge\r\n--b\r\n\r\n'
PROMPT_BYTES = 2_000_000
MAX_DELAY_S = 5e-3

# Takes a body and answers, in a process of its own, so that only the gateway's work is measured.
SINK = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body of an answer in one packet
    def answer(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.wfile.flush()
    do_GET = do_POST = answer
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""

# Sends a file as a chat again and again, each time with another beginning, and says how often.
SENDER = """
import http.client, sys, time
port, path, file, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
body, number = open(file, "rb").read(), 0
connection = http.client.HTTPConnection("127.0.0.1", port)
while True:
    number += 1
    sent = body.replace(b"NUMBER", b"%06d" % number)
    connection.request("POST", path, sent, {"content-type": kind})
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


async def slowest_beside_s(client, port, path, file, kind="application/json"):
    """Return what `slowest_s` does while a program sends a file again and again."""
    with program(SENDER, port, path, file, kind) as sender:
        for _ in range(3):
            assert await asyncio.to_thread(sender.stdout.readline) == "200\n"
        return await slowest_s(client)


async def answers(conversation):
    await conversation.answer(b"{}")


async def test_a_2_mb_prompt_delays_no_other_request_by_more_than_5_ms(replicas, tmp_path):
    """Two models, so that replicas and clients of long prompts are not in the way of short ones."""
    chat, form, known = tmp_path / "chat.json", tmp_path / "form", tmp_path / "known.json"
    chat.write_bytes(large_body())
    known.write_bytes(large_body().replace(b"NUMBER", b"always the same"))
    form.write_bytes(FORM_HEAD + large_body() + b"\r\n--b--\r\n")
    [replica] = await replicas(answers)
    with program(SINK) as sink:
        sink_port = sink.stdout.readline().strip()
        urls = (("small", replica.url), ("large", f"http://127.0.0.1:{sink_port}"))
        models = [
            {"name": name, "tokenizer": MODEL, "block_size": 16, "replicas": [{"url": url}]}
            for name, url in urls
        ]
        async with (
            gateway_process(tmp_path, {"models": models}) as gateway,
            httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client,
        ):
            port = gateway.url.rpartition(":")[2]
            await slowest_s(client)  # connections and code that are new
            alone_s = await slowest_s(client)
            past_s = await slowest_beside_s(client, sink_port, CHAT, chat)
            kind = "multipart/form-data; boundary=b"
            unread_s = await slowest_beside_s(client, port, FORMS, form, kind)
            beside_s = await slowest_beside_s(client, port, CHAT, chat)
            known_s = await slowest_beside_s(client, port, CHAT, known)
    print(
        f"p99 of short requests: {1e3 * alone_s:.1f} ms alone; beside bodies of 2 MB: "
        f"{1e3 * past_s:.1f} ms where they go past the gateway, {1e3 * unread_s:.1f} ms where it "
        f"does not read them, {1e3 * beside_s:.1f} ms where it prepares them"
    )
    print(
        f"delay {1e3 * (beside_s - alone_s):.1f} ms (goal: {1e3 * MAX_DELAY_S:.0f}), of which "
        f"{1e3 * (beside_s - unread_s):.1f} ms are the preparation's; "
        f"beside prompts that the index hears of {1e3 * (known_s - alone_s):.1f} ms (not judged)"
    )
    assert beside_s - alone_s <= MAX_DELAY_S
