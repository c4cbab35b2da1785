"""The admin API's part about shared pools: forget what is known of them."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter

from gateway.errors import InvalidRequest
from gateway.l2.pools import SharedPools
from gateway.observability.logging import EventLog
from gateway.shared.exchange import Exchange


def shared_routes(pools: SharedPools, exchange: Exchange | None, log: EventLog) -> APIRouter:
    """Return the route /admin/flush.

    Args:
        pools: Of this gateway.
        exchange: Tells the other gateways; None where there are none.
        log: Gets one line a flush.
    """
    forget = pools.flush if exchange is None else exchange.flush
    router = APIRouter(prefix="/admin")

    @router.post("/flush")
    async def flush(tier: Literal["L2"], model: str | None = None) -> dict[str, Any]:
        """Forget what is known of the shared pool of one model, or of all that have one.

        Nothing in the pool itself is deleted. For a pool that lost files without a word: what is
        there is looked for, or told, anew. The other gateways hear of it and do the same; one that
        cannot be heard now does so once it can.
        """
        if model is not None and pools.get(model) is None:
            raise InvalidRequest(f"The model `{model}` has no shared_cache.", param="model")
        flushed = forget(model)
        log.info("operator", flushed=tier, models=sorted(flushed), chunks=sum(flushed.values()))
        gateways = None if exchange is None else exchange.view().report()
        return {"tier": tier, "flushed": flushed, "gateways": gateways}

    return router
