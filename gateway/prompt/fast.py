"""fastokens: Hugging Face's tokenizers in Rust without their detours, 10 to 100 times faster."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase

from gateway.prompt.encoder import ReferenceTokenizer
from routing.hashing import TOKEN_BYTES


class FastTokenizer:
    """Tokenizes texts by fastokens, and by the reference where that fails.

    Args:
        tokenizer: The reference; what transformers made of its files is what is read.

    Raises:
        Exception: fastokens is missing, or does not know a part of this tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        import fastokens  # noqa: PLC0415 - only there on Linux, and only loaded with a tokenizer

        self._native: Any = fastokens.Tokenizer.from_json_str(tokenizer.backend_tokenizer.to_str())
        self._reference = ReferenceTokenizer(tokenizer)

    def packed(self, texts: Sequence[str]) -> list[bytes]:
        """Return each text's token ids, packed.

        Raises:
            UnicodeEncodeError: A text has half a surrogate pair.
        """
        try:
            ids, ends = self._native.encode_batch_flat(list(texts))
        except Exception:  # noqa: BLE001 - foreign code, and there is a second way
            return self._reference.packed(texts)
        places = array("Q", ends)
        return [ids[TOKEN_BYTES * start : TOKEN_BYTES * end] for start, end in pairwise(places)]
