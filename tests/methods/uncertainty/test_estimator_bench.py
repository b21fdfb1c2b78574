from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from assay.errors import AssayError
from assay.methods.uncertainty import estimator_bench
from assay.methods.uncertainty.calibration import Rule
from assay.methods.uncertainty.estimator_bench import RULES, Law, around, bench, mixtures, published_truth, truth


def bent(m=20_000, seed=0, bend=0.4, low=0.5):
    """Two classes; a score s is right with probability s - bend s (1 - s)."""
    score = np.random.default_rng(seed).uniform(low, 1.0, m)
    right = score - bend * score * (1 - score)
    return Law(np.stack([score, 1 - score], 1), np.stack([right, 1 - right], 1))


def test_the_truth_is_the_known_error_and_nothing_for_a_calibrated_law():
    law = bent()
    known = 0.4 * (law.probabilities[:, 0] * law.probabilities[:, 1]).mean()
    assert truth(law) == pytest.approx(known, rel=1e-3)
    assert truth(law, "class-wise") == pytest.approx(known, rel=1e-3)
    assert truth(bent(bend=0.0)) == pytest.approx(0, abs=1e-12)


def test_chances_that_vary_at_equal_scores_add_nothing_to_the_truth():
    score = np.random.default_rng(0).uniform(0.6, 0.9, 40_000)
    noisy = score + np.random.default_rng(1).choice([-0.1, 0.1], 40_000)
    law = Law(np.stack([score, 1 - score], 1), np.stack([noisy, 1 - noisy], 1))
    assert truth(law) < 0.001  # absolute values, bin by bin, would add 0.002
    assert published_truth(law) > 0.02  # labels and 2,000 bins: the reference of the paper


def test_the_bench_orders_the_estimators_and_errors_shrink_with_n():
    laws = [bent(bend=b, low=0.0) for b in (0.2, 0.8)]  # class-wise: all bins are those of [0, 1]
    rules = [Rule(e, "sqrt") for e in ("legacy", "adaptive", "convex", "adaptive-convex")] + [Rule("kde")]
    mean = {
        n: {t.rule.estimator: t.absolute.mean() for t in bench(laws, n, kind="class-wise", rules=rules, sets=150)}
        for n in (30, 100, 400)
    }
    for few, more in ((30, 100), (100, 400)):
        assert all(mean[more][e] < mean[few][e] for e in mean[few])
    for found in mean.values():
        assert found["convex"] <= found["legacy"]
        assert found["adaptive-convex"] <= found["adaptive"]
        assert found["kde"] <= found["convex"] * 1.1


def test_an_error_is_that_of_the_sets_by_hand():
    law = bent()
    (found,) = bench([law], 50, rules=[Rule("legacy", 10)], sets=300)
    rng, off = np.random.default_rng(5), []
    for _ in range(300):
        rows = rng.integers(0, 20_000, 50)
        score = law.probabilities[rows, 0]
        came = rng.random(50) < law.chances[rows, 0]
        bins = np.ceil(score * 10)
        off.append(sum(abs((came - score)[bins == b].sum()) for b in range(11)) / 50 - truth(law))
    assert found.absolute[0] == pytest.approx(np.quantile(np.abs(off), 0.95), rel=0.15)
    assert found.bias[0] == pytest.approx(np.mean(off), rel=0.15)
    assert found.relative[0] == pytest.approx(found.absolute[0] / truth(law))


def test_results_come_best_first_and_from_the_seed():
    first, again = (bench([bent()], 40, sets=20, seed=3) for _ in range(2))
    assert len(first) == len(RULES) == 15
    assert [t.rule for t in first] == [t.rule for t in again]
    medians = [float(np.median(t.absolute)) for t in first]
    assert medians == sorted(medians) == [float(np.median(t.absolute)) for t in again]
    assert medians != [float(np.median(t.absolute)) for t in bench([bent()], 40, sets=20, seed=4)]


def test_mixtures_have_the_posterior_of_their_density():
    rng = np.random.default_rng(0)
    modes, shape = rng.random((3, 4, 2)), rng.uniform(-0.3, 0.3, (3, 4, 2, 2))
    x = rng.random((5, 2))
    density = np.array(
        [
            [
                sum(multivariate_normal(modes[c, m], shape[c, m].T @ shape[c, m]).pdf(p) for m in range(4))
                for c in range(3)
            ]
            for p in x
        ]
    )
    np.testing.assert_allclose(estimator_bench._posterior(modes, shape, x), density / density.sum(1, keepdims=True))
    drawn, y = estimator_bench._sampled(modes[:1, :1].repeat(4, 1), shape[:1, :1].repeat(4, 1), 20_000, rng)
    np.testing.assert_allclose(np.cov(drawn.T), shape[0, 0].T @ shape[0, 0], atol=0.005)
    assert not y.any()


def test_mixtures_give_a_law_for_each_model_with_the_labels_right_on_average():
    laws = list(mixtures(classes=(3,), dims=(2,), inputs=2000))
    assert len(laws) == 4
    for law in laws:
        np.testing.assert_allclose(law.probabilities.sum(1), 1)
        np.testing.assert_allclose(law.chances.sum(1), 1)
        assert law.chances[np.arange(2000), law.probabilities.argmax(1)].mean() > 0.4  # better than a guess
    assert (laws[0].chances == laws[1].chances).all()
    again = next(mixtures(classes=(3,), dims=(2,), inputs=2000, models=("logistic",)))
    np.testing.assert_array_equal(again.probabilities, laws[0].probabilities)


def test_laws_around_scores_are_calibrated_at_one_and_off_elsewhere():
    table = bent().probabilities
    cool, same, warm = (truth(law) for law in around(table, temperatures=(0.5, 1.0, 2.0)))
    assert same == pytest.approx(0, abs=1e-9)
    assert min(cool, warm) > 0.05
    saturated = around(np.eye(2)[[0, 1, 0]], temperatures=(2.0,))[0]
    assert np.isfinite(saturated.chances).all()


def test_bad_settings_are_named():
    with pytest.raises(AssayError, match="n=0 and sets=200; it wants at least one"):
        bench([bent()], 0)
    with pytest.raises(AssayError, match="no laws"):
        bench([], 10)
    with pytest.raises(AssayError, match=r"shape \(3,\); it wants n x k"):
        around([0.1, 0.2, 0.3])


def test_more_trainings_are_more_laws_and_the_first_stay():
    size = {"classes": (2,), "dims": (2,), "models": ("naive bayes",), "inputs": 50}
    one, three = (list(mixtures(**size, repeats=2, trainings=t)) for t in (1, 3))
    assert (len(one), len(three)) == (2, 6)
    np.testing.assert_array_equal(one[0].probabilities, three[0].probabilities)
    assert not np.array_equal(three[0].probabilities, three[1].probabilities)
