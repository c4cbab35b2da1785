"""What predictions cost where a cache is full of them."""

import time

from routing.predictions import Predictions

PROMPT_BLOCKS = 1000
CACHE_BLOCKS = 40 * PROMPT_BLOCKS


def prompt(number):
    return list(range(number * PROMPT_BLOCKS, (number + 1) * PROMPT_BLOCKS))


def test_a_prompt_costs_a_full_cache_little_more_than_an_empty_one():
    """Each of its blocks makes another one leave."""
    predictions, took_s = Predictions(max_blocks=10**6), []
    for number in range(80):
        began = time.thread_time()
        predictions.add(0, prompt(number), until=1e9, max_blocks=CACHE_BLOCKS)
        took_s.append(time.thread_time() - began)
    assert predictions.num_blocks(0) == CACHE_BLOCKS - CACHE_BLOCKS // 64
    # The middle one of each half: growth of a table, and other processes, fall on few.
    filling, full = sorted(took_s[:40])[20], sorted(took_s[40:])[20]
    assert full < 6 * filling


def test_what_is_void_at_once_is_dropped_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr("routing.predictions._EXPIRED_AT_ONCE", 10)
    predictions = Predictions(max_blocks=10**6)
    for number in range(4):
        predictions.add(0, range(10 * number, 10 * number + 10), until=1.0)
    predictions.expire(1.0)
    assert predictions.num_blocks(0) == 30
    for _ in range(3):
        predictions.expire(1.0)
    assert predictions.num_blocks(0) == 0
