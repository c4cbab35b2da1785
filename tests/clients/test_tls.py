"""TLS on both sides: clients that check who we are, replicas that we check and that check us."""

import asyncio
import gc
import shutil
import ssl
import warnings

import httpx
import openai
import pytest

from gateway.config.models import GatewayConfig
from tests.support.api_replicas import chat_event, says_hello
from tests.support.certificates import Authority, TlsReplica
from tests.support.ports import free_port
from tests.support.replicas import until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}

# Handshakes that are cut leave their sockets to the collector on Python 3.11, and which test is
# blamed for it depends on how busy the machine is.
pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def forgotten_handshakes():
    """Collect what httpcore 1.0 forgets: the transport of a TLS handshake that was cancelled.

    A gateway that stops cancels its probes, some of them within a handshake. Later, the collector
    would warn in whichever test is then running.
    """
    yield
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed transport", ResourceWarning)
        gc.collect()


@pytest.fixture
def authority(tmp_path):
    """A private authority whose files are in the test's folder."""
    return Authority(tmp_path)


@pytest.fixture
def secure(replicas):
    """Start one replica with TLS: `await secure(context)`."""

    async def start(context, script=says_hello, **fields):
        [replica] = await replicas(script, kind=TlsReplica, tls=context, **fields)
        return replica

    return start


def fleet(*served, **tls):
    """Return the configuration of a model on these replicas."""
    return GatewayConfig.model_validate(
        {"models": [{"replicas": [{"url": replica.url} for replica in served], "tls": tls}]}
    )


async def ask(gateway, **options):
    return await gateway.client.post("/v1/chat/completions", json=CHAT, **options)


async def the_state(gateway, state, reason):
    replicas = [r for m in (await gateway.status())["models"] for r in m["replicas"]]
    return all((r["state"], r["reason"]) == (state, reason) for r in replicas)


# The listener


@pytest.fixture
def listening(authority):
    """Settings of a listener with a certificate for 127.0.0.1."""
    files = authority.issue("127.0.0.1", name="listener")
    return {"host": "127.0.0.1", "port": 0, "tls": files}


async def test_an_https_listener_serves_clients_that_trust_its_authority(
    replicas, gateways, authority, listening
):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, listen=listening)
    url = gateway.gateway.url
    assert url.startswith("https://127.0.0.1:")
    async with openai.AsyncOpenAI(
        base_url=url + "/v1",
        api_key="k",
        http_client=openai.DefaultAsyncHttpxClient(verify=authority.trust()),
    ) as client:
        answer = await client.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == "hello"
        events = await client.chat.completions.create(**CHAT, stream=True)
        assert "".join([e.choices[0].delta.content or "" async for e in events]) == "hello"
    assert replica.received[0].header(b"x-forwarded-proto") == b"https"


async def test_clients_with_another_authority_or_plain_http_get_nothing(
    replicas, gateways, tmp_path, listening
):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, listen=listening)
    other = Authority(tmp_path, "other").trust()
    async with httpx.AsyncClient(verify=other) as client:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(gateway.gateway.url + "/livez")
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(gateway.gateway.url.replace("https", "http") + "/livez")
    assert replica.received == []


async def test_a_client_that_leaves_over_tls_ends_its_request(
    replicas, gateways, authority, listening
):
    left = asyncio.Event()

    async def script(conversation):
        await conversation.start_stream()
        await conversation.chunk(chat_event({"content": "one"}))
        await conversation.client_left()
        left.set()

    [replica] = await replicas(script)
    gateway = await gateways(replica, listen=listening)
    url = gateway.gateway.url + "/v1/chat/completions"
    async with httpx.AsyncClient(verify=authority.trust()) as client:
        async with client.stream("POST", url, json={**CHAT, "stream": True}) as answer:
            assert await anext(answer.aiter_raw()) == chat_event({"content": "one"})
        async with asyncio.timeout(1.0):
            await left.wait()
    assert await until(gateway.requests)
    assert await gateway.in_flight() == 0


