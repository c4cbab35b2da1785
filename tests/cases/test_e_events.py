"""Area E: KV events that are lost, late, of another shape, or of another replica."""

import json
import time

import msgspec
import pytest

from gateway.config.load import config_from_flags
from tests.support.engines import Engine
from tests.support.event_fleets import SIZE, blocks, candidates, follows, holds, metric, tokens
from tests.support.gateways import quick, running
from tests.support.publishers import CLEARED, Publisher, removed, stored
from tests.support.replicas import until


async def test_e104_lost_batches_are_asked_for_and_applied_before_what_came_after_them(fleet):
    gateway, [(replica, publisher)] = await fleet(Publisher())
    await publisher.send(stored(range(1, 11), tokens(10)))
    await holds(gateway, tokens(10), replica, 10)
    before = await metric(gateway, "kv_event_missed_batches", replica)
    first = publisher.keep(*[removed(10 - n) for n in range(1)])
    for number in range(1, 5):
        publisher.keep(removed(10 - number))
    await publisher.send(stored([20], tokens(1, 100), parent=5))
    await holds(gateway, tokens(10), replica, 5)
    assert publisher.asked_from[-1] == first
    assert await metric(gateway, "kv_event_missed_batches", replica) == before + 5
    assert await metric(gateway, "kv_event_losses", replica) == 0
    assert await blocks(gateway, tokens(5) + tokens(1, 100), replica) == 6


async def test_e104_without_a_replay_port_a_gap_empties_what_is_known(fleet):
    gateway, [(replica, publisher)] = await fleet(Publisher(replays=False))
    await publisher.send(stored(range(1, 11), tokens(10)))
    await holds(gateway, tokens(10), replica, 10)
    before = await metric(gateway, "kv_event_losses", replica)
    publisher.keep(removed(5))
    await publisher.send(stored([31], tokens(1, 200)))
    await holds(gateway, tokens(1, 200), replica, 1)
    assert await blocks(gateway, tokens(10), replica) == 0
    assert await metric(gateway, "kv_event_losses", replica) == before + 1
    assert not await follows(gateway, replica), "unknown until it is filled anew"
    await publisher.send(CLEARED, stored([41], tokens(1, 300)))
    await until(lambda: follows(gateway, replica), "an empty cache is a known one")


@pytest.mark.parametrize("topic_in_replies", [True, False], ids=["0.26 on", "before 0.26"])
async def test_e104_a_replay_that_begins_too_late_empties_what_is_known(fleet, topic_in_replies):
    gateway, [(replica, publisher)] = await fleet(Publisher(topic_in_replies=topic_in_replies))
    await publisher.send(stored(range(1, 11), tokens(10)))
    await holds(gateway, tokens(10), replica, 10)
    publisher.keep(removed(5))
    second = publisher.keep(stored([51], tokens(1, 400)))
    for number in [n for n in publisher.buffer if n < second]:
        del publisher.buffer[number]
    await publisher.send(stored([31], tokens(1, 200)))
    await holds(gateway, tokens(1, 200), replica, 1)
    assert await blocks(gateway, tokens(1, 400), replica) == 1, "what the replay had was taken"
    assert await blocks(gateway, tokens(10), replica) == 0
    assert not await follows(gateway, replica)


async def test_e104_it_is_known_again_when_as_much_as_fits_is_known(fleet):
    gateway, [(replica, publisher)] = await fleet(Publisher(replays=False))
    publisher.keep(removed(5))
    await publisher.send(stored([1], tokens(1)))
    await until(lambda: _lost(gateway, replica), "the loss")
    await publisher.send(stored(range(2, 901), tokens(899, 10_000)))
    await until(lambda: follows(gateway, replica), "900 of 1,000 blocks")


async def _lost(gateway, replica):
    return not await follows(gateway, replica)


