"""1,000 random histories of an engine's cache: the index ends as the cache itself, or knows less.

A model engine fills, evicts, clears and restarts a cache of 12 blocks; its batches come, get lost,
or are gone from its replay buffer too. Wherever nothing was lost for good, the index holds exactly
what the cache holds; elsewhere never more than that.
"""

from collections import Counter, deque
from random import Random

import pytest
import zmq

from gateway.kvevents.subscriber import KvEventStream, Source
from gateway.kvevents.translate import Cleared, Removed, Stored, Translator
from gateway.kvevents.turns import Turns
from loadtests.simulator.kv_encoding import encode_batch
from routing.block_map import BlockMap
from routing.hashing import HashSpec, block_keys, pack_tokens
from routing.lab.engine_model import EngineModel
from routing.lab.engine_profile import EngineProfile, StepCost, TierCost
from routing.lab.kv_events import AllBlocksCleared, BlockStored
from routing.lab.sequence import EngineRequest
from routing.types import ReplicaId, Tier

BLOCK = 2
NONE = TierCost(0, 0.0, 0.0)
PROFILE = EngineProfile(
    "tiny", StepCost(1.0, 0.5, 0.0, 0.0, 0.0), 26, NONE, NONE, chunk_tokens=5, max_sequences=3
)
R = ReplicaId("r")
NUM_HISTORIES = 1000
NUM_ACTIONS = 40


class Engine:
    """A model engine, its publisher, and what its cache truly holds."""

    def __init__(self, rng, form):
        self.rng, self.form = rng, form
        self.num_requests = 0
        self.live = deque()
        self.restart()

    def restart(self):
        self.model = EngineModel(PROFILE, block_size=BLOCK, hash_seed=self.rng.getrandbits(60))
        self.buffer = {}
        self.next_number = 0
        self.copies = Counter()
        self.prefix_by_hash = {}

    def submit(self):
        self.num_requests += 1
        tokens = [self.rng.randrange(2) for _ in range(self.rng.randrange(2, 18))]
        salt = self.rng.choice([None, None, "salt"])
        request = EngineRequest(f"q{self.num_requests}", tokens[1:], tokens[:4], cache_salt=salt)
        self.model.submit(request)

    def step(self, fate):
        """Run a step and publish what it changed: `live`, `lost`, or `gone` from the buffer too."""
        if self.model.begin_step(0.0) is not None:
            self.publish(self.model.finish_step().events, fate)

    def publish(self, events, fate):
        if not events:
            return
        for event in events:
            self._note(event)
        number, self.next_number = self.next_number, self.next_number + 1
        payload = encode_batch(events, 1.0, BLOCK, self.form)
        if fate == "gone":
            self.buffer.clear()  # and so is all that came before
        else:
            self.buffer[number] = payload
        if fate == "live":
            self.live.append((number, payload))

    def keys(self):
        """Our keys of all that the cache holds."""
        found = set()
        for name, copies in self.copies.items():
            if copies:
                salt, tokens = self.prefix_by_hash[name]
                found.add(block_keys(pack_tokens(tokens), HashSpec("m", BLOCK, "", salt))[-1])
        return found

    def _note(self, event):
        if isinstance(event, AllBlocksCleared):
            self.copies.clear()
        elif isinstance(event, BlockStored):
            salt, prefix = self.prefix_by_hash.get(event.parent_hash, (event.cache_salt or "", ()))
            for number, name in enumerate(event.block_hashes):
                prefix += event.token_ids[number * BLOCK : (number + 1) * BLOCK]
                self.prefix_by_hash[name] = (salt, prefix)
                self.copies[name] += 1
        else:
            self.copies[event.block_hash] -= 1


