"""Which state a replica is in, and what operators' holds and weights do to it."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.guards import EjectionConfig
from gateway.proxy.transport import Origin
from gateway.replicas import instructions
from gateway.replicas.instructions import Instructions
from gateway.replicas.registry import MAX_DEPARTURES, Registry
from gateway.replicas.replica import MAX_CHANGES, Replica
from gateway.replicas.state import Hold, ReplicaState, standing
from routing.types import ReplicaId

CORDON = Hold(ReplicaState.CORDONED, "", 0.0)
DRAIN = Hold(ReplicaState.DRAINING, "", 0.0)
A = ReplicaId("a")


@pytest.mark.parametrize(
    ("said", "state", "reason"),
    [
        ({"fault": "not_probed", "was_ready": False}, "starting", "not_probed"),
        ({"fault": "unreachable", "was_ready": False}, "starting", "unreachable"),
        ({"wanted": False, "was_ready": False}, "starting", "platform"),
        ({"was_ready": False}, "ready", "healthy"),
        ({}, "ready", "healthy"),
        ({"fault": "timeout"}, "ejected", "timeout"),
        ({"wanted": False}, "draining", "platform"),
        ({"wanted": False, "fault": "timeout"}, "draining", "platform"),
        ({"hold": CORDON}, "cordoned", "operator"),
        ({"hold": CORDON, "fault": "timeout"}, "cordoned", "operator"),
        ({"hold": CORDON, "fault": "not_probed", "was_ready": False}, "cordoned", "operator"),
        ({"hold": CORDON, "wanted": False}, "cordoned", "operator"),
        ({"hold": DRAIN}, "draining", "operator"),
        ({"hold": DRAIN, "known": False}, "gone", "not_discovered"),
    ],
)
def test_a_state_follows_from_what_is_said(said, state, reason):
    healthy = {"known": True, "hold": None, "wanted": True, "was_ready": True, "fault": None}
    stands = standing(**{**healthy, **said})
    assert (stands.state, stands.reason) == (state, reason)


@dataclass
class Fleet:
    """A registry with a clock that stands still unless moved."""

    now: float = 0.0
    seen: list = field(default_factory=list)

    def __post_init__(self):
        self.registry = Registry((), EjectionConfig(), lambda: self.now, self._changed)

    def _changed(self, replica):
        self.seen.append((replica.replica_id, replica.state, replica.state_reason))

    def join(self, name="a", **fields):
        replica = Replica(ReplicaId(name), "m", f"http://{name}", Origin(name, 80), **fields)
        self.registry.add(replica)
        return replica

    def join_ready(self, name="a", **fields):
        replica = self.join(name, **fields)
        self.registry.probed_well(replica)
        return replica


@pytest.fixture
def fleet():
    return Fleet()


EVENTS = {
    "good probe": lambda registry, a: registry.probed_well(a),
    "bad probe": lambda registry, a: registry.probed_badly(a, "timeout", enough=False),
    "bad probes": lambda registry, a: registry.probed_badly(a, "timeout", enough=True),
    "refused": lambda registry, a: registry.failed(a, "replica_unreachable", certain=True),
    "answered": lambda registry, a: registry.succeeded(a),
    "wanted": lambda registry, a: registry.want(a, wanted=True),
    "unwanted": lambda registry, a: registry.want(a, wanted=False),
    "cordon": lambda registry, a: registry.hold(A, ReplicaState.CORDONED, ""),
    "drain": lambda registry, a: registry.hold(A, ReplicaState.DRAINING, ""),
    "uncordon": lambda registry, a: registry.release(A),
    "weigh": lambda registry, a: registry.weigh(A, 2.0),
}


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=30))
def test_any_order_of_events_ends_in_the_state_that_the_facts_say(events):
    fleet = Fleet()
    a = fleet.join()
    for event in events:
        fleet.now += 1.0
        EVENTS[event](fleet.registry, a)
        stands = standing(
            known=True, hold=a.hold, wanted=a.wanted, was_ready=a.was_ready, fault=a.fault
        )
        assert (a.state, a.state_reason) == (stands.state, stands.reason)
        assert (a.state is ReplicaState.READY) == (fleet.registry.eligible("m") == [a])
        assert a.state is not ReplicaState.READY or (a.fault is None and a.wanted)
    last = [event for event in events if event in ("cordon", "drain", "uncordon")][-1:]
    assert (a.hold is not None) == (last in (["cordon"], ["drain"]))


def test_a_cordoned_replica_is_ready_at_once_where_it_answers(fleet):
    a = fleet.join_ready()
    assert fleet.registry.hold(A, ReplicaState.CORDONED, "repair")
    assert (a.state, a.keeps_sessions) == (ReplicaState.CORDONED, True)
    fleet.registry.probed_well(a)
    assert a.state is ReplicaState.CORDONED, "no probe ends a hold"
    assert fleet.registry.release(A)
    assert a.state is ReplicaState.READY


def test_one_that_died_meanwhile_waits_for_a_good_probe(fleet):
    a = fleet.join_ready()
    fleet.registry.hold(A, ReplicaState.CORDONED, "")
    fleet.registry.probed_badly(a, "unreachable", enough=False)
    assert (a.state, a.fault, a.keeps_sessions) == (ReplicaState.CORDONED, "unreachable", False)
    fleet.registry.release(A)
    assert (a.state, a.state_reason) == (ReplicaState.EJECTED, "unreachable")
    fleet.registry.probed_well(a)
    assert a.state is ReplicaState.READY


def test_a_ready_replica_is_not_taken_out_by_one_bad_probe(fleet):
    a = fleet.join_ready()
    fleet.registry.probed_badly(a, "timeout", enough=False)
    assert a.state is ReplicaState.READY
    fleet.registry.probed_badly(a, "timeout", enough=True)
    assert a.state is ReplicaState.EJECTED


def test_sessions_leave_a_draining_replica(fleet):
    a = fleet.join_ready()
    fleet.registry.hold(A, ReplicaState.DRAINING, "")
    assert (a.state, a.keeps_sessions) == (ReplicaState.DRAINING, False)


def test_a_drain_may_become_a_cordon_and_keeps_its_note(fleet):
    a = fleet.join_ready()
    fleet.registry.hold(A, ReplicaState.DRAINING, "node 7")
    fleet.now = 5.0
    assert fleet.registry.hold(A, ReplicaState.CORDONED, "")
    assert (a.hold.state, a.hold.note, a.hold.since) == (ReplicaState.CORDONED, "node 7", 5.0)


def test_saying_it_again_changes_nothing(fleet):
    a = fleet.join_ready()
    fleet.registry.hold(A, ReplicaState.CORDONED, "node 7")
    fleet.now, told = 9.0, len(fleet.seen)
    assert not fleet.registry.hold(A, ReplicaState.CORDONED, "node 7")
    assert not fleet.registry.hold(A, ReplicaState.CORDONED, ""), "no reason keeps the one before"
    assert (a.hold.since, len(fleet.seen)) == (0.0, told)
    assert fleet.registry.weigh(A, 2.0)
    assert not fleet.registry.weigh(A, 2.0)
    assert fleet.registry.release(A)
    assert not fleet.registry.release(A)


def test_holds_and_weights_outlive_the_replica(fleet):
    a = fleet.join_ready(weight=1.0, configured_weight=3.0)
    assert a.weight == 3.0
    fleet.registry.hold(A, ReplicaState.CORDONED, "node 7")
    fleet.registry.weigh(A, 0.5)
    fleet.registry.remove(a)
    assert a.state is ReplicaState.GONE
    again = fleet.join(configured_weight=3.0)
    assert (again.state, again.hold.note, again.weight) == (ReplicaState.CORDONED, "node 7", 0.5)
    fleet.registry.probed_well(again)
    assert fleet.registry.eligible("m") == []
    fleet.registry.release(A)
    fleet.registry.weigh(A, None)
    assert (again.state, again.weight) == (ReplicaState.READY, 3.0)


def test_what_left_can_be_held_for_when_it_is_back(fleet):
    fleet.registry.remove(fleet.join_ready())
    assert fleet.registry.knows(A)
    fleet.registry.hold(A, ReplicaState.CORDONED, "")
    assert list(fleet.registry.instructions.absent()) == [A]
    assert fleet.join().state is ReplicaState.CORDONED
    assert fleet.registry.instructions.absent() == {}


def test_late_news_of_a_replica_that_left_is_not_heard(fleet):
    a = fleet.join_ready()
    fleet.registry.remove(a)
    fleet.registry.failed(a, "stream_broken", certain=True)
    fleet.registry.probed_well(a)
    assert (a.state, a.state_reason) == (ReplicaState.GONE, "not_discovered")
    assert [state for _, state, _ in fleet.seen] == ["ready", "gone"]


def test_changes_and_departures_are_kept_and_bounded(fleet):
    a = fleet.join_ready()
    for _ in range(MAX_CHANGES):
        fleet.now += 100.0
        fleet.registry.failed(a, "replica_unreachable", certain=True)
        fleet.now += 100.0
        fleet.registry.probed_well(a)
    assert len(a.changes) == MAX_CHANGES
    last = a.changes[-1]
    assert (last.state, last.reason, last.at) == (ReplicaState.READY, "healthy", fleet.now)
    for number in range(MAX_DEPARTURES + 5):
        fleet.registry.remove(fleet.join(f"r{number}"))
    assert len(fleet.registry.departures) == MAX_DEPARTURES
    newest = fleet.registry.departures[-1]
    assert (newest.replica_id, newest.was, newest.reason) == (
        f"r{MAX_DEPARTURES + 4}",
        ReplicaState.STARTING,
        "not_discovered",
    )


def test_the_instructions_of_those_that_left_first_are_forgotten_and_counted(monkeypatch):
    monkeypatch.setattr(instructions, "MAX_ABSENT", 2)
    kept = Instructions()
    for name in "abc":
        kept.put(ReplicaId(name), instructions.Instruction(CORDON), present=True)
    for name in "bca":
        kept.left(ReplicaId(name))
    assert list(kept.absent()) == ["c", "a"]
    assert kept.num_forgotten == 1
    assert kept.of(ReplicaId("b")) == instructions.NOTHING


def test_states_are_counted(fleet):
    fleet.join_ready("a")
    fleet.join_ready("b")
    fleet.join("c")
    fleet.registry.hold(A, ReplicaState.CORDONED, "")
    fleet.registry.hold(ReplicaId("b"), ReplicaState.CORDONED, "")
    assert fleet.registry.states("m") == {"starting": 1, "cordoned": 2}
    assert fleet.registry.states("other") == {}


def test_another_configuration_changes_a_replica_and_not_what_operators_said(fleet):
    a = fleet.join_ready(configured_weight=2.0)
    fleet.registry.weigh(A, 5.0)
    fleet.registry.hold(A, ReplicaState.CORDONED, "node 7")

    def fresh(**fields):
        return Replica(A, "m", "http://a", Origin("a", 80), **fields)

    assert not fleet.registry.configure(a, fresh(configured_weight=3.0, upstream_key="k"))
    assert (a.weight, a.configured_weight, a.upstream_key) == (5.0, 3.0, "k")
    assert (a.state, a.hold.note) == (ReplicaState.CORDONED, "node 7")
    fleet.registry.weigh(A, None)
    assert a.weight == 3.0
    assert fleet.registry.configure(a, fresh(configured_block_size=32)), "its entries count anew"
    assert (a.weight, a.block_size) == (1.0, 32)
