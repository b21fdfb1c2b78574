from __future__ import annotations

import numpy as np
import pytest

from assay.data.topics import (
    CLASSES,
    KEYS,
    LONGEST,
    NONE,
    OTHER,
    SHORTEST,
    STOP_WORDS,
    TOPICS,
    WORDS,
    decode,
    encode,
    is_stop_word,
    load_topics,
    make_texts,
)
from assay.errors import AssayError


def test_no_word_has_two_meanings() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert {len(words) for words in TOPICS.values()} == {10}


def test_texts_are_made_as_it_says() -> None:
    texts = make_texts(2000, np.random.default_rng(0))
    length = (texts.tokens != NONE).sum(1)
    assert set(length) == set(range(SHORTEST, LONGEST + 1))
    strays = 0
    for tokens, label, key in zip(texts.tokens[:300], texts.label, texts.key, strict=False):
        shown = tokens != NONE
        assert shown[: shown.sum()].all()  # padding comes last
        own = set(TOPICS[CLASSES[label]])
        words = [WORDS[k] for k in tokens]
        assert [word in own for word in words] == key.tolist()
        keys = [word for word in words if word in own]
        assert KEYS[0] <= len(keys) <= KEYS[1]
        assert len(set(keys)) == len(keys)
        others = [w for w, s in zip(words, shown, strict=True) if s and w not in own and w not in STOP_WORDS]
        assert len(others) <= 1
        strays += len(others)
    assert 60 <= strays <= 120  # a chance of 0.3
    assert np.bincount(texts.label, minlength=6).min() > 250
    first = texts.key.argmax(1)
    assert len(set(first[:300])) > 3  # keys stand anywhere
    assert not (is_stop_word(texts.tokens) & texts.key).any()


def test_a_seed_makes_the_same_corpus_again_and_splits_differ() -> None:
    one, two = load_topics(train=50, test=50), load_topics(train=50, test=50)
    assert one["train"].fingerprint() == two["train"].fingerprint() != one["test"].fingerprint()
    assert one["test"].classes == CLASSES
    assert one["train"].x.shape == (50, LONGEST)
    assert load_topics(train=50, test=50, seed=1)["train"].fingerprint() != one["train"].fingerprint()


def test_sentences_are_read_and_written() -> None:
    tokens = encode("The coach, said: 'Zanzibar'!")
    assert decode(tokens) == ("the", "coach", "said", "<other>")
    assert tokens[3] == OTHER
    assert (tokens[4:] == NONE).all()


def test_words_of_the_errors() -> None:
    with pytest.raises(AssayError, match="A text of 13 words does not fit; this corpus has texts of 1 to 12"):
        encode("a " * 13)
    with pytest.raises(AssayError, match="A text of 0 words"):
        encode("?!")
    with pytest.raises(AssayError, match="count of at least 1, got 0"):
        make_texts(0, np.random.default_rng(0))
