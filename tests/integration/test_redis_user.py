"""A user of Redis that may do what docs/redis.md says and nothing else."""

import re
from pathlib import Path

from gateway.config.index import IndexConfig
from gateway.redis.checking import look
from tests.support.api_replicas import ApiReplica, KeepsResponses
from tests.support.engines import Engine
from tests.support.event_fleets import SIZE, follows, holds, publishers, tokens
from tests.support.fixtures import engines
from tests.support.publishers import Publisher, removed, stored
from tests.support.redis_servers import dialing
from tests.support.replicas import until
from tests.support.several import sees, several, state_of

__all__ = ["engines", "publishers", "several"]

DOCUMENT = Path(__file__).parents[2] / "docs/redis.md"


def allowed(namespace):
    """The rules of a user as the document has them, in the words of `ACL SETUSER`."""
    text = DOCUMENT.read_text()
    section = re.search(r"## What a user may be allowed\n\n(.*?) There is no ", text, re.DOTALL)[1]
    section += re.search(r"\nCommands: (.*)\n", text)[1]
    words = re.findall(r"`([^`]+)`", section)
    patterns = [f"~{word.replace('NS', namespace)}" for word in words if "NS" in word]
    assert len(patterns) == 2
    commands = [
        word.lower().replace(" ", "|") for word in words if word.isupper() and "NS" not in word
    ]
    # Those of a sentinel are of another server, and `check --connect` is a command of ours.
    commands = [c for c in commands if not c.startswith(("sentinel", "check"))]
    return [*patterns, *(f"+{command}" for command in commands)]


async def test_a_user_that_may_do_what_the_document_says_can_do_all(
    several, own_redis, engines, publishers
):
    server = own_redis()
    server.command("ACL", "SETUSER", "gateway", "on", ">secret", *allowed("warmroute"))
    (publisher,) = await publishers(Publisher())
    publishing = Engine(block_size=SIZE, sources={"0": publisher.source()})
    fleet = await engines(publishing, ApiReplica(KeepsResponses("a")))
    user = {"username": "gateway", "password": "secret"}
    both = await several(server, fleet, index=user)
    for gateway in both:
        await sees(gateway, 2)
        await until(lambda g=gateway: follows(g, publishing), "step")
    await publisher.send(stored(range(1, 601), tokens(600)))
    await publisher.send(removed(500))
    for gateway in both:
        await holds(gateway, tokens(600), publishing, 499)
    for gateway in both:
        body = {"model": "m", "prompt": tokens(10, first=9000)}
        assert (await gateway.client.post("/v1/completions", json=body)).status_code == 200
    await both[0].admin.post(f"/admin/replicas/{publishing.name}/cordon")

    async def is_held():
        return await state_of(both[1], publishing) == "cordoned"

    await until(is_held, "the hold")
    asked = {"model": "m", "input": "hello"}
    made = (await both[0].client.post("/v1/responses", json=asked)).json()["id"]
    assert (await both[1].client.get(f"/v1/responses/{made}")).json()["id"] == made
    for gateway in both:
        page = (await gateway.admin.get("/metrics")).text
        assert 'reason="noperm"' not in page
    url = server.url.replace("//", "//gateway:secret@")
    lines, num_problems = await look(IndexConfig(backend="redis", url=url), dialing(url))
    assert (num_problems, len(lines)) == (0, 2)
    assert server.command("ACL", "LOG") == []
