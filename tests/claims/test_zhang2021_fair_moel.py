"""The study of fronts, small: trials side by side, volumes, extremes, verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from assay.claims import zhang2021_fair_moel as study
from assay.finding import Measure
from assay.methods.fair.entropy import from_error


@pytest.fixture(scope="module")
def trials():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 2, 200)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = (x[:, 0] - 0.8 * groups + 0.5 * rng.normal(size=200) > 0).astype(np.int64)
    return study.evolved(x, y, groups.astype(np.int64), hidden=4, generations=3, seed=0, device="cpu", trials=2, size=6)


def test_trials_are_tied_to_the_error(trials):
    assert trials.last.shape == (2, 4, 6, 3)
    for (mse, within, between), mean in zip(trials.last.reshape(-1, 3), trials.mean_error.ravel(), strict=True):
        assert within + between == pytest.approx(from_error(mse, mean), abs=study.EXACT)


def test_volumes_share_one_scale_and_extremes_are_the_best(trials):
    volume = study.volumes(trials.last)
    assert volume.shape == (2, 4)
    assert ((volume >= 0) & (volume < 1)).all()
    assert study.volumes(trials.last * [2, 3, 5]) == pytest.approx(volume)  # units do not matter
    worse = trials.last.copy()
    worse[0, 1] = 1.1 * trials.last[0, 0]  # dominated, so that the scale of all is made by the others
    assert study.volumes(worse)[0, 1] < study.volumes(worse)[0, 0]
    front = trials.last[0, 0]
    assert np.diag(study.extremes(front)) == pytest.approx(front.min(0))


def gain(low, high):
    return Measure(name="g", value=(low + high) / 2, low=low, high=high, better="higher", n=15)


@pytest.mark.parametrize(
    ("ends", "held"),
    [
        ([(1, 2), (1, 2), (1, 2)], "holds"),
        ([(1, 2), (-1, 2), (1, 2)], "holds"),  # print is not clear about EG either
        ([(-1, 2), (1, 2), (1, 2)], "cannot tell"),
        ([(1, 2), (-2, 1), (1, 2)], "cannot tell"),
        ([(1, 2), (-2, -1), (1, 2)], "fails"),
    ],
)
def test_verdicts(ends, held):
    gains = {run: gain(*end) for run, end in zip(("EI", "EG", "E"), ends, strict=True)}
    assert study.verdict(gains, ("EI", "E")) == held
