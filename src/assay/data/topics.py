"""A corpus of short texts made by code: topic words decide the class, stop words do not, and which is which is known.

A text of topic t has 6 to 12 places. Two to four of them hold words of t, with a chance of 0.3 one more holds a word of
another topic, and stop words fill the rest; the order is random. So an explanation of a text's class has a known truth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.arrays import Arrays
from assay.errors import AssayError

TOPICS: dict[str, tuple[str, ...]] = {
    "sport": ("goal", "team", "coach", "league", "striker", "match", "referee", "stadium", "penalty", "trophy"),
    "health": ("doctor", "fever", "vaccine", "clinic", "muscle", "diet", "allergy", "nurse", "symptom", "dose"),
    "science": ("atom", "theory", "orbit", "enzyme", "laser", "fossil", "quantum", "galaxy", "cell", "lab"),
    "music": ("guitar", "melody", "album", "drummer", "chorus", "opera", "violin", "rhythm", "concert", "singer"),
    "money": ("bank", "loan", "stock", "tax", "budget", "mortgage", "dividend", "invoice", "salary", "credit"),
    "travel": ("airport", "visa", "hotel", "luggage", "beach", "passport", "cruise", "hostel", "flight", "tourist"),
}  # fmt: skip
STOP_WORDS = (
    "the", "a", "of", "and", "to", "in", "is", "it", "that", "was", "for", "on", "are", "with", "as", "they", "be",
    "at", "this", "have", "from", "or", "had", "by", "but", "what", "some", "we", "can", "out", "other", "were", "all",
    "there", "when", "up", "your", "how", "said", "an",
)  # fmt: skip
CLASSES = tuple(TOPICS)
WORDS = ("<none>", "<other>", *STOP_WORDS, *(word for group in TOPICS.values() for word in group))
NONE, OTHER = 0, 1  # padding, and a word that is not in the list
LONGEST, SHORTEST = 12, 6
KEYS = (2, 4)  # words of the topic in a text
DISTRACTED = 0.3  # the chance of a word of another topic
_NUMBER = {word: k for k, word in enumerate(WORDS)}
_FIRST_TOPIC_WORD = 2 + len(STOP_WORDS)
_PER_TOPIC = len(TOPICS["sport"])


class Texts(NamedTuple):
    tokens: NDArray[np.int64]  # n LONGEST, numbers of words, NONE after the end
    label: NDArray[np.int64]  # n
    key: NDArray[np.bool_]  # n LONGEST: words of the text's own topic


def make_texts(n: int, rng: np.random.Generator) -> Texts:
    """`n` texts, topics drawn with equal chance."""
    if n < 1:
        raise AssayError(f"make_texts needs a count of at least 1, got {n}.")
    label = rng.integers(len(CLASSES), size=n)
    length = rng.integers(SHORTEST, LONGEST + 1, size=n)
    keys = rng.integers(KEYS[0], KEYS[1] + 1, size=n)
    stray = (rng.random(n) < DISTRACTED).astype(np.int64)
    place = np.arange(LONGEST)
    other = (label + rng.integers(1, len(CLASSES), size=n)) % len(CLASSES)

    def of_topic(topic: NDArray[np.int64]) -> NDArray[np.int64]:
        # without repetition: a text says a topic word once
        picks = rng.random((n, _PER_TOPIC)).argsort(1)[:, : max(KEYS)]
        padded = np.pad(picks, ((0, 0), (0, LONGEST - picks.shape[1])))
        return _FIRST_TOPIC_WORD + topic[:, None] * _PER_TOPIC + padded

    stop = rng.integers(2, _FIRST_TOPIC_WORD, size=(n, LONGEST))
    is_key = place < keys[:, None]
    is_stray = ~is_key & (place < (keys + stray)[:, None])
    tokens = np.where(is_key, of_topic(label), np.where(is_stray, of_topic(other), stop))
    # a random order of the places that the text has, the others stay behind
    rank = np.where(place < length[:, None], rng.random((n, LONGEST)), 2.0)
    order = rank.argsort(1, kind="stable")
    tokens, is_key = np.take_along_axis(tokens, order, 1), np.take_along_axis(is_key, order, 1)
    shown = place < length[:, None]
    return Texts(np.where(shown, tokens, NONE), label, is_key & shown)


def load_topics(*, train: int = 3000, test: int = 500, seed: int = 0) -> dict[str, Arrays]:
    """`train` and `test`: texts as n LONGEST word numbers, held as floats, with their topics."""
    rng = np.random.default_rng(seed)
    parts = {"train": make_texts(train, rng), "test": make_texts(test, rng)}
    return {name: Arrays(texts.tokens.astype(np.float32), texts.label, CLASSES) for name, texts in parts.items()}


def encode(text: str) -> NDArray[np.int64]:
    """A text as LONGEST word numbers; words beyond the list become OTHER."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    if not 1 <= len(words) <= LONGEST:
        raise AssayError(f"A text of {len(words)} words does not fit; this corpus has texts of 1 to {LONGEST} words.")
    numbers = [_NUMBER.get(word, OTHER) for word in words]
    return np.array(numbers + [NONE] * (LONGEST - len(words)), dtype=np.int64)


def decode(tokens: NDArray[np.int64]) -> tuple[str, ...]:
    """The words of one text, without what comes after its end."""
    return tuple(WORDS[int(k)] for k in tokens if int(k) != NONE)


def is_stop_word(tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a stop word stands."""
    return (tokens >= 2) & (tokens < _FIRST_TOPIC_WORD)
