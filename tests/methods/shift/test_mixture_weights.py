from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.shift.domain_posteriors import domain_posteriors
from assay.methods.shift.mixture_weights import mixture_weights

Floats = NDArray[np.float64]
MEANS = (-1.5, 1.0, 2.5)


def mixed(alpha: tuple[float, ...], n: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    return rng.normal(np.array(MEANS)[rng.choice(len(alpha), n, p=alpha)], 1.0)


def densities(x: Floats) -> Tensor:
    return torch.as_tensor(np.stack([norm.pdf(x, m, 1) for m in MEANS], 1))


def test_em_finds_what_climbing_the_likelihood_finds() -> None:
    p = densities(mixed((0.2, 0.5, 0.3), 400, 0))
    found = mixture_weights(p / p.sum(1, keepdim=True), torch.full((3,), 1 / 3))
    best = minimize(
        lambda a: -np.log(p.numpy() @ a).sum(), np.full(3, 1 / 3), bounds=[(0, 1)] * 3,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1}, tol=1e-12,
    ).x  # fmt: skip
    assert found.tolist() == pytest.approx(best.tolist(), abs=1e-3)


def test_a_target_of_seven_and_three_tenths_is_recovered_with_a_learned_classifier() -> None:
    """Sources of unequal size, so that the classifier's own shares have to be taken out."""
    sizes = (600, 300, 300)
    sources = [mixed(tuple(float(i == j) for j in range(3)), n, 10 + i) for i, n in enumerate(sizes)]
    model = LogisticRegression(C=100).fit(np.concatenate(sources)[:, None], np.repeat(range(3), sizes))
    for seed in range(3):
        told = model.predict_proba(mixed((0.7, 0.3, 0.0), 2000, seed)[:, None])
        alpha = mixture_weights(torch.as_tensor(told), torch.tensor(sizes) / sum(sizes))
        assert alpha.tolist() == pytest.approx([0.7, 0.3, 0.0], abs=0.05)


def test_a_domain_around_another_is_told_from_it() -> None:
    """No plane parts the two, and a target of seven and three tenths is still recovered."""
    rng = np.random.default_rng(0)

    def ring(n: int, size: float) -> Tensor:
        way = rng.normal(size=(n, 2))
        return torch.as_tensor(size * way / np.linalg.norm(way, axis=1, keepdims=True) + rng.normal(0, 0.6, (n, 2)))

    target = torch.cat([ring(700, 1.0), ring(300, 3.0)])
    told, priors = domain_posteriors([ring(300, 1.0), ring(450, 3.0)], target)
    assert priors.tolist() == pytest.approx([0.4, 0.6])
    assert mixture_weights(told, priors).tolist() == pytest.approx([0.7, 0.3], abs=0.05)
    with pytest.raises(AssayError, match="nothing to tell apart"):
        domain_posteriors([target], target)


def test_weighted_sources_beat_equal_ones_where_their_labels_differ() -> None:
    """Two sources that overlap in x, each with its own label function, and a target that is 0.9 of the first."""
    rng = np.random.default_rng(0)

    def source(edge: float, centre: float, n: int) -> tuple[Floats, Floats]:
        x = rng.normal(centre, 1.0, n)
        return x, (x > edge).astype(np.float64)

    edges, centres, alpha = (-0.7, 0.7), (-0.5, 0.5), (0.9, 0.1)
    parts = [source(e, c, 800) for e, c in zip(edges, centres, strict=True)]
    target = [source(e, c, int(2000 * a)) for e, c, a in zip(edges, centres, alpha, strict=True)]
    x, y = (np.concatenate([part[i] for part in target]) for i in range(2))
    p = torch.as_tensor(np.stack([norm.pdf(x, c, 1) for c in centres], 1))
    found = mixture_weights(p / p.sum(1, keepdim=True), torch.tensor([0.5, 0.5]))
    assert found.tolist() == pytest.approx(alpha, abs=0.08)
    taught, labels = (np.concatenate([part[i] for part in parts]) for i in range(2))

    def score(weight: Floats) -> float:
        model = LogisticRegression(C=100).fit(taught[:, None], labels, sample_weight=np.repeat(weight, 800))
        return float(model.score(x[:, None], y))

    assert score(found.numpy()) > score(np.array([0.5, 0.5])) + 0.05


def test_a_row_of_counts_is_a_resample() -> None:
    p = densities(mixed((0.2, 0.5, 0.3), 60, 0))
    counts = torch.tensor(np.random.default_rng(0).multinomial(60, [1 / 60] * 60, size=2))
    found = mixture_weights(p, torch.ones(3), counts)
    for row, count in zip(found, counts, strict=True):
        alone = mixture_weights(p.repeat_interleave(count, 0), torch.ones(3))
        torch.testing.assert_close(row, alone, atol=1e-4, rtol=0)


def test_one_source_alone_has_all_the_weight() -> None:
    assert mixture_weights(torch.ones(5, 1), torch.ones(1)).tolist() == [1.0]


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(ShapeError, match="a column for each source"):
        mixture_weights(torch.ones(5, 2), torch.ones(3))
    with pytest.raises(AssayError, match="priors above 0"):
        mixture_weights(torch.ones(5, 2), torch.tensor([1.0, 0.0]))
