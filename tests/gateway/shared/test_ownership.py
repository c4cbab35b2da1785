"""Which gateway follows which replica: claims, releases, and what happens when tables are lost."""

import pytest

from gateway.replicas.replica import Told
from gateway.shared.ownership import (
    CLAIM_AFTER_S,
    CLAIM_STEP_S,
    MAX_ORDERS,
    RELEASES_A_TICK,
    RETURN_S,
    SETTLED_AFTER_S,
    UNKNOWN_KEPT_S,
    Order,
    Ownership,
    nearest_first,
)
from gateway.shared.table import NOBODY, Row, Table
from routing.types import ReplicaId

R = [ReplicaId(f"r{n}") for n in range(8)]


def table(rows, version=b"1", high_water=100):
    rows = {R[n]: Row(life, owner) for n, (life, owner) in rows.items()}
    return Table(version, high_water, rows)


def heard(me, rows, others=(), known=R[:1], now=10.0, since=0.0):
    """What `me` knows after it saw these gateways and rows all the time."""
    ownership = Ownership(me)
    at = since
    while at < now:
        ownership.hear(table(rows), set(others), known, at)
        at += 1.0
    ownership.hear(table(rows), set(others), known, now)
    return ownership


def orders(ownership, known=R[:1], tellings=(), wanted=(), now=10.0):
    return ownership.orders(known, dict(tellings), dict(wanted), now)


def claims(ownership, known=R[:1], now=10.0):
    return [order.replica for order in orders(ownership, known, now=now) if order.verb == "claim"]


def test_a_gateway_that_hears_nobody_else_claims_a_free_replica_a_moment_later():
    """Right after the loss of a database whoever is heard first hears nobody."""
    ownership = heard("a", {}, now=0.0)
    assert claims(ownership, now=CLAIM_AFTER_S - 0.01) == []
    assert claims(ownership, now=CLAIM_AFTER_S) == R[:1]


def test_a_replica_of_a_gateway_that_is_there_is_left_alone():
    assert orders(heard("a", {0: (5, "b")}, others="b")) == []


def test_of_several_the_nearest_claims_first_and_the_next_ones_only_if_it_does_not():
    first, second, third = nearest_first(R[0], "abc")
    for place, me in enumerate((first, second, third)):
        others = set("abc") - {me}
        due_s = CLAIM_AFTER_S + place * CLAIM_STEP_S
        ownership = heard(me, {}, others, since=0.0, now=0.1)
        assert claims(ownership, now=due_s - 0.01) == []
        assert claims(ownership, now=due_s + 0.01) == R[:1]


def test_a_replica_is_free_when_its_owner_is_gone_or_let_go():
    for owner in ("gone", NOBODY):
        assert claims(heard("a", {0: (5, owner)}, others="b"), now=20.0) == R[:1]


def test_after_a_silence_of_all_each_has_time_to_come_back_to_what_it_had():
    """Redis was away for 4 s: whoever is back first must not take what the others had."""
    ownership = heard("a", {0: (5, "b")}, others="b")
    ownership.hear(table({0: (5, "b")}), (), R[:1], 14.0)
    assert claims(ownership, now=14.0 + RETURN_S - 0.1) == []
    assert claims(ownership, now=14.0 + RETURN_S) == R[:1]


def test_its_own_replicas_are_claimed_at_once_when_the_table_is_lost():
    ownership = heard("a", {0: (5, "a")}, others="b")
    ownership.hear(table({}, b"2"), {"b"}, R[:1], 10.1)
    assert ownership.follows(R[0]), "its own index is still the best that there is"
    assert claims(ownership, now=10.1) == R[:1]


def test_the_highest_life_is_known_also_after_the_table_was_lost():
    ownership = heard("a", {0: (5, "a")})
    ownership.hear(Table(b"2", 0, {}), (), R[:1], 10.1)
    assert ownership.high_water == 100


def test_a_replica_that_another_one_has_by_now_is_not_followed_any_more():
    ownership = heard("a", {0: (5, "a")}, others="b")
    assert ownership.follows(R[0])
    ownership.hear(table({0: (6, "b")}, b"2"), {"b"}, R[:1], 20.0)
    assert not ownership.follows(R[0])


def test_a_new_life_is_asked_for_until_it_is_there():
    ownership = heard("a", {0: (5, "a")})
    assert ownership.begin_anew(R[0])
    assert orders(ownership) == orders(ownership) == [Order("claim", R[0])]
    assert ownership.is_ending(R[0])
    ownership.hear(table({0: (101, "a")}, b"2", 101), (), R[:1], 10.1)
    assert not ownership.is_ending(R[0])
    assert orders(ownership) == []