# Replicas


async def test_a_replica_of_a_private_authority_is_reached(secure, gateways, authority):
    replica = await secure(authority.server("127.0.0.1"))
    gateway = await gateways(fleet(replica, ca_file=authority.ca_file))
    for _ in range(3):
        answer = await ask(gateway)
        assert (answer.status_code, answer.json()["object"]) == (200, "chat.completion")
    stream = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert stream.content.endswith(b"data: [DONE]\n\n")
    assert len(replica.received) == 4


async def test_a_host_name_is_checked_and_sent(secure, gateways, authority):
    names = []
    context = authority.server("localhost")
    context.sni_callback = lambda _, name, __: names.append(name)
    replica = await secure(context, host="localhost")
    gateway = await gateways(fleet(replica, ca_file=authority.ca_file))
    assert (await ask(gateway)).status_code == 200
    assert set(names) == {"localhost"}
    assert replica.received[0].header(b"host") == f"localhost:{replica.port}".encode()


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_a_replica_that_cannot_prove_itself_gets_no_request(
    secure, gateways, authority, tmp_path, wrong
):
    if wrong == "authority":
        replica = await secure(Authority(tmp_path, "other").server("127.0.0.1"))
    else:
        replica = await secure(authority.server("engine.example"))
    gateway = await gateways(fleet(replica, ca_file=authority.ca_file), wait_ready=False)
    await until(lambda: the_state(gateway, "starting", "tls"), "a state that says why")
    answer = await ask(gateway)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "no_eligible_replica")
    assert replica.received == []
    assert "certificate" not in answer.text.lower()


async def test_a_replica_that_speaks_plain_http_says_so_in_its_state(gateways, authority):
    async def refuse(reader, writer):
        await reader.read(1)  # uvicorn's answer to what is no HTTP
        writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = GatewayConfig.model_validate({"models": [{"replicas": [{"url": url}]}]})
        gateway = await gateways(config, wait_ready=False)
        await until(lambda: the_state(gateway, "starting", "tls"), "a state that says why")


async def test_a_replica_whose_certificate_becomes_wrong_is_ejected(secure, gateways, authority):
    first = await secure(authority.server("127.0.0.1"))
    gateway = await gateways(fleet(first, ca_file=authority.ca_file))
    assert (await ask(gateway)).status_code == 200
    port = first.port
    await first.stop()
    second = TlsReplica(says_hello, tls=authority.server("engine.example"))
    await second.start(port)
    try:
        await until(lambda: the_state(gateway, "ejected", "tls"), "ejection with its reason")
        assert (await ask(gateway)).status_code == 503
        assert second.received == []
    finally:
        await second.stop()


async def test_a_request_that_finds_a_wrong_certificate_first_goes_elsewhere(
    secure, gateways, authority
):
    good, bad = (
        await secure(authority.server("127.0.0.1")),
        await secure(authority.server("127.0.0.1")),
    )
    config = fleet(good, bad, ca_file=authority.ca_file)
    gateway = await gateways(config, health={"interval_s": 30.0})
    port = bad.port
    await bad.stop()
    imposter = TlsReplica(says_hello, tls=authority.server("engine.example"))
    await imposter.start(port)
    try:
        for number in range(10):
            messages = [{"role": "user", "content": f"question {number}"}]
            answer = await gateway.client.post(
                "/v1/chat/completions", json={"model": "m", "messages": messages}
            )
            assert answer.status_code == 200
            assert answer.headers["x-warmroute-replica"] == good.name
        assert imposter.received == []
        assert (await gateway.replica(bad.name))["state"] == "ejected"
    finally:
        await imposter.stop()


