"""What holds for every test: it leaves nothing running, and CI skips none for a missing part."""

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
import trustme
from hypothesis import HealthCheck, settings

from tests.support.redis_servers import (
    links,
    own_redis,
    redis_cluster,
    redis_path,
    redis_server,
    shared_redis,
    valkey_server,
)

# Real servers, the shared ones started once for all tests of a process that want them.
__all__ = [
    "links",
    "own_redis",
    "redis_cluster",
    "redis_path",
    "redis_server",
    "shared_redis",
    "valkey_server",
]

# Hypothesis gives an example 200 ms: a matter of luck on a busy machine, and no law is about that.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

# What was told to stop may need a few turns of the loop to do so; whatever needs longer leaks.
STOP_GRACE_S = 2.0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what has a longer timeout, so that no worker ends alone with it."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@pytest.fixture(autouse=True)
def no_leaked_task(request: pytest.FixtureRequest) -> None:
    """Fail an async test that ends with a task of its loop still running."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("_tasks_end_with_the_test")


@pytest.fixture
async def _tasks_end_with_the_test() -> AsyncIterator[None]:
    # Requested first, so torn down last: fixtures of the test have stopped what they started.
    before = asyncio.all_tasks()
    yield
    leaked = asyncio.all_tasks() - before - {asyncio.current_task()}
    if leaked:
        _, leaked = await asyncio.wait(leaked, timeout=STOP_GRACE_S)
    if leaked:
        pytest.fail(f"tasks outlive the test: {sorted(map(repr, leaked))}")


@pytest.fixture(scope="session", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Yield the environment, and trust no authority of it meanwhile but one that signed nothing.

    To read those of the world takes 30 ms of CPU, in each of thousands of clients and gateways.
    """
    found = dict(os.environ)
    authority = tmp_path_factory.mktemp("trust") / "authority.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(authority))
        yield found


@pytest.fixture(scope="session", autouse=True)
def no_leaked_thread() -> Iterator[None]:
    """Fail the run if a thread would keep the process from ending (daemon threads cannot)."""
    before = set(threading.enumerate())
    yield
    leaked = [t for t in set(threading.enumerate()) - before if not t.daemon]
    for thread in leaked:
        thread.join(STOP_GRACE_S)
    leaked = [t for t in leaked if t.is_alive()]
    if leaked:
        pytest.fail(f"threads outlive the suite: {leaked}")


@pytest.fixture(scope="session")
def require() -> Callable[[str, bool, str], None]:
    """Return `require(part, present, cure)`: without the part skip, or fail where CI=true."""

    def require_part(part: str, present: bool, cure: str) -> None:
        if present:
            return
        reason = f"needs {part}, which is missing here: {cure}"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason} (in CI every part has to be there)")
        pytest.skip(reason)

    return require_part


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the seed of the random order, which -q would hide."""
    seed = terminalreporter.config.getoption("randomly_seed", None)
    if isinstance(seed, int):
        terminalreporter.write_line(f"random order: repeat it with --randomly-seed={seed}")
