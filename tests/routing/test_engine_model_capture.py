"""The model engine against a real vLLM 0.32: the same requests give the same cache events.

Eight requests overflowed a cache of 160 blocks of 32 tokens: five prompts of 1,894 tokens, then a
sixth three times with enough output to fill its last block and begin another.
"""

from pathlib import Path

import msgspec

from routing.lab.engine_model import EngineModel
from routing.lab.engine_profile import REFERENCE
from routing.lab.kv_events import BlockRemoved
from routing.lab.sequence import EngineRequest
from tests.support.captures import batches

CAPTURE = Path(__file__).parents[1] / "data" / "vllm-0.32" / "kv_evict_A.frames.bin"


def requests_behind(captured):
    prompts = [b[-1]["token_ids"] for b in captured if b[-1]["type"] == "BlockStored"][:6]
    for number, prompt in enumerate(prompts[:5]):
        yield EngineRequest(f"{number}", [*prompt, 1, 2, 3, 4, 5, 6], [7])
    tail = captured[6][-1]["token_ids"]
    for number in (5, 6, 7):
        # 6 of the block's tokens end the prompt, 26 are output; the next ones need a new block.
        prompt = [*prompts[5], *tail[:6]]
        yield EngineRequest(f"{number}", prompt, [*tail[6:], 7, 7])


def test_the_model_evicts_and_stores_block_by_block_as_vllm_did():
    captured = [msgspec.msgpack.decode(payload)[1] for _, _, payload in batches(CAPTURE)]
    model = EngineModel(REFERENCE, block_size=32, num_blocks=160)
    seen = []
    for request in requests_behind(captured):
        model.submit(request)
        while model.begin_step(0.0) is not None:
            events = model.finish_step().events
            if events:
                seen.append(events)
    assert [len(b) for b in seen] == [len(b) for b in captured]
    ours_by_theirs: dict[int, int] = {}
    for ours, theirs in zip(
        [e for b in seen for e in b], [e for b in captured for e in b], strict=True
    ):
        if isinstance(ours, BlockRemoved):
            assert theirs["type"] == "BlockRemoved"
            assert [ours_by_theirs[h] for h in theirs["block_hashes"]] == [ours.block_hash]
            continue
        assert theirs["type"] == "BlockStored"
        assert list(ours.token_ids) == theirs["token_ids"]
        for our_hash, their_hash in zip(ours.block_hashes, theirs["block_hashes"], strict=True):
            assert ours_by_theirs.setdefault(their_hash, our_hash) == our_hash
        parent = theirs["parent_block_hash"]
        assert ours.parent_hash == (None if parent is None else ours_by_theirs[parent])