@pytest.mark.parametrize("before", [(50, "b"), (60, "a"), (40, "-"), None])
def test_a_life_of_ours_that_was_given_out_before_is_begun_anew(before):
    """The server came back with what it had saved, when this life was ours."""
    ownership = heard("a", {0: before} if before else {}, others="b")
    ownership.hear(table({0: (40, "a")}, b"2"), {"b"}, R[:1], 10.1)
    assert ownership.is_ending(R[0])
    assert orders(ownership, now=10.1) == [Order("claim", R[0])]
    ownership.hear(table({0: (101, "a")}, b"3", 101), {"b"}, R[:1], 10.2)
    assert not ownership.is_ending(R[0])


def test_a_life_of_ours_goes_on_whatever_else_changes_in_the_table():
    ownership = heard("a", {0: (40, "a")}, others="b")
    ownership.hear(table({0: (40, "a"), 1: (101, "b")}, b"2", 101), {"b"}, R[:1], 10.1)
    assert not ownership.is_ending(R[0])


def test_nobody_but_the_owner_begins_a_new_life():
    ownership = heard("a", {0: (5, "b")}, others="b")
    assert not ownership.begin_anew(R[0])
    assert not ownership.begin_anew(R[1])


def test_an_owner_tells_what_changed_of_its_events():
    ownership = heard("a", {0: (5, "a"), 1: (6, "a")}, known=R[:2])
    told = {R[0]: Told(True, False, 16), R[1]: Told()}
    assert orders(ownership, R[:2], told) == [Order("tell", R[0], 5, "1 0 16")]


def test_what_is_told_counts_as_long_as_its_owner_is_there():
    told = Told(True, False, 16)
    ownership = Ownership("a")
    rows = Table(b"1", 9, {R[0]: Row(5, "b", told)})
    ownership.hear(rows, {"b"}, R[:1], 0.0)
    assert ownership.told(R[0]) == told
    ownership.hear(rows, (), R[:1], 3.0)
    assert ownership.told(R[0]) is None


def near_to(gateway, others):
    return [
        r for r in map(ReplicaId, map(str, range(99))) if nearest_first(r, others)[0] == gateway
    ]


def test_a_gateway_wants_what_is_nearest_to_it_once_it_has_settled():
    mine = near_to("a", "ab")[:3]
    rows = Table(b"1", 9, {r: Row(5, "b") for r in mine + near_to("b", "ab")[:3]})
    ownership = Ownership("a")
    known = list(rows.row_by_replica)
    ownership.hear(rows, {"b"}, known, 0.0)
    assert ownership.wants(known, SETTLED_AFTER_S - 0.1) == []
    assert ownership.wants(known, SETTLED_AFTER_S) == mine


def test_an_owner_lets_go_of_what_a_nearer_one_wants_a_few_at_a_time():
    mine = near_to("a", "ab")[:5]
    rows = Table(b"1", 9, {r: Row(5, "b") for r in mine})
    ownership = Ownership("b")
    ownership.hear(rows, {"a"}, mine, 0.0)
    wanted = {r: {"a"} for r in mine}
    assert orders(ownership, mine, (), wanted, now=1.0) == [], "it has just come"
    ownership.hear(rows, {"a"}, mine, 6.0)
    released = orders(ownership, mine, (), wanted, now=6.0)
    assert released == [Order("release", r) for r in mine[:RELEASES_A_TICK]]
    assert [ownership.follows(r) for r in mine] == [False] * RELEASES_A_TICK + [True] * 3


def test_nobody_lets_go_for_a_gateway_that_is_not_the_nearest():
    theirs = near_to("b", "ab")[:2]
    ownership = Ownership("b")
    ownership.hear(Table(b"1", 9, {r: Row(5, "b") for r in theirs}), {"a"}, theirs, 0.0)
    assert orders(ownership, theirs, (), {r: {"a"} for r in theirs}, now=9.0) == []


def test_a_replica_that_left_is_dropped_by_its_owner():
    assert orders(heard("a", {0: (5, "a")}, known=[]), known=[]) == [Order("drop", R[0])]


def test_rows_that_nobody_knows_any_more_go_after_a_minute():
    ownership = heard("a", {0: (5, "gone")}, known=[], since=0.0, now=1.0)
    assert orders(ownership, [], now=UNKNOWN_KEPT_S - 1) == []
    assert orders(ownership, [], now=UNKNOWN_KEPT_S) == [Order("drop", R[0])]


def test_alone_a_gateway_follows_all_and_keeps_them_until_another_one_has_them():
    ownership = Ownership("a")
    ownership.is_alone = True
    assert all(ownership.follows(r) for r in R)
    ownership.hear(table({0: (6, "b")}), {"b"}, R[:2], 10.0)
    assert [ownership.follows(r) for r in R[:2]] == [False, True]


def test_a_gateway_that_leaves_lets_go_of_its_own():
    ownership = heard("a", {0: (5, "a"), 1: (6, "b")}, others="b", known=R[:2])
    assert ownership.let_go() == [Order("release", R[0])]


def test_one_tick_orders_only_so_much():
    known = [ReplicaId(str(n)) for n in range(MAX_ORDERS + 50)]
    assert len(orders(heard("a", {}, known=known), known)) == MAX_ORDERS
