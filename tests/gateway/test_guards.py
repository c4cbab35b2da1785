"""Small pure guards: retry budget, ejection, rates, encodings, forms, salts, stored responses."""

import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.access import Keys, RateLimit
from gateway.api.encoding import decode_body
from gateway.config.access import IsolationConfig, KeyConfig
from gateway.config.guards import EjectionConfig
from gateway.errors import (
    InvalidRequest,
    PromptTooLarge,
    RateLimited,
    Unauthorized,
    UnsupportedEncoding,
)
from gateway.prompt import form
from gateway.prompt.body import splice_cache_salt
from gateway.prompt.form import form_field
from gateway.proxy.retry import RetryBudget
from gateway.proxy.transport import Origin
from gateway.replicas.registry import Registry, Replica, ReplicaState
from gateway.stored import MAX_RESPONSES, RESPONSES_PATH, Stored
from gateway.tenancy import tenant_salt
from routing.types import ReplicaId

A = ReplicaId("a")


def test_a_budget_allows_a_share_of_requests_and_a_small_reserve():
    budget = RetryBudget(0.2)
    granted = 0
    for _ in range(1000):
        budget.request()
        granted += budget.take()
    assert granted in (209, 210)
    for _ in range(10_000):
        budget.request()
    assert sum(budget.take() for _ in range(100)) == 10, "a calm hour pays for no storm"


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def fleet(clock, *names):
    replicas = [Replica(ReplicaId(name), "m", f"http://{name}", Origin(name, 80)) for name in names]
    registry = Registry(replicas, EjectionConfig(), clock, lambda _: None)
    for replica in replicas:
        registry.probed_well(replica)
    return registry, replicas


def test_failures_in_a_row_eject_and_a_success_forgives(clock):
    registry, [a] = fleet(clock, "a")
    for _ in range(5):
        registry.failed(a, "stream_broken")
        registry.failed(a, "stream_broken")
        registry.succeeded(a)
    assert a.state is ReplicaState.READY
    for _ in range(3):
        registry.failed(a, "stream_broken")
    assert (a.state, a.state_reason) == (ReplicaState.EJECTED, "stream_broken")


def test_an_ejected_replica_comes_back_by_probe_after_a_time_that_doubles(clock):
    registry, [a] = fleet(clock, "a")
    for expected_s in (1, 2, 4, 8, 16, 30, 30):
        registry.failed(a, "replica_unreachable", certain=True)
        ejected_at = clock.now
        while a.state is ReplicaState.EJECTED:
            clock.now += 0.5
            registry.probed_well(a)
        assert clock.now - ejected_at == expected_s
    registry.succeeded(a)
    registry.failed(a, "stream_broken")
    assert a.state is ReplicaState.READY, "forgiven: it takes several again"


def test_after_an_ejection_one_failure_is_enough(clock):
    registry, [a] = fleet(clock, "a")
    registry.failed(a, "replica_unreachable", certain=True)
    clock.now += 1
    registry.probed_well(a)
    registry.failed(a, "replica_timeout")
    assert a.state is ReplicaState.EJECTED


def test_busy_replicas_are_passed_over_while_there_are_others(clock):
    registry, [a, b] = fleet(clock, "a", "b")
    registry.busy(a, 60)
    assert registry.eligible("m") == [b]
    registry.busy(b, 1)
    assert registry.eligible("m") == [a, b], "all busy is no reason to refuse"
    clock.now += 5
    assert registry.eligible("m") == [a, b], "five seconds at most"


def test_a_rate_is_a_bucket():
    rate = RateLimit(tag=b"k", per_minute=60, tokens=10.0, at=0.0)
    assert [rate.take(0.0) for _ in range(10)] == [0.0] * 10
    assert rate.take(0.0) == 1.0
    assert rate.take(0.5) == 0.5
    assert rate.take(1.0) == 0.0
    assert sum(rate.take(1000.0) == 0.0 for _ in range(20)) == 10


def test_a_replaced_key_keeps_its_rate_and_others_go(clock):
    keys = Keys(True, clock)
    old = KeyConfig(name="t", key="k1", requests_per_minute=6)
    keys.replace([old, KeyConfig(name="gone", key="k2")])
    bearer = [(b"authorization", b"Bearer k1")]
    assert keys.caller(bearer).name == "t"
    keys.replace([old])
    with pytest.raises(RateLimited):
        keys.caller(bearer)
    with pytest.raises(Unauthorized):
        keys.caller([(b"authorization", b"Bearer k2")])


def test_keys_required_and_none_in_force_lets_nobody_in(clock):
    with pytest.raises(Unauthorized):
        Keys(True, clock).caller([(b"authorization", b"Bearer ")])


@given(st.binary(max_size=2000), st.sampled_from(["gzip", "deflate", "GZIP "]))
def test_encodings_are_undone(body, encoding):
    packed = zlib.compress(body) if encoding == "deflate" else gzip.compress(body)
    assert decode_body(packed, encoding, 2000) == body


