"""The supervisor's admin listener while none of its workers answers."""

import httpx
import pytest

from gateway.observability.catalog import rules
from gateway.observability.summing import Sum
from gateway.workers.admin import CrewAdmin
from gateway.workers.crew import Crew

WORKERS = [{"worker": 0, "state": "waiting", "restarts": 3}]


@pytest.fixture
async def client():
    admin = CrewAdmin(
        Crew(()), Sum(rules()), lambda: b"", lambda: {"workers": WORKERS}, lambda: False, 1000
    )
    transport = httpx.ASGITransport(admin)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield client


async def test_the_status_tells_how_the_workers_are(client):
    answer = await client.get("/admin/status")
    assert (answer.status_code, answer.json()) == (200, {"models": [], "workers": WORKERS})


@pytest.mark.parametrize("path", ["/admin/replicas", "/admin/explain"])
async def test_what_only_a_worker_knows_is_not_answered(client, path):
    assert (await client.get(path)).status_code == 503
