from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError
from assay.methods.shift.domain_order import along_parameter, events, seriate

ANGLES = np.array([0.0, 15, 30, 45, 60, 75])


def apart(points: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = points.reshape(len(points), -1)
    return np.linalg.norm(rows[:, None] - rows, axis=2)


def test_distances_along_a_line_follow_the_parameter() -> None:
    found = along_parameter(apart(3 * ANGLES), ANGLES, seed=0)
    assert found.correlation == pytest.approx(1)
    assert found.p_value == pytest.approx(2 / 720)  # as given, and in reverse
    naive = np.corrcoef(apart(ANGLES**2)[np.triu_indices(6, 1)], apart(ANGLES)[np.triu_indices(6, 1)])[0, 1]
    assert along_parameter(apart(ANGLES**2), ANGLES, seed=0).correlation == pytest.approx(naive)


def test_p_values_without_order_are_uniform() -> None:
    p = [
        along_parameter(apart(np.random.default_rng(s).normal(size=(5, 4))), ANGLES[:5], seed=0).p_value
        for s in range(200)
    ]
    assert np.mean(p) == pytest.approx(0.5, abs=0.07)
    assert np.mean(np.array(p) <= 0.1) == pytest.approx(0.1, abs=0.07)


def test_an_unknown_order_on_a_curve_is_found() -> None:
    curve = np.stack([np.cos(ANGLES * np.pi / 180), np.sin(ANGLES * np.pi / 180)], 1)  # a bow, not a line
    dealt = np.array([3, 0, 5, 2, 4, 1])
    found = seriate(apart(curve[dealt]), seed=0)
    placed = dealt[list(found.order)].tolist()
    assert placed in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0])
    assert found.residual == 0
    assert found.p_value < 0.02


def test_without_an_order_there_is_a_residual() -> None:
    scattered = [seriate(apart(np.random.default_rng(s).normal(size=(7, 20))), seed=0) for s in range(10)]
    assert np.mean([s.residual for s in scattered]) > 0.1
    assert np.mean([s.p_value for s in scattered]) > 0.2


def test_events_are_counted_one_triple_at_a_time_and_the_order_is_near_the_best() -> None:
    for seed in range(5):
        d = apart(np.random.default_rng(seed).normal(size=(5, 2)) * [3, 1])
        naive = [int(d[i, k] < d[i, j]) + int(d[i, k] < d[j, k]) for i, j, k in itertools.combinations(range(5), 3)]
        assert events(d) == pytest.approx(np.mean(naive) / 2)
        best = min(events(d[np.ix_(o, o)]) for o in itertools.permutations(range(5)))
        assert best <= seriate(d, seed=0).residual <= best + 0.2


def test_too_few_domains_or_none_apart_are_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match="any three can be put into an order"):
        seriate(apart(ANGLES[:3]), seed=0)
    with pytest.raises(AssayError, match="3 domains; fewer than 4"):
        along_parameter(apart(ANGLES[:3]), ANGLES[:3], seed=0)
    with pytest.raises(AssayError, match="constant representation"):
        seriate(np.zeros((4, 4)), seed=0)
    with pytest.raises(AssayError, match="not all equal"):
        along_parameter(apart(ANGLES), np.ones(6), seed=0)
    with pytest.raises(ShapeError, match="symmetric square"):
        seriate(np.arange(16.0).reshape(4, 4), seed=0)
