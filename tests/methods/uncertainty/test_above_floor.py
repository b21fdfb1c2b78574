"""The error behind an estimate: what chance adds is taken off, and the interval holds the truth."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import AssayError
from assay.methods.uncertainty import calibration, ece
from assay.methods.uncertainty.above_floor import above_floor
from assay.methods.uncertainty.calibration import ESTIMATORS, calibration_error

LIMIT = 0.05


@pytest.fixture
def coarse(monkeypatch):
    """A quarter of the angles at which errors are known, for tests that ask again and again: they lie close enough."""
    monkeypatch.setattr("assay.methods.uncertainty.above_floor.TURNS", 65)


def sure(n, seed=0):
    """Scores as a good classifier has them: most are near 1."""
    return np.random.default_rng(seed).beta(6, 0.25, n)


def verdict(found):
    return "pass" if found.high <= LIMIT else "fail" if found.low > LIMIT else "cannot tell"


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("estimator", ["legacy", "adaptive-convex"])
def test_calibrated_outcomes_pass_and_those_of_an_over_confident_model_fail(estimator):
    score, calm, loud = sure(600), [], []
    for seed in range(20):
        u = np.random.default_rng(seed).random(600)
        calm.append(above_floor(score, u < score, estimator=estimator, seed=seed, draws=60))
        loud.append(above_floor(score, u < np.clip(score - 0.12, 0, 1), estimator=estimator, seed=seed, draws=60))
    assert [verdict(f) for f in calm].count("pass") >= 19
    assert [verdict(f) for f in loud].count("fail") >= 17
    assert [verdict(f) for f in loud].count("pass") == 0
    assert np.mean([f.value for f in calm]) == pytest.approx(np.mean([f.calibrated for f in calm]), abs=0.006)
    assert np.mean([f.value for f in calm]) < 0.7 * np.mean([f.floor for f in calm])


def test_the_estimate_and_its_floor_are_those_of_the_estimator():
    score = sure(400)
    hit = np.random.default_rng(1).random(400) < score**2
    for estimator in ESTIMATORS:
        found = above_floor(score, hit, estimator=estimator, bins=12)
        assert found.estimate == pytest.approx(ece(score, hit, estimator=estimator, bins=12))
        floor = calibration_error(score, hit, estimator=estimator, bins=12).floor
        assert found.floor == pytest.approx(floor, rel=0.12)
        assert 0 <= found.low <= found.value <= found.high


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    "law",
    [
        lambda s: np.clip(s - 0.1, 0, 1),
        lambda s: s - 0.4 * s * (1 - s),
        lambda s: 0.75 + 0.6 * (s - 0.75),
        lambda s: np.where((s > 0.8) & (s < 0.95), s - 0.3, s),  # in one place: chance adds to it everywhere else
        lambda s: np.minimum(1, s + 0.3 * s * (1 - s)),
    ],
    ids=["shift", "bend", "crossing", "one place", "too modest"],
)
def test_the_interval_holds_the_error_of_laws_of_other_shapes(law):
    pool = np.random.default_rng(5).uniform(0.3, 1, 4000)
    true, held = np.abs(law(pool) - pool).mean(), 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        score = rng.choice(pool, 400)
        found = above_floor(score, rng.random(400) < law(score), support=(0.3, 1.0), draws=50, seed=seed)
        held += found.low <= true <= found.high
    assert held >= 20  # 95 % are nominal; the bound is three deviations below


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("right", "wrong"), [(0.995, 0.995), (0.02, 0.004)])
def test_the_interval_of_a_model_that_is_nearly_always_right_or_wrong_holds_its_error(right, wrong):
    """Where all outcomes are alike they leave no noise: the interval once began at the value itself, and missed."""
    held, apart = 0, 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        score = rng.beta(8, 4.5, 200)
        law = np.where(score > 0.6, right, wrong)
        found = above_floor(score, rng.random(200) < law, draws=20, seed=seed)
        held += found.low <= np.abs(law - score).mean() <= found.high
        apart += found.low < found.value
    assert held >= 42  # 95 % are nominal: fewer are held once in 1300
    assert apart == 50


def test_an_error_of_the_laws_themselves_is_found_without_bias():
    score = sure(1500)
    angle = np.arcsin(np.sqrt(score)) - 0.2
    chance = np.sin(angle.clip(0)) ** 2
    hit = [np.random.default_rng(s).random(1500) < chance for s in range(15)]
    found = [above_floor(score, h, draws=50).value for h in hit]
    assert np.mean(found) == pytest.approx(np.abs(chance - score).mean(), abs=0.01)


def test_many_inputs_are_drawn_by_cells_and_a_seed_gives_the_same_answer(monkeypatch):
    score = sure(6000)
    hit = np.random.default_rng(3).random(6000) < score - 0.05 * score
    whole = above_floor(score, hit, seed=2)
    assert whole == above_floor(score, hit, seed=2)
    monkeypatch.setattr("assay.methods.uncertainty.above_floor.WHOLE", 1000)
    cells = above_floor(score, hit, seed=2)
    assert cells.value == pytest.approx(whole.value, abs=0.003)
    assert cells.high == pytest.approx(whole.high, abs=0.004)
    assert calibration.WHOLE == 50_000


@pytest.mark.parametrize("score", [[1.0] * 40, [0.0] * 40, [0.5] * 40, [0.3], [0.9, 1.0]])
def test_certain_equal_and_few_scores_have_an_answer(score):
    for outcome in (0, 1):
        found = above_floor(score, [outcome] * len(score))
        assert np.isfinite(found[:-1]).all()
        assert 0 <= found.low <= found.value <= found.high <= 1
        assert found.few == (len(score) < 30)
    wrong = above_floor([1.0] * 40, [0] * 40)
    assert wrong.value == pytest.approx(1, abs=0.05)


def test_what_cannot_be_is_refused():
    with pytest.raises(AssayError, match="draws=5; an interval wants at least 20"):
        above_floor([0.5], [1], draws=5)
    with pytest.raises(AssayError, match="score 1.2"):
        above_floor([1.2], [1])
