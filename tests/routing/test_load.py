"""The load book: in-flight counts and the drained prefill queue."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from routing.load import LoadBook
from routing.types import ReplicaId, ReplicaLoad

A, B = ReplicaId("a"), ReplicaId("b")


def test_an_unknown_replica_has_no_load():
    assert LoadBook().snapshot(A, 0.0) == ReplicaLoad(0, 0.0, 0)


def test_prefill_drains_by_the_clock_and_never_below_zero():
    book = LoadBook()
    book.begin(A, prefill_s=2.0, kv_tokens=100, now=10.0)
    assert [book.snapshot(A, t).prefill_s for t in (10.0, 11.5, 12.0, 99.0)] == [2.0, 0.5, 0.0, 0.0]


def test_a_first_token_ends_its_prefill_and_starts_the_clock_for_those_behind_it():
    book = LoadBook()
    first = book.begin(A, 2.0, 100, 0.0)
    book.begin(A, 3.0, 200, 0.0)
    assert book.snapshot(A, 1.0) == ReplicaLoad(2, 4.0, 300)
    book.first_token(first, 4.0)  # two seconds late: the second one has all its work before it
    assert book.snapshot(A, 4.0) == ReplicaLoad(2, 3.0, 300)
    assert book.snapshot(A, 5.0).prefill_s == 2.0


def test_an_idle_replica_gets_a_fresh_clock():
    book = LoadBook()
    lease = book.begin(A, 1.0, 10, 0.0)
    book.first_token(lease, 1.0)
    book.begin(A, 1.0, 10, 50.0)
    assert book.snapshot(A, 50.0).prefill_s == 1.0


def test_a_lease_ends_once():
    book = LoadBook()
    lease = book.begin(A, 1.0, 10, 0.0)
    assert [book.end(lease), book.end(lease)] == [True, False]
    book.first_token(lease, 1.0)
    assert book.snapshot(A, 1.0) == ReplicaLoad(0, 0.0, 0)


def test_a_cancelled_request_takes_its_prefill_with_it():
    book = LoadBook()
    book.begin(A, 1.0, 10, 0.0)
    book.end(book.begin(A, 5.0, 10, 0.0))
    assert book.snapshot(A, 0.5) == ReplicaLoad(1, 0.5, 10)


def test_a_replica_that_comes_back_under_its_name_does_not_inherit_old_leases():
    book = LoadBook()
    old = book.begin(A, 1.0, 10, 0.0)
    book.forget(A)
    book.begin(A, 2.0, 20, 1.0)
    book.end(old)
    assert book.snapshot(A, 1.0) == ReplicaLoad(1, 2.0, 20)


class Books(RuleBasedStateMachine):
    """Whatever the order of events, the book equals a count of the open leases."""

    def __init__(self):
        super().__init__()
        self.book, self.now, self.leases = LoadBook(), 0.0, []

    @rule(replica=st.sampled_from([A, B]), prefill=st.floats(0, 5), tokens=st.integers(0, 9))
    def begin(self, replica, prefill, tokens):
        lease = self.book.begin(replica, prefill, tokens, self.now)
        self.leases.append(lease)

    @rule(seconds=st.floats(0, 10))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(pick=st.integers(0, 50))
    def first_token(self, pick):
        if self.leases:
            self.book.first_token(self.leases[pick % len(self.leases)], self.now)

    @rule(pick=st.integers(0, 50))
    def end(self, pick):
        if self.leases:
            self.book.end(self.leases[pick % len(self.leases)])

    @invariant()
    def balanced(self):
        for replica in (A, B):
            mine = [lease for lease in self.leases if lease.replica == replica and lease.open]
            load = self.book.snapshot(replica, self.now)
            assert load.in_flight == len(mine)
            assert load.kv_tokens == sum(lease.kv_tokens for lease in mine)
            pending = sum(lease.prefill_s for lease in mine if lease.prefilling)
            assert 0.0 <= load.prefill_s <= pending + 1e-9
        assert self.book.total_in_flight() == sum(lease.open for lease in self.leases)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
