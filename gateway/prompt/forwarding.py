"""Hands an engine a chat's token ids, so that it does not render and tokenize again. Pure."""

from __future__ import annotations

import re

import msgspec

from gateway.prompt.body import BodyKind, splice_field
from gateway.prompt.prepare import Prompt
from routing.hashing import unpack_tokens

# vLLM reads `kv_transfer_params.prompt_token_ids` of a chat from 0.28 on. An older one ignores it.
MIN_VERSION = (0, 28)

_VERSION = re.compile(r"(\d+)\.(\d+)")
# With these the engine does something else with a prompt than run its ids as they are.
_OTHER_WAYS = ("kv_transfer_params", "truncate_prompt_tokens", "echo", "documents")


def takes_token_ids(version: str | None) -> bool:
    """Return whether an engine of this version runs the token ids that a chat's body holds."""
    found = _VERSION.match(version or "")
    return found is not None and (int(found[1]), int(found[2])) >= MIN_VERSION


def is_forwardable(prompt: Prompt) -> bool:
    """Return whether a prompt's ids are known to be what the engine would compute.

    That is a chat of text whose ids are all known, do not depend on the day, and are not cut.
    """
    fields = prompt.body.fields
    return (
        prompt.body.kind is BodyKind.CHAT
        and prompt.packed_tokens is not None
        and prompt.whole
        and not prompt.is_dated
        and all(not fields.get(way) for way in _OTHER_WAYS)
    )


def splice_token_ids(body: bytes, packed_tokens: bytes) -> bytes:
    """Return a chat's body with its token ids added; every other byte stays.

    Args:
        body: A JSON object with at least one field.
        packed_tokens: Of the whole prompt.
    """
    ids = msgspec.json.encode(unpack_tokens(packed_tokens))
    return splice_field(body, "kv_transfer_params", b'{"prompt_token_ids":' + ids + b"}")