class Wire:
    """Stands for ZMQ: the sockets that a stream opens, over one engine's batches."""

    def __init__(self, engine, topic_in_replies):
        self.engine, self.topic_in_replies = engine, topic_in_replies
        self.replies = deque()

    def socket(self, kind):
        return self

    def setsockopt(self, *_):
        pass

    def connect(self, endpoint):
        self.replies.clear()

    def close(self):
        pass

    async def send_multipart(self, frames):
        topic = [b"t"] * self.topic_in_replies
        start = int.from_bytes(frames[1], "big")
        for number, payload in sorted(self.engine.buffer.items()):
            if number >= start:
                self.replies.append([b"", *topic, number.to_bytes(8, "big"), payload])
        self.replies.append([b"", *topic, b"\xff" * 8, b""])

    def recv_multipart(self, flags=0):
        if not flags & zmq.NOBLOCK:
            return self._reply()
        if not self.engine.live:
            raise zmq.Again
        number, payload = self.engine.live.popleft()
        return [b"t", number.to_bytes(8, "big"), payload]

    async def _reply(self):
        return self.replies.popleft()


class Listener:
    """One stream that feeds a block map, as in the gateway."""

    def __init__(self, rng, engine, wire):
        self.blocks = BlockMap(10_000, 10)
        self.wire = wire
        self.stream = KvEventStream(
            source=Source("tcp://x:1", "tcp://x:2"),
            translator=Translator("m", 10_000, lambda keys, tier: self.blocks.held(R, keys, tier)),
            on_change=self._apply,
            turns=Turns(lambda: float(rng.randrange(10**6))),  # slices end anywhere
            capacity=lambda: None,
            now=lambda: 0.0,
            on_standing=lambda: None,
        )

    async def take(self, engine):
        while engine.live:
            await self.stream._take(self.wire, self.wire)

    async def ask(self):
        await self.stream._replay(self.wire)

    def keys(self, among):
        return set(self.blocks.held(R, list(among), Tier.L0))

    def _apply(self, change):
        match change:
            case Stored(keys, tier):
                self.blocks.store(R, keys, tier)
            case Removed(keys, tier):
                self.blocks.remove(R, keys, tier)
            case Cleared(keys):
                self.blocks.clear(R, list(keys))


def act(rng, engine, losses):
    """Let something happen to an engine."""
    action = rng.choices(["submit", "step", "cancel", "clear"], [6, 20, 1, 1])[0]
    if action == "submit":
        engine.submit()
    elif action == "step":
        is_lost = rng.random() < losses
        engine.step(rng.choices(["lost", "gone"], [9, 1])[0] if is_lost else "live")
    elif action == "cancel":
        engine.model.cancel(f"q{engine.num_requests}")
    else:
        engine.model.reset_prefix_cache()  # told with the next step only


async def play(rng):
    """Play one history; return whether all was known at its end."""
    engine = Engine(rng, rng.choice(["map", "array"]))
    listener = Listener(rng, engine, Wire(engine, rng.random() < 0.5))
    ever, losses = set(), rng.choice([0.0, 0.1, 0.4])
    is_told = True
    await listener.ask()
    for _ in range(NUM_ACTIONS):
        act(rng, engine, losses)
        ever |= engine.keys()
        if rng.random() < 0.25:
            await listener.take(engine)
        if rng.random() < 0.02:
            await listener.take(engine)
            engine.restart()
            is_told = False
        if not is_told and rng.random() < 0.3:  # the process start in its metrics
            listener.stream.restart()
            is_told = True
    if not is_told:
        listener.stream.restart()
    engine.submit()
    for _ in range(30):
        engine.step("live")
    ever |= engine.keys()
    await listener.take(engine)
    await listener.ask()
    true, known = engine.keys(), listener.keys(ever)
    assert known <= true, "nothing is believed that is not there"
    if listener.stream.is_complete:
        assert known == true
    assert not listener.stream.translator.reports_hits
    return listener.stream.is_complete


@pytest.mark.parametrize("part", range(4))
async def test_the_index_ends_as_the_cache(part):
    num_complete = 0
    for seed in range(part * NUM_HISTORIES // 4, (part + 1) * NUM_HISTORIES // 4):
        try:
            num_complete += await play(Random(seed))
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
    assert num_complete > 0.7 * NUM_HISTORIES / 4, "most histories end with all of it known"
    assert num_complete < NUM_HISTORIES / 4, "and some do not"
