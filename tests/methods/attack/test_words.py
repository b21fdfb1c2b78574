"""Rewording: greedy against brute force, on models of words whose best change is known."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.inputs import Text
from assay.methods.attack.words import allowed, replay, reword, without

NEAR = {"a": ("b", "c"), "b": ("a",), "c": ("d", "a"), "d": ()}
words = st.lists(st.sampled_from("abcd"), min_size=1, max_size=6)
weights = st.fixed_dictionaries({w: st.integers(-8, 8) for w in "abcd"})


def neighbours(text: str, word: int) -> list[str]:
    parts = text.split()
    return [" ".join([*parts[:word], other, *parts[word + 1 :]]) for other in NEAR[parts[word]]]


def linear(weight: dict[str, float], bias: float, shown: list[list[str]] | None = None):
    """A bag of words: the margin is the sum of their weights."""

    def margins(texts: list[str], rows: torch.Tensor) -> torch.Tensor:
        assert len(texts) == len(rows)
        if shown is not None:
            shown.append(list(texts))
        return torch.tensor([bias + sum(weight.get(w, 0.0) for w in text.split()) for text in texts])

    return margins


def apart(a: str, b: str) -> int:
    return sum(x != y for x, y in zip(a.split(), b.split(), strict=True))


@settings(deadline=None, max_examples=60)
@given(text=words, weight=weights, bias=st.integers(0, 10))
def test_of_a_bag_of_words_the_most_important_word_gets_its_best_substitute(text, weight, bias):
    before = " ".join(text)
    margins = linear(weight, float(bias))
    start = float(margins([before], torch.zeros(1))[0])
    done = reword(margins, [before], neighbours, share=1e-6)
    if start <= 0:
        assert done.texts == [before]
        assert int(done.queries[0]) == 1
        return
    gains = [[weight[text[k]] - weight[o] for o in NEAR[text[k]]] for k in range(len(text))]
    order = sorted(range(len(text)), key=lambda k: -weight[text[k]])  # deleting a word takes its weight away
    first = next((k for k in order if max(gains[k], default=0) > 0), None)
    if first is None:
        assert done.texts == [before]
        return
    got = float(done.margin[0])
    assert apart(before, done.texts[0]) == int(done.words[0]) == 1
    assert done.edits[0][0][0] == first
    best = start - max(gains[first])
    assert (got <= 0) == (best <= 0)
    if best > 0:  # else the first that breaks it is taken, which need not be the lowest
        assert got == best


@settings(deadline=None, max_examples=60)
@given(texts=st.lists(words, max_size=4), weight=weights, share=st.floats(0.05, 1.0), queries=st.integers(1, 60))
def test_no_more_words_change_than_allowed_and_no_more_is_asked(texts, weight, share, queries):
    before = [" ".join(text) for text in texts]
    shown: list[list[str]] = []
    margins = linear(weight, 3.0, shown)
    done = reword(margins, before, neighbours, share=share, queries=queries, rng=torch.Generator().manual_seed(0))
    assert sum(map(len, shown)) == int(done.queries.sum())
    again = margins(done.texts, torch.arange(len(before))).tolist() if before else []
    assert done.margin.tolist() == again
    for i, (old, new) in enumerate(zip(before, done.texts, strict=True)):
        assert apart(old, new) == int(done.words[i]) <= max(1, math.floor(share * len(old.split()) + 1e-9))
        assert int(done.queries[i]) <= queries
        assert replay(old, done.edits[i], neighbours) == new
        assert float(done.margin[i]) <= float(margins([old], torch.zeros(1))[0])


@settings(deadline=None, max_examples=40)
@given(text=words, weight=weights)
def test_what_no_change_of_all_words_breaks_is_not_broken(text, weight):
    before, margins = " ".join(text), linear(weight, 4.0)
    every = [" ".join(t) for t in itertools.product(*([w, *NEAR[w]] for w in text))]
    done = reword(margins, [before], neighbours, share=1.0)
    assert done.texts[0] in every
    assert float(done.margin[0]) >= float(margins(every, torch.zeros(len(every))).min())


def test_a_break_by_one_word_is_found_where_the_most_important_word_has_it():
    def margins(texts, rows):  # breaks where it reads the synonym and nowhere else; "terrible" carries the answer
        return torch.tensor([1.0 - 0.5 * ("terrible" not in t) - 2 * ("awful" in t) for t in texts])

    text = "the most terrible film of the year"
    done = reword(margins, [text], lambda t, w: Text().neighbours(t, w, "words"))
    assert done.texts == ["the most awful film of the year"]
    assert done.margin[0] <= 0
    assert done.words.tolist() == [1]
    assert done.queries.tolist() == [1 + 7 + 2]


def test_a_model_that_ignores_words_cannot_be_broken_and_its_text_stays():
    texts = ["a terrible film", "happy children"]
    done = reword(lambda t, rows: torch.ones(len(t)), texts, Text().neighbours, share=1.0)
    assert done.texts == texts
    assert done.words.tolist() == [0, 0]
    assert bool((done.margin > 0).all())
    assert bool((done.tried > 20).all())


def test_candidates_of_all_texts_go_in_one_call():
    shown: list[list[str]] = []
    done = reword(linear({"a": 1.0, "b": 0.9}, 1.0, shown), ["a a", "a b a", "b"], neighbours)
    assert len(shown) <= 2 + 3  # as they are, the deletions, and a call for each place in the order
    assert done.texts[0] != "a a"


def test_what_the_model_cannot_read_is_never_chosen_and_is_counted():
    def margins(texts, rows):
        return torch.tensor([torch.inf if "c" in t.split() else 2.0 - t.split().count("b") for t in texts])

    done = reword(margins, ["a d"], neighbours)
    assert done.texts == ["b d"]
    assert done.unread.tolist() == [1]
    assert done.tried.tolist() == [1]


def test_one_word_is_not_deleted_and_no_text_asks_nothing():
    shown: list[list[str]] = []
    done = reword(linear({"a": 1.0}, 0.5, shown), ["a", ""], neighbours)
    assert shown == [["a", ""], ["b", "c"]]
    assert done.margin.tolist() == [0.5, 0.5]
    assert done.texts == ["b", ""]
    assert reword(linear({}, 1.0), [], neighbours).texts == []


def test_a_long_text_is_looked_at_in_part_as_the_seed_says():
    text = " ".join("a" for _ in range(40))

    def asked(seed):
        shown: list[list[str]] = []
        margins = linear({"a": 1.0, "b": 1.0, "c": 0.5}, 1.0, shown)
        done = reword(margins, [text], neighbours, queries=20, rng=torch.Generator().manual_seed(seed))
        assert len(shown[1]) == 10
        assert int(done.queries[0]) <= 20
        return done.texts

    assert asked(1) == asked(1)
    assert len({asked(seed)[0] for seed in range(5)}) > 1


def test_a_word_leaves_with_its_space():
    assert [without(" a  b c ", k) for k in range(3)] == [" b c ", " a  c ", " a  b "]
    assert without("a b", 1) == "a "
    assert [allowed(t, 0.15) for t in ("", "a", " ".join("a" * 13), " ".join("a" * 20))] == [1, 1, 1, 3]


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.5}, {"queries": 0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(AssayError, match="a share above 0 and up to 1 and at least 1 query"):
        reword(linear({}, 1.0), ["a"], neighbours, **wrong)
