"""Hundreds of replicas that are only probed; `python -m loadtests.scale.endpoints --count 300`."""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Final

from loadtests import canned

MODEL: Final = "scale"
# Lines and bytes of vLLM 0.32's page after some traffic: 706 and 60,907.
_NUM_METRIC_LINES: Final = 700


def answers(number: int) -> canned.Answers:
    """Return the answers of one replica, which is told apart by its process's start."""
    return canned.replica({"id": MODEL, "max_model_len": 32768}, _metrics(1.7e9 + number))


def _metrics(start_time_s: float) -> str:
    labels = f'engine="0",model_name="{MODEL}"'
    buckets = [
        f'vllm:scale_{number // 20}_seconds_bucket{{{labels},le="{number % 20}.0"}} {number}.0'
        for number in range(_NUM_METRIC_LINES)
    ]
    ours = [
        f"process_start_time_seconds {start_time_s}",
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="5120",{labels}}} 1.0',
        f"vllm:num_requests_running{{{labels}}} 0.0",
        f"vllm:num_requests_waiting{{{labels}}} 0.0",
    ]
    return "\n".join([*buckets, *ours, ""])


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.scale.endpoints")
    parser.add_argument("--count", type=int, required=True)
    asyncio.run(canned.serve(parser.parse_args(argv).count, answers))


if __name__ == "__main__":
    main()
