"""What operators say to several gateways one after the other, before those heard of each other."""

import time

import pytest

from gateway.shared.holds import SETTLE_S
from tests.support.replicas import until
from tests.support.several import sees, several

__all__ = ["several"]


async def answers(conversation):
    await conversation.answer(b"{}")


async def tell(gateway, replica, what):
    """Send what `warmroute cordon`, `uncordon` and `weight` send."""
    path = f"/admin/replicas/{replica.name.replace(':', '%3A')}"
    if isinstance(what, float):
        answer = await gateway.admin.put(f"{path}/weight", json={"weight": what})
    else:
        answer = await gateway.admin.post(f"{path}/{what}")
    assert answer.status_code == 200


async def standing(gateway, replica):
    shown = await gateway.replica(replica.name)
    return shown["state"], shown["weight"]


@pytest.mark.parametrize(
    ("before", "first", "then", "expected"),
    [
        ([], "cordon", 2.0, ("cordoned", 2.0)),
        ([], 2.0, "cordon", ("cordoned", 2.0)),
        ([], "cordon", "uncordon", ("ready", 1.0)),
        (["cordon"], "uncordon", "cordon", ("cordoned", 1.0)),
        ([2.0], 3.0, 2.0, ("ready", 2.0)),
    ],
)
async def test_both_words_count_and_of_two_about_the_same_the_last_one(
    several, redis_server, replicas, before, first, then, expected
):
    replica, second = await replicas(answers, answers)
    one, other = gateways = await several(redis_server, [replica, second])
    for gateway in gateways:
        await sees(gateway, 2)

    async def all_stand(as_expected):
        return all([await standing(gateway, replica) == as_expected for gateway in gateways])

    for word in before:
        await tell(one, replica, word)
        told = await standing(one, replica)
        await until(lambda told=told: all_stand(told), "what was said before")
    await tell(one, replica, first)
    await tell(other, replica, then)
    await until(lambda: all_stand(expected), f"{expected}")


async def test_an_operator_is_answered_when_the_other_gateways_can_know(
    several, redis_server, replicas
):
    replica, second = await replicas(answers, answers)
    one, _ = await several(redis_server, [replica, second])
    for word in ("cordon", "drain", "uncordon"):
        await tell(one, replica, word)
        told = redis_server.command("HGET", "{warmroute}:holds", f"r:{replica.name}")
        state = {"cordon": b"cordoned", "drain": b"draining", "uncordon": b""}[word]
        assert told[13:].startswith(b'["%s"' % state)


async def test_an_operator_is_answered_soon_while_redis_is_paused(several, own_redis, replicas):
    replica, second = await replicas(answers, answers)
    server = own_redis()
    one, _ = await several(server, [replica, second])
    server.pause()
    begun = time.monotonic()
    await tell(one, replica, "cordon")
    assert time.monotonic() - begun < SETTLE_S + 1.0
    assert (await one.replica(replica.name))["state"] == "cordoned"
    server.resume()
