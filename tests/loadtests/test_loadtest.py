"""The locust file, run as `make loadtest` runs it, against a stand-in for a fleet."""

import asyncio
import re
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


async def run(host: str, seconds: int) -> tuple[int, str]:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "loadtests.loadtest", "--host", host),
        *("--seconds", str(seconds), "--users", "8"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await program.communicate()
    assert program.returncode is not None
    return program.returncode, output.decode()


async def test_it_prints_ttft_hit_ratio_and_errors_by_kind(stand_in):
    code, output = await run(stand_in.url, seconds=10)  # on a busy machine some of them pass first
    assert code == 0, output
    rows = {cells[1]: cells[2:] for line in output.splitlines() if (cells := cells_of(line))}
    # 10 users at least have each kind once; the stand-in reports 4 of 10 tokens as cached.
    assert {"chat", "rag", "all"} <= set(rows)
    requests, *ttfts, hit_ratio, errors = rows["all"][:-1]
    assert int(requests) > 0
    assert all(0 < float(ttft) < 5 for ttft in ttfts)
    assert (hit_ratio, errors) == ("0.400", "0")
    assert {body["model"] for body in stand_in.bodies} == {"stand-in"}


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("│")] if line.startswith("│") else []


async def test_embeddings_that_nobody_serves_are_skipped_and_not_errors(stand_in):
    code, output = await run(stand_in.url, seconds=15)  # one of them comes every half second
    assert code == 0
    assert re.search(r"embeddings: \d+ skipped, the fleet has no endpoint for them", output)


async def test_a_host_that_is_not_there_is_an_error_and_not_a_traceback():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{unused.getsockname()[1]}"
        code, output = await run(host, seconds=90)  # the first user ends it
    assert code == 1
    assert f"unreachable: {host}/v1/models names no model" in output
    assert "Traceback" not in output
