"""`make loadtest`: run the locust file for a minute against the demo fleet, or against any host."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from loadtests.demo import fleet
from loadtests.measurement import BUILD, ROOT, guarded

# Keeps 4 `a10g` replicas busy without long queues: about 16 of these are waiting at any time.
DEFAULT_USERS = 24
DEFAULT_SECONDS = 60


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load test.

    Returns:
        Locust's exit code: 0, or 1 where a request failed; 1 where the fleet did not start.
    """
    parser = argparse.ArgumentParser(prog="python -m loadtests.loadtest", description=__doc__)
    parser.add_argument("--host", help="base URL; without it the demo fleet is started")
    parser.add_argument("--seconds", type=int, default=DEFAULT_SECONDS, help="length of the run")
    parser.add_argument("--users", type=int, default=DEFAULT_USERS, help="simultaneous users")
    options = parser.parse_args(argv)
    return guarded("loadtest", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with ExitStack() as stack:
        if options.host:
            host = options.host.rstrip("/")
        else:
            demo = fleet.running("expected_ttft", BUILD / "loadtest", fleet.SMALL_CACHE_BLOCKS)
            host = stack.enter_context(demo).url
        print(f"{options.users} users for {options.seconds} s against {host}", flush=True)
        return subprocess.run(  # noqa: S603 - our own arguments, no shell
            _locust_argv(host, options.seconds, options.users), check=False, cwd=ROOT
        ).returncode


def _locust_argv(host: str, seconds: int, users: int) -> list[str]:
    options = {
        "--locustfile": "loadtests/locustfile.py",
        "--host": host,
        "--run-time": f"{seconds}s",
        "--users": str(users),
        # All of them within some seconds, and not in one burst.
        "--spawn-rate": str(max(1, users // 4)),
    }
    flags = [part for pair in options.items() for part in pair]
    # Without its log set-up locust keeps its own tables to itself: the locust file prints ours.
    return [sys.executable, "-m", "locust", "--headless", "--skip-log-setup", *flags]


if __name__ == "__main__":
    sys.exit(main())
