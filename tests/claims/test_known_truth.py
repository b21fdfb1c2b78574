"""The bench of our own: its truths are true, its scores those of the definition, and a study runs through."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from assay.claim import Claim
from assay.claims import known_truth as claims
from assay.data.known_truth import BARS, CELL, LIT, SIDE, bar_map, differing, make_planted, make_segments
from assay.errors import AssayError
from assay.run import Run


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sizes = {"TEXTS": 1, "PICTURES": 1, "DIGITS": 2, "TRAINED": 200, "STEPS": 1, "SETS": 18}
    for name, value in sizes.items():
        monkeypatch.setattr(claims, name, value)
    monkeypatch.setattr(claims, "EPOCHS", {"planted": 1, "segments": 2})
    monkeypatch.setattr(
        claims, "MAPS", ("gradient", "integrated-gradients", "occlusion", "kernel-shap", "edges", "random")
    )
    kept = (claims._topics, claims._planted, claims._segments)
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


@pytest.mark.parametrize("claim", claims.SHELVED, ids=lambda c: c.name)
def test_a_study_scores_every_explainer_with_caps_and_seeds(tiny: None, run: Run, claim: Claim) -> None:
    evidence = claim.test(run)
    assert evidence.verdict in ("holds", "fails", "cannot tell")
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names)
    for said in ("precision, kernel-shap", "precision, random"):
        assert said in names
    assert any(n.startswith("capped, greedy-as s-r") for n in names)
    assert any(n.startswith("stable, greedy-as s-r-bar") for n in names)
    assert all(0 <= (m.value or 0) <= 1 for m in evidence.measures if m.name.startswith("precision"))
    assert "95 % interval" in evidence.says
    assert claim.says.startswith("Ours")
    assert not claim.published


def test_precision_counts_the_truth_among_as_many_and_breaks_ties_at_random() -> None:
    truth, rng = np.array([True, False, True, False]), np.random.default_rng(0)
    assert claims.precision(torch.tensor([4.0, 1.0, 3.0, 2.0]), truth, rng) == 1
    assert claims.precision(torch.tensor([1.0, 4.0, 2.0, 3.0]), truth, rng) == 0
    assert claims.precision(torch.tensor([4.0, 3.0, 2.0, 1.0]), truth, rng) == 0.5
    flat = [claims.precision(torch.zeros(4), truth, rng) for _ in range(400)]
    assert np.mean(flat) == pytest.approx(0.5, abs=0.1)


def test_only_the_planted_cell_tells_the_classes_apart() -> None:
    made = make_planted(60, np.random.default_rng(0))
    cells = (
        made.x.reshape(60, SIDE // CELL, CELL, SIDE // CELL, CELL).transpose(0, 1, 3, 2, 4).reshape(60, -1, CELL, CELL)
    )
    planted = cells[np.arange(60), made.cell]
    for label in range(4):
        same = planted[made.label == label]
        np.testing.assert_array_equal(same, np.broadcast_to(same[:1], same.shape))
    assert len({planted[made.label == k][0].tobytes() for k in range(4)}) == 4
    # two cells are bright, with as many bright pixels each, and the others are noise
    assert ((cells.max((2, 3)) > 0.9).sum(1) == 2).all()
    np.testing.assert_array_equal((cells == 1).sum((1, 2, 3)), 2 * (planted == 1).sum((1, 2)))


def test_digits_differ_in_the_bars_that_a_calculator_lights() -> None:
    named = list(BARS)

    def between(one: int, other: int) -> set[str]:
        return {named[k] for k in np.flatnonzero(differing(one, other))}

    assert between(7, 1) == {"top"}
    assert between(7, 9) == {"upper left", "middle", "bottom"}
    assert between(8, 0) == {"middle"}
    assert between(3, 9) == {"upper left"}
    assert len(set(LIT)) == 10
    made, label = make_segments(40, np.random.default_rng(1)), bar_map()[0]
    for x, digit in zip(made.x[:, 0], made.label, strict=True):
        lit = [bool(x[label == b].min() > 0.5) for b in range(7)]
        assert lit == [c == "1" for c in LIT[digit]]
    assert (made.x[:, 0][:, label < 0] < 0.11).all()
    for make in (make_planted, make_segments):
        with pytest.raises(AssayError, match="at least 1, got 0"):
            make(0, np.random.default_rng(0))
