"""Area B: which paths exist, and that each kind of body is routed by what it says."""

import json
from pathlib import Path

import pytest

from gateway.api.endpoints import ENDPOINTS, find
from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig
from tests.support.clients import post
from tests.support.replicas import until

VLLM = Path(__file__).parents[1] / "data/vllm-0.32/paths.json"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
BODY = {"model": "m", "messages": MESSAGES}


async def answers(conversation):
    await conversation.answer(b'{"id":"x"}')


UNKNOWN_PATHS = [
    "/v1/v1/chat/completions",
    "/v1/chat/completions/",
    "/chat/completions",
    "//v1/chat/completions",
    "/V1/chat/completions",
    "/v1/./chat/completions",
    "/v1/../v1/chat/completions",
    "/v1/chat/completions;x=1",
    "/v1/models/",
    "/",
    "/v1",
    "/docs",
    "/openapi.json",
]


async def test_b052_an_unknown_path_is_a_404_and_never_a_redirect(replicas, gateways, raw):
    """Doubled prefixes, trailing slashes and own base paths: 404 in OpenAI's shape, no Location."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for path in UNKNOWN_PATHS:
        await client.send(post(path, BODY))
        answer = await client.answer()
        assert answer.status == 404, path
        assert answer.json()["error"]["reason"] == "path_not_found"
        assert answer.header(b"location") is None
        assert replica.name.encode() not in answer.head + answer.body
    assert replica.received == []


async def test_b052_a_query_reaches_the_replica_unchanged(replicas, gateways, raw):
    """Query strings are not ours to read, decode or normalise."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for query in (
        "?api-version=2024-12-01-preview&x=a%2Fb",
        "?",
        "?a=b?c&&=;d+%20%zz",
        "?q=%E4%BD%A0",
    ):
        await client.send(post(CHAT + query, BODY))
        assert (await client.answer()).status == 200
        sent = replica.received[-1].line.split(b" ")[1].decode()
        assert sent.removesuffix("?") == (CHAT + query).removesuffix("?")
    lines = await until(gateway.requests)
    assert {line["path"] for line in lines} == {CHAT}


async def test_b052_an_absolute_target_is_its_path(replicas, gateways, raw):
    """`POST http://gw/v1/...` (RFC 9112, 3.2.2) is served, and the replica gets the path alone."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(f"http://gw{CHAT}?a=1", BODY))
    assert (await client.answer()).status == 200
    assert replica.received[0].line == f"POST {CHAT}?a=1 HTTP/1.1".encode()


INPUT = {"model": "m", "input": "hi"}
PAIR = {"model": "m", "query": "a", "documents": ["b", "c"]}
REQUESTS = [
    (CHAT, BODY),
    ("/v1/completions", {"model": "m", "prompt": "hi"}),
    ("/v1/embeddings", INPUT),
    ("/v1/responses", INPUT),
    ("/v1/messages", {**BODY, "max_tokens": 5}),
    ("/v1/messages/count_tokens", BODY),
    ("/tokenize", {"model": "m", "prompt": "hi"}),
    ("/detokenize", {"model": "m", "tokens": [1, 2]}),
    ("/score", {"model": "m", "text_1": "a", "text_2": "b"}),
    ("/v1/score", {"model": "m", "text_1": "a", "text_2": "b"}),
    ("/rerank", PAIR),
    ("/v1/rerank", PAIR),
    ("/v2/rerank", PAIR),
    ("/classify", INPUT),
    ("/pooling", INPUT),
    ("/invocations", BODY),
]


async def test_b053_every_supported_endpoint_is_forwarded(replicas, gateways, raw):
    """One request to each: same path, same bytes, the replica's answer."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for path, body in REQUESTS:
        await client.send(post(path, body))
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b'{"id":"x"}'), path
        assert replica.received[-1].line == f"POST {path} HTTP/1.1".encode()
        assert replica.received[-1].body == json.dumps(body).encode(), path
    assert await gateway.in_flight() == 0


async def test_b053_the_list_is_what_the_tests_send(replicas, gateways):
    """No endpoint without a test, and /v1/models is our own list."""
    forms = {"/v1/audio/transcriptions", "/v1/audio/translations"}  # tested as B054
    assert {path for path, _ in REQUESTS} | forms == set(ENDPOINTS)
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    models = (await gateway.client.get("/v1/models")).json()
    assert [entry["id"] for entry in models["data"]] == ["m"]


