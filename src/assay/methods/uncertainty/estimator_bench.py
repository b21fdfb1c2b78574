r"""Which estimator of calibration error can be trusted at a given number of inputs, measured where the truth is known.

A law is a classifier's probabilities on many inputs together with the true chances P(Y | x) behind them. Sets of n
inputs are drawn from it, labelled by the true chances; each estimator's answer on each set is held against the truth:

    q95 over the sets of | estimate - truth |     (absolute)     and of | estimate - truth | / truth     (relative)

Source: Posocco & Bonnefoy, "Estimating Expected Calibration Errors", 2021, sec. 5.1: Gaussian mixtures with 4 modes a
    class, means uniform in [0, 1]^d, covariances A'A with entries of A uniform in [-0.3, 0.3]; logistic regression,
    naive Bayes, a support vector classifier with Platt's probabilities and a random forest, each trained on 300 points;
    200 sets a size. The paper plots the median over the laws.
Departs from print: (1) the truth. Print takes the legacy estimate with 2,000 bins on 2e6 labelled points
    (`published_truth`), which is well above 0 for a calibrated model. Here the label is replaced by its known chance,
    and half of the inputs tell each bin's sign for the other half, so that noise adds up to nothing:
        truth = (1/m) sum_j ( sign(A_j) B_j + sign(B_j) A_j ),   A_j, B_j = sum over each half in bin j of (chance - s).
    (2) Sets draw a fresh label for each input, where print resamples labelled points. (3) Platt scaling is one against
    the rest. (4) Both errors are given: the text says relative, and speaks of 10 % where only absolute errors are of
    that size. (5) `means` is the range of the modes' means: the authors' public code has (-1, 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.calibration import BINS, ESTIMATORS, Rule, equal_bins, estimate

Floats = NDArray[np.float64]
Kind = Literal["confidence", "class-wise"]
Model = Literal["logistic", "naive bayes", "svc", "forest"]

MODELS: tuple[Model, ...] = ("logistic", "naive bayes", "svc", "forest")
RULES = (
    Rule("kde"),
    Rule("kde", bandwidth=0.1),
    Rule("kde", bandwidth=0.033),
    *(
        Rule(estimator, bins)
        for estimator in ("legacy", "adaptive", "convex", "adaptive-convex")
        for bins in (10, 30, "sqrt")
    ),
)
"""The fifteen that the paper compares."""
REPORTED = tuple(Rule(estimator) for estimator in ESTIMATORS)
"""Those of which one is reported: with 15 bins, or Silverman's bandwidth."""
MODES, TRAINED_ON = 4, 300
DRAWN = 1_000_000  # inputs in all the sets of one size and law
ENOUGH = 20_000  # inputs at which a choice is made where there are more: by then they differ by little
FINE = 100  # bins of the truth


class Law(NamedTuple):
    probabilities: Floats  # m k: what the classifier says
    chances: Floats  # m k: P(Y | x)


class Trust(NamedTuple):
    """How one estimator did on each law."""

    rule: Rule
    truth: Floats  # l
    absolute: Floats  # l: the 95th percentile of |estimate - truth|
    relative: Floats  # l: the same over the truth; infinite where that is 0
    bias: Floats  # l: mean of estimate - truth


def bench(
    laws: Iterable[Law],
    n: int,
    *,
    kind: Kind = "confidence",
    rules: Sequence[Rule] = RULES,
    sets: int = 200,
    seed: int = 0,
) -> list[Trust]:
    """Each rule's error on sets of n inputs, law by law. Best first by the median absolute error over the laws."""
    if n < 1 or sets < 1:
        raise AssayError(f"bench got n={n} and sets={sets}; it wants at least one input and one set.")
    rng = np.random.default_rng(seed)
    truths, answers = [], []
    for law in laws:
        truths.append(truth(law, kind))
        errors = [[estimate(s, o, rule, span) for rule in rules] for s, o, span in _drawn(law, n, kind, sets, rng)]
        answers.append(np.mean(errors, axis=0))  # rules sets
    if not truths:
        raise AssayError("bench got no laws; give it those of `mixtures` or `around`.")
    true = np.array(truths)  # l
    off = np.array(answers) - true[:, None, None]  # l rules sets
    worst = np.quantile(np.abs(off), 0.95, axis=2)
    with np.errstate(divide="ignore"):
        found = [Trust(rule, true, worst[:, r], worst[:, r] / true, off[:, r].mean(1)) for r, rule in enumerate(rules)]
    return sorted(found, key=lambda t: float(np.median(t.absolute)))


