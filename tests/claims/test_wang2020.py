from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from assay.claim import judged
from assay.claims import _kept, wang2020
from assay.data import beyond, fashion
from assay.errors import AssayError

NAMES = ("Pendigits", "MNIST", "Fashion-MNIST")
TESTED, ASKED = 100, 20  # images


@pytest.fixture
def tiny(monkeypatch):
    """A few digits stand for the table and a few bundled images for both sets, and every effort is small."""
    monkeypatch.setattr(_kept, "_folder", lambda: Path(os.devnull) / "kept")
    monkeypatch.setattr(wang2020, "SIZES", dict.fromkeys(NAMES, wang2020.Size(asked=ASKED, epochs=2, batch=40)))
    for name, value in {"SEEDS": 2, "NCA_ASKED": ASKED, "NCA_STEPS": 2, "NCA_BATCH": 40}.items():
        monkeypatch.setattr(wang2020, name, value)
    whole = fashion.load_fashion()
    small = {
        name: type(data)(data.x[:TESTED, :, ::4, ::4], data.labels[:TESTED], data.classes)
        for name, data in whole.items()
    }
    x, y = load_digits(return_X_y=True)
    table = beyond.Table(x[:200, 2:6].astype(np.float32), y[:200], ("a", "b", "c", "d"))
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    monkeypatch.setattr(beyond, "fashion_mnist", lambda: small)
    monkeypatch.setattr(beyond, "tabular", lambda name: table)
    monkeypatch.setattr(wang2020, "WRITTEN_FIRST", 200 - TESTED)


def claim(name):
    return next(c for c in wang2020.SHELVED if c.name == name)


@pytest.mark.parametrize("name", [c.name for c in wang2020.SHELVED])
def test_the_table_is_measured_in_the_order_it_was_printed(tiny, run, name):
    tested = claim(name)
    evidence = tested.test(run)
    assert [p.what for p in tested.published] == [m.name for m in evidence.measures][:12]
    errors, changes = evidence.measures[:12], evidence.measures[12:]
    assert len(changes) == 6
    for i, change in enumerate(changes):
        assert change.value == pytest.approx(errors[2 * i + 1].value - errors[2 * i].value)
        assert change.low <= change.value <= change.high
    for metric in (2, 3):  # from the first radius on, whose points are the same
        values = [m.value for m in errors[metric::2]]
        assert values == sorted(values)  # the error rises with the radius
    assert [m.n for m in errors[::2]] == [m.n for m in changes] == [TESTED, *(5 * [ASKED])]
    assert evidence.seeds == 2
    assert judged(tested, evidence).verdict == "cannot tell"  # five are asked for, and the error is not print's


@pytest.mark.parametrize("name", ["certified-error-mnist", "clean-against-certified-mnist"])
def test_the_errors_without_an_attack_are_of_all_test_points(tiny, run, name):
    evidence = claim(name).test(run)
    points = wang2020._points("MNIST", run.seed)
    plain = KNeighborsClassifier(1, algorithm="brute").fit(points.x, points.y).score(points.ask_x, points.ask_y)
    assert evidence.measures[0].value == pytest.approx(1 - plain)
    assert evidence.gates[0].values == (pytest.approx(1 - plain),)
    assert evidence.gates[0].printed == 0.033


def test_the_points_are_apart_and_on_one_scale(tiny):
    for name in NAMES:
        points = wang2020._points(name, 0)
        assert len(points.x) == len(points.y) == len(points.ask_x) == TESTED
        assert points.x.min() >= 0
        assert points.x.max() <= 1
        assert not (points.x[:, None] == points.ask_x[None]).all(2).any() or name == "Pendigits"  # four columns repeat
        other = wang2020._points(name, 1)
        assert (other.x == points.x).all()
        assert other.ask_y.tolist() != points.ask_y.tolist()
        assert sorted(other.ask_y) == sorted(points.ask_y)


@pytest.mark.parametrize("votes", [1, 5])
def test_a_point_is_right_as_its_radius_says(tiny, votes):
    from assay.methods.certify import nearest

    points = wang2020._points("MNIST", 0)
    factor = np.random.default_rng(0).normal(size=(points.x.shape[1],) * 2)
    right = wang2020._right(points, factor, votes, "cpu")
    assert right.tolist() == (nearest.certified_radius(*points, votes, factor=factor) > 0).tolist()
    assert 0 < right.mean() < 1


def test_each_training_draws_its_own_metric(tiny):
    points = wang2020._points("MNIST", 0)
    for metric in ("NCA", "ARML"):
        one, again, other = (wang2020._factor("MNIST", metric, points, seed, "cpu") for seed in (0, 0, 1))
        assert (one == again).all()
        assert not np.allclose(one, other)


def test_a_step_of_nca_goes_along_the_gradient_of_its_chance(monkeypatch):
    monkeypatch.setattr(wang2020, "NCA_STEPS", 1)
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.normal(size=(12, 3))), torch.tensor(rng.integers(0, 3, 12))
    factor = torch.eye(3).to(x).requires_grad_()
    total = 0.0
    for i in range(12):  # Goldberger et al. 2004, eq. 1 to 3, one point at a time
        others = [j for j in range(12) if j != i]
        weight = torch.stack([torch.exp(-(factor @ (x[i] - x[j])).square().sum()) for j in others])
        total += sum(w for w, j in zip(weight, others, strict=True) if y[j] == y[i]) / weight.sum()
    (slope,) = torch.autograd.grad(total, factor)
    gone = wang2020._nca(x.float(), y, torch.Generator().manual_seed(0)) - torch.eye(3)
    torch.testing.assert_close(gone, (wang2020.NCA_RATE * slope.sign()).float(), atol=1e-6, rtol=1e-3)  # Adam's first


