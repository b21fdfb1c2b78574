"""Hypothesis invariance: the three domains of print, prior shift, a constant representation, labels turned round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.shift.hypothesis_gap import HypothesisGap, _differ, hypothesis_gaps
from assay.methods.shift.leave_one_out import Told

Domain = tuple[Tensor, Tensor]


def normal(seed: int, means: tuple[float, float], sd: float, share: float = 0.5, n: int = 300) -> Domain:
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(np.int64)
    return torch.as_tensor(rng.normal(np.where(y, means[1], means[0]), sd))[:, None], torch.as_tensor(y)


def asked(*domains: Domain, classes: int = 2) -> list[HypothesisGap]:
    z, y = zip(*domains, strict=True)
    return hypothesis_gaps(z, y, classes, rng=torch.Generator().manual_seed(0))


def excess(gap: HypothesisGap) -> float:
    return float((gap.differs.double() - gap.by_chance)[gap.common].mean())


def test_three_domains_that_one_threshold_serves() -> None:
    """Fig. 3.2: densities differ from domain to domain, and what is said of a z does not."""
    gaps = asked(*(normal(i, (i - 3.0, i + 1.0), 0.4) for i in range(3)))
    for gap in gaps:
        assert float(gap.differs[gap.common].double().mean()) < 0.02
        assert abs(excess(gap)) < 0.02
        assert float(gap.common.double().mean()) > 0.2


def test_under_prior_shift_the_same_class_conditionals_have_another_posterior() -> None:
    even, rare = normal(0, (-1, 1), 1.0, 0.5, 400), normal(1, (-1, 1), 1.0, 0.9, 400)
    same = normal(2, (-1, 1), 1.0, 0.5, 400)
    shifted, steady = asked(even, rare), asked(even, same)
    kl = [float((gap.kl - gap.kl_by_chance)[gap.common].mean()) for gap in (*shifted, *steady)]
    assert min(excess(gap) for gap in shifted) > max(excess(gap) for gap in steady) + 0.02
    assert min(kl[:2]) > max(kl[2:]) + 0.02
    # Bayes' thresholds are 0 and -log(9)/2 = -1.1
    between = ((even[0] > -1.1) & (even[0] < 0))[:, 0]
    assert float(shifted[0].differs[between].double().mean()) > 3 * float(shifted[0].differs[~between].double().mean())


def test_labels_turned_round_are_a_gap_of_all() -> None:
    z, y = normal(0, (-2, 2), 0.5)
    again, other = normal(1, (-2, 2), 0.5)
    gaps = asked((z, y), (again, 1 - other))
    assert all(excess(gap) > 0.95 for gap in gaps)


def test_a_large_domain_counts_no_more_than_a_small_one() -> None:
    large, turned = normal(9, (-2, 2), 0.5, n=600)
    gaps = asked(*(normal(i, (-2, 2), 0.5, n=60) for i in range(3)), (large, 1 - turned))
    assert all(abs(excess(gap)) < 0.05 for gap in gaps[:3])  # two of the three others agree
    assert excess(gaps[3]) > 0.9


def test_a_constant_representation_is_hypothesis_invariant() -> None:
    y = torch.arange(60) % 2
    gaps = asked(*((torch.zeros(60, 3), y) for _ in range(3)))
    assert all(float(gap.differs.double().sum()) == 0 for gap in gaps)
    assert all(float(gap.kl.max()) < 0.01 for gap in gaps)


def test_random_labels_differ_by_chance_and_no_more() -> None:
    rng = np.random.default_rng(0)
    z = [torch.as_tensor(rng.normal(size=(250, 4))) for _ in range(3)]
    y = [torch.as_tensor(rng.integers(0, 3, 250)) for _ in range(3)]
    gaps = asked(*zip(z, y, strict=True), classes=3)
    assert all(float(gap.differs.double().mean()) > 0.2 for gap in gaps)
    assert all(excess(gap) < 0.08 for gap in gaps)


def ends(gap: HypothesisGap) -> tuple[float, float, float]:
    least, found, most = (part[gap.common].double().mean() for part in (gap.surely, gap.differs, gap.maybe))
    return float(least), float(found), float(most)


@pytest.mark.parametrize(("edge", "gap"), [(0.65, 0.3), (0.35, 0.0)])
def test_the_ends_hold_the_gap_though_both_posteriors_are_estimates(edge: float, gap: float) -> None:
    held = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        domains = []
        for at in (0.35, edge):
            z = rng.random((100, 1))
            domains.append((torch.as_tensor(z), torch.as_tensor((rng.random(100) < sigmoid(6 * (z[:, 0] - at))) * 1)))
        for found in asked(*domains):
            least, middle, most = ends(found)
            assert least <= middle <= most
            held.append(least <= gap <= most)
    assert np.mean(held) >= 0.85


def test_what_is_clear_is_sure() -> None:
    z, y = normal(0, (-2, 2), 0.5)
    again, other = normal(1, (-2, 2), 0.5)
    assert min(ends(asked((z, y), (again, 1 - other))[0])) > 0.9
    assert max(ends(asked((z, y), (again, other))[0])) < 0.1
    rng = np.random.default_rng(0)
    guesses = [torch.as_tensor(rng.integers(0, 2, 300)) for _ in range(2)]
    least, _, most = ends(asked((z, guesses[0]), (again, guesses[1]))[0])
    assert least < 0.1
    assert most > 0.9


def test_the_jackknife_is_that_of_fits_without_each_input() -> None:
    z, y = normal(0, (-1, 1), 1.0, n=40)
    other = torch.linspace(-2, 2, 7)[:, None].double()
    told = Told(z, y, 2)
    hot = torch.nn.functional.one_hot(y, 2).double()
    torch.testing.assert_close(told.parts(other) @ hot, told.at(other))
    torch.testing.assert_close(told.parts() @ hot, told.left_out)
    inverse = (told.vectors * told.shrunk) @ told.vectors.T
    for i in (0, 7, 30):  # the same penalty, scale and mean
        rest = torch.arange(40) != i
        kernel = torch.linalg.inv(inverse)[rest][:, rest]
        near = (-torch.cdist(other - told.centre, told.rows[rest]).square() / told.scale).exp()
        without = told.mean + near @ torch.linalg.solve(kernel, hot[rest] - told.mean)
        lever = told.parts(other)[:, i, None] - (1 - (near_all(told, other) @ inverse).sum(1, keepdim=True)) / 40
        torch.testing.assert_close(told.at(other) - without, lever * told.missed[i])


def near_all(told: Told, x: Tensor) -> Tensor:
    return (-torch.cdist(x - told.centre, told.rows).square() / told.scale).exp()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_disjoint_supports_have_nothing_in_common() -> None:
    a, b = normal(0, (-1, 1), 0.3), normal(1, (99, 101), 0.3)
    assert not any(bool(gap.common.any()) for gap in asked(a, b))


def test_other_units_change_nothing() -> None:
    domains = [normal(i, (-1, 1), 1.0) for i in range(2)]
    for plain, scaled in zip(asked(*domains), asked(*((1000 * z, y) for z, y in domains)), strict=True):
        assert float((scaled.differs != plain.differs).double().mean()) < 0.01  # but for rounding
        torch.testing.assert_close(scaled.kl, plain.kl)


def test_posteriors_that_an_input_or_two_part_are_a_tie() -> None:
    p, q = torch.tensor([[0.5, 0.4, 0.1]]), torch.tensor([[0.4, 0.5, 0.1]])
    assert not bool(_differ(p.repeat(20, 1), q.repeat(20, 1)).any())  # 3 of 20 are more than a tenth
    assert bool(_differ(p.repeat(40, 1), q.repeat(40, 1)).all())
    assert not bool(_differ(p.repeat(40, 1), p.repeat(40, 1)).any())


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match=r"domains of \[300, 6\] inputs; give at least 20"):
        asked(normal(0, (-1, 1), 1.0), normal(0, (-1, 1), 1.0, n=6))
    with pytest.raises(ShapeError, match="two or more"):
        asked(normal(0, (-1, 1), 1.0))
