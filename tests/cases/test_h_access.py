"""Area H, access: nobody comes in without a key, and a key opens nothing but the public API."""

import json

import pytest

from gateway.config.errors import ConfigError
from tests.support.clients import RawClient
from tests.support.replicas import until

KEY = "sk-warm-0123456789"
AUTH = {"keys": [{"name": "team-a", "key": KEY}]}
BEARER = {"authorization": f"Bearer {KEY}"}
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]}).encode()
PROBES = ("/livez", "/readyz", "/health", "/ping")


async def answers(conversation):
    await conversation.answer(b'{"id":"x"}')


@pytest.fixture
async def guarded(replicas, gateways):
    """Start one replica and a gateway that wants a key: `await guarded()`."""

    async def start(**changes):
        [replica] = await replicas(answers)
        return replica, await gateways(replica, **{"auth": AUTH, **changes})

    return start


async def ask(gateway, *lines, body=BODY, method=b"POST", target=b"/v1/chat/completions"):
    """Send a request with exactly these header lines and return the answer."""
    client = await RawClient.open(gateway.gateway.url)
    head = [b"%b %b HTTP/1.1" % (method, target), b"host: gw", b"connection: close", *lines]
    length = [b"content-length: %d" % len(body)] if body else []
    await client.send(b"\r\n".join([*head, *length]) + b"\r\n\r\n" + body)
    try:
        return await client.answer(to_head=method == b"HEAD")
    finally:
        client.leave()


# H144 and H147: deny by default.

HIDDEN = [
    "/metrics",
    "/debug",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/config",
    "/admin/status",
    "/admin/explain",
    "/admin/openapi.json",
    "/v1/internal/keys",
    "/v1/internal/",
    "/docs/oauth2-redirect",
    "/server_info",
]


async def test_h144_outsiders_see_nothing(guarded):
    """Without a key there is only a 401; with one the public listener still has no such page."""
    replica, gateway = await guarded()
    for path in HIDDEN:
        for method in ("GET", "POST", "HEAD"):
            outside = await gateway.client.request(method, path)
            assert outside.status_code == 401, path
            inside = await gateway.client.request(method, path, headers=BEARER)
            assert inside.status_code == 404, path
            told = outside.text + str(outside.headers) + inside.text + str(inside.headers)
            secrets = (replica.name, "team-a", KEY, "127.0.0.1")
            assert not [word for word in secrets if word in told]
    assert replica.received == []


async def test_h144_the_metrics_page_is_on_the_admin_listener_which_is_local(guarded):
    """The page exists elsewhere, on loopback unless configured otherwise, and names no caller."""
    _, gateway = await guarded()
    await gateway.client.post(
        "/v1/chat/completions",
        content=BODY,
        headers={**BEARER, "x-user": "u-canary", "x-session-id": "s-canary"},
    )
    await until(gateway.requests)
    page = (await gateway.admin.get("/metrics")).text
    assert "warmroute_requests_total" in page
    assert not [word for word in ("team-a", KEY, "u-canary", "s-canary") if word in page]
    assert type(gateway.gateway._config).model_fields["admin"].default_factory().host == "127.0.0.1"


async def test_h144_no_documentation_pages_by_default(guarded):
    """Not on the admin listener either: the pages load scripts from elsewhere."""
    _, gateway = await guarded()
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert (await gateway.admin.get(path)).status_code == 404


PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/m",
    "/v1/audio/transcriptions",
    "/tokenize",
    "/detokenize",
    "/score",
    "/rerank",
    "/v2/rerank",
    "/classify",
    "/pooling",
    "/invocations",
    # Second spellings, and paths that a catch-all would rewrite.
    "/responses",
    "/chat/completions",
    "/completions",
    "/generate",
    "/v1",
    "/v1/",
    "/",
    "/v1/v1/chat/completions",
    "/v1/chat/completions/",
    "//v1/chat/completions",
    "/V1/CHAT/COMPLETIONS",
    "/v1/chat/completions;x=1",
    "/v1/chat%2Fcompletions",
    "/%76%31/chat/completions",
    "/livez/../v1/chat/completions",
    "/ping/v1/chat/completions",
    "/ping/../invocations",
    "/livez;/../v1/chat/completions",
    "/readyz%2F..%2Fv1%2Fchat%2Fcompletions",
    "/health%00/v1/chat/completions",
    "/pingx",
    "/livez/",
    "/LIVEZ",
    "/any/thing",
    "http://gw/v1/chat/completions",
    "http://gw/livez/../v1/chat/completions",
    "*",
]


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
async def test_h147_without_a_key_every_path_is_a_401(guarded, method):
    """Whatever the path and the method: denied, with the scheme that is wanted."""
    replica, gateway = await guarded()
    for path in PATHS:
        body = b"" if method in ("GET", "HEAD", "OPTIONS") else BODY
        answer = await ask(gateway, method=method.encode(), target=path.encode(), body=body)
        allowed = {401, 400} if path == "*" or path.startswith("http:") else {401}
        assert answer.status in allowed, (path, answer.head)
        if answer.status == 401:
            assert answer.header(b"www-authenticate").lower().startswith(b"bearer")
    assert replica.received == []
    assert await gateway.in_flight() == 0


