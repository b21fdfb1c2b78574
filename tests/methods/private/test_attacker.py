"""An attacker who retrains: against scikit-learn, closed forms, and features that tell nothing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from assay.errors import AssayError
from assay.methods.private import attacker
from assay.methods.private.attacker import Attacker, Leakage, leakage, within
from assay.methods.uncertainty.detection import auroc_interval


def drawn(n: int, seed: int, *, gap: float = 1.0, f: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Two values of an attribute, apart by 2 gap along the first feature alone."""
    rng = torch.Generator().manual_seed(seed)
    a = torch.arange(n) % 2
    z = torch.randn(n, f, generator=rng, dtype=torch.float64)
    z[:, 0] += gap * (2 * a - 1)
    return z, a


def test_the_linear_attacker_is_the_one_minimum_that_scikit_learn_finds_too():
    rng = torch.Generator().manual_seed(1)
    z = torch.randn(120, 4, generator=rng, dtype=torch.float64)
    a = (z[:, :3] + torch.randn(120, 3, generator=rng, dtype=torch.float64)).argmax(1)
    ours = Attacker.fit(z, a, 0)
    scaled = ((z - z.mean(0)) / z.std(0, correction=0)).numpy()
    theirs = LogisticRegression(C=1 / (len(z) * ours.penalty), tol=1e-8, max_iter=5000).fit(scaled, a.numpy())
    np.testing.assert_allclose(ours.log_chances(z).exp().numpy(), theirs.predict_proba(scaled), atol=1e-4)


def test_two_normals_are_told_as_often_as_the_formula_says():
    found = leakage(*drawn(600, 2), *drawn(4000, 3), seed=0)
    best = norm.cdf(1.0)  # of normals 2 apart, by the best rule there is
    sure = 3 * math.sqrt(best * (1 - best) / 4000)
    assert best - 0.02 - sure < found.accuracy < best + sure
    assert found.chance == 0.5
    value, low, high = found.auc
    assert low < value < high
    assert abs(value - norm.cdf(math.sqrt(2))) < 0.02


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_features_that_tell_nothing_are_read_no_better_than_by_chance(kind):
    found = leakage(*drawn(300, 4, gap=0.0), *drawn(1000, 5, gap=0.0), seed=0, kind=kind)
    sure = 3.3 * math.sqrt(0.25 / 1000)
    assert abs(found.accuracy - 0.5) < sure
    assert abs(found.balanced_accuracy - 0.5) < sure
    _, low, high = found.auc
    assert low - 0.02 < 0.5 < high + 0.02


def test_an_attacker_with_a_layer_finds_what_no_plane_can():
    rng = torch.Generator().manual_seed(6)
    z = torch.randn(800, 2, generator=rng, dtype=torch.float64)
    a = (z[:, 0] * z[:, 1] > 0).long()
    halves = z[:400], a[:400], z[400:], a[400:]
    assert leakage(*halves, seed=0, kind="linear").accuracy < 0.6
    assert leakage(*halves, seed=0, kind="mlp").accuracy > 0.9


def test_a_rare_value_that_is_told_is_not_hidden_by_a_common_one():
    rng = torch.Generator().manual_seed(7)
    a = (torch.arange(2000) % 20 == 0).long()
    z = torch.randn(2000, 1, generator=rng, dtype=torch.float64) + 1.5 * a[:, None]
    found = leakage(z[:1000], a[:1000], z[1000:], a[1000:], seed=0)
    assert found.accuracy < found.chance + 0.02  # the common value nearly always
    assert found.balanced_accuracy > 0.7  # by the formula Phi(0.75) = 0.77
    said = (found.log_chances - found.log_prior).argmax(1)
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(found.codes, said))


def test_the_area_is_the_mean_over_values_of_scikit_learns():
    rng = np.random.default_rng(8)
    a = rng.integers(0, 3, 400)
    z = torch.as_tensor(np.eye(3)[a] + rng.normal(size=(400, 3)))
    found = leakage(z[:200], a[:200], z[200:], a[200:], seed=0)
    each = [roc_auc_score(found.codes == v, found.log_chances[:, v]) for v in range(3)]
    assert found.auc[0] == pytest.approx(np.mean(each))


@settings(max_examples=4, deadline=None)
@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-100, 100), seed=st.integers(0, 5))
def test_units_of_the_features_do_not_matter(scale, shift, seed):
    z, a = drawn(80, seed)
    plain = Attacker.fit(z, a, 0).log_chances(z)
    moved = Attacker.fit(z * scale + shift, a, 0).log_chances(z * scale + shift)
    torch.testing.assert_close(plain, moved, atol=1e-4, rtol=1e-4)


def test_a_feature_that_never_changes_is_not_read():
    z, a = drawn(100, 9)
    still = torch.cat([z, torch.full((100, 1), 7.1, dtype=torch.float64)], 1)
    other = torch.cat([z, torch.full((100, 1), -1e6, dtype=torch.float64)], 1)
    attacker = Attacker.fit(still, a, 0)
    torch.testing.assert_close(attacker.log_chances(still), attacker.log_chances(other))