async def test_e104_a_gateway_that_joins_late_asks_for_all_from_the_first_batch(fleet):
    publisher = Publisher()
    publisher.keep(stored([1, 2], tokens(2)))
    publisher.keep(stored([3], tokens(1, 8), parent=2))
    gateway, [(replica, _)] = await fleet(publisher, in_step=False)
    await holds(gateway, tokens(3), replica, 3)
    assert publisher.asked_from[0] == 0
    assert await follows(gateway, replica)


async def test_e106_an_engine_that_counts_from_0_again_holds_nothing_of_before(fleet, publishers):
    gateway, [(replica, publisher)] = await fleet(Publisher())
    for number in range(20):
        first = number * 100
        await publisher.send(stored(range(first + 1, first + 6), tokens(5, first)))
    await holds(gateway, tokens(5, 1900), replica, 5)
    await publisher.stop()
    [again] = await publishers(Publisher(), port=publisher.ports[0])
    again.keep(stored([1], tokens(1, 5000)))

    async def seen():
        await again.send_again(0)
        return await blocks(gateway, tokens(1, 5000), replica) == 1

    await until(seen, "the new process")
    assert await blocks(gateway, tokens(5, 1900), replica) == 0
    assert await metric(gateway, "kv_event_restarts", replica) >= 1


async def test_e106_a_replay_of_old_numbers_is_no_restart(fleet):
    gateway, [(replica, publisher)] = await fleet(Publisher())
    await publisher.send(stored([1, 2], tokens(2)))
    await holds(gateway, tokens(2), replica, 2)
    publisher.keep(stored([3], tokens(1, 8), parent=2))
    # From now on a replay begins at 0, whatever is asked for.
    publisher.asked_from = _Zero(publisher.asked_from)
    await publisher.send(stored([4], tokens(1, 12), parent=3))
    await holds(gateway, tokens(4), replica, 4)
    assert await metric(gateway, "kv_event_restarts", replica) == 0


class _Zero(list):
    """A log of what was asked for whose last entry reads as 0."""

    def __getitem__(self, index):
        return 0


@pytest.mark.parametrize("event", [CLEARED, ["AllBlocksCleared"]], ids=["map", "array"])
async def test_e108_a_cleared_cache_holds_what_was_stored_after_it(fleet, event):
    gateway, [(one, first), (other, second)] = await fleet(Publisher(), Publisher())
    for replica, publisher in ((one, first), (other, second)):
        await publisher.send(
            stored(range(1, 51), tokens(50)),
            stored(range(51, 101), tokens(50), lora_name="l", extra_keys=[["l"]] * 50),
        )
        await holds(gateway, tokens(50), replica, 50)
    await first.send(event, stored([200], tokens(1, 7000)))
    await holds(gateway, tokens(1, 7000), one, 1)
    assert await blocks(gateway, tokens(50), one) == 0
    assert await blocks(gateway, tokens(50), other) == 50
    assert await metric(gateway, "kv_event_blocks", one) == 1


async def test_e110_a_replica_that_leaves_takes_its_entries_and_late_batches_along(
    engines, publishers, tmp_path
):
    [publisher] = await publishers(Publisher())
    leaving, staying = await engines(
        Engine(block_size=SIZE, sources={"0": publisher.source()}), Engine(block_size=SIZE)
    )
    listed = tmp_path / "replicas.yaml"

    def list_replicas(*replicas):
        listed.write_text("".join(f"- url: {replica.url}\n" for replica in replicas))

    list_replicas(leaving, staying)
    publisher.keep(stored(range(1, 10_001), tokens(10_000)))
    config = config_from_flags([staying.url])
    model = {"name": "m", "discovery": [{"kind": "file", "path": str(listed)}]}
    async with running(quick(config, models=[model])) as gateway:
        await until(lambda: _are(gateway, 2), "both")
        await holds(gateway, tokens(10_000), leaving, 10_000)
        for number in range(200):
            await publisher.send(stored([20_000 + number], tokens(1, 50_000 + number * SIZE)))
        list_replicas(staying)
        await until(lambda: _are(gateway, 1), "one")
        list_replicas(leaving, staying)
        publisher.buffer.clear()
        await until(lambda: _are(gateway, 2), "both again")
        assert await blocks(gateway, tokens(10_000), leaving) == 0
        assert await blocks(gateway, tokens(1, 50_000), leaving) == 0


