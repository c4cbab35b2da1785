"""Which gateway follows which replica. Pure: what is known goes in, orders come out.

Of the gateways that are there, the one that a rendezvous hash names shall own a replica. Who owns
it keeps it until then, so nothing moves back and forth:

    free replica        the nearest gateway claims it; the next ones only if it does not
    another one is
    nearer, and asks    its owner lets go of it, a few at a time
    the owner is silent its replicas are free (the server's clock decides, in the script)
    all were silent     as after a fail-over: each gets the time to come back to what it had
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from gateway.replicas.replica import Told
from gateway.shared.table import EMPTY, NOBODY, Row, Table, encode_told
from routing.policies.base import rendezvous_distance
from routing.types import ReplicaId

# A gateway that said nothing for so long, by the server's clock, has lost what it owned. With the
# claim and the replay behind it, another one has taken over within 5 s.
LEASE_S = 2.5
# Where we heard nothing for as long, the others had no way to say anything either. Before what they
# had is claimed they get the time that their connections need: the longest pause between two
# attempts (`gateway.redis.node.MAX_BACKOFF_S`), and a half.
RETURN_S = 1.5
# A gateway that has just come is counted after so long: in a rollout gateways come and go, and
# each move of a replica costs it a replay.
SETTLED_AFTER_S = 5.0
# Before a free replica is claimed: its owner of a moment ago may be about to claim it again, as
# after the loss of a database. Whoever is heard first after that sees nobody else, so those that
# seem to be alone wait too: three ticks, within which all others have been there.
CLAIM_AFTER_S = 0.3
# And so much more for every gateway that is nearer to it: it may not know this replica.
CLAIM_STEP_S = 0.5
MAX_CLAIM_WAIT_S = 2.0
# Of replicas that somebody else wants; each is a replay of a whole cache.
RELEASES_A_TICK = 2
# Orders of one tick: the script takes about 3 us for each.
MAX_ORDERS = 256
# A row that nobody owns and that we know nothing of goes after this: the gateways that did know
# the replica may be restarting.
UNKNOWN_KEPT_S = 60.0


class Order(NamedTuple):
    """One thing that the script shall do; see lua/exchange.lua."""

    verb: str
    replica: ReplicaId
    number: int = 0
    text: str = ""


def nearest_first(replica: ReplicaId, gateways: Iterable[str]) -> list[str]:
    """Return gateways by how near they are to a replica."""
    key = int(xxh3_64_intdigest(replica.encode()))
    return sorted(gateways, key=lambda gateway: rendezvous_distance(key, ReplicaId(gateway)))


class Ownership:
    """One gateway's part in the distribution of replicas.

    Args:
        me: This gateway's id.

    Attributes:
        table: As the last tick showed it.
        high_water: The highest life number that was ever seen, also before the table was lost.
        live: Ids of the gateways that are there, ours included.
        held: Replicas that this gateway follows: its own, and those that it followed before and
            that nobody owns.
        is_alone: There was nobody to exchange with for so long that it follows all replicas.
    """

    def __init__(self, me: str) -> None:
        self.me = me
        self.table: Table = EMPTY
        self.high_water = 0
        self.live: frozenset[str] = frozenset({me})
        self.held: set[ReplicaId] = set()
        self.is_alone = False
        self._heard_at: float | None = None
        self._patient_until = 0.0
        self._seen_since: dict[str, float] = {}
        self._free_since: dict[ReplicaId, float] = {}
        self._unknown_since: dict[ReplicaId, float] = {}
        self._dying: dict[ReplicaId, int] = {}

    def hear(
        self, table: Table, others: Collection[str], known: Collection[ReplicaId], now: float
    ) -> None:
        """Take what a tick showed.

        Args:
            table: The table, also where it is the same.
            others: Ids of the other gateways that are there.
            known: Replicas of this gateway's own registry.
            now: Monotonic seconds.
        """
        if self._heard_at is not None and now - self._heard_at >= LEASE_S:
            self._patient_until = now + RETURN_S
        self._heard_at = now
        old = self._old_lives(table)
        self.table = table
        self.high_water = max(self.high_water, table.high_water)
        self.live = frozenset({self.me, *others})
        self._seen_since = {one: self._seen_since.get(one, now) for one in self.live}
        before = set(known) if self.is_alone else self.held
        self.is_alone = False
        self.held = {r for r in known if self._is_mine(r) or (r in before and self._is_free(r))}
        self._free_since = {r: self._free_since.get(r, now) for r in known if self._is_free(r)}
        unknown = [r for r in table.row_by_replica if r not in known and self._is_free(r)]
        self._unknown_since = {r: self._unknown_since.get(r, now) for r in unknown}
        self._dying = {r: life for r, life in self._dying.items() if self.life(r) == life} | old

    def follows(self, replica: ReplicaId) -> bool:
        """Return whether this gateway follows a replica's events, and so knows best what it has."""
        return self.is_alone or replica in self.held

    def row(self, replica: ReplicaId) -> Row | None:
        """Return a replica's row."""
        return self.table.row_by_replica.get(replica)

    def life(self, replica: ReplicaId) -> int | None:
        """Return the number of a replica's present life, also where it is about to end."""
        row = self.row(replica)
        return None if row is None else row.life

    def is_ending(self, replica: ReplicaId) -> bool:
        """Return whether this gateway asked for a replica's next life and has not got it yet."""
        return replica in self._dying

    def begin_anew(self, replica: ReplicaId) -> bool:
        """Ask for the next life of a replica; False where that is not for this gateway to say."""
        row = self.row(replica)
        if row is None or row.owner != self.me:
            return False
        self._dying[replica] = row.life
        return True

    def told(self, replica: ReplicaId) -> Told | None:
        """Return what another gateway, which is there, says of a replica that it owns."""
        row = self.row(replica)
        if row is None or row.owner == self.me:
            return None
        return row.told if row.owner in self.live or row.owner == NOBODY else None

    def wants(self, known: Iterable[ReplicaId], now: float) -> list[ReplicaId]:
        """Return replicas of others that should be this gateway's own."""
        settled = self._settled(now)
        if self.me not in settled or len(settled) < 2:
            return []
        return [
            replica
            for replica in known
            if self._is_others(replica) and nearest_first(replica, settled)[0] == self.me
        ]

    def orders(
        self,
        known: Collection[ReplicaId],
        tellings: Mapping[ReplicaId, Told],
        wanted: Mapping[ReplicaId, Set[str]],
        now: float,
    ) -> list[Order]:
        """Return what this gateway's next tick shall order.

        Args:
            known: Replicas of its own registry.
            tellings: What it can say of those that it follows.
            wanted: By replica, the gateways that want it.
            now: Monotonic seconds.
        """
        orders = [Order("claim", r) for r in known if r in self._dying or self._may_claim(r, now)]
        for replica, told in tellings.items():
            row = self.row(replica)
            if row is not None and row.owner == self.me and row.told != told:
                orders.append(Order("tell", replica, row.life, encode_told(told)))
        orders += self._releases(wanted, now)
        orders += [Order("drop", r) for r in self._departed(known, now)]
        return orders[:MAX_ORDERS]

    def let_go(self) -> list[Order]:
        """Return the orders of a gateway that leaves."""
        mine = [r for r, row in self.table.row_by_replica.items() if row.owner == self.me]
        self.held.clear()
        return [Order("release", replica) for replica in mine]

    def _old_lives(self, table: Table) -> dict[ReplicaId, int]:
        """Return lives that are ours as of now and were given out before.

        A server that came back with what it saved before says so: its entries of them are old, and
        what we held since then is not among them.
        """
        if table is self.table:
            return {}
        return {
            replica: row.life
            for replica, row in table.row_by_replica.items()
            if row.owner == self.me and row.life <= self.high_water and not self._had(replica, row)
        }

    def _had(self, replica: ReplicaId, row: Row) -> bool:
        known = self.row(replica)
        return known is not None and (known.life, known.owner) == (row.life, row.owner)

    def _releases(self, wanted: Mapping[ReplicaId, Set[str]], now: float) -> list[Order]:
        settled = self._settled(now)
        orders: list[Order] = []
        for replica, gateways in wanted.items():
            if len(orders) == RELEASES_A_TICK:
                break
            nearest = nearest_first(replica, settled)[:1]
            if self._is_mine(replica) and nearest and nearest[0] in gateways:
                self.held.discard(replica)
                orders.append(Order("release", replica))
        return orders

    def _departed(self, known: Collection[ReplicaId], now: float) -> list[ReplicaId]:
        """Return replicas whose rows should go: ours that left, and what nobody knows any more."""
        rows = self.table.row_by_replica
        left = [r for r, row in rows.items() if row.owner == self.me and r not in known]
        kept_s = UNKNOWN_KEPT_S
        return left + [r for r, since in self._unknown_since.items() if now - since >= kept_s]

    def _may_claim(self, replica: ReplicaId, now: float) -> bool:
        if not self._is_free(replica):
            return False
        if replica in self.held and self.row(replica) is None:
            return True  # ours before the table was lost
        if now < self._patient_until:
            return False
        place = nearest_first(replica, self.live).index(self.me)
        wait_s = min(CLAIM_AFTER_S + place * CLAIM_STEP_S, MAX_CLAIM_WAIT_S)
        return now - self._free_since.get(replica, now) >= wait_s

    def _settled(self, now: float) -> list[str]:
        return [one for one, since in self._seen_since.items() if now - since >= SETTLED_AFTER_S]

    def _is_mine(self, replica: ReplicaId) -> bool:
        row = self.row(replica)
        return row is not None and row.owner == self.me

    def _is_free(self, replica: ReplicaId) -> bool:
        row = self.row(replica)
        return row is None or (row.owner != self.me and row.owner not in self.live)

    def _is_others(self, replica: ReplicaId) -> bool:
        row = self.row(replica)
        return row is not None and row.owner != self.me and row.owner in self.live
