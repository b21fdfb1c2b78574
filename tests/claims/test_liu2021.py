from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim
from assay.claims import liu2021
from assay.data import fashion
from assay.run import Run


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A few images of the bundled sample, and every effort small."""
    for name, value in {
        "SEEDS": 2, "EPOCHS": 1, "BATCH": 50, "STEPS": 3, "DRAWS": 3, "IMAGES": 20, "MEMBERS": 2, "WIDTH": 4
    }.items():  # fmt: skip
        monkeypatch.setattr(liu2021, name, value)
    whole = fashion.load_fashion()
    small = {name: type(data)(data.x[:100], data.labels[:100], data.classes) for name, data in whole.items()}
    monkeypatch.setattr(fashion, "load_fashion", lambda: small)
    liu2021._trained.cache_clear()
    yield
    liu2021._trained.cache_clear()


@pytest.mark.parametrize("claim", liu2021.SHELVED, ids=lambda c: c.name)
def test_the_study_runs_and_repeats_itself(tiny: None, run: Run, claim: Claim) -> None:
    evidence = claim.test(run)
    assert evidence.verdict in ("holds", "fails", "cannot tell")
    assert "95 % interval" in evidence.says
    clean, one, many, divided, gap = (m.value or 0.0 for m in evidence.measures)
    assert all(0 <= value <= 1 for value in (clean, one, many, divided))
    assert gap == pytest.approx(divided - many)
    assert claim.test(run) == evidence  # the noise starts anew, whatever was attacked before


class Line(nn.Module):
    """Two logits of which one falls with every pixel: the worst change is the same everywhere. It counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:  # n 1 h w -> n 2
        self.calls += 1
        s = x.flatten(1).sum(1)
        return torch.stack([s, -s], 1) / 100


@pytest.mark.parametrize(("norm", "size"), [("linf", 0.05), ("l2", 1.0)])
def test_on_a_model_without_noise_draws_change_nothing_until_the_step_is_divided(
    norm: liu2021.Norm, size: float
) -> None:
    model, x, y = Line(), torch.full((2, 1, 8, 8), 0.5), torch.zeros(2, dtype=torch.int64)

    def change(draws: int, divide: bool) -> Tensor:
        return liu2021._changed(model, x, y, norm, draws, divide) - x

    one, many, divided = change(1, False), change(10, False), change(10, True)
    torch.testing.assert_close(many, one, rtol=1e-3, atol=1e-4)
    assert (one < 0).all()
    length = one.abs().amax() if norm == "linf" else one[0].norm()
    assert length.item() == pytest.approx(size, rel=1e-3)
    if norm == "linf":  # it cannot even reach the ball
        assert divided.abs().max().item() == pytest.approx(liu2021.STEPS * liu2021.LINF_STEP / 10, rel=1e-3)
    else:  # Adam's steps are as long in every pixel, so that divided they reach it all the same
        torch.testing.assert_close(divided, one, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(change(1, True), one)


def test_the_public_l2_attack_stays_in_ball_and_box() -> None:
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(3, dtype=torch.int64)
    model = Line()
    got = liu2021._adam(model, x, y, 0.7, 0.07, 2)
    assert model.calls == 2 * liu2021.STEPS
    assert ((got - x).flatten(1).norm(dim=1) <= 0.7 + 1e-5).all()
    assert ((got >= 0) & (got <= 1)).all()
    assert x.requires_grad is False


def test_the_noise_is_there_in_evaluation_and_leaves_its_input_alone() -> None:
    x = torch.zeros(4, 3)
    noise = liu2021._Noise(0.5, torch.Generator().manual_seed(0)).eval()
    a, b = noise(x), noise(x)
    assert not torch.equal(a, b)
    assert torch.equal(x, torch.zeros(4, 3))
    many = liu2021._Noise(0.5, torch.Generator().manual_seed(0))(torch.zeros(100_000))
    assert many.std().item() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    ("divided", "verdict"), [(0.7, "fails"), (0.3, "holds"), (0.5, "holds"), (0.52, "cannot tell")]
)
def test_the_verdict_is_about_what_the_division_leaves(
    monkeypatch: pytest.MonkeyPatch, run: Run, divided: float, verdict: str
) -> None:
    """Undivided, the even half of the images is right; divided, this share of them, or the same ones."""
    monkeypatch.setattr(liu2021, "_trained", lambda *a: (Line(), torch.Generator()))
    monkeypatch.setattr(liu2021, "_changed", lambda m, x, y, norm, draws, divide: divide)
    rng = np.random.default_rng(0)

    def right(model: nn.Module, x: Tensor | bool, y: Tensor) -> NDArray[np.float64]:
        same = isinstance(x, Tensor) or not x or divided == 0.5
        return (np.arange(len(y)) % 2 == 0 if same else rng.random(len(y)) < divided).astype(np.float64)

    monkeypatch.setattr(liu2021, "_right", right)
    assert liu2021.divided_step("linf", run).verdict == verdict


def test_ensembles_answer_by_the_mean_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = iter([torch.tensor([[10.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]])])
    monkeypatch.setattr(liu2021, "MEMBERS", 3)
    model = nn.Module()
    model.forward = lambda x: next(passes)  # type: ignore[method-assign]
    assert liu2021._right(model, torch.zeros(1, 1), torch.tensor([0]))[0] == 1  # two of three passes say 1
