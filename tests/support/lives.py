"""Lives of caches without the exchange: what a test says counts, and who follows whom."""

import itertools


class SomeLives:
    """A `gateway.index.lives.Lives` of one gateway; several share `board`.

    Attributes:
        owned_ids: The replicas that this gateway follows.
    """

    has_others = False

    def __init__(self, board=None, owned_ids=()):
        self.board = board or Board()
        self.owned_ids = set(owned_ids)
        self.may_write = True

    @property
    def version(self):
        return (self.board.version, frozenset(self.owned_ids), self.may_write)

    @property
    def high_water(self):
        return max(self.board.life_by_replica.values(), default=0)

    def live(self):
        return list(self.board.life_by_replica.values())

    def replica_of(self, life):
        return next((r for r, one in self.board.life_by_replica.items() if one == life), None)

    def life_of(self, replica):
        return self.board.life_by_replica.get(replica)

    def owned(self, replica):
        return self.life_of(replica) if self.may_write and replica in self.owned_ids else None

    def is_owned(self, replica):
        return replica in self.owned_ids

    def renew(self, replica):
        if replica in self.owned_ids:
            self.board.renew(replica)


class Board:
    """The lives that all gateways see."""

    def __init__(self, *replicas):
        self.numbers = itertools.count(1_000_000)
        self.life_by_replica = {replica: next(self.numbers) for replica in replicas}
        self.version = 0

    def renew(self, replica):
        self.life_by_replica[replica] = next(self.numbers)
        self.version += 1
