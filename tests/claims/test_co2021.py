from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.claim import judged
from assay.claims import co2021
from assay.data import beyond, fashion
from assay.errors import AssayError


@pytest.fixture
def tiny(monkeypatch):
    """Both data sets are a few images of the bundled sample, and every effort is small."""
    for name, value in {
        "SEEDS": 2,
        "EPOCHS": 1,
        "UAT_EPOCHS": 1,
        "BATCH": 30,
        "STEPS": 2,
        "MADE_ON": 10,
        "PAIRED": 10,
    }.items():
        monkeypatch.setattr(co2021, name, value)
    whole = fashion.load_fashion()
    small = {name: type(data)(data.x[:30], data.labels[:30], data.classes) for name, data in whole.items()}
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    monkeypatch.setattr(beyond, "fashion_mnist", lambda: small)
    co2021._data.cache_clear()
    co2021._trained.cache_clear()
    yield
    co2021._data.cache_clear()
    co2021._trained.cache_clear()


def claim(name):
    return next(c for c in co2021.SHELVED if c.name == name)


def test_the_table_is_measured_in_the_order_it_was_printed(tiny, run):
    tested = claim("universal-error-fashion-mnist")
    assert [p.what for p in tested.published] == [p.what for p in claim("universal-error-mnist").published]
    evidence = tested.test(run)
    values = {m.name: m.value for m in evidence.measures}
    assert [p.what for p in tested.published] == list(values)[:6]
    assert all(0 < p.value < 1 for p in tested.published)  # shares, as measures are
    gain, cost = evidence.measures[6:8]
    assert gain.value == pytest.approx(values["universal error, JR"] - values["universal error, standard"])
    assert cost.value == pytest.approx(values["test error, JR"] - values["test error, standard"])
    assert gain.low <= gain.value <= gain.high
    assert values["universal error, standard"] >= values["test error, standard"] - 0.02
    assert evidence.verdict in ("holds", "fails", "cannot tell")
    assert "95 % interval" in evidence.says


def test_the_verdict_weighs_gain_against_cost(monkeypatch, run):
    def verdict(gain, cost):
        seeds = np.array([[0.01, 0.5, 0.3, 0.5, 0.6], [0.01 + cost, 0.5 + gain, 0.3, 0.5, 0.6]])
        wobble = 1e-4 * np.arange(-2, 3)[:, None, None] * np.array([1, -1])[:, None]
        monkeypatch.setattr(co2021, "_seen", lambda *a: (seeds + wobble)[None])
        return co2021.lower_universal_error("MNIST", run).verdict

    assert verdict(-0.3, 0.0) == "holds"
    assert verdict(-0.3, 0.02) == "fails"
    assert verdict(0.1, 0.0) == "fails"
    assert verdict(0.0, 0.0) == "cannot tell"


@pytest.mark.parametrize(("error", "broken", "told"), [(0.009, 0.86, True), (0.03, 0.86, False), (0.009, 0.5, False)])
def test_a_standard_network_unlike_prints_tells_nothing(monkeypatch, run, error, broken, told):
    seeds = np.array([[error, 0.8, 0.3, 0.5, broken], [error, 0.2, 0.3, 0.2, 0.3]])
    monkeypatch.setattr(co2021, "_seen", lambda *a: (seeds + 1e-4 * np.arange(-2, 3)[:, None, None])[None])
    for name in ("universal-error-mnist",):
        found = judged(claim(name), co2021.lower_universal_error("MNIST", run))
        assert (found.verdict == "holds") == told
        assert ("The networks are not those in print" in found.says) == (not told)
    few = judged(claim("universal-error-mnist"), replace(co2021.lower_universal_error("MNIST", run), seeds=3))
    assert few.verdict == "cannot tell"


def test_the_similarity_study_reuses_the_networks_and_reads_medians(tiny, run):
    evidence = claim("jacobian-similarity").test(run)
    trained = co2021._trained.cache_info().misses
    assert trained == 8  # two data sets, two seeds, two arms
    values = [m.value for m in evidence.measures]
    assert [m.name for m in evidence.measures][:4] == [p.what for p in claim("jacobian-similarity").published]
    assert all(-1 <= v <= 1 for v in values)
    assert values[4] == pytest.approx(values[1] - values[0])
    co2021._trained("MNIST", 0.0, run.seed, "cpu")
    assert co2021._trained.cache_info().misses == trained


def test_the_sweep_is_a_table_over_weight_and_radius(tiny, run, monkeypatch):
    for name, value in {"SWEPT": (0.0, 0.05, "UAT"), "RADII": (0.15, 0.3)}.items():
        monkeypatch.setattr(co2021, name, value)
    tested = claim("sweep-fashion-mnist")
    evidence = tested.test(run)
    values = {m.name: m.value for m in evidence.measures}
    assert [p.what for p in tested.published] == list(values)[:6]
    assert len(values) == 3 * 3 + 2  # the table, a gain and a cost
    assert values["change of the universal error at 0.15, lambda 0.05"] == pytest.approx(
        values["universal error at 0.15, lambda 0.05"] - values["universal error at 0.15, lambda 0"]
    )
    assert f"UAT {100 * values['test error, UAT']:.1f} and {100 * values['universal error at 0.15, UAT']:.1f}" in (
        evidence.says
    )


def test_the_verdict_of_the_sweep_looks_at_weights_and_radii_that_are_said_to_be_safe(monkeypatch, run):
    def verdict(*, gain=-0.2, cost=0.0, far=0.0, much=0.0):
        seen = np.full((5, len(co2021.SWEPT), 1 + len(co2021.RADII)), 0.5)
        for i, lam in enumerate(co2021.SWEPT):
            if lam in (0.05, 0.1):
                seen[:, i, 0] += cost
                seen[:, i, 1:4] += gain  # radii to 0.2
                seen[:, i, 4:] += far
            elif lam == 0.5:
                seen[:, i, 0] += much
        seen += 1e-4 * np.random.default_rng(0).normal(size=seen.shape)
        monkeypatch.setattr(co2021, "_swept", lambda *a: seen)
        return co2021.over_weight_and_radius("MNIST", run).verdict

    assert verdict() == "holds"
    assert verdict(far=0.2, much=0.2) == "holds"
    assert verdict(gain=0.1) == "fails"
    assert verdict(cost=0.02) == "cannot tell"  # what is negligible, print does not say
    assert verdict(gain=0.0) == "cannot tell"


def test_the_printed_expansion_is_refuted(run):
    evidence = co2021.the_expansion(run)
    exact, printed, bound, spectral = (m.value for m in evidence.measures)
    assert evidence.verdict == "fails"
    assert abs(exact - printed) > 0.01 * exact
    assert spectral <= exact <= bound


def test_without_data_it_says_how_to_have_it(monkeypatch, run):
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    co2021._data.cache_clear()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("universal-error-mnist").test(run)