def choose(
    probabilities: ArrayLike, *, rules: Sequence[Rule] = REPORTED, sets: int = 60, seed: int = 0
) -> list[Trust]:  # n k
    """The rules by how near they come to the truth with these scores and as many inputs, best first.

    The laws are those `around` the scores. No label is looked at, so that the choice cannot favour an answer.
    """
    laws = around(probabilities)
    n = min(len(laws[0].chances), ENOUGH)
    return bench(laws, n, rules=rules, sets=sets_of(n, sets), seed=seed)


def sets_of(n: int, most: int, columns: int = 1) -> int:
    """How many sets of n inputs are drawn: as many as there is room for, and at least 20."""
    return max(20, min(most, DRAWN // (n * columns)))


def called(rule: Rule) -> str:
    """A rule's name, for people."""
    if rule.estimator == "kde":
        width = "Silverman" if rule.bandwidth == "silverman" else f"h={rule.bandwidth:g}"
        return f"density, {width}"
    count = "√n" if rule.bins == "sqrt" else rule.bins or BINS
    return f"{rule.estimator}{' as printed' if rule.as_published else ''}, {count} bins"


def truth(law: Law, kind: Kind = "confidence", *, bins: int = FINE) -> float:
    """The law's calibration error, from the chances behind its labels."""
    errors = []
    for score, chance, _ in _columns(law, kind):
        at, gap = equal_bins(score, bins), chance - score
        a, b = (np.bincount(at[half], gap[half], bins) for half in (slice(0, None, 2), slice(1, None, 2)))
        errors.append((np.sign(a) * b + np.sign(b) * a).sum() / len(score))
    return max(0.0, float(np.mean(errors)))


def published_truth(law: Law, kind: Kind = "confidence", *, bins: int = 2000, seed: int = 0) -> float:
    """The reference of the paper: the legacy estimate on all of the law's inputs, each with one label."""
    label = _labels(law.chances, np.random.default_rng(seed))
    labelled = Law(law.probabilities, np.eye(law.chances.shape[1])[label])
    rule = Rule("legacy", bins)
    return float(np.mean([estimate(s[None], o[None], rule, span)[0] for s, o, span in _columns(labelled, kind)]))


def mixtures(
    *,
    classes: Sequence[int] = (2, 5, 7),
    dims: Sequence[int] = (2, 5, 7),
    models: Sequence[Model] = MODELS,
    repeats: int = 1,
    trainings: int = 1,
    inputs: int = 30_000,
    means: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
) -> Iterator[Law]:
    """The paper's laws: a mixture for each number of classes and dimensions and each repeat, and all models on it.

    Each model is trained anew on so many sets of 300 points; the paper has 5 repeats and 3 trainings, 540 laws.
    """
    for k in classes:
        for d in dims:
            for repeat in range(repeats):
                rng = np.random.default_rng([seed, k, d, repeat])
                modes = rng.uniform(*means, size=(k, MODES, d))
                shape = rng.uniform(-0.3, 0.3, size=(k, MODES, d, d))
                for training in range(trainings):
                    x, y = _sampled(modes, shape, TRAINED_ON, rng)
                    while len(np.unique(y)) < k:  # a model of fewer classes has no score for the others
                        x, y = _sampled(modes, shape, TRAINED_ON, rng)
                    asked, _ = _sampled(modes, shape, inputs, rng)
                    chances = _posterior(modes, shape, asked)
                    for model in models:
                        yield Law(_answers(model, x, y, asked, repeat + repeats * training), chances)


def around(probabilities: ArrayLike, *, temperatures: Sequence[float] = (0.5, 0.7, 1.0, 1.4, 2.0)) -> list[Law]:
    """Laws with the scores of a classifier at hand: the true chances are its own at each of these temperatures.

    At 1 it is calibrated, below it is less sure than it could be, above it is too sure.
    """
    table = np.asarray(probabilities, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < 2:
        raise ShapeError(f"around got probabilities of shape {table.shape}; it wants n x k, with two classes or more.")
    logits = np.log(np.maximum(table, 1e-12))
    return [Law(table, table if t == 1 else softmax(logits / t, axis=1)) for t in temperatures]


def _columns(law: Law, kind: Kind) -> Iterator[tuple[Floats, Floats, tuple[float, float]]]:
    """Scores, chances and support of each error that is averaged: m, m, (low, high)."""
    table, chances = law
    if kind == "class-wise":
        for s, c in zip(table.T, chances.T, strict=True):
            yield s, c, (0.0, 1.0)
    else:
        rows, top = np.arange(len(table)), table.argmax(1)
        yield table[rows, top], chances[rows, top], (1 / table.shape[1], 1.0)


def _drawn(
    law: Law, n: int, kind: Kind, sets: int, rng: np.random.Generator
) -> Iterator[tuple[Floats, Floats, tuple[float, float]]]:
    """The same for sets of inputs with labels: sets n, sets n, (low, high)."""
    rows = rng.integers(0, len(law.chances), size=(sets, n))
    if kind == "class-wise":
        label = np.stack([_labels(law.chances[each], rng) for each in rows])
        for c, column in enumerate(law.probabilities.T):
            yield column[rows], (label == c).astype(np.float64), (0.0, 1.0)
    else:
        for score, chance, span in _columns(law, kind):
            yield score[rows], (rng.random(rows.shape) < chance[rows]).astype(np.float64), span


def _labels(chances: Floats, rng: np.random.Generator) -> NDArray[np.intp]:  # n k -> n
    below = chances.cumsum(-1) <= rng.random((len(chances), 1))
    return np.asarray(np.minimum(below.sum(-1), chances.shape[-1] - 1), dtype=np.intp)


def _sampled(
    modes: Floats, shape: Floats, n: int, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int64]]:  # k m d, k m d d -> n d, n
    y, mode = rng.integers(len(modes), size=n), rng.integers(MODES, size=n)
    noise = np.einsum("nij,ni->nj", shape[y, mode], rng.normal(size=(n, modes.shape[-1])))  # covariance A'A
    return modes[y, mode] + noise, y


def _posterior(modes: Floats, shape: Floats, x: Floats) -> Floats:  # k m d, k m d d, n d -> n k
    away = x[:, None, None] - modes  # n k m d
    white = np.einsum("kmij,nkmi->nkmj", np.linalg.inv(shape), away)  # A'A whitened by the inverse of A
    heights = -0.5 * (white**2).sum(-1) - np.linalg.slogdet(shape)[1]  # n k m
    return np.asarray(softmax(logsumexp(heights, axis=2), axis=1))


def _answers(model: Model, x: Floats, y: NDArray[np.int64], asked: Floats, seed: int) -> Floats:  # n d, n, m d -> m k
    """What a model that was trained on x and y says of new inputs."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.svm import SVC

    made = {
        "logistic": LogisticRegression(max_iter=1000),
        "naive bayes": GaussianNB(),
        "svc": CalibratedClassifierCV(SVC(), method="sigmoid", ensemble=False, cv=3),
        "forest": RandomForestClassifier(100, random_state=seed),
    }
    return np.asarray(made[model].fit(x, y).predict_proba(asked), dtype=np.float64)
