"""Sentences and paragraphs from the vocabulary lists, by a small grammar."""

import random
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from loadtests.demo_model import words

_VOWELS: Final = "aeiou"

_PAST_BY_VERB: Final = MappingProxyType(dict(words.IRREGULAR_PAST))


def plural(noun: str) -> str:
    """Return the regular plural of an English noun."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in _VOWELS:
        return noun[:-1] + "ies"
    return noun + "s"


def past(verb: str) -> str:
    """Return the past tense of a listed verb."""
    if verb in _PAST_BY_VERB:
        return _PAST_BY_VERB[verb]
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in _VOWELS:
        return verb[:-1] + "ied"
    return _doubled(verb) + "ed"


def gerund(verb: str) -> str:
    """Return the -ing form of a listed verb."""
    if verb == "tie":
        return "tying"
    if verb.endswith("e") and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return _doubled(verb) + "ing"


def adverb(adjective: str) -> str:
    """Return the -ly form of an adjective."""
    if adjective.endswith("le"):
        return adjective[:-1] + "y"
    if adjective.endswith("y"):
        return adjective[:-1] + "ily"
    return adjective + "ly"


def capitalise(text: str) -> str:
    """Return the text with its first letter in upper case and the rest untouched."""
    return text[:1].upper() + text[1:]


def sentence(rng: random.Random) -> str:
    """Return one sentence of 5 to 20 words."""
    clause = _clause(rng)
    shape = rng.random()
    if shape < 0.2:
        clause = f"{clause}, {rng.choice(words.CONJUNCTIONS)} {_clause(rng)}"
    elif shape < 0.35:
        clause = f"{adverb(rng.choice(words.ADJECTIVES))}, {clause}"
    elif shape < 0.5:
        clause = f"{rng.choice(words.PRONOUNS)} {rng.choice(words.AUXILIARIES)} {clause}"
    elif shape < 0.6:
        clause = f"{rng.choice(words.FIRST_NAMES)} {past(rng.choice(words.VERBS))} {_object(rng)}"
    elif shape < 0.65:
        clause = f"{rng.choice(words.CONTRACTIONS)} {_clause(rng)}"
    return capitalise(clause) + rng.choice(".....!;:")


def question(rng: random.Random) -> str:
    """Return one question of 5 to 12 words."""
    opening = f"{rng.choice(words.QUESTION_WORDS)} {rng.choice(words.AUXILIARIES)}"
    return capitalise(f"{opening} {_subject(rng)} {rng.choice(words.VERBS)} {_object(rng)}?")


def paragraph(rng: random.Random, num_sentences: int) -> str:
    """Return sentences on one line, with a date, a place or a number now and then."""
    sentences = [sentence(rng) for _ in range(num_sentences)]
    if rng.random() < 0.5:
        place, number = rng.choice(words.PLACES), rng.randrange(10 ** rng.randint(1, 6))
        sentences.append(f"In {place} there were {number} {plural(rng.choice(words.NOUNS))}.")
    return " ".join(sentences)


def _doubled(verb: str) -> str:
    """Double the last consonant of short verbs such as `stop`, `plan`, `fit`."""
    short = len(verb) <= 4 and verb[-1] not in "aeiouwxyk" and verb[-2] in _VOWELS
    return verb + verb[-1] if short and verb[-3] not in _VOWELS else verb


def _noun_phrase(rng: random.Random) -> str:
    noun = rng.choice(words.NOUNS)
    if rng.random() < 0.35:
        noun = plural(noun)
    if rng.random() < 0.4:
        noun = f"{rng.choice(words.ADJECTIVES)} {noun}"
    return f"{rng.choice(words.DETERMINERS)} {noun}"


def _subject(rng: random.Random) -> str:
    return rng.choice(words.PRONOUNS) if rng.random() < 0.3 else _noun_phrase(rng)


def _object(rng: random.Random) -> str:
    phrase = _noun_phrase(rng)
    if rng.random() < 0.5:
        phrase = f"{phrase} {rng.choice(words.PREPOSITIONS)} {_noun_phrase(rng)}"
    return phrase


def _verb_phrase(rng: random.Random) -> str:
    verb = rng.choice(words.VERBS)
    forms = (past(verb), plural(verb), f"{rng.choice(words.AUXILIARIES)} {verb}", gerund(verb))
    phrase = rng.choice(forms)
    return f"{rng.choice(words.ADVERBS)} {phrase}" if rng.random() < 0.2 else phrase


def _clause(rng: random.Random) -> str:
    return f"{_subject(rng)} {_verb_phrase(rng)} {_object(rng)}"


def _forms() -> tuple[Sequence[str], ...]:
    verbs = [
        form for verb in words.VERBS for form in (verb, past(verb), plural(verb), gerund(verb))
    ]
    nouns = [form for noun in words.NOUNS for form in (noun, plural(noun))]
    adjectives = [form for word in words.ADJECTIVES for form in (word, adverb(word))]
    names = [*words.FIRST_NAMES, *words.PLACES, *words.CONTRACTIONS]
    closed = [
        *words.DETERMINERS,
        *words.PREPOSITIONS,
        *words.PRONOUNS,
        *words.AUXILIARIES,
        *words.CONJUNCTIONS,
        *words.QUESTION_WORDS,
        *words.ADVERBS,
    ]
    groups = (verbs, nouns, adjectives, names, closed, list(words.CODE_WORDS))
    # dict.fromkeys keeps the written order and drops doubles, so the lists are the same everywhere.
    return tuple(tuple(dict.fromkeys(group)) for group in groups)


WORD_FORMS: Final = _forms()