# What vLLM 0.32.0 serves and clients do not reach through us: its controls, and what is ours.
OURS = {"/health", "/v1/models", "/ping"}
CONTROLS = {
    "/load", "/version", "/kv_event_sources", "/metrics", "/reset_prefix_cache", "/reset_mm_cache",
    "/reset_encoder_cache", "/collective_rpc", "/server_info", "/sleep", "/wake_up",
    "/release_kv_cache_memory", "/is_sleeping", "/pause", "/resume", "/is_paused",
    "/abort_requests", "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine",
    "/start_weight_update", "/start_draft_weight_update", "/update_weights",
    "/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker",
    "/get_world_size", "/scale_elastic_ep", "/is_scaling_elastic_ep",
}  # fmt: skip
# Served by the engine, not by us: nothing that clients of these APIs ask for.
LEFT_OUT = {"/v1/chat/completions/batch", "/v1/systemone", "/generative_scoring"}
STORED = {"/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel"}


def test_b053_every_path_of_the_pinned_vllm_has_a_place_on_a_list():
    """A path that a new vLLM brings has to be put on one of the lists, or this fails."""
    served = json.loads(VLLM.read_text())
    known = set(ENDPOINTS) | OURS | CONTROLS | LEFT_OUT | STORED
    assert set(served) <= known
    for path, methods in served.items():
        reached = find(path.replace("{response_id}", "resp_1")) is not None
        assert reached is (path in set(ENDPOINTS) | STORED), path
        if path in ENDPOINTS:
            assert methods == [ENDPOINTS[path].method]


async def test_b053_controls_of_the_engine_are_out_of_reach(replicas, gateways, raw):
    """Engine controls are 404 for GET and POST, and no request of theirs reaches a replica."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, health={"interval_s": 30.0})
    probes = len(replica.probes)
    client = await raw(gateway)
    for path in sorted(CONTROLS | LEFT_OUT):
        await client.send(post(path, {"model": "m"}))
        assert (await client.answer()).status == 404, path
        await client.send(f"GET {path} HTTP/1.1\r\nhost: gw\r\n\r\n".encode())
        assert (await client.answer()).status == 404, path
    assert (len(replica.received), len(replica.probes)) == (0, probes)


async def test_b053_endpoints_that_generate_nothing_leave_the_index_alone(replicas, gateways, raw):
    """Only prompts that leave KV blocks behind are remembered: chat, but not tokenize or rerank."""
    [replica] = await replicas(answers)
    config = config_from_flags([replica.url], "loadtests/demo_model")
    values = config.model_dump()
    values["models"][0]["block_size"] = 16
    gateway = await gateways(GatewayConfig.model_validate(values))
    text = "some words that are long enough for a few blocks of sixteen tokens each " * 8
    client = await raw(gateway)
    generating = {CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"}
    for path, body in REQUESTS:
        if path in generating:
            continue
        fields = {k: text if v in ("hi", "a", "b") else v for k, v in body.items()}
        fields = {k: [{"role": "user", "content": text}] if k == "messages" else v
                  for k, v in fields.items()}  # fmt: skip
        await client.send(post(path, fields))
        assert (await client.answer()).status == 200
    match = await _matched(gateway, text)
    assert match == 0
    await client.send(post(CHAT, {"model": "m", "messages": [{"role": "user", "content": text}]}))
    assert (await client.answer()).status == 200
    assert await _matched(gateway, text) > 0


async def _matched(gateway, text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    explained = (await gateway.admin.post("/admin/explain", json=body)).json()
    return explained["candidates"][0]["matched_tokens"]["L0"]


AUDIO = bytes(range(256)) * 2


def form(boundary, model, *, model_last=False, file=AUDIO):
    fields = [
        b'Content-Disposition: form-data; name="model"\r\n\r\n' + model.encode(),
        b'Content-Disposition: form-data; name="file"; filename="model.wav"\r\n'
        b"Content-Type: audio/wav\r\n\r\n" + file,
        b'Content-Disposition: form-data; name="language"\r\n\r\nen',
    ]
    if model_last:
        fields.append(fields.pop(0))
    mark = b"--" + boundary.encode()
    return b"".join(mark + b"\r\n" + field + b"\r\n" for field in fields) + mark + b"--\r\n"


def post_form(path, boundary, body, *headers):
    kind = f'multipart/form-data; boundary="{boundary}"'
    lines = [f"POST {path} HTTP/1.1", "host: gw", f"content-type: {kind}", *headers]
    head = "\r\n".join([*lines, f"content-length: {len(body)}"])
    return head.encode() + b"\r\n\r\n" + body


def two_models(first, second, **model):
    models = [
        {"name": "m", "replicas": [{"url": first.url}], **model},
        {"name": "whisper", "replicas": [{"url": second.url}], **model},
    ]
    return GatewayConfig.model_validate({"models": models})


BROKEN_PART = b"--b\r\nContent-Disposition: \xff\r\n\r\n"
TRAP = b'name="model"\r\n\r\nm\r\n' + AUDIO


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
@pytest.mark.parametrize("options", [{}, {"model_last": True}, {"file": TRAP}], ids=str)
@pytest.mark.parametrize("boundary", ["xYz123", "----=_Part 1; x"])
async def test_b054_a_form_is_routed_by_its_model_and_passes_as_it_is(
    replicas, gateways, raw, path, options, boundary
):
    """The replica of the form's model gets the same boundary, bytes and key."""
    [first] = await replicas(answers)
    [second] = await replicas(answers, model="whisper")
    gateway = await gateways(two_models(first, second))
    body = form(boundary, "whisper", **options)
    client = await raw(gateway)
    await client.send(post_form(path, boundary, body, "Authorization: Bearer k"))
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, b'{"id":"x"}')
    assert first.received == []
    [request] = second.received
    assert request.body == body
    assert request.header(b"content-type") == f'multipart/form-data; boundary="{boundary}"'.encode()
    assert request.header(b"authorization") == b"Bearer k"


