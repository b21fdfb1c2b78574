"""Sentences made by code in which people and places are marked: names that may be either are told by the words around.

A sentence is a row of phrases up to LONGEST words: a word that calls for a person or for a place, or for either, then
one or two words of a name; or filler. Some names are used for both, so no tagger can do without the words around them,
and where a name for both stands alone after a word for both, nobody can tell.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

TAGS = ("O", "B-person", "I-person", "B-place", "I-place")
FILLER = (
    "then",
    "often",
    "the",
    "train",
    "was",
    "late",
    "and",
    "it",
    "rained",
    "we",
    "slept",
    "again",
    "while",
    "music",
)
BEFORE_PERSON = ("met", "asked", "called", "thanked", "saw")
BEFORE_PLACE = ("in", "near", "reached", "left", "from")
BEFORE_EITHER = ("about", "with", "for")
PEOPLE = ("anna", "boris", "clara", "emil", "grace", "ivan")
PLACES = ("lima", "oslo", "perth", "quito", "riga", "turin")
EITHER = ("jordan", "paris", "florence", "austin", "sydney", "chester")
FAMILY = ("smith", "weber", "novak", "rossi")  # after a person
SECOND = ("harbour", "hills", "north", "square")  # after a place
WORDS = ("<none>", *FILLER, *BEFORE_PERSON, *BEFORE_PLACE, *BEFORE_EITHER, *PEOPLE, *PLACES, *EITHER, *FAMILY, *SECOND)
NONE = 0
LONGEST, SHORTEST = 12, 6
NO_TAG = -1
VAGUE = 0.3  # the share of names after a word for either
_NUMBER = {word: k for k, word in enumerate(WORDS)}
_GROUPS = (BEFORE_PERSON, BEFORE_PLACE, (*PEOPLE, *EITHER), (*PLACES, *EITHER), FAMILY, SECOND, BEFORE_EITHER, FILLER)


class Sentences(NamedTuple):
    tokens: NDArray[np.int64]  # n LONGEST, numbers of words, NONE after the end
    tags: NDArray[np.int64]  # n LONGEST, numbers of TAGS, NO_TAG after the end


def make_sentences(n: int, rng: np.random.Generator) -> Sentences:
    """`n` sentences."""
    if n < 1:
        raise AssayError(f"make_sentences needs a count of at least 1, got {n}.")
    groups = [np.array([_NUMBER[word] for word in group]) for group in _GROUPS]
    drawn = np.stack([group[rng.integers(len(group), size=(n, LONGEST))] for group in groups])  # group n place
    phrase, long = rng.integers(4, size=(n, LONGEST)), rng.random((n, LONGEST)) < 0.5
    before = np.where(rng.random((n, LONGEST)) < VAGUE, drawn[-2], drawn[:2])  # kind n place
    length = rng.integers(SHORTEST, LONGEST + 1, size=n)
    tokens, tags = drawn[-1].copy(), np.zeros((n, LONGEST), dtype=np.int64)
    at = np.zeros(n, dtype=np.int64)  # where the next phrase begins
    for place in range(LONGEST - 2):
        for kind in (0, 1):  # a person, a place; else filler
            rows = np.flatnonzero((at == place) & (phrase[:, place] == kind))
            longer = rows[long[rows, place]]
            tokens[rows, place], tokens[rows, place + 1] = before[kind, rows, place], drawn[2 + kind, rows, place]
            tags[rows, place + 1] = 1 + 2 * kind
            tokens[longer, place + 2], tags[longer, place + 2] = drawn[4 + kind, longer, place], 2 + 2 * kind
            at[rows] += 2
            at[longer] += 1
        at[at == place] += 1
    shown = np.arange(LONGEST) < length[:, None]
    return Sentences(np.where(shown, tokens, NONE), np.where(shown, tags, NO_TAG))


def load_sentences(*, train: int = 3000, test: int = 500, seed: int = 0) -> dict[str, Sentences]:
    """`train` and `test`."""
    rng = np.random.default_rng(seed)
    return {"train": make_sentences(train, rng), "test": make_sentences(test, rng)}


def decode(tokens: NDArray[np.generic]) -> tuple[str, ...]:
    """The words of one sentence, without what comes after its end."""
    return tuple(WORDS[int(k)] for k in tokens if int(k) != NONE)