async def test_h147_websocket_upgrades_are_denied_too(guarded):
    """An upgrade is a request like any other."""
    replica, gateway = await guarded()
    lines = (
        b"upgrade: websocket",
        b"connection: upgrade",
        b"sec-websocket-version: 13",
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    for target in (b"/v1/chat/completions", b"/v1/realtime", b"/"):
        answer = await ask(gateway, *lines, method=b"GET", target=target, body=b"")
        assert answer.status == 401
    assert replica.received == []


async def test_h147_the_probes_are_open_and_say_yes_or_no(guarded):
    """The listed exceptions answer without a key, and nothing of them reaches a replica."""
    replica, gateway = await guarded()
    for path in PROBES:
        answer = await gateway.client.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < 40
        assert (await gateway.client.head(path)).status_code == 200
    assert replica.received == []


async def test_h147_a_preflight_needs_no_key_but_reaches_nothing(guarded):
    """Browsers send preflights without the key; the request behind it still wants one."""
    replica, gateway = await guarded(cors={"origins": ["https://app.example"]})
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    preflight = await gateway.client.options("/v1/chat/completions", headers=headers)
    assert preflight.status_code == 204
    request = await gateway.client.post("/v1/chat/completions", content=BODY, headers=headers)
    assert request.status_code == 401
    assert request.headers["access-control-allow-origin"] == "https://app.example"
    assert replica.received == []


# H149: what passes as a key.

K = KEY.encode()
REFUSED = {
    "none": [],
    "empty": [b"authorization: "],
    "scheme_only": [b"authorization: Bearer"],
    "scheme_and_space": [b"authorization: Bearer "],
    "key_only": [b"authorization: " + K],
    "basic_empty": [b"authorization: Basic Og=="],
    "basic_key": [b"authorization: Basic " + K],
    "two_in_one": [b"authorization: Bearer " + K + b", Bearer bad"],
    "two_in_one_last": [b"authorization: Bearer bad, Bearer " + K],
    "two_keys": [b"authorization: Bearer " + K + b" " + K],
    "two_lines_bad_first": [b"authorization: Bearer bad", b"authorization: Bearer " + K],
    "two_lines_bad_last": [b"authorization: Bearer " + K, b"authorization: Bearer bad"],
    "two_lines_same": [b"authorization: Bearer " + K, b"authorization: Bearer " + K],
    "nbsp_latin1": [b"authorization: Bearer " + K + b"\xa0"],
    "nbsp_utf8": [b"authorization: Bearer " + K + b"\xc2\xa0"],
    "nbsp_between": [b"authorization: Bearer\xa0" + K],
    "zero_width": [b"authorization: Bearer \xe2\x80\x8b" + K],
    "no_latin": [b"authorization: Bearer \xff\xfe"],
    "no_latin_scheme": [b"authorization: \xff\xfe " + K],
    "prefix": [b"authorization: Bearer " + K[:-1]],
    "longer": [b"authorization: Bearer " + K + b"0"],
    "upper": [b"authorization: Bearer " + K.upper()],
    "quoted": [b'authorization: Bearer "' + K + b'"'],
    "name_of_the_key": [b"authorization: Bearer team-a"],
    "x_api_key_bad": [b"x-api-key: bad"],
    "x_api_key_empty": [b"x-api-key: "],
    "x_api_key_twice": [b"x-api-key: " + K, b"x-api-key: bad"],
    "x_api_key_and_bad": [b"x-api-key: " + K, b"authorization: Bearer bad"],
    "x_api_key_and_empty": [b"x-api-key: " + K, b"authorization: "],
    "bad_and_x_api_key": [b"authorization: bad", b"x-api-key: " + K],
    "api_key": [b"api-key: " + K],
    "proxy": [b"proxy-authorization: Bearer " + K],
    "cookie": [b"cookie: authorization=Bearer " + K],
}


async def test_h149_only_the_exact_key_passes(guarded):
    """Everything else is a 401 with WWW-Authenticate, and reaches nothing."""
    replica, gateway = await guarded()
    for name, lines in REFUSED.items():
        answer = await ask(gateway, *lines)
        assert answer.status == 401, (name, answer.head)
        assert answer.header(b"www-authenticate").lower().startswith(b"bearer"), name
        assert K not in answer.body
    queried = await ask(gateway, target=b"/v1/chat/completions?api_key=" + K)
    assert queried.status == 401
    assert replica.received == []
    assert [line for line in gateway.log if line["event"] == "internal_error"] == []


async def test_h149_a_header_of_a_megabyte_is_refused_before_it_is_compared(guarded):
    """Too large for any header: 431 (or 401), the connection closed, never a 500."""
    replica, gateway = await guarded()
    answer = await ask(gateway, b"authorization: Bearer " + b"k" * 2**20, body=b"", method=b"GET")
    assert answer.status in (401, 431)
    assert replica.received == []


@pytest.mark.parametrize(
    "line",
    [
        b"authorization: Bearer " + K,
        b"Authorization: bearer " + K,
        b"AUTHORIZATION: BEARER " + K,
        b"x-api-key: " + K,
        b"X-Api-Key:  " + K + b"  ",
    ],
)
async def test_h149_the_exact_key_passes_and_goes_no_further(guarded, line):
    """The scheme has no case (RFC 9110); the client's key is not the replica's business."""
    replica, gateway = await guarded()
    assert (await ask(gateway, line)).status == 200
    [received] = replica.received
    assert K not in received.head
    assert received.header(b"authorization") is None
    assert received.header(b"x-api-key") is None


@pytest.mark.parametrize("text", ["", "keys: []", "keys:\n", "{}"])
async def test_h149_a_key_file_without_keys_lets_nobody_in(replicas, gateways, tmp_path, text):
    """An empty file either stops the start or denies all; it never means `no keys needed`."""
    [replica] = await replicas(answers)
    (tmp_path / "keys.yaml").write_text(text)
    try:
        gateway = await gateways(replica, auth={"keys_file": str(tmp_path / "keys.yaml")})
    except ConfigError:
        return
    for lines in ([], [b"authorization: Bearer " + K], [b"authorization: Bearer "]):
        assert (await ask(gateway, *lines)).status == 401
    assert replica.received == []


async def test_h149_a_missing_key_file_stops_the_start(replicas, gateways, tmp_path):
    """A file that is named and not there is told to the operator, not to the clients."""
    [replica] = await replicas(answers)
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        await gateways(replica, auth={"keys_file": str(tmp_path / "none.yaml")})


# H150: engine controls.

CONTROLS = [
    ("POST", "/reset_prefix_cache"),
    ("POST", "/reset_mm_cache"),
    ("POST", "/reset_encoder_cache"),
    ("POST", "/sleep?level=2"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/collective_rpc"),
    ("POST", "/update_weights"),
    ("POST", "/update_weights_from_disk"),
    ("POST", "/init_weights_update_group"),
    ("GET", "/server_info"),
    ("POST", "/server_info"),
    ("GET", "/metrics"),
    ("GET", "/load"),
    ("GET", "/version"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", "/shutdown"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/scale_elastic_ep"),
    ("POST", "/start_profile"),
    ("POST", "/stop_profile"),
    ("POST", "/flush_cache"),
    ("POST", "/abort_requests"),
    ("GET", "/kv_event_sources"),
    ("POST", "/inference/v1/generate"),
    ("POST", "/v1/chat/completions/render"),
    ("GET", "/v1/chat/completions/../../metrics"),
    ("POST", "/v1/responses/..%2f..%2fsleep/cancel"),
    ("POST", "/v1/responses/../../sleep"),
    ("GET", "/v1/responses/%2e%2e/%2e%2e/metrics"),
]


async def test_h150_engine_controls_are_not_reachable(guarded):
    """With a valid key too: not on the list of paths, so not there."""
    replica, gateway = await guarded()
    key = f"authorization: Bearer {KEY}".encode()
    for method, path in CONTROLS:
        body = BODY if method == "POST" else b""
        answer = await ask(gateway, key, method=method.encode(), target=path.encode(), body=body)
        assert answer.status in (404, 403), (path, answer.head)
        assert answer.json()["error"]["code"] == answer.status
    assert replica.received == []
    probed = {request.line.split()[1] for request in replica.probes}
    ours = {b"/health", b"/v1/models", b"/metrics", b"/version", b"/kv_event_sources"}
    assert probed <= ours
