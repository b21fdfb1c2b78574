from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.claim import Claim, judged
from assay.claims import liu2021_explanations as claims
from assay.data import beyond, fashion
from assay.data.whole import Whole
from assay.errors import AssayError
from assay.run import Run


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MNIST is a few images of the bundled sample, cut to 6 x 6 pixels, the network linear, and every effort small."""
    for name, value in {
        "SEEDS": 2,
        "IMAGES": 3, "SAMPLES": 40, "AT_ONCE": 9, "PICKED": 18, "STEPS": 2, "JUDGE_STEPS": 3, "JUDGE_RIVALS": 1,
        "PATHS": 4, "REFERENCES": 6, "ORDERS": 3,
    }.items():  # fmt: skip
        monkeypatch.setattr(claims, name, value)
    whole = fashion.load_fashion()
    small = {
        name: type(data)(data.x[:100, :, 4:28:4, 4:28:4], data.labels[:100], data.classes)
        for name, data in whole.items()
    }
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    monkeypatch.setattr(claims, "trained", linear)
    kept = (claims._data, claims._areas)
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


def linear(data: Whole, seed: int, device: str) -> nn.Module:
    layer = nn.Linear(36, 10)
    means = torch.stack([data.x[data.y == k].mean(0).flatten() for k in range(10)])
    with torch.no_grad():
        layer.weight.copy_(means)
        layer.bias.copy_(-means.square().sum(1) / 2)
    return nn.Sequential(nn.Flatten(), layer).eval().requires_grad_(False)


@pytest.mark.parametrize("claim", claims.SHELVED, ids=lambda c: c.name)
def test_a_study_measures_in_the_order_of_print(tiny: None, run: Run, claim: Claim) -> None:
    evidence = claim.test(run)
    assert evidence.verdict in ("holds", "fails", "cannot tell")
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names)
    assert names[: len(claim.published)] == [p.what for p in claim.published]
    assert "95 % interval" in evidence.says
    assert evidence == claim.test(run)


def test_verdicts(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def verdicts(accuracy: float = 0.99, **moved: tuple[float, float]) -> list[str]:
        wobble = np.sin(np.arange(30))
        areas = {
            method: {
                "s-r-bar": values[0] + wobble, "s-r": values[1] + wobble, "insertion": wobble, "deletion": wobble
            }
            for method, values in {**claims.TABLE, **moved}.items()
        }  # fmt: skip
        monkeypatch.setattr(claims, "_areas", lambda *a: claims._Table(areas, accuracy, 0.1))
        return [judged(claim, claim.test(run)).verdict for claim in claims.SHELVED]

    assert verdicts() == ["holds", "holds", "holds"]  # the printed table
    assert verdicts(EG=(99.0, 91.05)) == ["fails", "holds", "holds"]
    assert verdicts(EG=(90.0, 80.0)) == ["fails", "holds", "holds"]  # one criterion is enough
    assert verdicts(LOO=(60.0, 104.0)) == ["holds", "holds", "fails"]
    assert verdicts(SHAP=(89.0, 101.0)) == ["holds", "fails", "holds"]
    assert verdicts(CFX=(88.0, 102.0))[1] == "cannot tell"
    assert verdicts(accuracy=0.97) == ["cannot tell"] * 3


class Product(nn.Module):
    """Two classes; the logit of class 1 is x0 x1 + 2 x2, that of class 0 is 0."""

    def forward(self, x: Tensor) -> Tensor:  # n 1 1 3 -> n 2
        a, b, c = x.flatten(1).unbind(1)
        z = a * b + 2 * c
        return torch.stack([torch.zeros_like(z), z], 1)


def test_attributions_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = Product(), torch.tensor([[[[0.5, 0.8, 0.3]]]]), torch.tensor([1])
    assert_close(claims._slope(net, x, y).flatten(), torch.tensor([0.8, 0.5, 2.0]))
    assert_close(claims._leave_one_out(net, x, y).flatten(), torch.tensor([0.4, 0.4, 0.6]))
    rng = torch.Generator().manual_seed(0)

    def slope(at: Tensor, label: Tensor) -> Tensor:
        return claims._slope(net, at, label)

    integrated = claims._path(slope, x, y, torch.zeros_like(x), rng)
    assert_close(integrated.flatten(), torch.tensor([0.2, 0.2, 0.6]), rtol=1e-4, atol=0)
    monkeypatch.setattr(claims, "ORDERS", 200)
    assert_close(claims._shapley(net, x, y, rng).flatten(), torch.tensor([0.2, 0.2, 0.6]), rtol=0, atol=0.03)
    gains = []
    for order in permutations(range(3)):  # Shapley as defined
        shown = torch.zeros(3)
        for i in order:
            before = float(net((x.flatten() * shown).view(1, 1, 1, 3))[0, 1])
            shown[i] = 1
            gains.append((i, float(net((x.flatten() * shown).view(1, 1, 1, 3))[0, 1]) - before))
    exact = [np.mean([gain for i, gain in gains if i == k]) for k in range(3)]
    assert exact == pytest.approx([0.2, 0.2, 0.6], abs=1e-6)
    monkeypatch.setattr(claims, "REFERENCES", 400)
    expected = claims._path(slope, x, y, torch.stack([torch.zeros(1, 1, 3), torch.ones(1, 1, 3)]), rng)
    assert expected.flatten()[2].item() == pytest.approx(2 * 0.3 - 1, abs=0.1)  # 2 (x - E x')


def test_the_network_is_the_public_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "EPOCHS", 1)
    data = fashion.load_fashion()["train"]
    net = claims.trained(type(data)(data.x[:64], data.labels[:64], data.classes), 0, "cpu")
    shapes = [tuple(p.shape) for p in net.parameters() if p.ndim > 1]
    assert shapes == [(20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500)]
    assert not any(p.requires_grad for p in net.parameters())


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    claims._data.cache_clear()
    claims._areas.cache_clear()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claims.SHELVED[0].test(run)
