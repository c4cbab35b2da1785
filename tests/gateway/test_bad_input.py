"""What wrong requests get: a clear error of ours, in OpenAI's shape, and nothing sent upstream."""

import asyncio

import pytest

from tests.support.replicas import until

# Far from the 30 s for which a request may wait for a place.
AT_ONCE_S = 3.0


async def answers(conversation):
    await conversation.answer(b"{}")


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "kind", "param"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "BadRequestError", None),
        ("POST", "/v1/chat/completions", b"{}", 400, "BadRequestError", "model"),
        ("POST", "/v1/chat/completions", b'{"model":"m"}', 400, "BadRequestError", "messages"),
        ("POST", "/v1/completions", b'{"model":"m"}', 400, "BadRequestError", "prompt"),
        ("POST", "/v1/embeddings", b'{"model":"nope"}', 404, "NotFoundError", "model"),
        ("GET", "/v1/chat/completions", b"", 405, "BadRequestError", None),
        ("POST", "/v1/models", b"", 405, "BadRequestError", None),
        ("POST", "/reset_prefix_cache", b"", 404, "NotFoundError", None),
        ("GET", "/metrics", b"", 404, "NotFoundError", None),
        ("GET", "/docs", b"", 404, "NotFoundError", None),
        ("POST", "/admin/explain", b"{}", 404, "NotFoundError", None),
    ],
)
async def test_wrong_requests(replicas, gateways, method, path, content, status, kind, param):
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    answer = await gateway.client.request(method, path, content=content)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (status, kind, param)
    assert error["code"] == status
    assert replica.received == []


async def test_an_unknown_model_is_told_the_known_ones(replicas, gateways, chat):
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    answer = await gateway.client.post("/v1/chat/completions", json={**chat(), "model": "nope"})
    message = "The model `nope` does not exist. Served models: m."
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, message)


async def test_a_body_over_the_limit_is_a_413_with_and_without_a_length(replicas, gateways, chat):
    [replica] = await replicas(answers)
    gateway = await gateways(replica, limits={"max_body_bytes": 1000})
    declared = await gateway.client.post("/v1/chat/completions", json=chat("x" * 2000))

    async def pieces():
        for _ in range(20):
            yield b"x" * 100

    chunked = await gateway.client.post("/v1/chat/completions", content=pieces())
    assert (declared.status_code, chunked.status_code) == (413, 413)
    assert replica.received == []


async def test_a_client_that_stops_sending_is_a_408(replicas, gateways):
    [replica] = await replicas(answers)
    gateway = await gateways(replica, timeouts={"receive_s": 0.1})
    url = gateway.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
    assert (await reader.readline()) == b"HTTP/1.1 408 Request Timeout\r\n"
    writer.close()


async def test_before_any_replica_is_ready_requests_get_503_at_once(replicas, gateways, chat):
    [replica] = await replicas(answers, healthy=False)
    gateway = await gateways(replica, wait_ready=False)
    async with asyncio.timeout(AT_ONCE_S):
        answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (await gateway.client.get("/readyz")).status_code == 503
    assert (await gateway.client.get("/livez")).status_code == 200
    replica.healthy = True
    await until(lambda: _is_ready(gateway))
    assert (await gateway.client.post("/v1/chat/completions", json=chat())).status_code == 200


async def _is_ready(gateway):
    return (await gateway.client.get("/readyz")).status_code == 200


async def test_the_model_list_is_our_own(replicas, gateways):
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    [entry] = (await gateway.client.get("/v1/models")).json()["data"]
    assert (entry["id"], entry["object"], entry["max_model_len"]) == ("m", "model", 4096)


async def test_request_ids_are_carried_or_made(replicas, gateways, chat):
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    headers = {"x-request-id": "abc-1"}
    await gateway.client.post("/v1/chat/completions", json=chat(), headers=headers)
    await gateway.client.post("/v1/chat/completions", json=chat())
    sent = [request.header(b"x-request-id") for request in replica.received]
    assert sent[0] == b"abc-1"
    assert len(sent[1]) == 32
    assert [line["request_id"].encode() for line in gateway.requests()] == sent


@pytest.mark.parametrize("path", ["/v1/models", "/livez", "/unknown"])
async def test_answers_that_no_replica_gives_carry_a_request_id_too(replicas, gateways, path):
    gateway = await gateways(*await replicas(answers))
    given = await gateway.client.get(path, headers={"x-request-id": "abc-1"})
    made = await gateway.client.get(path)
    assert given.headers["x-request-id"] == "abc-1"
    assert len(made.headers["x-request-id"]) == 32
