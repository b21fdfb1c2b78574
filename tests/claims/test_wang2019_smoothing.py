from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.claims import wang2019_smoothing
from assay.data import beyond, fashion
from assay.errors import AssayError
from assay.methods.certify.smoothing import lower_chance
from assay.run import Run

(CLAIM,) = wang2019_smoothing.SHELVED


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bundled images in place of MNIST, and every effort small."""
    small = {
        name: type(data)(data.x[:200], data.labels[:200], data.classes) for name, data in fashion.load_fashion().items()
    }
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    for name, value in {"EPOCHS": 1, "DRAWS": (10, 100), "INPUTS": 8}.items():
        monkeypatch.setattr(wang2019_smoothing, name, value)


def test_the_study_runs_and_its_numbers_agree(tiny: None, run: Run) -> None:
    evidence = CLAIM.test(run)
    seen = {m.name: m.value for m in evidence.measures if m.value is not None}
    for r in wang2019_smoothing.RADII:
        one, other = (seen[f"certified error at {r:g}, {who}"] for who in ("1-NN", "smoothing"))
        assert seen[f"change of the certified error at {r:g}"] == pytest.approx(one - other)
    for who in ("1-NN", "smoothing"):
        errors = [seen[f"certified error at {r:g}, {who}"] for r in wang2019_smoothing.RADII]
        assert errors == sorted(errors)
    assert all(m.n == 8 for m in evidence.measures)
    assert seen["mean certified radius, 1-NN"] > 0


def test_a_wrong_or_undecided_answer_has_radius_zero(tiny: None, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        wang2019_smoothing, "_network", lambda *_: lambda x: torch.eye(10)[x.new_full((len(x),), 3).long()]
    )
    radii = wang2019_smoothing._radii(run)
    rng = np.random.default_rng(run.seed)
    labels = beyond.mnist()["test"].labels[np.sort(rng.permutation(200)[:8])]
    assert (labels == 3).any()
    assert ((radii.smoothed > 0) == (labels == 3)).all()
    sure = wang2019_smoothing.SIGMA * torch.special.ndtri(torch.tensor(0.001 ** (1 / 100)).double())
    np.testing.assert_allclose(radii.smoothed[:, labels == 3], float(sure))


@pytest.mark.parametrize(
    ("neighbour", "held"), [(1.2, "holds"), (0.1, "fails"), (0.5, "cannot tell"), (None, "fails")], ids=str
)
def test_the_verdict(monkeypatch: pytest.MonkeyPatch, run: Run, neighbour: float | None, held: str) -> None:
    """All of smoothing's radii are 0.5; those of 1-NN are larger, smaller, the same, or some of each."""
    ours = np.where(np.arange(50) < 25, 0.1, 2.0) if neighbour is None else np.full(50, neighbour)
    radii = wang2019_smoothing.Radii(ours, np.full((5, 50), 0.5))
    monkeypatch.setattr(wang2019_smoothing, "_radii", lambda run: radii)
    evidence = wang2019_smoothing.certifies_more(run)
    assert evidence.verdict == held
    assert (neighbour == 0.5) == ("at no radius and less at no radius" in evidence.says)
    if neighbour is None:
        assert "more than smoothing at radii 0.6, 0.8, 1, 1.5 and less at radii 0.2, 0.4;" in evidence.says


def test_the_reach_is_the_radius_of_a_network_that_never_wavers() -> None:
    n = wang2019_smoothing.DRAWS[1]
    chance = lower_chance(torch.tensor([n]), n, alpha=wang2019_smoothing.ALPHA)
    np.testing.assert_allclose(wang2019_smoothing.SIGMA * torch.special.ndtri(chance), wang2019_smoothing.REACH)


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        CLAIM.test(run)
