"""The admin API's part about replicas: list, cordon, drain, uncordon, weigh.

An id stands in the path percent-encoded; a slash in it may also stand as it is.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gateway.config.fields import check_weight, refused
from gateway.replicas.operations import Operations
from gateway.replicas.state import ReplicaState

# A sentence and a ticket's number; it is kept with the hold and shown in tables.
MAX_NOTE_CHARS = 200
# Longer than the longest generation, and an end to a call that somebody forgot.
MAX_WAIT_S = 3600.0


def _check_note(text: str) -> str:
    if not text.isprintable():  # it is printed on terminals
        raise refused("must be one line of printable characters")
    return text


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Why(_Body):
    """The optional body of cordon and drain."""

    reason: Annotated[str, Field(max_length=MAX_NOTE_CHARS), AfterValidator(_check_note)] = ""


class NewWeight(_Body):
    """The body of a new weight."""

    weight: Annotated[float, AfterValidator(check_weight)]


WaitSeconds = Annotated[float, Query(ge=0.0, le=MAX_WAIT_S)]


def replica_routes(operations: Operations) -> APIRouter:
    """Return the routes under /admin/replicas."""
    router = APIRouter(prefix="/admin/replicas")

    @router.get("")
    async def replicas() -> dict[str, Any]:
        return operations.report.fleet()

    @router.get("/{replica_id:path}")
    async def replica(replica_id: str) -> dict[str, Any]:
        return operations.show(replica_id)

    @router.post("/{replica_id:path}/cordon")
    async def cordon(replica_id: str, why: Why | None = None) -> dict[str, Any]:
        note = why.reason if why is not None else ""
        return await operations.hold(replica_id, ReplicaState.CORDONED, note)

    @router.post("/{replica_id:path}/drain")
    async def drain(
        replica_id: str, why: Why | None = None, wait_s: WaitSeconds = 0.0
    ) -> dict[str, Any]:
        note = why.reason if why is not None else ""
        await operations.hold(replica_id, ReplicaState.DRAINING, note)
        drained = await operations.drained(replica_id, wait_s)
        return {**operations.show(replica_id), "drained": drained}

    @router.post("/{replica_id:path}/uncordon")
    async def uncordon(replica_id: str) -> dict[str, Any]:
        return await operations.release(replica_id)

    @router.put("/{replica_id:path}/weight")
    async def set_weight(replica_id: str, new: NewWeight) -> dict[str, Any]:
        return await operations.weigh(replica_id, new.weight)

    @router.delete("/{replica_id:path}/weight")
    async def configured_weight(replica_id: str) -> dict[str, Any]:
        return await operations.weigh(replica_id, None)

    return router