def test_rows_that_are_judged_have_no_part_in_learning():
    z, a = drawn(100, 10)
    shown, true = drawn(60, 11)
    one, other = (leakage(z, a, shown, codes, seed=0) for codes in (true, 1 - true))
    np.testing.assert_array_equal(one.log_chances, other.log_chances)
    np.testing.assert_array_equal(one.hits, ~other.hits)


def test_rows_of_which_nothing_is_known_are_left_out():
    (z, a), (shown, true) = drawn(100, 12), drawn(60, 13)
    unknown = true.clone()
    unknown[:10] = -1
    found = leakage(z, a, shown, unknown, seed=0)
    np.testing.assert_array_equal(found.hits, leakage(z, a, shown, true, seed=0).hits[10:])


def test_it_retrains_from_new_weights_and_a_seed_gives_them_again(monkeypatch):
    monkeypatch.setattr("assay.methods.private.attacker.STEPS", 3)
    z, a = drawn(60, 14)
    first, again, other = (Attacker.fit(z, a, seed, kind="mlp").layers[0] for seed in (0, 0, 1))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.allclose(first, other)


def test_an_attacker_of_before_is_blind_where_one_that_retrains_is_not():
    """Apparent privacy: a defence that swaps a sign is nothing to whoever learns again."""
    (z, a), (shown, true) = drawn(300, 15, gap=1.5), drawn(300, 16, gap=1.5)
    flip = torch.tensor([-1.0, 1, 1], dtype=torch.float64)
    before = Attacker.fit(z, a, 0)
    assert before.judged(shown * flip, true).accuracy < 0.2
    assert before.judged(shown, true).accuracy == leakage(z * flip, a, shown * flip, true, seed=0).accuracy


@pytest.mark.parametrize(
    ("z", "a", "says"),
    [
        (torch.zeros(20, 2), torch.zeros(20), "20 rows of 1 values"),
        (torch.zeros(4, 2), torch.arange(4), "learns from 4 rows"),
        (torch.zeros(20, 2), torch.arange(19), "codes of shape \\(19,\\)"),
        (torch.full((20, 2), math.nan), torch.arange(20) % 2, "row 0 hold NaN"),
        (torch.zeros(20, 2), torch.arange(20) % 2 - 1, "code -1"),
    ],
)
def test_what_it_cannot_learn_from_is_said_in_one_line(z, a, says):
    with pytest.raises(AssayError, match=says):
        Attacker.fit(z, a, 0)


def test_within_strata_only_pairs_of_one_stratum_are_compared():
    rng = np.random.default_rng(18)
    codes, strata = rng.integers(0, 2, 40), np.repeat([0, 1, 2], [10, 28, 2])
    codes[-2:] = 1  # a stratum of one value has no pairs
    chances = rng.normal(size=(40, 1)) @ [[-1.0, 1.0]]
    right = [
        (chances[i, 1] > chances[j, 1])
        for i in range(40)
        for j in range(40)
        if strata[i] == strata[j] and codes[i] > codes[j]
    ]
    found = within(Leakage(chances, codes, np.zeros(2)), strata)
    assert found[0] == pytest.approx(np.mean(right))
    assert within(Leakage(chances, codes, np.zeros(2)), codes) is None


def test_two_like_strata_are_surer_than_one_by_the_root_of_two():
    rng = np.random.default_rng(19)
    codes, chances = np.arange(40) % 2, rng.normal(size=(40, 1)) @ [[-1.0, 1.0]]
    value, low, high = within(Leakage(chances, codes, np.zeros(2)), np.zeros(40, dtype=np.int64))
    own = codes == 1
    np.testing.assert_allclose((low, high), auroc_interval(chances[own, 1], chances[~own, 1]))
    twice = within(Leakage(np.tile(chances, (2, 1)), np.tile(codes, 2), np.zeros(2)), np.repeat([0, 1], 40))
    np.testing.assert_allclose(twice, (value, value - (value - low) / 2**0.5, value + (high - value) / 2**0.5))


def test_a_value_that_it_never_heard_of_is_refused():
    with pytest.raises(AssayError, match="code 2, and the attacker knows 2 values"):
        Attacker.fit(*drawn(40, 20), 0).judged(torch.zeros(3, 3), [0, 1, 2])


def test_it_is_shown_as_many_features_as_it_learnt():
    attacker = Attacker.fit(*drawn(40, 17), 0)
    with pytest.raises(AssayError, match="learnt 3 features and is shown 2"):
        attacker.log_chances(torch.zeros(5, 2))


def test_more_features_than_rows_are_learnt_as_few_ones_are() -> None:
    """A turn of the features changes nothing, nor do features that are always 0: the penalty is the same."""
    rng = torch.Generator().manual_seed(0)
    few = torch.randn(40, 6, generator=rng, dtype=torch.float64)
    codes = (few[:, 0] + few[:, 1] > 0).long()
    turn = torch.linalg.qr(torch.randn(90, 90, generator=rng, dtype=torch.float64)).Q
    wide = torch.cat([few, torch.zeros(40, 84, dtype=torch.float64)], 1) @ turn
    rows = torch.arange(40)
    w, b = attacker._fitted(few, codes, rows, 2, "linear", (0.1,), 0)
    v, d = attacker._fitted(wide, codes, rows, 2, "linear", (0.1,), 0)
    torch.testing.assert_close(wide @ v[0] + d[0], few @ w[0] + b[0], atol=1e-4, rtol=0)
