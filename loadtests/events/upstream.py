"""Replicas whose KV events come from elsewhere; `python -m loadtests.events.upstream --count 8`."""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtests import canned

MODEL: Final = "events"
BLOCK_SIZE: Final = 16
# Room for whatever a measurement publishes.
NUM_BLOCKS: Final = 10_000_000
_METRICS: Final = (
    "process_start_time_seconds 1700000000.0\n"
    f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",num_gpu_blocks="{NUM_BLOCKS}"}} 1.0\n'
)
_COMPLETION: Final[Mapping[str, Any]] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": MODEL,
    "choices": [{"index": 0, "text": "a", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 256, "completion_tokens": 1, "total_tokens": 257},
}


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.events.upstream")
    parser.add_argument("--count", type=int, required=True)
    completion = canned.answer(json.dumps(_COMPLETION).encode())
    answers = {**canned.replica({"id": MODEL}, _METRICS), b"/v1/completions": completion}
    asyncio.run(canned.serve(parser.parse_args(argv).count, lambda _: answers))


if __name__ == "__main__":
    main()
