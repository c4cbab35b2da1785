"""Who may come in: API keys, what each may do, and how often."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.config.access import KeyConfig
from gateway.errors import Forbidden, InvalidRequest, RateLimited, Unauthorized
from gateway.proxy.headers import Header

# Of a key, as other gateways know it: enough to tell keys apart, and nothing to guess them by.
_TAG_BYTES = 8
# A key may send this share of its minute at once; the rest comes back evenly.
BURST_SHARE = 6
# The other gateways are told of a key so long after its last request, and have heard of that by
# then: whoever hears nothing for 2 s counts from there (gateway/shared/rates.py). With each key
# that was ever used, thousands would be told of in every tick.
RESTED_AFTER_S = 10.0


@dataclass(slots=True)
class RateLimit:
    """A token bucket: so many requests a minute, in bursts of a sixth of it.

    Attributes:
        tag: Of the key.
        num_taken: Requests that were let in here since the key rested.
        taken_at: When the last one was, monotonic seconds.
    """

    tag: bytes
    per_minute: int
    tokens: float
    at: float
    num_taken: int = 0
    taken_at: float = 0.0

    def take(self, now: float) -> float:
        """Take one request; return 0.0, or the seconds until there is one."""
        self._fill(now)
        if self.tokens >= 1.0:
            self.tokens -= 1.0
            self.num_taken += 1
            self.taken_at = now
            return 0.0
        return (1.0 - self.tokens) / (self.per_minute / 60.0)

    def taken_elsewhere(self, number: int, now: float) -> None:
        """Note requests that other gateways let in; what is too much is waited for afterwards.

        For a minute at most: a key must not pay for long for what nobody could refuse.
        """
        self._fill(now)
        self.tokens = max(-float(self.per_minute), self.tokens - number)

    def _fill(self, now: float) -> None:
        capacity = max(1.0, self.per_minute / BURST_SHARE)
        self.tokens = min(capacity, self.tokens + (now - self.at) * (self.per_minute / 60.0))
        self.at = now


@dataclass(slots=True, eq=False)
class Caller:
    """Whoever sent a request.

    Attributes:
        name: The key's owner; empty where no keys are configured.
        models: Names that it may ask for; empty means all.
    """

    name: str = ""
    models: frozenset[str] = frozenset()
    rate: RateLimit | None = None

    def check_model(self, name: str) -> None:
        """Check that the caller may use a model.

        Raises:
            Forbidden: It may not.
        """
        if self.models and name not in self.models:
            raise Forbidden(f"This API key may not use the model `{name}`.")


ANYBODY = Caller()


@dataclass(slots=True)
class Keys:
    """The API keys in force; replaced as a whole when a key file changes.

    Attributes:
        required: Requests must carry a key. With no key in force, nobody comes in.
    """

    required: bool
    now: Callable[[], float]
    _given: Sequence[KeyConfig] = ()
    _caller_by_digest: dict[bytes, Caller] = field(default_factory=dict)
    _rate_by_tag: dict[bytes, RateLimit] = field(default_factory=dict)
    _busy: dict[bytes, RateLimit] = field(default_factory=dict)

    def replace(self, keys: Sequence[KeyConfig]) -> bool:
        """Put other keys in force; a key that stays keeps its rate.

        Returns:
            Whether that is news.
        """
        if keys == self._given:
            return False
        self._given, before = keys, self._caller_by_digest
        self._caller_by_digest = {}
        for key in keys:
            digest = _digest_of(key)
            old = before.get(digest)
            rate = self._rate(_tag(digest), key.requests_per_minute, old.rate if old else None)
            self._caller_by_digest[digest] = Caller(key.name, frozenset(key.models), rate)
        rates = (caller.rate for caller in self._caller_by_digest.values())
        self._rate_by_tag = {rate.tag: rate for rate in rates if rate is not None}
        self._busy = {t: rate for t, rate in self._rate_by_tag.items() if rate.num_taken}
        return True

    def _rate(self, tag: bytes, per_minute: int | None, old: RateLimit | None) -> RateLimit | None:
        if per_minute is None:
            return None
        if old is not None and old.per_minute == per_minute:
            return old
        return RateLimit(tag, per_minute, max(1.0, per_minute / BURST_SHARE), self.now())

    def taken(self) -> dict[bytes, int]:
        """Return how many requests of each key that has a rate were let in, by the key's tag.

        A key that rested for `RESTED_AFTER_S` is left out, and counts from 0 when it is used again.
        """
        since = self.now() - RESTED_AFTER_S
        for rate in [rate for rate in self._busy.values() if rate.taken_at <= since]:
            rate.num_taken = 0
            del self._busy[rate.tag]
        return {tag: rate.num_taken for tag, rate in self._busy.items()}

    def taken_elsewhere(self, tag: bytes, number: int) -> None:
        """Count requests of a key that other gateways let in."""
        rate = self._rate_by_tag.get(tag)
        if rate is not None:
            rate.taken_elsewhere(number, self.now())

    def named(self, name: str) -> Caller:
        """Return whose key has a name, the first of several; nothing counts against its rate.

        Args:
            name: Of a key in force; empty where requests need none.

        Raises:
            InvalidRequest: No key has it.
        """
        if not self.required and not name:
            return ANYBODY
        for caller in self._caller_by_digest.values():
            if caller.name == name:
                return caller
        raise InvalidRequest("`api_key` must be the name of an API key in force.", param="api_key")

    def caller(self, headers: Sequence[Header]) -> Caller:
        """Return who sent a request, and count it against its rate.

        Raises:
            Unauthorized: No key, several, or not one of ours.
            RateLimited: Too many requests from this key.
        """
        if not self.required:
            return ANYBODY
        digest = hashlib.sha256(_presented(headers)).digest()
        found = None
        # All are compared, each in constant time: how long it takes says nothing about a key.
        for known, caller in self._caller_by_digest.items():
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise Unauthorized("This API key is not valid.")
        if found.rate is not None:
            wait_s = found.rate.take(self.now())
            if wait_s > 0.0:
                raise RateLimited("This API key sends too many requests.", int(wait_s) + 1)
            self._busy[found.rate.tag] = found.rate
        return found


def _digest_of(key: KeyConfig) -> bytes:
    if key.key is not None:
        return hashlib.sha256(key.key.get_secret_value().encode()).digest()
    return bytes.fromhex(key.sha256 or "")


def _tag(digest: bytes) -> bytes:
    return hashlib.sha256(digest).digest()[:_TAG_BYTES]


def _presented(headers: Sequence[Header]) -> bytes:
    """Return the key that a request carries.

    `Authorization: Bearer KEY` decides where it is there, else `x-api-key: KEY` (Anthropic's
    clients). Two of the same header could be read in two ways, so they are refused.
    """
    # White space around a value is not part of it (RFC 9110, 5.5); the parser leaves it behind.
    authorization = [v.strip(b" \t") for name, v in headers if name == b"authorization"]
    api_key = [v.strip(b" \t") for name, v in headers if name == b"x-api-key"]
    if len(authorization) > 1 or len(api_key) > 1:
        raise Unauthorized("Send one API key.")
    if authorization:
        scheme, _, key = authorization[0].partition(b" ")
        if scheme.lower() != b"bearer" or not key or key != key.strip():
            raise Unauthorized("Send the API key as `Authorization: Bearer KEY`.")
        return key
    if api_key and api_key[0]:
        return api_key[0]
    raise Unauthorized("An API key is required: `Authorization: Bearer KEY`.")
