"""Make the text that the demo tokenizer is trained on: seeded, and owned by this repository.

Prose, dialogue, program text, JSON, YAML, tables, logs, numbers, and sentences of ten scripts with
emoji, in shares that resemble what chat, RAG and agent prompts hold.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from loadtests.demo_model import prose, words

# Enough that the 8,192nd merge is still seen many times; training takes about 2 s on one core.
NUM_DOCUMENTS: Final = 6_000
_UNSPACED_SCRIPTS: Final = frozenset(("chinese", "japanese", "thai"))


def documents(seed: int, count: int = NUM_DOCUMENTS) -> Iterator[str]:
    """Yield `count` texts, the same ones for the same seed.

    Args:
        seed: Seed of the only randomness.
        count: How many texts, about 1,000 characters each.

    Yields:
        One text of one kind; every sixteenth is a word list, so that rare words are seen too.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, share in _SHARES for _ in range(share)]
    for number in range(count):
        yield _word_list(rng) if number % 16 == 0 else rng.choice(kinds)(rng)


def _prose(rng: random.Random) -> str:
    return "\n\n".join(prose.paragraph(rng, rng.randint(3, 7)) for _ in range(3))


def _dialogue(rng: random.Random) -> str:
    turns = [
        f"{rng.choice(('user', 'assistant', 'system', 'tool'))}\n{prose.paragraph(rng, 2)}"
        for _ in range(6)
    ]
    return "\n".join(turns)


def _identifier(rng: random.Random) -> str:
    parts = rng.sample(words.NOUNS, rng.randint(1, 2))
    if rng.random() < 0.3:
        parts.insert(0, rng.choice(words.VERBS))
    style = rng.randrange(3)
    if style == 0:
        return "_".join(parts)
    if style == 1:
        return "".join(part.capitalize() for part in parts)
    return parts[0] + "".join(part.capitalize() for part in parts[1:])


def _code(rng: random.Random) -> str:
    lines = [f"import {rng.choice(words.CODE_WORDS)}", ""]
    for _ in range(3):
        name, left, right = (_identifier(rng) for _ in range(3))
        lines += [
            f"def {name}({left}: int, {right}: str) -> None:",
            f'    """{prose.sentence(rng)}"""',
            f"    if {left} {rng.choice(('==', '!=', '<', '>=', 'in'))} {rng.randrange(1000)}:",
            f"        return {rng.choice(words.CODE_WORDS)}.{_identifier(rng)}({right})",
            f"    for {left} in range({rng.randrange(100)}):",
            f"        self.{_identifier(rng)}[{left}] = {rng.choice(words.CODE_WORDS)}",
            f"        # {prose.sentence(rng)}",
            "",
        ]
    return "\n".join(lines)


def _json(rng: random.Random) -> str:
    record = {
        "id": _hex(rng, 16),
        "name": _identifier(rng),
        "description": prose.sentence(rng),
        "type": rng.choice(("object", "string", "number", "boolean", "array")),
        "properties": {
            rng.choice(words.NOUNS): {"type": "string", "value": rng.choice(words.ADJECTIVES)}
            for _ in range(4)
        },
        "required": rng.sample(words.NOUNS, 2),
        "price": round(rng.random() * 1000, 2),
        "active": rng.random() < 0.5,
        "parent": None,
    }
    text = json.dumps(record, indent=rng.choice((None, 2, 4)))
    return f'<tool_call>\n{{"name": "{_identifier(rng)}", "arguments": {text}}}\n</tool_call>'


def _yaml(rng: random.Random) -> str:
    lines = [f"{rng.choice(words.CODE_WORDS)}:"]
    for _ in range(12):
        value = rng.choice((str(rng.randrange(10_000)), rng.choice(words.CODE_WORDS), "true"))
        lines.append(f"  {rng.choice(('', '- '))}{rng.choice(words.NOUNS)}: {value}")
    return "\n".join(lines)


def _log_line(rng: random.Random) -> str:
    day = f"2025-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    clock = ":".join(f"{rng.randrange(60):02}" for _ in range(2))
    level = rng.choice(("DEBUG", "INFO", "WARNING", "ERROR"))
    return (
        f"{day}T{rng.randrange(24):02}:{clock}Z {level} [{rng.choice(words.CODE_WORDS)}] "
        f"{_identifier(rng)}={rng.randrange(100_000)} {rng.choice(words.VERBS)} {_hex(rng, 8)}"
    )


def _log(rng: random.Random) -> str:
    return "\n".join(_log_line(rng) for _ in range(12))


def _markdown(rng: random.Random) -> str:
    head = (
        f"## {prose.capitalise(rng.choice(words.NOUNS))}\n\n| name | value | note |\n|---|---|---|"
    )
    rows = "\n".join(
        f"| {rng.choice(words.NOUNS)} | {rng.random() * 100:.1f} | {rng.choice(words.ADJECTIVES)} |"
        for _ in range(8)
    )
    points = "".join(
        f"{number}. **{rng.choice(words.NOUNS)}**: {prose.sentence(rng)}\n"
        for number in range(1, rng.randint(4, 9))
    )
    return f"{head}\n{rows}\n\n{points}\n- `{_identifier(rng)}`\n"


def _scripts(rng: random.Random) -> str:
    lines = []
    for _ in range(8):
        script, listed = rng.choice(words.SCRIPTS)
        glue = "" if script in _UNSPACED_SCRIPTS else " "
        line = glue.join(rng.choices(listed, k=rng.randint(4, 12)))
        lines.append(f"{line}. {rng.choice(words.EMOJI)}")
    return "\n".join(lines)


def _word_list(rng: random.Random) -> str:
    """One list in random order, with every inflection, so that no listed word stays unseen."""
    forms: Sequence[str] = rng.choice(prose.WORD_FORMS)
    return " " + " ".join(rng.sample(forms, len(forms)))


def _hex(rng: random.Random, length: int) -> str:
    return f"{rng.getrandbits(4 * length):0{length}x}"


_SHARES: Final[tuple[tuple[Callable[[random.Random], str], int], ...]] = (
    (_prose, 8),
    (_dialogue, 4),
    (_code, 3),
    (_json, 2),
    (_yaml, 1),
    (_log, 1),
    (_markdown, 2),
    (_scripts, 1),
)
