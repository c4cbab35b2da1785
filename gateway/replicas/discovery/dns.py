"""Replicas from DNS: the addresses of a headless Service, or SRV records.

The system's resolver hides how long an answer holds and cannot ask for SRV, so we ask the name
servers ourselves, over UDP and over TCP where an answer is cut: 300 addresses never fit a datagram.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

import dns.asyncbackend
import dns.asyncresolver
import dns.exception
import dns.nameserver
import dns.resolver
from pydantic_core import PydanticCustomError

from gateway.config.discovery import DnsDiscoveryConfig, name_server
from gateway.config.fields import normal_url
from gateway.replicas.discovery.base import Found, Snapshot

_TYPES_BY_FAMILY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"auto": ("A", "AAAA"), "ipv4": ("A",), "ipv6": ("AAAA",)}
)
# 2**10 times any sensible pause is over the longest one.
_MAX_DOUBLINGS = 10


class LookupFailed(Exception):
    """There is no usable answer; the text says why, in one short line."""


@dataclass(frozen=True, slots=True)
class Records:
    """A good answer: at least one replica, and the seconds for which that holds."""

    found: Snapshot
    ttl_s: float


class DnsDiscovery:
    """Follows the records of one name.

    No address is not an answer: a name that is gone, an empty answer and a name server in trouble
    look alike during an outage. The last good answer stays in force for `stale_s`; probes take out
    what is really dead.

    Args:
        config: The name, and the bounds of all waits.
        now: Monotonic seconds.
        rng: Spreads the retries of many gateways.
        system: Makes a resolver that is set up as the system is now.
    """

    def __init__(
        self,
        config: DnsDiscoveryConfig,
        now: Callable[[], float],
        rng: Random,
        system: Callable[[], dns.asyncresolver.Resolver] = dns.asyncresolver.Resolver,
    ) -> None:
        self._config = config
        self._now = now
        self._rng = rng
        self._questions = Questions(config, system)
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """What was asked and why there is no answer; None while there is one."""
        return self._problem

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield the replicas, and again when they change; nothing before a first good answer.

        See `Discovery.snapshots`.
        """
        config = self._config
        in_force: Snapshot | None = None
        good_at = self._now()
        num_failures = 0
        while True:
            found = in_force
            try:
                records = await self._questions.ask()
            except LookupFailed as failure:
                self._problem = f"{config.source}: {failure}"
                num_failures = min(num_failures + 1, _MAX_DOUBLINGS)
                pause_s = self._pause_s(num_failures)
                left_s = good_at + config.stale_s - self._now()
                if found and left_s <= 0:
                    found = frozenset()
                elif found:
                    pause_s = min(pause_s, left_s)
            else:
                self._problem = None
                num_failures, good_at, found = 0, self._now(), records.found
                pause_s = min(max(records.ttl_s, config.min_ttl_s), config.max_ttl_s)
            _raise_swallowed_cancellation()
            if found is not None and found != in_force:
                in_force = found
                yield found
            await asyncio.sleep(pause_s)

    def _pause_s(self, num_failures: int) -> float:
        longest_s = min(self._config.max_ttl_s, self._config.min_ttl_s * 2.0**num_failures)
        return longest_s * self._rng.uniform(0.5, 1.0)


class Questions:
    """Asks for the records of one name, once for each call.

    Args:
        config: The name and the type of its records.
        system: Makes a resolver that is set up as the system is now.
    """

    def __init__(
        self, config: DnsDiscoveryConfig, system: Callable[[], dns.asyncresolver.Resolver]
    ) -> None:
        self._config = config
        self._system = system
        self._types = ("SRV",) if config.service else _TYPES_BY_FAMILY[config.family]
        # The name under which the search list found it: the next lookups need no search.
        self._full_name: dns.name.Name | None = None

    async def ask(self) -> Records:
        """Return the records' replicas.

        Raises:
            LookupFailed: No answer, a refusal, or nothing usable in it.
        """
        try:
            # dnspython measures by the wall clock, which may be set back: this bound holds anyway.
            async with asyncio.timeout(self._config.timeout_s):
                return await self._ask(self._resolver())
        except (TimeoutError, dns.exception.Timeout):
            raise LookupFailed(f"no answer within {self._config.timeout_s:g} s") from None
        except dns.resolver.NXDOMAIN:
            self._full_name = None
            raise LookupFailed("no such name") from None
        except dns.resolver.NoNameservers as error:
            raise LookupFailed(_why(error)) from None
        except dns.resolver.NoResolverConfiguration:
            raise LookupFailed("no name server in /etc/resolv.conf") from None
        except (dns.exception.DNSException, OSError, ValueError) as error:
            raise LookupFailed(f"not usable: {type(error).__name__}") from None

    async def _ask(self, resolver: dns.asyncresolver.Resolver) -> Records:
        for record_type in self._types:
            answer = await resolver.resolve(
                self._full_name or self._config.query_name,
                record_type,
                raise_on_no_answer=False,
                search=not self._config.servers,
                backend=dns.asyncbackend.get_backend("asyncio"),
            )
            found = frozenset(self._found(answer))
            if found:
                self._full_name = answer.qname
                return Records(found, float(answer.chaining_result.minimum_ttl))
        self._full_name = None
        raise LookupFailed(f"no {' or '.join(self._types)} records")

    def _found(self, records: Iterable[Any]) -> Iterator[Found]:
        for record in records:
            if self._config.service:
                # A target of "." says that the service is not there (RFC 2782).
                host, port = record.target.to_text(omit_final_dot=True), record.port
            else:
                host, port = record.address, self._config.port
                host = f"[{host}]" if ":" in host else host
            try:
                yield Found(normal_url(f"{self._config.scheme}://{host}:{port}"))
            except PydanticCustomError:
                continue  # no address of a replica: port 0, or a name that no URL can hold

    def _resolver(self) -> dns.asyncresolver.Resolver:
        """Return a resolver for one lookup: /etc/resolv.conf may have changed since the last."""
        servers, timeout_s = self._config.servers, self._config.timeout_s
        if servers:
            resolver = dns.asyncresolver.Resolver(configure=False)
            resolver.nameservers = [
                dns.nameserver.Do53Nameserver(*name_server(one)) for one in servers
            ]
        else:
            resolver = self._system()
        resolver.lifetime = timeout_s
        resolver.timeout = min(resolver.timeout, timeout_s / 2)
        return resolver


def _raise_swallowed_cancellation() -> None:
    # dnspython waits by asyncio.wait_for, which before Python 3.12 loses a cancellation that meets
    # its result (bpo-42130). Without this a gateway that stops would wait for us for ever.
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _why(error: dns.resolver.NoNameservers) -> str:
    """Return what the last name server said, or what befell it."""
    errors = error.kwargs.get("errors") or [("the name server", False, 0, "no answer", None)]
    server, _, _, reason, _ = errors[-1]
    said = reason if isinstance(reason, str) else type(reason).__name__
    return f"{said} from {server}"