async def _are(gateway, number):
    states = await gateway.states()
    return states == ["ready"] * number


REPORTED = [151644, 872, 198, 9064, 374, 279, 6722, 315, 5616, 30, 151645, 198, 151644, 77091, 198, 151667]  # fmt: skip  # noqa: E501 - as reported
HASH = 15760518052499183552


@pytest.mark.parametrize(
    "block_hash",
    [HASH, HASH - 2**64, b"\xab" * 24 + HASH.to_bytes(8, "big")],
    ids=["unsigned", "signed", "bytes"],
)
@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize("members", [(), (0,)], ids=["two members", "three members"])
async def test_e112_every_encoding_makes_the_same_entries(fleet, form, block_hash, members):
    gateway, [(replica, publisher)] = await fleet(Publisher())
    event = stored([block_hash], REPORTED, extra_keys=[None])
    if form == "array":
        event = list(event.values())
    payload = msgspec.msgpack.encode([1789095808.8, [event], *members])
    number = publisher.keep()
    publisher.buffer[number] = payload
    await publisher.send_payload(number, payload)
    ids = REPORTED

    async def matched():
        return (await candidates(gateway, ids))[replica.name]["L0"] == 16

    await until(matched, "a match")
    await publisher.send(removed(HASH))  # by its other spelling
    await holds(gateway, ids, replica, 0)


async def test_e112_an_event_that_nobody_can_read_stops_nothing(fleet):
    gateway, [(replica, publisher)] = await fleet(Publisher())
    number = publisher.keep()
    publisher.buffer[number] = b"\xc1"
    await publisher.send_again(number)
    await publisher.send({"type": "New", "x": 1}, {"type": "BlockStored"}, stored([1], tokens(1)))
    await holds(gateway, tokens(1), replica, 1)
    assert await metric(gateway, "kv_event_unreadable", replica) == 3


async def test_e114_an_offload_makes_another_tier_and_each_goes_by_itself(fleet):
    gateway, [(replica, publisher)] = await fleet(Publisher())
    offloaded = stored([1], []) | {"block_hashes": [1, 2, 3, 4], "block_size": 0, "medium": "CPU"}
    await publisher.send(stored([1, 2, 3, 4], tokens(4)))
    await publisher.send(offloaded)
    await publisher.send(removed(1, 2, 3, 4))
    await holds(gateway, tokens(4), replica, 4, "L1")
    assert await blocks(gateway, tokens(4), replica, "L0") == 0
    await publisher.send(stored([1, 2, 3, 4], tokens(4)))
    await publisher.send(removed(1, 2, 3, 4, medium="CPU"))
    await holds(gateway, tokens(4), replica, 4, "L0")
    assert await blocks(gateway, tokens(4), replica, "L1") == 0
    await publisher.send(removed(1, 2, 3, 4))
    await holds(gateway, tokens(4), replica, 0)


