"""Neighbours that vote: the tables on a few digits, and what their verdicts hang on."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from assay.claim import Evidence, judged
from assay.claims import _kept, wang2019, wang2020
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
    monkeypatch.setattr(study, "ASKED", 20)
    points = wang2020.Points(*(part.astype(np.float32) if part.ndim == 2 else part
                               for part in (x[:300], y[:300], x[300:340], y[300:340])))  # fmt: skip
    monkeypatch.setattr(_kept, "_folder", lambda: Path(os.devnull) / "kept")
    monkeypatch.setattr(wang2020, "_points", lambda *a: points)
    monkeypatch.setattr(wang2020, "SEEDS", 2)
    monkeypatch.setattr(wang2020, "SIZES", {"MNIST": wang2020.Size(asked=20, epochs=2, batch=300)})


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


def eleven(monkeypatch: pytest.MonkeyPatch, run: Run, wrong: int, change: int) -> Evidence:
    """Of 1000 points so many err under the Euclidean distance, and so many more of 200 fall within each radius."""

    def under(extra: int) -> wang2020.Under:
        return wang2020.Under((np.arange(1000) >= wrong).astype(float), np.where(np.arange(200) < 80 + extra, 0.3, 9.0))

    monkeypatch.setattr(study, "_eleven", lambda run: (under(0), [under(change)] * wang2020.SEEDS))
    claim = next(c for c in study.SHELVED if c.name == "eleven-mnist")
    return judged(claim, claim.test(run))


@pytest.mark.parametrize(("change", "verdict"), [(-20, "holds"), (-1, "cannot tell"), (20, "fails")])
def test_eleven_neighbours_are_judged_by_the_sign_of_the_change(
    change: int, verdict: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert eleven(monkeypatch, run, 38, change).verdict == verdict


@pytest.mark.parametrize("wrong", [10, 69])
def test_eleven_neighbours_that_err_unlike_those_in_print_tell_nothing(
    wrong: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = eleven(monkeypatch, run, wrong, -20)
    assert told.verdict == "cannot tell"
    assert "11-NN on MNIST at 0 under the Euclidean distance is" in told.says


def test_a_certificate_at_zero_is_a_majority(tiny: None, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "ELEVEN", 5)
    plain, learned = study._eleven(run)
    assert len(learned) == 2
    for under in (plain, *learned):
        assert ((under.radius > 0) == under.right[: study.ASKED]).all()
