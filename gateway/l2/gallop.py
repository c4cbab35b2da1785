"""How many leading chunks of a prompt are there, in few questions. Pure."""

from __future__ import annotations

from collections.abc import Callable


def longest_run(is_there: Callable[[int], bool], start: int, end: int) -> int:
    """Return the first number from `start` on that is not there, by steps that double.

    A prompt's chunks are written from the first one on, so one that is there stands for those
    before it: of n chunks that are there, about 2 * log2(n) are asked for, and one where the first
    is missing. A hole before a chunk that is there is not seen; the engine's own word tells it.

    Args:
        is_there: Asks for one chunk.
        start: The chunks before this one are known to be there.
        end: This one and those behind it are not of interest, or known to be missing.

    Returns:
        From `start` to `end`.
    """
    low, step = start, 1  # all before `low` are there
    high = end  # none from here on
    while low < high:
        number = min(low + step, high) - 1
        if is_there(number):
            low, step = number + 1, step * 2
        else:
            high = number
            break
    while low < high:
        middle = (low + high) // 2
        if is_there(middle):
            low = middle + 1
        else:
            high = middle
    return low
