"""KV events on the wire: frames beside captured ones, live, replayed, and after a reset."""

import uuid

import httpx
import msgspec
import pytest
import zmq

from loadtests.simulator.kv_encoding import encode_batch
from routing.lab.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from tests.simulator.conftest import CAPTURES
from tests.support.captures import batches
from tests.support.simulators import running_replica, wait_until

STORED = BlockStored((11, 2**64 - 1), None, tuple(range(8)))
END = b"\xff" * 8


def captured(name):
    return [msgspec.msgpack.decode(payload) for _, _, payload in batches(CAPTURES / name)]


def field_types(event):
    return [(key, type(value)) for key, value in event.items()]


@pytest.fixture
def subscriber():
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.rcvtimeo = 10_000
        socket.subscribe(b"")
        yield socket


def replay(replica, start=0):
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.rcvtimeo = 10_000
        socket.connect(replica.replay)
        socket.send_multipart([b"", start.to_bytes(8, "big")])
        batches = []
        while (frames := socket.recv_multipart())[-2] != END:
            assert frames[0] == b""
            batches.append(frames[1:])
        assert frames == [b"", b"", END, b""]
        return batches


# Encoding


def test_map_batches_have_the_captured_fields_in_the_captured_order():
    evictions = next(batch for batch in captured("kv_evict_A.frames.bin") if len(batch[1]) > 1)
    (reset,) = captured("kv_A_reset.frames.bin")
    ours = msgspec.msgpack.decode(
        encode_batch([BlockRemoved(2**63 + 1), STORED, AllBlocksCleared()], 1.5, 4, "map")
    )
    assert [type(part) for part in ours] == [type(part) for part in evictions]
    assert ours[2] == evictions[2] == 0
    removed, stored, cleared = ours[1]
    assert field_types(removed) == field_types(evictions[1][0])
    assert field_types(stored) == field_types(evictions[1][-1])
    assert cleared == reset[1][0]
    assert field_types(stored) == field_types(reset[1][1])


def test_values_that_never_change_are_the_captured_ones():
    (_, (_, theirs), _) = captured("kv_A_reset.frames.bin")[0]
    (ours,) = msgspec.msgpack.decode(encode_batch([STORED], 0.0, 4, "map"))[1]
    for key in ("type", "lora_id", "medium", "lora_name", "group_idx", "kv_cache_spec_kind"):
        assert ours[key] == theirs[key]
    assert ours["extra_keys"] == [None, None]
    assert ours["block_hashes"] == [11, 2**64 - 1]


def test_array_batches_put_the_tag_first():
    payload = encode_batch([STORED, BlockRemoved(7), AllBlocksCleared()], 1.5, 4, "array")
    assert msgspec.msgpack.decode(payload) == [
        1.5,
        [
            [
                *("BlockStored", [11, 2**64 - 1], None, [0, 1, 2, 3, 4, 5, 6, 7], 4),
                *(None, "GPU", None, [None, None], 0, "full_attention"),
            ],
            ["BlockRemoved", [7], "GPU", 0],
            ["AllBlocksCleared"],
        ],
        0,
    ]


@pytest.mark.parametrize(
    ("parent", "salt", "lora", "expected"),
    [
        (None, "s", None, [["s"], None]),
        (9, "s", None, [None, None]),
        (9, "s", "l", [["l"], ["l"]]),
        (None, "s", "l", [["l", "s"], ["l"]]),
    ],
)
def test_extra_keys_name_the_adapter_everywhere_and_the_salt_once(parent, salt, lora, expected):
    event = BlockStored((1, 2), parent, tuple(range(8)), salt, lora)
    (ours,) = msgspec.msgpack.decode(encode_batch([event], 0.0, 4, "map"))[1]
    assert ours["extra_keys"] == expected


# Live


def complete(replica, ids, **fields):
    body = {"prompt": ids, "max_tokens": 1, **fields}
    httpx.post(replica.url + "/v1/completions", json=body, timeout=20).raise_for_status()


def test_live_frames_are_topic_sequence_and_payload(replica, subscriber):
    subscriber.connect(replica.kv_events)
    salts = iter(range(1000))

    def received():
        # A subscription takes effect some time after connect; new blocks until one arrives.
        complete(replica, list(range(2000, 2033)), cache_salt=str(next(salts)))
        return subscriber.poll(50)

    wait_until(received)
    topic, seq, payload = subscriber.recv_multipart()
    assert topic == b"kv@sim"
    assert len(seq) == 8
    _, (event,), rank = msgspec.msgpack.decode(payload)
    assert event["token_ids"] == list(range(2000, 2032))
    assert len(event["block_hashes"]) == 2
    assert event["block_size"] == 16
    assert event["extra_keys"][0] is not None
    assert rank == 0


def test_replay_gives_everything_from_a_number_on(replica):
    complete(replica, list(range(3000, 3033)), cache_salt=uuid.uuid4().hex)
    everything = replay(replica)
    numbers = [int.from_bytes(seq, "big") for _, seq, _ in everything]
    assert numbers == list(range(len(numbers)))
    assert {topic for topic, _, _ in everything} == {b"kv@sim"}
    assert replay(replica, start=numbers[-1]) == everything[-1:]
    assert replay(replica, start=numbers[-1] + 1) == []


def test_a_small_cache_evicts_before_it_stores_and_a_reset_comes_with_the_next_step():
    with running_replica(
        "--speed", "20", "--num-blocks", "6", "--kv-events-encoding", "array"
    ) as replica:
        complete(replica, list(range(100, 164)))
        complete(replica, list(range(200, 232)))
        _, second = (msgspec.msgpack.decode(payload)[1] for _, _, payload in replay(replica))
        assert [event[0] for event in second] == ["BlockRemoved", "BlockStored"]
        assert replica.post("/reset_prefix_cache", {}).json() == {"success": True}
        assert len(replay(replica)) == 2
        complete(replica, list(range(200, 232)))
        last = msgspec.msgpack.decode(replay(replica)[-1][2])[1]
        assert [event[0] for event in last] == ["AllBlocksCleared", "BlockStored"]