def test_nca_learns(monkeypatch):
    monkeypatch.setattr(wang2020, "NCA_STEPS", 100)
    monkeypatch.setattr(wang2020, "NCA_RATE", 1e-2)
    rng = np.random.default_rng(0)
    x, ask = (rng.normal(size=(150, 6)).astype(np.float32) for _ in range(2))
    x[:, 0], ask[:, 0] = x[:, 0] / 2, ask[:, 0] / 2
    points = wang2020.Points(x, (x[:, 0] > 0).astype(np.int64), ask, (ask[:, 0] > 0).astype(np.int64))
    learned = wang2020._nca(torch.tensor(points.x), torch.tensor(points.y), torch.Generator().manual_seed(0))
    plain = wang2020._right(points, None, 1, "cpu").mean()
    assert wang2020._right(points, learned.double().numpy(), 1, "cpu").mean() > plain + 0.1


def under(clean, beyond_it):
    """1000 test points: `clean` more than 33 are wrong, and `beyond_it` more than 300 fall within each radius."""
    right, radius = np.ones(1000), np.full(1000, 9.0)
    right[: 33 + clean] = 0
    radius[: 300 + beyond_it] = 0.3
    return wang2020.Under(right, radius)


def verdict(monkeypatch, run, name, change, *, apart=0, gates=True):
    """The trainings differ by `apart` points, clean and beyond."""
    learned = [under(change[0] + k, change[1] + k) for k in apart * (np.arange(wang2020.SEEDS) - 2)]
    monkeypatch.setattr(wang2020, "_found", lambda *a: (under(0, 0), learned))
    if not gates:
        monkeypatch.setattr(wang2020, "_gate", lambda *a: wang2020.Gate(what="", values=(1.0,), printed=1.0, low=0.5))
    tested = claim(name)
    return judged(tested, tested.test(run))


@pytest.mark.parametrize(
    ("change", "apart", "held"),
    [
        ((0, -30), 0, "holds"),
        ((0, -30), 2, "holds"),
        ((20, -30), 0, "holds"),  # without an attack nothing is stated
        ((0, -30), 20, "cannot tell"),  # one training raises it
        ((0, -2), 0, "cannot tell"),
        ((0, 0), 0, "cannot tell"),
        ((0, 9), 0, "fails"),  # by less than a point, and surely
        ((0, 40), 2, "fails"),
        ((0, 40), 25, "cannot tell"),
    ],
)
def test_the_verdict_on_arml(monkeypatch, run, change, apart, held):
    assert verdict(monkeypatch, run, "certified-error-mnist", change, apart=apart).verdict == held


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ((-20, 100), "holds"),
        ((0, 100), "cannot tell"),
        ((-1, 100), "cannot tell"),
        ((-20, 0), "cannot tell"),
        ((50, 100), "fails"),
        ((-20, -50), "fails"),
    ],
)
def test_the_verdict_on_nca(monkeypatch, run, change, held):
    assert verdict(monkeypatch, run, "clean-against-certified-mnist", change, gates=False).verdict == held


@pytest.mark.parametrize("wrong", [-20, 20])
def test_nothing_is_concluded_where_the_euclidean_distance_is_not_as_in_print(monkeypatch, run, wrong):
    plain, learned = under(wrong, 0), [under(wrong - 8, -30)] * wang2020.SEEDS
    monkeypatch.setattr(wang2020, "_found", lambda *a: (plain, learned))
    tested = claim("certified-error-mnist")
    evidence = tested.test(run)
    assert evidence.verdict == "holds"
    told = judged(tested, evidence)
    assert told.verdict == "cannot tell"
    assert "the Euclidean distance is" in told.says
    assert "not between 1.7" in told.says  # of 1000 points: 3.3 - 1.96 (3.3 x 96.7 x 2 / 1000) ** 0.5


@pytest.mark.parametrize(("learned", "held"), [((-8, 100), "holds"), ((-22, 100), "cannot tell")])
def test_nothing_is_concluded_of_an_nca_that_errs_unlike_that_in_print(monkeypatch, run, learned, held):
    told = verdict(monkeypatch, run, "clean-against-certified-mnist", learned)
    assert told.verdict == held
    assert ("under NCA is" in told.says) == (held == "cannot tell")


def test_one_training_off_print_is_enough_to_tell_nothing(monkeypatch, run):
    learned = [under(-8, 100)] * (wang2020.SEEDS - 1)
    monkeypatch.setattr(wang2020, "_found", lambda *a: (under(0, 0), [*learned, under(-25, 100)]))
    tested = claim("clean-against-certified-mnist")
    assert judged(tested, tested.test(run)).verdict == "cannot tell"


def test_what_was_printed_bears_the_claims_out():
    for name in NAMES:
        euclid, nca, learned = (wang2020.PRINTED[name, m] for m in ("Euclid", "NCA", "ARML"))
        assert all(a < e for a, e in zip(learned, euclid, strict=True))
        assert all(b > e for b, e in zip(nca[1:], euclid[1:], strict=True))
        assert (nca[0] < euclid[0]) == (name != "Pendigits")


def test_without_data_it_says_how_to_have_it(monkeypatch, run):
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("certified-error-mnist").test(run)