@given(st.binary(max_size=300), st.integers(1, 400), st.integers(1, 50))
def test_in_steps_of_any_size_a_body_is_the_same_and_its_bound_too(body, max_bytes, step):
    packed = gzip.compress(body, mtime=0) + b"what follows"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gateway.api.encoding._STEP_BYTES", step)
        if len(body) <= max_bytes:
            assert decode_body(packed, "gzip", max_bytes) == body
        else:
            with pytest.raises(PromptTooLarge):
                decode_body(packed, "gzip", max_bytes)


@pytest.mark.parametrize(
    ("body", "encoding", "error"),
    [
        (b"{}", "gzip", InvalidRequest),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], "gzip", InvalidRequest),
        (gzip.compress(b"x" * 1001, mtime=0), "gzip", PromptTooLarge),
        (gzip.compress(bytes(100_000_000), mtime=0), "gzip", PromptTooLarge),
        (b"{}", "br", UnsupportedEncoding),
        (b"{}", "gzip, gzip", UnsupportedEncoding),
    ],
)
def test_encodings_that_cannot_be_undone(body, encoding, error):
    with pytest.raises(error):
        decode_body(body, encoding, 1000)


FORM = (
    b'--XX\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    b"\x00\xff--X\r\n--XX\r\nContent-Disposition: form-data; name=model\r\n\r\nwhisper\r\n"
    b"--XX--\r\n"
)


@pytest.mark.parametrize(
    ("content_type", "name", "value"),
    [
        ("multipart/form-data; boundary=XX", "model", "whisper"),
        ('multipart/form-data; charset=utf-8; boundary="XX"', "model", "whisper"),
        ("multipart/form-data; boundary=XX", "language", None),
        ("multipart/form-data; boundary=YY", "model", None),
        ("multipart/form-data", "model", None),
        ("application/json", "model", None),
        ("", "model", None),
    ],
)
def test_a_forms_field(content_type, name, value):
    assert form_field(FORM, content_type, name) == value


@pytest.mark.parametrize("slice_bytes", [1, 2, 3, 7, 1000])
def test_a_forms_field_is_found_however_the_form_is_looked_through(slice_bytes, monkeypatch):
    monkeypatch.setattr(form, "SLICE_BYTES", slice_bytes)
    assert form_field(FORM, "multipart/form-data; boundary=XX", "model") == "whisper"
    assert form_field(FORM, "multipart/form-data; boundary=XX", "language") is None


def test_a_forms_long_field_is_no_name():
    long = FORM.replace(b"whisper", b"w" * 1025)
    assert form_field(long, "multipart/form-data; boundary=XX", "model") is None


@given(st.binary(max_size=300))
def test_no_form_is_an_error(body):
    assert form_field(b"--b" + body, "multipart/form-data; boundary=b", "nothing") is None


@given(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), min_size=1),
    st.sampled_from(["", " ", "\n\t"]),
)
def test_a_spliced_salt_wins_and_every_other_byte_stays(fields, space):
    body = (json.dumps(fields) + space).encode()
    spliced = splice_cache_salt(body, "salt")
    assert json.loads(spliced) == {**fields, "cache_salt": "salt"}
    assert spliced.replace(b',"cache_salt":"salt"', b"") == body


def test_a_salt_goes_into_other_encodings_too():
    body = json.dumps({"model": "é"}, ensure_ascii=False).encode("utf-16")
    assert json.loads(splice_cache_salt(body, "s")) == {"model": "é", "cache_salt": "s"}


def test_tenants_have_salts_that_nobody_else_can_have():
    by_key = IsolationConfig(by="api_key")
    salts = {
        tenant_salt(by_key, tenant, [], client)
        for tenant in ("a", "b", "ab")
        for client in ("", "a", "b", "\ud800")
    }
    assert len(salts) == 12
    assert tenant_salt(by_key, "a", [], "b") == tenant_salt(by_key, "a", [], "b")
    assert tenant_salt(IsolationConfig(), "a", [], "") is None
    by_header = IsolationConfig(by="header")
    assert tenant_salt(by_header, "", [(b"x-tenant-id", b"t")], "")
    with pytest.raises(InvalidRequest, match="x-tenant-id"):
        tenant_salt(by_header, "", [], "")


async def test_stored_responses_are_noted_by_their_first_bytes_and_bounded():
    stored = Stored()

    async def note(body):
        await (await stored.notes([], A, RESPONSES_PATH)).feed(body)

    await note(b'{"id": "resp_abc-1", "object": "response"}')
    await note(b'event: response.created\ndata: {"response":{"id":"resp_2"}}')
    await note(b'{"id": "chatcmpl-1"}')
    ids = ("resp_abc-1", "resp_2", "chatcmpl-1")
    assert [await stored.response(one) for one in ids] == [A, A, None]
    for number in range(MAX_RESPONSES):
        await note(b'{"id":"resp_n%d"}' % number)
    assert await stored.response("resp_2") is None


async def test_sessions_are_noted_by_the_header_that_opens_them():
    stored = Stored()
    for opened in (b"s-1; Expires=2026", b"s" * 1000):
        await stored.notes([(b"x-amzn-sagemaker-new-session-id", opened)], A, "/invocations")

    async def session(value):
        return await stored.home([(b"x-amzn-sagemaker-session-id", value)])

    found = [await session(value) for value in (b"s-1", b"s-2", b"s" * 1000)]
    assert found == [A, None, None]
    assert await stored.home([]) is None
