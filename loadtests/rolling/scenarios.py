"""What happens to the fleet while traffic goes on. Each is a function from a fleet to figures."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from loadtests.goals import Findings, Line, at_most, none
from loadtests.rolling.balancer import Backend, Balancer
from loadtests.rolling.fleet import Fleet, Gateway, Replica, exit_code, is_idle, until
from loadtests.rolling.goals import MAX_BACK_S, MAX_EJECT_S, MAX_NEW_S, sent, unharmed
from loadtests.rolling.traffic import Outcome, Traffic, failures

# Between a replica's last place in the list and its stop signal, as a pod's preStop.
_PRE_STOP_S: Final = 0.3
# Of undisturbed traffic before and after, so that connections are kept and every replica is used.
_STEADY_S: Final = 1.0
# The log's clock has milliseconds.
_LOG_PRECISION_S: Final = 0.002
# A replica listens a moment before it says so, and may be found ready in between.
_START_MARGIN_S: Final = 0.2


async def roll_replicas(fleet: Fleet, rate_per_s: float, count: int) -> Findings:
    """Replace replicas one by one: out of the list, idle, stopped; then a new one into the list."""
    gateway = await fleet.start_gateway()
    first_request_s: list[float | None] = []
    async with Traffic(gateway.url, rate_per_s) as traffic:
        await asyncio.sleep(_STEADY_S)
        for replica in fleet.replicas[:count]:
            await _retire(fleet, gateway, replica)
            new = await fleet.start_replica()
            fleet.replicas.append(new)
            fleet.write_list()
            ready_at = time.monotonic()
            first_request_s.append(await traffic.served_by(new.name, ready_at, MAX_BACK_S))
        await asyncio.sleep(_STEADY_S)
    await _stop(gateway)
    return Findings(
        f"Rolling restart of {count} replicas, {rate_per_s:g} requests/s",
        [
            *unharmed(traffic.outcomes),
            *(at_most("new replica: first request after", s, MAX_NEW_S) for s in first_request_s),
        ],
    )


async def roll_gateways(fleet: Fleet, rate_per_s: float, count: int) -> Findings:
    """Replace gateways one by one behind a TCP balancer, by SIGTERM."""
    gateways = await asyncio.gather(*(fleet.start_gateway() for _ in range(count)))
    codes: list[int | None] = []
    took_s: list[float] = []
    async with Balancer([_backend(gateway) for gateway in gateways]) as balancer:
        await until(lambda: all(one.ready for one in balancer.backends), "the balancer sees both")
        async with Traffic(balancer.url, rate_per_s) as traffic:
            await asyncio.sleep(_STEADY_S)
            for old, backend in zip(gateways, list(balancer.backends), strict=True):
                started = time.monotonic()
                codes.append(await _stop(old))
                took_s.append(time.monotonic() - started)
                balancer.backends.remove(backend)
                balancer.backends.append(_backend(await fleet.start_gateway()))
            await asyncio.sleep(_STEADY_S)
    return Findings(
        f"Rolling restart of {count} gateways behind a TCP balancer, {rate_per_s:g} requests/s",
        [
            *unharmed(traffic.outcomes),
            none("connections that no gateway took", balancer.num_refused),
            none("exit codes other than 0", sum(code != 0 for code in codes)),
            *(Line("from SIGTERM to exit", f"{s:.2f} s") for s in took_s),
        ],
    )


async def kill_replica(fleet: Fleet, rate_per_s: float) -> Findings:
    """Kill a replica in the middle of its streams, and bring it back at its address."""
    gateway = await fleet.start_gateway()
    victim = fleet.replicas[0]
    async with Traffic(gateway.url, rate_per_s) as traffic:
        await asyncio.sleep(_STEADY_S)
        await until(_has_in_flight(gateway, victim), "the replica has requests")
        victim.child.kill()
        killed_at = time.monotonic()
        eject_s = await until(_is(gateway, victim, "ejected"), "it is ejected")
        ejected_at = time.time()
        back = await fleet.start_replica(port=int(victim.url.rpartition(":")[2]))
        serves_at, out_s = time.monotonic(), (ejected_at, time.time() - _START_MARGIN_S)
        back_s = await until(_is(gateway, victim, "ready"), "it is ready again")
        served_s = await traffic.served_by(victim.name, serves_at, 2 * MAX_BACK_S)
        await asyncio.sleep(_STEADY_S)
    await _stop(gateway)
    fleet.replicas[0] = Replica(victim.name, back.child, back.url)
    return Findings(
        f"kill -9 of one replica, {rate_per_s:g} requests/s",
        [
            sent(traffic.outcomes),
            *_harm(traffic.outcomes, gateway, victim, killed_at),
            at_most("ejected after", eject_s, MAX_EJECT_S),
            none("requests sent to it after its ejection", _num_tried(gateway, victim, out_s)),
            at_most("ready again, after it serves again", back_s, MAX_BACK_S),
            at_most("first request, after it serves again", served_s, MAX_BACK_S),
        ],
    )


def _harm(
    outcomes: Sequence[Outcome], gateway: Gateway, victim: Replica, killed_at: float
) -> list[Line]:
    """Return who was hurt by a kill: only requests that ran on the killed replica may be."""
    failed = failures(outcomes)
    late = sum(outcome.answer.sent_s > killed_at for outcome in failed)
    elsewhere = sum("error" in r and r.get("replica") != victim.name for r in gateway.requests())
    return [
        Line("streams that broke on it", str(sum(outcome.stream for outcome in failed))),
        Line("other requests that broke on it", str(sum(not o.stream for o in failed))),
        none("  of these without an error event or status", sum(not o.told for o in failed)),
        none("  of these sent after the kill", late),
        none("requests that failed on other replicas", elsewhere),
    ]


async def _retire(fleet: Fleet, gateway: Gateway, replica: Replica) -> None:
    fleet.replicas.remove(replica)
    fleet.write_list()

    async def is_gone() -> bool:
        return replica.name not in await gateway.status()

    await until(is_gone, f"{replica.name} is out")
    await asyncio.sleep(_PRE_STOP_S)
    await until(lambda: is_idle(replica), f"{replica.name} is idle")
    replica.child.signal_group(signal.SIGTERM)
    await exit_code(replica.child)


async def _stop(gateway: Gateway) -> int | None:
    gateway.child.signal_group(signal.SIGTERM)
    return await exit_code(gateway.child)


def _backend(gateway: Gateway) -> Backend:
    return Backend(int(gateway.url.rpartition(":")[2]))


def _is(gateway: Gateway, replica: Replica, state: str) -> Callable[[], Awaitable[bool]]:
    async def has_state() -> bool:
        return bool((await gateway.status())[replica.name]["state"] == state)

    return has_state


def _has_in_flight(gateway: Gateway, replica: Replica) -> Callable[[], Awaitable[bool]]:
    async def has_some() -> bool:
        return bool((await gateway.status())[replica.name]["in_flight"] > 1)

    return has_some


def _num_tried(gateway: Gateway, replica: Replica, out_s: tuple[float, float]) -> int:
    """Return how many requests that came in a span of wall-clock time were sent to a replica."""
    return sum(
        out_s[0] + _LOG_PRECISION_S < came_s(line) < out_s[1]
        for line in gateway.requests()
        if line.get("replica") == replica.name
        or any(retry.startswith(f"{replica.name}:") for retry in line.get("retries", ()))
    )


def came_s(line: Mapping[str, Any]) -> float:
    """Return when the request of a log line came, in seconds of the wall clock."""
    ended = datetime.fromisoformat(line["time"]).timestamp()
    return ended - float(line["duration_s"])


SCENARIOS: Final[Mapping[str, Callable[[Fleet, float], Awaitable[Findings]]]] = MappingProxyType(
    {
        "replicas": lambda fleet, rate: roll_replicas(fleet, rate, len(fleet.replicas)),
        "gateways": lambda fleet, rate: roll_gateways(fleet, rate, 2),
        "kill": kill_replica,
    }
)
"""By the names on the command line."""
