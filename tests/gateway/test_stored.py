"""What only one replica has: found here first, then elsewhere, and told again with each use."""

import pytest

from gateway.stored import NEW_SESSION, SESSION_HEADER, Stored
from routing.types import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")
OPENED = [(b"x-amzn-sagemaker-new-session-id", b"s-1; Expires=2030-01-01T00:00:00Z")]
NAMED = [(SESSION_HEADER, b"s-1")]


class Others:
    """Stands in for the other gateways: knows what it was told."""

    def __init__(self, **known):
        self.known = {name.replace("_", " ").encode(): replica for name, replica in known.items()}
        self.told, self.asked, self.num_settled = [], [], 0

    def remember(self, key, replica):
        self.told.append((key, replica))

    async def settle(self):
        self.num_settled = len(self.told)

    async def recall(self, key):
        self.asked.append(key)
        return self.known.get(key)


async def test_a_session_in_use_here_is_told_again_so_that_others_do_not_forget_it():
    others = Others()
    stored = Stored(others)
    await stored.notes(OPENED, A, "/v1/chat/completions")
    for _ in range(2):
        assert await stored.home(NAMED) == A
    assert others.told == [(b"session s-1", A)] * 3
    assert others.asked == []


async def test_the_others_can_know_what_is_new_before_the_client_does():
    others = Others()
    stored = Stored(others)
    notes = await stored.notes(OPENED, A, "/v1/responses")
    assert others.num_settled == 1
    await notes.feed(b'{"object":"response","id":"re')
    assert others.num_settled == 1
    await notes.feed(b'sp_1","output":[]}')
    assert others.num_settled == len(others.told) == 2
    assert await stored.response("resp_1") == A
    assert others.num_settled == 2, "what was known before is told again beside the request"


async def test_a_response_in_use_here_is_told_again():
    others = Others(response_resp=A)
    stored = Stored(others)
    assert [await stored.response("resp") for _ in range(2)] == [A, A]
    assert others.asked == [b"response resp"], "it is known here by then"
    assert others.told == [(b"response resp", A)] * 2


@pytest.mark.parametrize("named", [b"", b"x" * 257, NEW_SESSION])
async def test_what_names_no_session_is_not_asked_for(named):
    others = Others()
    assert await Stored(others).home([(SESSION_HEADER, named)]) is None
    assert others.asked == []


async def test_what_nobody_knows_is_unknown_and_not_told():
    others = Others()
    stored = Stored(others)
    assert await stored.response("resp") is None
    assert await Stored().response("resp") is None
    assert await stored.home(NAMED) is None
    assert others.told == []


async def test_the_response_that_a_request_continues_comes_before_its_session():
    stored = Stored(Others(response_resp=B))
    await stored.notes(OPENED, A, "/v1/responses")
    assert await stored.home(NAMED, "resp") == B
    assert await stored.home(NAMED, "unknown") == A
    assert await stored.home([], "unknown") is None
    assert await stored.home([], "\ud800") is None
