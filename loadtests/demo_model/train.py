"""Train the demo tokenizer and write it beside this file: `python -m loadtests.demo_model.train`.

The result is committed; ORIGIN.md says what it is. A test trains again and compares byte by byte.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from loadtests.demo_model import corpus

VOCAB_SIZE: Final = 8_192
SEED: Final = 20_250_101
# vLLM's --max-model-len of the demo replicas, tokens; the model has no weights that would limit it.
MODEL_MAX_TOKENS: Final = 32_768
SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Where BPE may not merge across: contractions, words with one leading blank, numbers of up to three
# digits, runs of punctuation, line breaks, other blanks. The usual split of byte-level tokenizers.
_SPLIT: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}[\p{L}\p{M}]*|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_TOKENIZER_CONFIG: Final[Mapping[str, Any]] = {
    "add_prefix_space": False,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "extra_special_tokens": ["<|im_start|>"],
    "model_max_length": MODEL_MAX_TOKENS,
    "pad_token": "<|endoftext|>",
    # The class that takes tokenizer.json as it is: a model's own class may swap the pre-tokenizer.
    "tokenizer_class": "PreTrainedTokenizerFast",
}


def train(seed: int = SEED, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Return a byte-level BPE tokenizer trained on the corpus of `seed`.

    Args:
        seed: Seed of the corpus; training itself has no randomness.
        vocab_size: Entries with the 256 bytes and the special tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus.documents(seed), trainer)
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into `folder`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(_TOKENIZER_CONFIG, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Train and write, and say how many entries the vocabulary has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write")
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    write(tokenizer, folder)
    print(f"{tokenizer.get_vocab_size()} entries written to {folder}")


if __name__ == "__main__":
    main()