async def test_e116_every_rank_has_a_stream_and_numbers_of_its_own(engines, publishers, gateways):
    ranks = await publishers(*(Publisher(rank=rank) for rank in range(4)))
    sources = {str(publisher.rank): publisher.source() for publisher in ranks}
    [engine] = await engines(Engine(block_size=SIZE, ranks=(0, 1, 2, 3), sources=sources))
    for publisher in ranks:
        publisher.keep(stored([1, 2], tokens(2)))
    ranks[2].keep(removed(2))
    gateway = await gateways(engine, wait_ready=False)
    await until(lambda: _are(gateway, 4), "four replicas")
    expected = {f"{engine.name}-dp{rank}": 2 - (rank == 2) for rank in range(4)}

    async def all_known():
        found = await candidates(gateway, tokens(2))
        return {name: match["L0"] // SIZE for name, match in found.items()} == expected

    await until(all_known, "the entries of all ranks")
    for name in expected:
        assert await gateway.metric(f'warmroute_kv_event_gaps{{replica="{name}"') == 0


async def test_e118_in_a_flood_requests_are_served_and_the_state_is_right_afterwards(fleet):
    """Scaled down: 2 x 1,000 batches of 20 events at once; the measurement has the long flood."""
    gateway, pairs = await fleet(Publisher(), Publisher())
    for number in range(1000):
        for _, publisher in pairs:
            base = number * 20
            events = [stored([base + n], tokens(1, (base + n) * SIZE)) for n in range(1, 21)]
            await publisher.send(*events)
    slowest = 0.0
    for _ in range(20):
        began = time.perf_counter()
        body = {"model": "m", "prompt": [1, 2, 3]}
        assert (await gateway.client.post("/v1/completions", json=body)).status_code == 200
        slowest = max(slowest, time.perf_counter() - began)
    assert slowest < 1.0
    for replica, _ in pairs:
        await holds(gateway, tokens(1, 20_000 * SIZE), replica, 1)
        assert await metric(gateway, "kv_event_blocks", replica) == 20_000
        assert await metric(gateway, "kv_event_losses", replica) == 0


async def test_e119_of_two_replicas_at_one_address_each_has_its_own_entries(fleet):
    gateway, [(silent, _), (speaking, publisher)] = await fleet(Publisher(), Publisher())
    await publisher.send(stored([1, 2], tokens(2)))
    await holds(gateway, tokens(2), speaking, 2)
    assert await blocks(gateway, tokens(2), silent) == 0
    assert await metric(gateway, "kv_event_batches", silent) is not None, "its silence shows"
    assert await gateway.states() == ["ready", "ready"]


@pytest.mark.parametrize("own", [False, True], ids=["nothing of its own", "vllm_xargs of its own"])
async def test_e104_a_replica_that_lost_events_is_asked_to_report_what_it_has(fleet, own):
    gateway, [(replica, publisher)] = await fleet(Publisher(replays=False), index={"reseed": True})
    body = {"model": "m", "prompt": tokens(3)} | ({"vllm_xargs": {"a": 1}} if own else {})
    await gateway.client.post("/v1/completions", json=body)
    publisher.keep(removed(5))
    await publisher.send(stored([1], tokens(1)))
    await until(lambda: _lost(gateway, replica), "the loss")
    await gateway.client.post("/v1/completions", json=body)
    before, after = (json.loads(request.body) for request in replica.received)
    assert before == body
    assert after == ({"vllm_xargs": {"kv_cache_report_mode": "full"}} | body)
    await publisher.send(stored([7, 8], tokens(2, 500)), stored([7, 8], tokens(2, 500)))
    await holds(gateway, tokens(2, 500), replica, 2)


async def test_e104_what_is_routed_while_events_are_cut_off_stays_predicted(fleet):
    """Nothing confirms it before the next replay, so it lives as long as where no events come."""
    times = {"predicted_ttl_s": 0.1, "eventless_ttl_s": 60}
    gateway, [(replica, _)] = await fleet(Publisher(), index=times)
    for number in range(3):  # the engine stores blocks, and its events do not come through
        body = {"model": "m", "prompt": [*tokens(3, 1000 * number), 9999]}
        assert (await gateway.client.post("/v1/completions", json=body)).status_code == 200

    await holds(gateway, tokens(3), replica, 0)  # nobody knew then that anything was missing
    assert await follows(gateway, replica)
    assert await blocks(gateway, tokens(3, 2000), replica) == 3