async def test_the_only_replica_with_a_wrong_certificate_is_a_503_with_its_reason(
    secure, gateways, authority
):
    replica = await secure(authority.server("127.0.0.1"))
    config = fleet(replica, ca_file=authority.ca_file)
    gateway = await gateways(config, health={"interval_s": 30.0})
    await replica.stop()
    imposter = TlsReplica(says_hello, tls=authority.server("engine.example"))
    await imposter.start(replica.port)
    try:
        answer = await ask(gateway)
        assert answer.status_code == 503
        assert answer.json()["error"]["reason"] == "no_eligible_replica"
        assert imposter.received == []
        [line] = await until(gateway.requests)
        assert (line["replica"], line["error"]) == (replica.name, "no_eligible_replica")
        assert await the_state(gateway, "ejected", "replica_unreachable")
        assert "engine.example" not in answer.text
    finally:
        await imposter.stop()


# mTLS


async def test_a_replica_that_asks_for_our_certificate_gets_it(secure, gateways, authority):
    replica = await secure(authority.server("127.0.0.1", clients_of=authority))
    ours = authority.issue("gateway.example", name="ours")
    gateway = await gateways(fleet(replica, ca_file=authority.ca_file, **ours))
    answer = await ask(gateway)
    assert (answer.status_code, answer.json()["object"]) == (200, "chat.completion")
    assert await gateway.states() == ["ready"]


@pytest.mark.parametrize("shown", ["none", "another authority's"])
@pytest.mark.parametrize(
    ("newest", "reason"),
    [(ssl.TLSVersion.TLSv1_2, "tls"), (ssl.TLSVersion.TLSv1_3, "unreachable")],
)
async def test_a_replica_that_refuses_our_certificate_never_gets_ready(
    secure, gateways, authority, tmp_path, shown, newest, reason
):
    """With TLS 1.3 our handshake is done before the refusal, which asyncio sends as a bare reset.

    Servers that send TLS's alert are told apart, see the next test.
    """
    context = authority.server("127.0.0.1", clients_of=authority)
    context.maximum_version = newest
    replica = await secure(context)
    files = {}
    if shown != "none":
        files = Authority(tmp_path, "other").issue("gateway.example", name="theirs")
    config = fleet(replica, ca_file=authority.ca_file, **files)
    gateway = await gateways(config, wait_ready=False)
    await until(lambda: the_state(gateway, "starting", reason), "a state that says why")
    answer = await ask(gateway)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "no_eligible_replica")
    assert replica.received == []


async def test_an_alert_about_our_certificate_is_a_reason_of_its_own(
    gateways, authority, require, tmp_path
):
    """OpenSSL's own server, as nginx or Envoy in front of an engine, says what it misses."""
    require("openssl", shutil.which("openssl") is not None, "apt-get install openssl")
    theirs = authority.issue("127.0.0.1", name="theirs")
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_server", "-quiet", "-tls1_3", "-accept", f"127.0.0.1:{port}"),
        *("-cert", theirs["cert_file"], "-key", theirs["key_file"]),
        *("-CAfile", authority.ca_file, "-Verify", "1", "-verify_return_error"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        replicas = [{"url": f"https://127.0.0.1:{port}"}]
        model = {"replicas": replicas, "tls": {"ca_file": authority.ca_file}}
        config = GatewayConfig.model_validate({"models": [model]})
        gateway = await gateways(config, wait_ready=False)
        await until(lambda: the_state(gateway, "starting", "tls"), "a state that says why")
    finally:
        process.kill()
        await process.wait()


async def test_a_request_that_is_refused_by_mtls_is_a_502_or_503_of_ours(
    secure, gateways, authority
):
    """The replica begins to ask for certificates between two probes."""
    replica = await secure(authority.server("127.0.0.1"))
    config = fleet(replica, ca_file=authority.ca_file)
    gateway = await gateways(config, health={"interval_s": 30.0})
    await replica.stop()
    strict = TlsReplica(says_hello, tls=authority.server("127.0.0.1", clients_of=authority))
    await strict.start(replica.port)
    try:
        answer = await ask(gateway)
        assert answer.status_code in (502, 503)
        assert answer.json()["error"]["reason"] in ("stream_broken", "no_eligible_replica")
        assert strict.received == []
        assert await gateway.in_flight() == 0
    finally:
        await strict.stop()
