"""Neighbours that vote: the tables on a few digits, and what their verdicts hang on."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from assay.claims import wang2019, wang2020
from assay.claims import wang2019_votes as study
from assay.run import Run


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of scikit-learn's digits in place of each data set."""
    x, y = load_digits(return_X_y=True)
    x = x / 16
    monkeypatch.setattr(wang2019, "_data", lambda name: (x[:300], y[:300], x[300:340], y[300:340]))
    monkeypatch.setattr(study, "INPUTS", 5)
    monkeypatch.setattr(study, "VOTES", 5)
    points = wang2020.Points(*(part.astype(np.float32) if part.ndim == 2 else part
                               for part in (x[:300], y[:300], x[300:340], y[300:340])))  # fmt: skip
    monkeypatch.setattr(wang2020, "_points", lambda *a: points)
    monkeypatch.setattr(wang2020, "SIZES", {"MNIST": wang2020.Size(train=300, test=40, epochs=2, batch=300)})


@pytest.mark.parametrize("tested", study.SHELVED, ids=lambda c: c.name)
def test_every_published_number_has_its_measure(tiny: None, run: Run, tested: study.Claim) -> None:
    evidence = tested.test(run)
    units = {m.name: m.unit for m in evidence.measures}
    assert all(units[p.what] == p.unit for p in tested.published)
    assert evidence.verdict in ("holds", "fails", "cannot tell")


def test_the_bound_lies_below_every_attack(tiny: None, run: Run) -> None:
    radii = study._radii("Letter", run)
    assert (radii[0] > 0).any()
    assert (radii[1:] >= radii[0] - study.ROUNDING).all()


@pytest.mark.parametrize(
    ("spoil", "verdict"), [("", "holds"), ("mean", "fails"), ("cross", "fails"), ("miss", "fails")]
)
def test_a_wrong_mean_a_broken_bound_or_an_unbroken_input_fails(
    spoil: str, verdict: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    radii = study.PRINTED["Letter"][0] * np.linspace(0.5, 1.5, 40) * np.arange(1, 6)[:, None]
    if spoil == "mean":
        radii = radii * 2
    elif spoil == "cross":
        radii[2, 3] = radii[0, 3] / 2
    elif spoil == "miss":
        radii[1, 3] = np.inf
    monkeypatch.setattr(study, "_radii", lambda name, run: radii)
    assert study.between("Letter", run).verdict == verdict
