"""Hypervolume, pure diversity and spacing against boxes, grids, the definitions, and pymoo."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError, ShapeError
from assay.methods.fair.front import hypervolume, non_dominated, normalised, pure_diversity, spacing


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0, 0.9), min_size=1, max_size=4))
def test_volume_of_one_point_is_its_box(point):
    box = float(np.prod(1 - np.array(point)))
    assert hypervolume(np.array([point]), np.ones(len(point))) == pytest.approx(box)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_volume_is_that_of_a_grid(k):
    """Points on a grid of tenths: the cells that one of them dominates are counted."""
    rng = np.random.default_rng(k)
    points = rng.integers(0, 11, (6, k)) / 10
    cells = np.stack(np.meshgrid(*[np.arange(10) / 10] * k, indexing="ij"), -1).reshape(-1, k)
    counted = (points[:, None] <= cells + 1e-9).all(-1).any(0).mean()
    assert hypervolume(points, np.ones(k)) == pytest.approx(counted)


def test_volume_as_pymoo_has_it():
    HV = pytest.importorskip("pymoo.indicators.hv").HV
    for seed in range(5):
        points = np.random.default_rng(seed).random((50, 3)) ** 0.5
        assert hypervolume(points, np.ones(3)) == pytest.approx(float(HV(ref_point=np.ones(3))(points)))


def test_volume_does_not_count_what_is_dominated_or_outside():
    points = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.4]])
    worse = np.array([[0.7, 0.6, 0.5], [0.1, 0.1, 1.2], [0.2, 0.5, 0.3]])
    assert hypervolume(np.concatenate([points, worse]), np.ones(3)) == pytest.approx(hypervolume(points, np.ones(3)))
    assert hypervolume(np.full((1, 3), 2.0), np.ones(3)) == 0


def test_non_dominated():
    points = np.array([[1, 2], [2, 1], [2, 2], [1, 2], [3, 0]])
    assert non_dominated(points).tolist() == [True, True, False, True, True]


def test_normalisation_is_by_the_worst_of_what_is_not_dominated():
    pooled = np.array([[1.0, 4.0], [2.0, 1.0], [5.0, 5.0]])  # the last is dominated
    assert normalised(np.array([[1.1, 2.2]]), pooled) == pytest.approx(np.array([[0.5, 0.5]]))


@pytest.mark.parametrize(
    ("points", "volume"),
    [
        ([[0.22268, 0.10575, 0.00290], [0.22585, 0.10203, 0.00297], [0.22351, 0.10371, 0.00287]], 0.0015),
        ([[0.12565, 0.05738, 0.00057], [0.13163, 0.05396, 0.00065], [0.12926, 0.05791, 0.00027]], 0.0072),
        ([[0.16380, 0.08071, 0.00115], [0.16813, 0.07707, 0.00121], [0.16449, 0.08224, 0.00110]], 0.0024),
    ],
)
def test_printed_extremes_have_volumes_of_the_printed_order(points, volume):
    """Zhang et al. 2021, table 2, rows of F_EIG: COMPAS, Adult, German; their fronts have .00195, .01351, .00738."""
    at = np.array(points)
    assert hypervolume(normalised(at, at), np.ones(3)) == pytest.approx(volume, rel=0.05)


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float((np.abs(a - b) ** 0.1).sum() ** 10)


def exact_diversity(points: np.ndarray) -> float:
    """The recursion of its definition, over all subsets."""

    @cache
    def of(left: frozenset[int]) -> float:
        if len(left) == 1:
            return 0.0
        return max(of(left - {s}) + min(apart(points[s], points[t]) for t in left - {s}) for s in left)

    return of(frozenset(range(len(points))))


def test_diversity_of_few_points():
    points = np.random.default_rng(0).random((6, 3))
    assert pure_diversity(points[:1]) == 0
    assert pure_diversity(points[:2]) == pytest.approx(apart(*points[:2]))
    assert pure_diversity(np.array([[0.0], [1.0], [3.0]])) == pytest.approx(3.0)  # 2 from 3 to 1, then 1
    for seed in range(5):
        points = np.random.default_rng(seed).random((6, 3))
        assert 0 < pure_diversity(points) <= exact_diversity(points) * (1 + 1e-12)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 20))
def test_diversity_and_spacing_by_symmetry(seed, n):
    rng = np.random.default_rng(seed)
    points = rng.random((n, 3))
    moved = 2 * points[rng.permutation(n)] + rng.random(3)
    assert pure_diversity(moved) == pytest.approx(2 * pure_diversity(points), rel=1e-6)
    assert spacing(moved) == pytest.approx(2 * spacing(points), abs=1e-9)


def test_spacing():
    assert spacing(np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])) == 0
    assert spacing(np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 0.5]])) == pytest.approx(np.std([1.5, 0.5, 0.5], ddof=1))


def test_bad_input_is_one_line():
    with pytest.raises(ShapeError, match=r"reference has shape \(2,\)"):
        hypervolume(np.ones((1, 3)), np.ones(2))
    with pytest.raises(ShapeError, match=r"shape \(0, 3\)"):
        hypervolume(np.ones((0, 3)), np.ones(3))
    with pytest.raises(AssayError, match="not finite"):
        pure_diversity(np.array([[np.nan]]))
    with pytest.raises(AssayError, match="at least two"):
        spacing(np.ones((1, 3)))
    with pytest.raises(AssayError, match="must be above 0"):
        normalised(np.ones((1, 2)), np.zeros((1, 2)))
