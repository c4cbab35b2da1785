"""What one pool holds is never found for another, whatever the prompts."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gateway.index.memory import MemoryIndex
from routing.block_map import BlockMap
from routing.hashing import HashSpec, block_keys, pack_tokens
from routing.types import Tier

POOLS = st.lists(st.text(max_size=6), min_size=2, max_size=4, unique=True)
PROMPTS = st.lists(st.integers(0, 3), min_size=4, max_size=24)


@given(POOLS, PROMPTS, PROMPTS, st.booleans())
def test_pools_with_the_same_prompts_share_no_entries(pools, shared, tail, is_predicted):
    index = MemoryIndex(BlockMap(10_000, 10_000), lambda: 0.0)
    packed = pack_tokens([*shared, *tail])
    keys_by_pool = {pool: block_keys(packed, HashSpec(pool, 4)) for pool in pools}
    holders = pools[1:]
    for pool in holders:
        if is_predicted:
            index.predict(pool, keys_by_pool[pool], 10.0, None, 0)
        else:
            index.store(pool, keys_by_pool[pool], Tier.L0, ())
    for pool in pools:
        found = asyncio.run(index.lookup({4: keys_by_pool[pool]}))
        assert list(found) == ([pool] if pool in holders else [])
