"""Where servers are: at a fixed address, where sentinels say, or where a cluster's map says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gateway.redis.address import Endpoint
from gateway.redis.cluster import read_slots
from gateway.redis.connection import Reply, ask
from gateway.redis.errors import LinkDown, LinkError
from gateway.redis.node import Dialing


async def ask_once(dialing: Dialing, endpoint: Endpoint, *command: str) -> Reply:
    """Return the reply to one command, over a connection of its own.

    Raises:
        LinkError: There is none.
    """
    connection = await dialing.dial(endpoint, _nobody)
    try:
        async with asyncio.timeout(dialing.reply_timeout_s):
            return await ask(connection, *command)
    except TimeoutError:
        raise LinkDown("silent") from None
    finally:
        connection.close()


async def find_primary(dialing: Dialing, sentinels: Sequence[Endpoint], name: str) -> Endpoint:
    """Return where the primary is, as the first sentinel says that knows.

    Raises:
        LinkDown: None does; with the reason of the last one.
    """
    why = "no_sentinel"
    at_sentinel = replace(dialing, address=replace(dialing.address, database=0))
    for sentinel in sentinels:
        try:
            found = await ask_once(
                at_sentinel, sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name
            )
        except LinkError as error:
            why = error.reason
            continue
        if found:
            return Endpoint(found[0].decode(), int(found[1]))
        why = "no_such_primary"
    raise LinkDown(why)


async def find_slots(
    dialing: Dialing, endpoints: Sequence[Endpoint]
) -> dict[Endpoint, list[range]]:
    """Return a cluster's primaries and their slots, as the first node says that answers.

    Raises:
        LinkDown: None does; with the reason of the last one.
    """
    why = "no_cluster"
    for endpoint in endpoints:
        try:
            slots = read_slots(await ask_once(dialing, endpoint, "CLUSTER", "SLOTS"), endpoint)
        except LinkError as error:
            # A server that is no node of a cluster has no code of its own to say so.
            why = "no_cluster" if error.reason == "err" else error.reason
            continue
        if slots:
            return slots
        why = "no_cluster"
    raise LinkDown(why)


def _nobody() -> None:
    """Nobody waits for the end of a connection that is used once."""