async def test_b054_the_models_own_key_goes_along_with_a_form(replicas, gateways, raw):
    """A model's own key reaches the replica instead of the client's."""
    [first] = await replicas(answers)
    [second] = await replicas(answers, model="whisper")
    gateway = await gateways(two_models(first, second, api_key="sk-engine"))
    client = await raw(gateway)
    path = "/v1/audio/transcriptions"
    await client.send(post_form(path, "b", form("b", "whisper"), "Authorization: Bearer k"))
    assert (await client.answer()).status == 200
    keys = [value for name, value in second.received[0].headers if name == b"authorization"]
    assert keys == [b"Bearer sk-engine"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (post_form("/v1/audio/transcriptions", "b", form("other", "m")), 400),
        (post_form("/v1/audio/transcriptions", "b", b""), 400),
        (post_form("/v1/audio/transcriptions", "b", form("b", "unknown")), 404),
        (post("/v1/audio/transcriptions", BODY), 400),
        (post_form(CHAT, "b", form("b", "m")), 400),
        (post_form("/v1/audio/transcriptions", "b", BROKEN_PART), 400),
    ],
    ids=["wrong_boundary", "empty", "unknown_model", "json", "form_to_chat", "broken_part"],
)  # fmt: skip
async def test_b054_a_form_that_names_no_model_is_the_clients_fault(
    replicas, gateways, raw, data, status
):
    """Wrong boundaries, JSON where a form belongs and the other way round: 4xx, never a 500."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(data)
    assert (await client.answer()).status == status
    assert replica.received == []


async def test_b056_ping_tells_whether_requests_can_be_served(replicas, gateways):
    """/ping is 200 with a replica up and 503 with none, without a key, for GET and POST."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, auth={"keys": [{"name": "a", "key": "sk-case"}]})
    for method in ("GET", "POST"):
        assert (await gateway.client.request(method, "/ping")).status_code == 200
    replica.healthy = False

    async def is_503():
        return (await gateway.client.get("/ping")).status_code == 503

    await until(is_503)
    assert (await gateway.client.post("/ping")).status_code == 503
    replica.healthy = True
    await until(lambda: _is_200(gateway))


async def _is_200(gateway):
    return (await gateway.client.get("/ping")).status_code == 200


async def test_b056_ping_does_not_wait_for_a_hung_replica(replicas, gateways):
    """/ping answers from what is known, at once, while a replica's probe hangs."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, health={"interval_s": 0.05, "timeout_s": 30.0})

    async def hangs(conversation):
        await conversation.client_left()

    num_probes = len(replica.probes)
    replica._probe = hangs
    await until(lambda: len(replica.probes) > num_probes)
    answer = await gateway.client.get("/ping", timeout=2.0)
    assert answer.status_code == 200


# Long enough for blocks that can be matched.
LONG = "a prompt that both requests share, word by word " * 8
INVOCATIONS = [
    ({"model": "m", "messages": [{"role": "user", "content": LONG}], "stream": True}, CHAT),
    ({"model": "m", "prompt": LONG}, "/v1/completions"),
    ({"model": "m", "input": "three"}, "/v1/embeddings"),
]


@pytest.mark.parametrize(("body", "twin"), INVOCATIONS, ids=[twin for _, twin in INVOCATIONS])
@pytest.mark.parametrize("tokenizer", [None, "loadtests/demo_model"], ids=["bytes", "tokens"])
async def test_b056_invocations_are_routed_as_their_twins(
    replicas, gateways, body, twin, tokenizer
):
    """/invocations goes where its /v1 twin goes, for the same reason, and streams like it."""

    async def script(conversation):
        if b'"stream"' not in conversation.request.body:
            await answers(conversation)
            return
        await conversation.start_stream()
        await conversation.chunk(b"data: 1\n\n")
        await conversation.chunk(b"data: [DONE]\n\n")
        await conversation.end()

    fleet = await replicas(script, script, script)
    urls = [{"url": replica.url} for replica in fleet]
    model = {"name": "m", "replicas": urls, "tokenizer": tokenizer, "block_size": 16}
    gateway = await gateways(GatewayConfig.model_validate({"models": [model]}))
    expected = await gateway.client.post(twin, json=body)
    answer = await gateway.client.post("/invocations", json=body)
    assert (answer.status_code, answer.content) == (200, expected.content)
    assert answer.headers["content-type"] == expected.headers["content-type"]
    first, second = await until(lambda: _two(gateway.requests()))
    for key in ("policy", "rung", "stream", "num_prompt_tokens"):
        assert first[key] == second[key], key
    assert first.get("problem") == second.get("problem")
    if twin != "/v1/embeddings":  # nothing ties an embedding to a replica
        assert first["replica"] == second["replica"]
    received = [request for replica in fleet for request in replica.received]
    assert received[0].body == received[1].body
    assert {request.line.split()[1] for request in received} == {b"/invocations", twin.encode()}


def _two(lines):
    return lines if len(lines) == 2 else None


@pytest.mark.parametrize(
    ("body", "status"), [([], 400), ({"messages": MESSAGES}, 400), ("text", 400)], ids=str
)
async def test_b056_an_invocation_of_no_known_form_is_a_400(replicas, gateways, raw, body, status):
    """A body that is no object, or names no model, is refused."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post("/invocations", body))
    assert (await client.answer()).status == status
    assert replica.received == []


