"""Labels that mean something else are found; a model that errs more, says one class to all or misses one is not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, fisher_exact

from assay.errors import AssayError, ShapeError
from assay.methods.shift.relabelled import UNSURE, least_sure, relabelled, surely

K = 10
SWAPS = {
    "two pairs swapped": [0, 1, 4, 3, 2, 5, 6, 9, 8, 7],
    "one pair swapped": [0, 9, 2, 3, 4, 5, 6, 7, 8, 1],
    "one class named as another": [0, 9, 2, 3, 4, 5, 6, 7, 8, 9],
}
HOME: Mapping[str, float] = {}
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def answers(y: Ints, rng: np.random.Generator, *, sees: float = 6.0, pull: float = 0.0) -> Floats:
    """Probabilities of a model that sees the class so well among noise, near classes less apart, with a pull to 3."""
    logits = 1.5 * rng.normal(size=(len(y), K))
    logits[np.arange(len(y)), y] += sees
    logits[np.arange(len(y)), y ^ 1] += 0.3 * sees
    logits[:, 3] += pull
    odds = np.exp(logits - logits.max(1, keepdims=True))
    chance: Floats = odds / odds.sum(1, keepdims=True)
    return chance


class Drawn:
    """Home, three everyday changes of it, and the classes of another sample."""

    def __init__(self, seed: int, n: int = 500) -> None:
        rng = np.random.default_rng(seed)
        home = rng.integers(0, K, n)
        self.seed, self.least = seed, least_sure(answers(home, rng))
        self.everyday = [
            (surely(answers(home, rng, sees=sees, pull=pull), self.least), home)
            for sees, pull in ((4.0, 0.0), (2.5, 0.0), (3.0, 3.0))
        ]
        self.y = rng.integers(0, K, n)

    def said(self, y: Ints, there: Mapping[str, float] = HOME) -> Ints:
        return surely(answers(y, np.random.default_rng((self.seed, 1)), **there), self.least)

    def p(self, y: Ints, labels: Ints, there: Mapping[str, float] = HOME, *, references: bool = True) -> float:
        found = relabelled(self.said(y, there), labels, classes=K, everyday=self.everyday if references else ())
        return 1.0 if found is None else found.p_value


@pytest.fixture(scope="module")
def draws() -> list[Drawn]:
    return [Drawn(seed) for seed in range(40)]


DEGRADED = [HOME, {"sees": 4.0}, {"sees": 2.0}, {"sees": 4.0, "pull": 4.0}, {"pull": 12.0}]


@pytest.mark.parametrize("there", DEGRADED, ids=str)
@pytest.mark.parametrize("missing", [None, 2, 3])
def test_a_model_that_errs_more_is_no_conflict_whatever_classes_are_there(
    draws: list[Drawn], there: Mapping[str, float], missing: int | None
) -> None:
    p = []
    for drawn in draws:
        y = drawn.y[drawn.y != missing]
        p.append(drawn.p(y, y, there))
    assert np.mean(np.array(p) <= 0.05) <= 0.05  # 2 of 40


@pytest.mark.parametrize("name", SWAPS)
def test_labels_that_mean_something_else_are_found_also_by_a_model_that_errs_more(
    draws: list[Drawn], name: str
) -> None:
    p = [[drawn.p(drawn.y, np.array(SWAPS[name])[drawn.y], each) for each in (HOME, {"sees": 4.0})] for drawn in draws]
    as_sure, errs = np.mean(np.array(p) <= 0.005, axis=0)
    assert as_sure >= 0.95
    assert errs >= (0.4 if "named" in name else 0.9)


def test_the_pair_that_conflicts_is_named_with_its_counts(draws: list[Drawn]) -> None:
    drawn = draws[0]
    said = drawn.said(drawn.y)
    labels = np.array(SWAPS["one pair swapped"])[drawn.y]
    found = relabelled(said, labels, classes=K)
    assert found is not None
    assert {found.said, found.label} == {1, 9}
    assert found.called == (((said == found.said) & (labels == found.label)).sum(), (labels == found.label).sum())
    assert found.kept == (((said == found.said) & (labels == found.said)).sum(), (labels == found.said).sum())


def test_a_class_named_as_another_needs_everyday_changes_to_be_told_from_errors(draws: list[Drawn]) -> None:
    drawn = draws[0]
    named = np.array(SWAPS["one class named as another"])[drawn.y]
    assert drawn.p(drawn.y, named) <= 0.005
    assert drawn.p(drawn.y, named, references=False) > 0.05
    # class 2 is missing, and everything near it is called 2: the same table, and no conflict where changes do that too
    y = np.repeat(np.arange(K), 50)
    said = np.where((y == 3) & (np.arange(len(y)) % 2 == 0), 2, y)
    rest = y != 2
    quiet = relabelled(said[rest], y[rest], classes=K, everyday=[(said, y)])
    loud = relabelled(said[rest], y[rest], classes=K, everyday=[(y, y)])
    assert quiet is not None
    assert quiet.p_value == 1
    assert loud is not None
    assert loud.p_value < 0.005


def naive(said: Ints, labels: Ints, everyday: list[tuple[Ints, Ints]], k: int) -> float:
    """The docstring, one pair at a time."""
    best = 1.0
    for a in range(k):
        for b in range(k):
            called, kept = int(((said == a) & (labels == b)).sum()), int(((said == a) & (labels == a)).sum())
            n_a, n_b = int((labels == a).sum()), int((labels == b).sum())
            if a == b or called == 0:
                continue
            if n_a and called / n_b >= 2 * kept / n_a:
                table = [[called, n_b - called], [kept, n_a - kept]]
                best = min(best, float(fisher_exact(table, alternative="greater").pvalue))
            if everyday:
                worst = max((((s == a) & (y == b)).sum() + 0.5) / ((y == b).sum() + 1) for s, y in everyday)
                tails = (
                    binomtest(called, int((said == a).sum()), 0.5, alternative="greater").pvalue,
                    binomtest(called, n_b, float(worst), alternative="greater").pvalue,
                )
                best = min(best, float(max(tails)))
    return min(1.0, best * 2 * k * (k - 1))


@pytest.mark.parametrize("changes", [0, 2])
def test_it_is_what_its_docstring_says(changes: int) -> None:
    seen = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 3, 60)
        wrong = np.array([1, 1, 0]) if seed % 2 else np.array([1, 0, 2])
        said = np.where(rng.random(60) < 0.2 * (seed % 4), wrong[y], rng.integers(UNSURE, 3, 60))
        everyday = [(rng.integers(UNSURE, 3, 40), rng.integers(0, 3, 40)) for _ in range(changes)]
        found = relabelled(said, y, classes=3, everyday=everyday)
        assert found is not None
        seen.append(found.p_value)
        assert found.p_value == pytest.approx(naive(said, y, everyday, 3), rel=1e-6)
    assert min(seen) < 0.01 < 0.5 < max(seen)


def test_a_small_difference_is_no_conflict_however_many_inputs_show_it() -> None:
    y = np.repeat([0, 1], 2000)
    share = np.tile(np.arange(2000) / 2000, 2)

    def p(called: float, kept: float) -> float:
        said = np.where(share < np.where(y == 0, called, kept), 1, UNSURE)
        found = relabelled(said, y, classes=2)
        assert found is not None
        return found.p_value

    assert p(0.6, 0.4) == 1  # a model that calls most of everything 1
    assert p(0.6, 0.2) < 1e-9


def test_where_answers_and_labels_are_unrelated_chance_stays_below_the_level() -> None:
    p = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        said = np.where(rng.random(200) < 0.2, rng.integers(0, 2, 200), UNSURE)
        found = relabelled(said, rng.integers(0, 2, 200), classes=2)
        p.append(1.0 if found is None else found.p_value)
    assert 0 < np.mean(np.array(p) <= 0.2) <= 0.2  # it could have spoken


def test_numbering_of_classes_and_order_of_inputs_change_nothing(draws: list[Drawn]) -> None:
    drawn, rng = draws[1], np.random.default_rng(0)
    said, labels = drawn.said(drawn.y), np.array(SWAPS["one pair swapped"])[drawn.y]
    order, other = rng.permutation(len(said)), rng.permutation(K)
    one = relabelled(said, labels, classes=K, everyday=drawn.everyday)
    renamed = [
        (np.where(s == UNSURE, UNSURE, other[s]), other[y]) for s, y in [(said[order], labels[order]), *drawn.everyday]
    ]
    two = relabelled(*renamed[0], classes=K, everyday=renamed[1:])
    assert one is not None
    assert two is not None
    assert two.p_value == pytest.approx(one.p_value)


def test_only_answers_as_sure_as_at_home_count() -> None:
    home = np.array([[0.9, 0.1, 0.0]] * 9 + [[0.6, 0.4, 0.0]] + [[0.2, 0.8, 0.0]] * 10)
    least = least_sure(home)
    assert least[0] == pytest.approx(np.quantile([0.6] + [0.9] * 9, 0.1))
    there = np.array([[0.95, 0.05, 0.0], [0.7, 0.3, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])
    assert surely(there, least).tolist() == [0, UNSURE, 1, UNSURE]  # nobody knows how sure a 2 is at home
    assert relabelled(np.full(40, UNSURE), np.zeros(40, dtype=np.int64), classes=2) is None


def test_bad_input_is_refused_in_one_line() -> None:
    y = np.zeros(5, dtype=np.int64)
    with pytest.raises(ShapeError, match="give one of each an input"):
        relabelled(y, y[:4], classes=2)
    with pytest.raises(AssayError, match="the label 7 with 2 classes"):
        relabelled(y, y + 7, classes=2)
