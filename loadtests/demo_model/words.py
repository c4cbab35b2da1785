"""The vocabulary lists that every made text of the load tests is written from (words.txt).

The tokenizer is trained on text made of them, and the workloads ask about them, so most words of a
made prompt are one token, as with a real tokenizer and real English.
"""

from pathlib import Path
from typing import Final


def read_lists(text: str) -> dict[str, tuple[str, ...]]:
    """Return the words of every `[name]` section, in the order written.

    Args:
        text: Lines of blank-separated words under `[name]` lines; `#` starts a comment line.
    """
    lists: dict[str, tuple[str, ...]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            lists[name] = ()
        elif not line.startswith("#") and line:
            lists[name] += tuple(line.split())
    return lists


_LISTS: Final = read_lists(Path(__file__).with_name("words.txt").read_text(encoding="utf-8"))

NOUNS: Final = _LISTS["nouns"]
VERBS: Final = _LISTS["verbs"]
ADJECTIVES: Final = _LISTS["adjectives"]
ADVERBS: Final = _LISTS["adverbs"]
DETERMINERS: Final = _LISTS["determiners"]
PREPOSITIONS: Final = _LISTS["prepositions"]
PRONOUNS: Final = _LISTS["pronouns"]
AUXILIARIES: Final = _LISTS["auxiliaries"]
CONJUNCTIONS: Final = _LISTS["conjunctions"]
QUESTION_WORDS: Final = _LISTS["question_words"]
CONTRACTIONS: Final = _LISTS["contractions"]
FIRST_NAMES: Final = _LISTS["first_names"]
PLACES: Final = _LISTS["places"]
# Words of programs and configuration, which real prompts of agents are full of.
CODE_WORDS: Final = _LISTS["code_words"]
EMOJI: Final = _LISTS["emoji"]
# Past forms of the listed verbs that do not take -ed.
IRREGULAR_PAST: Final = tuple(
    (verb, form) for verb, form in (pair.split(":") for pair in _LISTS["irregular_past"])
)
# Common words of other scripts. They keep multi-byte text in the vocabulary; what is not here
# falls back to bytes, as in any byte-level tokenizer.
SCRIPTS: Final = tuple(
    (name.removeprefix("script "), listed)
    for name, listed in _LISTS.items()
    if name.startswith("script ")
)
