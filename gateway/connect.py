"""`warmroute check FILE --connect`: asks every replica what it is, and says what does not fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from random import Random
from typing import Any, TextIO, cast

from gateway.building import replica_builder
from gateway.config.fleet import model_key
from gateway.config.models import GatewayConfig, ModelConfig
from gateway.engines import vllm
from gateway.errors import UpstreamError
from gateway.exits import EXIT_FAILED, EXIT_OK
from gateway.l2.inspecting import inspect_pool
from gateway.proxy.tls import client_context
from gateway.proxy.transport import HttpToolsTransport
from gateway.redis.checking import look
from gateway.redis.dialing import dialing_of
from gateway.replicas.asking import Line, Refused, what_is_wrong
from gateway.replicas.contradictions import contradictions, usual
from gateway.replicas.discovery.base import Discovery, Snapshot
from gateway.replicas.discovery.kinds import STATIC, discoveries
from gateway.replicas.findings import CURE_BY_SHARED_ADDRESS
from gateway.replicas.learning import Learner
from gateway.replicas.registry import Replica
from routing.types import ReplicaId

# A list of a large namespace, or two tries of a name server.
DISCOVERY_TIMEOUT_S = 10.0
# Replicas asked at once: a fleet of 300 takes some seconds.
MAX_AT_ONCE = 32


async def check_fleet(config: GatewayConfig, out: TextIO) -> int:
    """Connect to all that a configuration names, and print what is there.

    Args:
        config: Validated.
        out: Gets some lines for each model and replica.

    Returns:
        The exit status: 0 if all fits; 1 where a discovery or a replica does not answer, where a
        replica contradicts the configuration or its siblings, or several engines share an address.

    Raises:
        TlsError: A certificate or key cannot be used.
    """
    num_problems = 0
    for model in config.models:
        out.write(f"  model {model_key(model)}\n")
        replicas: list[Replica] = []
        build = replica_builder(model, client_context(model.tls))
        for kind, discovery in discoveries(model, time.monotonic, Random()):
            snapshot = await _first(discovery)
            if snapshot is None:
                num_problems += 1
                problem = discovery.problem or f"nothing within {DISCOVERY_TIMEOUT_S:g} s"
                out.write(f"    discovery {kind}: problem: {problem}\n")
                continue
            if kind != STATIC:
                out.write(f"    discovery {kind}: {len(snapshot)} found\n")
            known = {replica.url for replica in replicas}
            new = sorted((f for f in snapshot if f.url not in known), key=lambda f: f.url)
            replicas += [build(ReplicaId(f.name or f.url.partition("://")[2]), f) for f in new]
        num_problems += await _ask_all(model, replicas, config.health.timeout_s, out)
        num_problems += await inspect_pool(model, replicas, out)
    if config.index.backend == "redis":
        index = config.index
        dialing = dialing_of(index, time.monotonic, Random(), lambda: index.lookup_timeout_s)
        lines, found = await look(index, dialing)
        out.writelines(f"{line}\n" for line in lines)
        num_problems += found
    ending = "1 problem" if num_problems == 1 else f"{num_problems or 'no'} problems"
    out.write(f"  {ending}\n")
    return EXIT_FAILED if num_problems else EXIT_OK


async def _first(discovery: Discovery) -> Snapshot | None:
    # Discoveries are generators; closed, they let go of their sockets.
    snapshots = cast("Any", discovery.snapshots())
    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT_S), aclosing(snapshots):
            async for snapshot in snapshots:
                return cast("Snapshot", snapshot)
    except TimeoutError:
        pass
    return None


async def _ask_all(
    model: ModelConfig, replicas: Sequence[Replica], timeout_s: float, out: TextIO
) -> int:
    """Print what each replica says; return the number of problems."""
    places = asyncio.Semaphore(MAX_AT_ONCE)

    async def ask(replica: Replica) -> str | None:
        async with places:
            return await _ask(replica, timeout_s)

    failures = await asyncio.gather(*(ask(replica) for replica in replicas))
    names = {*model.aliases, *([model.name] if model.name else [])}
    others = usual(replicas)
    num_problems = 0
    for replica, failure in zip(replicas, failures, strict=True):
        out.write(f"    replica {replica.replica_id}: {failure or _summary(replica)}\n")
        problems = [found.text for found in contradictions(replica, names, others)]
        if replica.shared_address is not None:
            problems.insert(0, CURE_BY_SHARED_ADDRESS[replica.shared_address])
        out.writelines(f"      problem: {problem}\n" for problem in problems)
        num_problems += len(problems) + (failure is not None)
    return num_problems


async def _ask(replica: Replica, timeout_s: float) -> str | None:
    """Read a replica's facts; return why it cannot be used, or None."""
    transport = HttpToolsTransport(time.monotonic)
    line = Line(transport, replica, timeout_s)
    try:
        await line.get(vllm.HEALTH_PATH)
        await Learner(line).learn(maybe_restarted=True)
    except (Refused, TimeoutError, UpstreamError, OSError) as error:
        return f"problem: not healthy ({what_is_wrong(error)})"
    finally:
        transport.close()
    return None


def _summary(replica: Replica) -> str:
    return ", ".join(_said(replica))


def _said(replica: Replica) -> Iterator[str]:
    facts = replica.facts
    yield f"serves {', '.join(model.name for model in facts.models) or 'models that it hides'}"
    if facts.version is not None:
        yield f"vLLM {facts.version}"
    yield f"block size {facts.block_size or 'unknown'}"
    if facts.num_blocks is not None:
        yield f"{facts.num_blocks} blocks"
    if facts.max_model_len is not None:
        yield f"max_model_len {facts.max_model_len}"
    if len(facts.ranks) > 1:
        yield f"{len(facts.ranks)} data-parallel ranks"
    if facts.kv_events:
        yield f"KV events at {', '.join(s.endpoint for _, s in sorted(facts.kv_events.items()))}"
    elif replica.configured_events is not None:
        yield f"KV events at {replica.configured_events.endpoint}, as configured"
    else:
        yield "no KV events"
