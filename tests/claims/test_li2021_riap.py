from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.claim import Claim
from assay.claims import li2021_riap as study
from assay.data.whole import Whole
from assay.run import Run

CACHED = (study._data, study._trained, study._seen)


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


@pytest.fixture
def tiny() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    sizes = {
        "SEEDS": 1,
        "WIDTH": 2,
        "LEVELS": 2,
        "WORLDS": 8,
        "TESTED": 5,
        "EPOCHS": 1,
        "BATCH": 4,
        "TOGETHER": 5,
        "STEP": 8,
    }
    for name, value in sizes.items():
        patch.setattr(study, name, value)
    for each in CACHED:
        each.cache_clear()
    yield
    patch.undo()
    for each in CACHED:
        each.cache_clear()


def test_the_studies_run_on_a_few_worlds(tiny: None, run: Run) -> None:
    for name in ("steadier-under-shift", "dice"):
        evidence = claim(name).test(run)
        assert evidence.verdict == "cannot tell"
        assert evidence.says.endswith("which are not print's, nothing can be told either.")  # they learnt too little
        assert all(m.value is not None for m in evidence.measures)
    for printed, measure in zip(claim("dice").published, evidence.measures, strict=True):
        assert printed.what.replace(", U-Net", "") == measure.name
        assert printed.unit == measure.unit


@pytest.mark.parametrize(("gain", "told"), [(0.1, "it holds."), (-0.1, "it fails.")])
def test_other_data_than_prints_tell_what_is_found_and_no_verdict(
    gain: float, told: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    wobble = 1e-3 * np.sin(np.arange(400.0)).reshape(100, 4)

    def seen(run: Run) -> dict[study.Arm, list[study._Seen]]:
        ones, more = np.ones(100), {"zero padding": 0.0, "RIAP": gain}
        dices = {arm: 0.8 + more[arm] + wobble * (1 + more[arm]) for arm in study.ARMS}
        return {arm: [study._Seen(dice, ones, ones, ones > 0)] * 3 for arm, dice in dices.items()}

    monkeypatch.setattr(study, "_all", seen)
    evidence = study.dice(run)
    assert evidence.verdict == "cannot tell"
    assert evidence.says.endswith(f"which are not print's, {told}")


def test_on_chains_of_convolutions_it_holds_exactly(run: Run) -> None:
    evidence = claim("equal-influence").test(run)
    assert evidence.verdict == "holds"
    assert [m.value for m in evidence.measures[4:]] == pytest.approx([1.0] * 4)
    assert evidence.measures[0].value == pytest.approx(21 / 51)  # Motzkin over trinomial


def test_windows_lie_where_their_classes_do() -> None:
    x = torch.rand(5, 1, 64, 64)
    cut, kind = study._anywhere(x, (1000 * x[:, 0]).long(), torch.Generator().manual_seed(0))
    assert cut.shape == (5, 1, 32, 32)
    assert torch.equal((1000 * cut[:, 0]).long(), kind)


class Blinkered(nn.Module):
    """Knows the classes, and is wrong in the outermost columns of its window."""

    def forward(self, x: Tensor) -> Tensor:
        said = (x[:, 0] > 0.5).long()
        said[..., :2] = said[..., -2:] = 0
        return nn.functional.one_hot(said, 2).movedim(-1, 1).float()


def test_what_is_lost_at_the_border_is_lost_by_the_same_pixels() -> None:
    x = torch.zeros(3, 1, 64, 64)
    x[:2, :, 20:44, 26:38] = 1.0
    seen = study._moved_along(Blinkered(), Whole(x, x[:, 0].long()))
    assert seen.drawn.tolist() == [True, True, False]
    assert seen.inside[:2].tolist() == [1, 1]
    assert seen.border[:2].tolist() == [0, 0]
    assert seen.dice.shape == (3, 17)
    assert seen.dice[0].max() == 1
    assert seen.dice[0].min() < 1
    assert np.all(seen.dice[2] == 1)
