"""Books that check themselves: a load book and an observer that notice a second or missing end."""

from gateway.observability.record import Observer
from routing.load import LoadBook


class CheckedBook(LoadBook):
    """Counts leases and their ends, and keeps what must not happen in `wrong`."""

    def __init__(self):
        super().__init__()
        self.begun = 0
        self.ended = 0
        self.wrong = []

    def begin(self, *args):
        self.begun += 1
        return super().begin(*args)

    def end(self, lease):
        was_open = super().end(lease)
        self.ended += was_open
        for replica, account in self._account_by_replica.items():
            if min(account.in_flight, account.kv_tokens, account.num_prefilling) < 0:
                self.wrong.append(f"{replica}: {account}")
        return was_open

    def check(self):
        """Check that nothing is in flight, that every lease ended once, and none went below 0."""
        assert self.wrong == []
        assert self.begun == self.ended
        assert self.total_in_flight() == 0
        for account in self._account_by_replica.values():
            assert (account.kv_tokens, account.num_prefilling) == (0, 0)


class CountingObserver(Observer):
    """Counts how often it is told of each request's end."""

    def __init__(self, *args):
        super().__init__(*args)
        self.times_by_id = {}

    def ended(self, record):
        self.times_by_id[record.request_id] = self.times_by_id.get(record.request_id, 0) + 1
        super().ended(record)
