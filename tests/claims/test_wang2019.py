from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from assay.claims import wang2019
from assay.data.beyond import assay_data
from assay.errors import AssayError


@pytest.fixture
def tiny(monkeypatch):
    """A few of scikit-learn's digits in place of each data set."""
    x, y = load_digits(return_X_y=True)
    x = x / 16
    monkeypatch.setattr(wang2019, "_data", lambda name: (x[:300], y[:300], x[300:340], y[300:340]))
    monkeypatch.setattr(wang2019, "INPUTS", 6)


@pytest.mark.parametrize("tested", wang2019.SHELVED, ids=lambda c: c.name)
def test_the_table_is_measured_in_the_order_it_was_printed(tiny, run, tested):
    evidence = tested.test(run)
    assert [p.what for p in tested.published] == [m.name for m in evidence.measures]
    values = [m.value for m in evidence.measures]
    assert values[:5] == sorted(values[:5])
    assert all(m.n == 6 and m.low < m.value < m.high for m in evidence.measures[:6])
    assert "on every input; no inputs were broken within" in evidence.says


def test_the_printed_columns_are_in_order():
    for printed in wang2019.PRINTED.values():
        assert list(printed[:5]) == sorted(printed[:5])


def test_the_verdict_weighs_the_mean_the_order_and_the_attacks(monkeypatch, run):
    def verdict(mean=0.278, swap=None, beaten=False):
        spread = np.linspace(-0.1, 0.1, 100)
        radii = mean + spread + np.linspace(-1e-3, 9e-3, 8)[:, None]
        radii[1] = mean + spread  # exact
        if swap:
            radii[swap, 3] = radii[swap[::-1], 3]
        if beaten:
            radii[7, 5] = radii[1, 5] - 1e-3
        monkeypatch.setattr(wang2019, "_radii", lambda name, run: radii)
        return wang2019.the_table("Pendigits", run).verdict

    assert verdict() == "holds"
    assert verdict(mean=0.31) == "fails"
    assert verdict(swap=[2, 4]) == "fails"
    assert verdict(beaten=True) == "fails"


def test_an_attack_that_finds_nothing_has_no_mean():
    assert wang2019._mean("Mean", np.full(5, np.inf)).value is None
    assert wang2019._mean("Mean", np.array([1.0, 3.0, np.inf])).value == 2.0


@pytest.mark.skipif(assay_data() is None, reason="ASSAY_DATA is not set")
def test_the_tables_are_scaled_by_their_training_part():
    x, y, z, c = wang2019._data("Pendigits")
    assert x.shape == (7494, 16)
    assert z.shape == (3498, 16)
    assert x.min() == 0
    assert x.max() == 1
    assert len(y) + len(c) == 10_992


def test_without_data_it_says_how_to_have_it(monkeypatch, run):
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    wang2019._data.cache_clear()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        wang2019.the_table("Letter", run)
