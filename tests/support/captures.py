"""Reads captured ZMQ batches; the format is described in tests/data/vllm-0.32/README.md."""

import struct
from collections.abc import Iterator
from pathlib import Path


def batches(path: Path) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield (topic, sequence number, payload) of each batch."""
    data, at = path.read_bytes(), 0

    def number() -> int:
        nonlocal at
        at += 4
        return struct.unpack(">I", data[at - 4 : at])[0]

    while at < len(data):
        frames = []
        for _ in range(number()):
            length = number()
            frames.append(data[at : at + length])
            at += length
        topic, sequence, payload = frames
        yield topic, int.from_bytes(sequence, "big"), payload
