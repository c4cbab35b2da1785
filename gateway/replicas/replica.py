"""One replica: how it is reached, what is known of it, and what is wanted of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gateway.kvevents.subscriber import KvEventStream, Source
from gateway.proxy.transport import Origin
from gateway.replicas.contradictions import Contradiction
from gateway.replicas.facts import ReplicaFacts
from gateway.replicas.shared_address import SharedAddress
from gateway.replicas.state import Hold, ReplicaState
from routing.trust import Silence, Trust
from routing.types import ReplicaId

# What operators look back at: one bad restart is four or five changes.
MAX_CHANGES = 10


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a replica's state, for operators.

    Attributes:
        at: When, monotonic seconds.
    """

    state: ReplicaState
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Told:
    """What another gateway, which follows a replica's KV events, says of them.

    Attributes:
        follows_events: They tell all that it holds.
        is_partly_known: Some of them are lost.
        block_size: Tokens a KV block as they have them; None before the first one.
    """

    follows_events: bool = False
    is_partly_known: bool = False
    block_size: int | None = None


@dataclass(slots=True, eq=False)
class Replica:
    """One running engine with its own KV cache and address.

    Attributes:
        replica_id: Its name everywhere.
        model_key: The model pool that it belongs to (`gateway.models.Model.key`).
        url: Where it listens, without a path.
        state: Whether it may get requests.
        state_reason: Why, in one word for metrics and logs.
        since: When the state began, monotonic seconds.
        facts: What it last said about itself.
        rank: The data-parallel rank that it is, where its address has several.
        shared_address: Several engines answer at its address; None where one does.
        contradictions: What it says otherwise than the configuration or its siblings.
        follows_events: Whether its KV events tell all that it holds: then its entries are precise.
        stream: Its KV events; None where none are followed here.
        told: What the gateway says that follows them; None where that is this one, or none.
        events_block_size: Tokens a KV block as its events have them; None before the first one.
        trust: Whether its own word agrees with what it is believed to hold.
        shared_trust: The same of what the pool should serve it.
        silence: Whether it publishes nothing although it should.
        tells_cached: Whether it told of any answer how many tokens were cached.
        configured_weight: Its share of the work against its siblings, above 0.
        weight: The same, or what an operator put in its place.
        hold: An operator's wish that it gets no new requests.
        wanted: Whether its platform wants requests there; no probe makes it ready otherwise.
        fault: Why it does not answer, in one word; None where it does.
        was_ready: Whether it was ready since it joined.
        changes: Its last states, oldest first.
        busy_until: It said 429 or 503; until then others are asked first, monotonic seconds.
        num_failures: Failed requests in a row.
        num_ejections: Ejections in a row without a good request in between.
        ejected_until: No probe brings it back before this, monotonic seconds.
    """

    replica_id: ReplicaId
    model_key: str
    url: str
    origin: Origin
    upstream_key: str | None = None
    configured_block_size: int | None = None
    configured_events: Source | None = None
    read_events: bool = True
    state: ReplicaState = ReplicaState.STARTING
    state_reason: str = "not_probed"
    since: float = 0.0
    facts: ReplicaFacts = field(default_factory=ReplicaFacts)
    rank: int | None = None
    shared_address: SharedAddress | None = None
    contradictions: tuple[Contradiction, ...] = ()
    follows_events: bool = False
    stream: KvEventStream | None = None
    told: Told | None = None
    events_block_size: int | None = None
    trust: Trust = field(default_factory=Trust)
    shared_trust: Trust = field(default_factory=Trust)
    silence: Silence = field(default_factory=Silence)
    tells_cached: bool = False
    configured_weight: float = 1.0
    weight: float = 1.0
    hold: Hold | None = None
    wanted: bool = True
    fault: str | None = "not_probed"
    was_ready: bool = False
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=MAX_CHANGES))
    busy_until: float = 0.0
    num_failures: int = 0
    num_ejections: int = 0
    ejected_until: float = 0.0

    @property
    def keeps_sessions(self) -> bool:
        """Whether requests of a session that it opened still go there."""
        stays = self.state in (ReplicaState.READY, ReplicaState.CORDONED)
        return stays and self.fault is None

    @property
    def is_partly_known(self) -> bool:
        """Whether some of its KV events are lost, so that it holds more than they told."""
        if self.stream is None:
            return self.told is not None and self.told.is_partly_known
        return not self.stream.is_complete

    @property
    def block_size(self) -> int | None:
        """Tokens a KV block: as its events have them, else as configured, else as it says.

        Events come first, as entries are theirs: of a hybrid model the engine may name another one.
        """
        return self.events_block_size or self.configured_block_size or self.facts.block_size

    @property
    def kv_events(self) -> Source | None:
        """Where to subscribe: as configured, else as the replica says; None for nowhere.

        Behind a shared address nobody can say whose events they would be.
        """
        if not self.read_events or self.shared_address is not None:
            return None
        return self.stated_events or self.published_events

    @property
    def events_problem(self) -> str | None:
        """What keeps its events from being followed here; None where nothing does."""
        return None if self.stream is None else self.stream.problem

    @property
    def stated_events(self) -> Source | None:
        """Where to subscribe as configured, for its own rank."""
        stated = self.configured_events
        return stated.of_rank(self.rank) if stated is not None and self.rank else stated

    @property
    def published_events(self) -> Source | None:
        """Where it says that it publishes, of its own rank where its address has several."""
        said = self.facts.kv_events
        return said.get(self.rank) if self.rank is not None else next(iter(said.values()), None)

    @property
    def misses_events(self) -> bool:
        """Whether it served requests that must have stored blocks, and no event told of them.

        Its stream may be cut off for a while: what it holds is known again after the next replay.
        """
        stream = self.stream
        return stream is not None and self.silence.misses(stream.counts.batches)

    def judge_events(self) -> None:
        """Bring `follows_events` up to date: it is read for every replica in every decision."""
        stream = self.stream
        if stream is not None:
            is_whole = stream.is_synced and stream.is_complete and not self.silence.is_silent
        else:
            is_whole = self.told is not None and self.told.follows_events
        self.follows_events = is_whole and self.trust.is_trusted

    def configure(self, fresh: Replica) -> bool:
        """Take over what the configuration says of the same replica.

        Returns:
            Whether its block size or the source of its events is another one now.
        """
        before = (self.block_size, self.kv_events)
        self.origin = fresh.origin
        self.upstream_key = fresh.upstream_key
        self.configured_block_size = fresh.configured_block_size
        self.configured_events = fresh.configured_events
        self.configured_weight = fresh.configured_weight
        self.read_events = fresh.read_events
        return (self.block_size, self.kv_events) != before
