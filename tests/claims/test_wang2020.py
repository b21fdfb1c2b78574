from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from assay.claims import wang2020
from assay.data import beyond, fashion
from assay.errors import AssayError

NAMES = ("Pendigits", "MNIST", "Fashion-MNIST")


@pytest.fixture
def tiny(monkeypatch):
    """A few digits stand for the table and a few bundled images for both sets, and every effort is small."""
    monkeypatch.setattr(wang2020, "SIZES", dict.fromkeys(NAMES, wang2020.Size(train=60, test=20, epochs=3, batch=40)))
    for name, value in {"NCA_POINTS": 40, "NCA_ASKED": 20, "NCA_STEPS": 2}.items():
        monkeypatch.setattr(wang2020, name, value)
    whole = fashion.load_fashion()
    small = {name: type(data)(data.x[:100], data.labels[:100], data.classes) for name, data in whole.items()}
    x, y = load_digits(return_X_y=True)
    table = beyond.Table(x[:, 2:6].astype(np.float32), y, ("a", "b", "c", "d"))
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    monkeypatch.setattr(beyond, "fashion_mnist", lambda: small)
    monkeypatch.setattr(beyond, "tabular", lambda name: table)
    monkeypatch.setattr(wang2020, "WRITTEN_FIRST", 1200)


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
    for metric in (0, 1):
        values = [m.value for m in errors[metric::2]]
        assert values == sorted(values)  # the error rises with the radius
    assert all(m.n == 20 for m in evidence.measures)
    assert evidence.verdict in ("holds", "fails", "cannot tell")


def test_the_points_are_apart_and_on_one_scale(tiny):
    for name in NAMES:
        points = wang2020._points(name, 0, 60, 20)
        assert points.x.shape[0] == len(points.y) == 60
        assert points.ask_x.shape == (20, points.x.shape[1])
        assert points.x.min() >= 0
        assert points.x.max() <= 1
        assert not (points.x[:, None] == points.ask_x[None]).all(2).any() or name == "Pendigits"  # four columns repeat
        assert wang2020._points(name, 1, 60, 20).y.tolist() != points.y.tolist()


def verdict(monkeypatch, run, study, change):
    """Of 1000 points at radius 1, some are moved to -1 (broken) or kept; `change` is by how much, clean and beyond."""
    clean, beyond_it = change
    plain = np.where(np.arange(1000) < 100, 0.0, np.where(np.arange(1000) < 400, 0.3, 9.0))
    other = plain.copy()
    other[:100][: max(0, -clean)] = 9.0
    other[900 : 900 + max(0, clean)] = 0.0
    other[500 : 500 + max(0, beyond_it)] = 0.3
    other[100:400][: max(0, -beyond_it)] = 9.0
    found = iter((plain, other))
    monkeypatch.setattr(wang2020, "_points", lambda *a: wang2020.Points(*(np.zeros((2, 2)),) * 4))
    monkeypatch.setattr(wang2020, "_factor", lambda *a: np.eye(2))
    monkeypatch.setattr(wang2020, "_radii", lambda *a: next(found))
    return study("MNIST", run).verdict


@pytest.mark.parametrize(
    ("change", "held"),
    [((0, 0), "holds"), ((-20, -50), "holds"), ((0, 40), "fails"), ((60, 0), "fails"), ((0, 9), "cannot tell")],
)
def test_the_verdict_on_arml(monkeypatch, run, change, held):
    assert verdict(monkeypatch, run, wang2020.lower_certified_error, change) == held


@pytest.mark.parametrize(
    ("change", "held"),
    [((-40, 100), "holds"), ((0, 100), "fails"), ((-40, 0), "fails"), ((-1, 100), "cannot tell"), ((50, 90), "fails")],
)
def test_the_verdict_on_nca(monkeypatch, run, change, held):
    assert verdict(monkeypatch, run, wang2020.better_and_weaker, change) == held


def test_what_was_printed_bears_the_claims_out():
    for name in NAMES:
        euclid, nca, learned = (wang2020.PRINTED[name, m] for m in ("Euclid", "NCA", "ARML"))
        assert all(a <= e for a, e in zip(learned, euclid, strict=True))
        assert all(b > e for b, e in zip(nca[1:], euclid[1:], strict=True))
        assert (nca[0] < euclid[0]) == (name != "Pendigits")


def test_without_data_it_says_how_to_have_it(monkeypatch, run):
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("certified-error-mnist").test(run)