SESSION = "x-amzn-sagemaker-session-id"
NEW_SESSION = "x-amzn-sagemaker-new-session-id"


def keeps_sessions():
    """Make a script that opens sessions as the platform's containers do."""
    count = 0

    async def script(conversation):
        nonlocal count
        extra = b""
        if conversation.request.header(SESSION.encode()) == b"NEW_SESSION":
            count += 1
            port = conversation.writer.get_extra_info("sockname")[1]
            told = b"s-%d-%d; Expires=2030-01-01T00:00:00Z" % (port, count)
            extra = NEW_SESSION.encode() + b": " + told + b"\r\n"
        await conversation.answer(b"{}", extra=extra)

    return script


async def test_b057_sagemaker_headers_pass_both_ways(replicas, gateways, raw):
    """Session, attribute and adapter headers reach the replica, its session id the client."""
    [replica] = await replicas(keeps_sessions())
    gateway = await gateways(replica)
    client = await raw(gateway)
    sent = {
        SESSION: "NEW_SESSION",
        "x-amzn-sagemaker-custom-attributes": "trace=1;k=v w",
        "x-amzn-sagemaker-adapter-identifier": "lora-1",
    }
    headers = [f"{name}: {value}" for name, value in sent.items()]
    await client.send(post("/invocations", BODY, *headers))
    answer = await client.answer()
    assert answer.status == 200
    [told] = answer.all(NEW_SESSION.encode())
    assert told.startswith(b"s-%d-1; Expires=" % replica.port)
    [request] = replica.received
    for name, value in sent.items():
        assert request.header(name.encode()) == value.encode()


async def test_b057_a_session_stays_with_the_replica_that_opened_it(replicas, gateways):
    """Requests of a session go to its replica while it lives; after that to any other.

    Sessions are opened on every replica, so that keeping to them cannot be chance.
    """
    fleet = await replicas(keeps_sessions(), keeps_sessions(), keeps_sessions())
    gateway = await gateways(config_from_flags([r.url for r in fleet], policy="round_robin"))
    homes = {}
    for number in range(9):
        headers = {SESSION: "NEW_SESSION"}
        answer = await gateway.client.post("/invocations", json=BODY, headers=headers)
        session = answer.headers[NEW_SESSION].partition(";")[0]
        homes[session] = answer.headers["x-warmroute-replica"]
        assert session.split("-")[1] == homes[session].rpartition(":")[2], number
    assert len(set(homes.values())) == 3
    for session, home in homes.items():
        for _ in range(2):  # in a row, which taking turns would not do
            headers = {SESSION: session}
            answer = await gateway.client.post("/invocations", json=BODY, headers=headers)
            assert answer.headers["x-warmroute-replica"] == home
    gone = next(replica for replica in fleet if replica.name == homes[session])
    await gone.stop()
    for session in homes:
        headers = {SESSION: session}
        answer = await gateway.client.post("/invocations", json=BODY, headers=headers)
        assert answer.status_code == 200


async def test_b057_an_unknown_session_is_served(replicas, gateways):
    """A session id that no replica is known for is routed like any other request."""
    fleet = await replicas(keeps_sessions(), keeps_sessions())
    gateway = await gateways(*fleet)
    for value in ("s-unknown", "x" * 500, '";\t, NEW_SESSION'):
        answer = await gateway.client.post("/invocations", json=BODY, headers={SESSION: value})
        assert answer.status_code == 200
