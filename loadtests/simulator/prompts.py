"""From request bodies to token ids, as the engine behind a real vLLM would see them."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from loadtests.simulator.errors import bad_request
from loadtests.simulator.messages import Message, conversation

# Above this a tokenizer call takes longer than a millisecond or so and would hold up the streams.
_INLINE_CHARS = 4_000
# Text kept with its ids, about 16 MB in all.
_CACHE_CHARS = 8_000_000
_SURROGATE = re.compile("[\ud800-\udfff]")
_PROBE = "<x> plain text, a number 1234\n\n  and spaces  \tÀ é ñ 你好 <x>"


class PromptEncoder:
    """A model folder's tokenizer and chat template.

    The ids of every stretch between two special tokens are kept, so that the next turn of a chat,
    or another question about the same document, costs only what is new in it. Special tokens cut
    the text before anything else happens, so the pieces cannot influence each other; for tokenizers
    where that does not hold, the whole text is one piece.

    Raises:
        OSError: There is no such folder, or no tokenizer in it.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise OSError(f"tokenizer folder {folder} does not exist")
        # Takes a second, which a wrong option should not have to wait for.
        from transformers import AutoTokenizer  # noqa: PLC0415 - see above

        self._hf = AutoTokenizer.from_pretrained(folder)
        self._backend = self._hf.backend_tokenizer
        self._id_by_special = {
            token.content: token_id for token_id, token in self._hf.added_tokens_decoder.items()
        }
        self._split = self._make_splitter()
        self._prefix, self._suffix = self._find_frame()
        self._ids_by_piece: OrderedDict[str, list[int]] = OrderedDict()
        self._cached_chars = 0
        self._has_developer = "developer" in (self._hf.chat_template or "")

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a reply."""
        token_id = self._hf.eos_token_id
        return token_id if isinstance(token_id, int) else None

    @property
    def max_length(self) -> int:
        """The longest sequence that the model folder states, in tokens."""
        return int(self._hf.model_max_length)

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Refuse ids that the model does not have.

        Raises:
            ApiError: 400.
        """
        largest = max(token_ids, default=0)
        if largest >= len(self._hf):
            raise bad_request(f"Token id {largest} is out of vocabulary", param)

    def vocabulary(self) -> dict[str, int]:
        """Return token ids by token as the tokenizer writes it, special tokens left out."""
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=False)
        return vocabulary

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens around it. Releases the GIL."""
        encoded = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of these ids, special tokens included."""
        return str(self._hf.decode(list(token_ids)))

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Return how the tokenizer writes these ids."""
        return list(self._hf.convert_ids_to_tokens(list(token_ids)))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """Return the prompt of a chat.

        Raises:
            ApiError: 400, the messages do not fit the template.
        """
        if not self._hf.chat_template:
            raise bad_request("the model folder has no chat template")
        chat = conversation(messages, has_developer=self._has_developer)
        arguments = {"tools": tools, **template_kwargs, "tokenize": False}
        try:
            return str(self._hf.apply_chat_template(chat, **arguments))
        except (TemplateError, TypeError, ValueError) as error:
            raise bad_request(str(error)) from None

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a prompt; long texts are tokenized in a thread.

        Raises:
            ApiError: 400, the text is not Unicode (JSON can write half of a surrogate pair).
        """
        if not text.isascii() and _SURROGATE.search(text):
            raise bad_request("the prompt holds a surrogate that is not a character", "prompt")
        pieces = [piece for piece in self._split.split(text) if piece] if self._split else [text]
        missing = [p for p in dict.fromkeys(pieces) if not self._known(p)]
        fresh: dict[str, list[int]] = {}
        if missing:
            inline = sum(map(len, missing)) <= _INLINE_CHARS
            encoded = (
                self.encode_batch(missing)
                if inline
                else await asyncio.to_thread(self.encode_batch, missing)
            )
            fresh = dict(zip(missing, encoded, strict=True))
        ids: list[int] = list(self._prefix) if add_special_tokens else []
        for piece in pieces:
            special = self._id_by_special.get(piece)
            if special is not None and self._split:
                ids.append(special)
            else:
                # What another request pushed out meanwhile is simply computed again.
                ids += fresh.get(piece) or self._recall(piece)
        for piece, piece_ids in fresh.items():
            self._keep(piece, piece_ids)
        return ids + self._suffix if add_special_tokens else ids

    def _known(self, piece: str) -> bool:
        return piece in self._ids_by_piece or (bool(self._split) and piece in self._id_by_special)

    def _recall(self, piece: str) -> list[int]:
        ids = self._ids_by_piece.get(piece)
        if ids is None:
            return self.encode_batch([piece])[0]
        self._ids_by_piece.move_to_end(piece)
        return ids

    def _keep(self, piece: str, ids: list[int]) -> None:
        if piece in self._ids_by_piece:
            return
        self._ids_by_piece[piece] = ids
        self._cached_chars += len(piece)
        while self._cached_chars > _CACHE_CHARS:
            oldest, _ = self._ids_by_piece.popitem(last=False)
            self._cached_chars -= len(oldest)

    def _make_splitter(self) -> re.Pattern[str] | None:
        added = self._hf.added_tokens_decoder.values()
        if not added or any(t.lstrip or t.rstrip or t.single_word or t.normalized for t in added):
            return None
        longest_first = sorted((token.content for token in added), key=len, reverse=True)
        split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        probe = _PROBE.replace("<x>", longest_first[0])
        pieces = [piece for piece in split.split(probe) if piece]
        whole = self.encode_batch([probe])[0]
        joined = [token_id for ids in self.encode_batch(pieces) for token_id in ids]
        return split if whole == joined else None

    def _find_frame(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer puts before and behind a text when asked to."""
        (bare,) = self.encode_batch(["a"])
        framed = self._backend.encode("a", add_special_tokens=True).ids
        for start in range(len(framed) - len(bare) + 1):
            if framed[start : start + len(bare)] == bare:
                return framed[:start], framed[start + len(bare) :]
        return [], []
