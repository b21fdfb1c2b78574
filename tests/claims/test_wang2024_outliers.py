from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from assay.claims import wang2024_outliers
from assay.data import beyond, fashion
from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.nn.softrmax import SoftRmax
from assay.run import Run


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The data sets are a few images of the bundled sample, and every effort is small."""
    for name, value in {
        "SEEDS": 2, "EPOCHS": 1, "BATCH": 20, "WIDTH": 2, "TAUGHT": 100, "TESTED": 30, "STARTS": 2, "WAYS": 4,
        "DISTANCES": (1.0, 1e2, 1e6),
    }.items():  # fmt: skip
        monkeypatch.setattr(wang2024_outliers, name, value)
    whole = fashion.load_fashion()
    small = {name: Arrays(data.x[:200], data.labels[:200], data.classes) for name, data in whole.items()}
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    monkeypatch.setattr(beyond, "fashion_mnist", lambda: small)
    forget()
    yield
    forget()


def forget() -> None:
    wang2024_outliers._data.cache_clear()
    wang2024_outliers._trained.cache_clear()


def test_every_study_runs_small_and_shares_its_networks(tiny: None, run: Run) -> None:
    for claim in wang2024_outliers.SHELVED:
        evidence = claim.test(run)
        assert evidence.verdict in ("holds", "fails", "cannot tell")
        assert evidence.says.endswith(".")
        names = [m.name for m in evidence.measures]
        assert len(set(names)) == len(names)
    assert wang2024_outliers._trained.cache_info().misses == 2 * len(wang2024_outliers.HEADS)


def test_no_network_has_seen_the_digit_that_is_held_out(tiny: None) -> None:
    data = wang2024_outliers._data("cpu")
    assert int(data.train.y.max()) == wang2024_outliers.CLASSES - 1
    assert len(data.train) == 180
    known = {tuple(x.flatten().tolist()) for x in data.inside}
    assert not any(tuple(x.flatten().tolist()) in known for x in data.outside["held-out digit"])


def test_rays_end_flat_or_certain_and_an_ignored_direction_moves_nothing(tiny: None) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 9)).requires_grad_(False)
    ends = {
        head: wang2024_outliers._rays(wang2024_outliers._headed(net, head), 0, "cpu")
        for head in ("softmax", "softRmax")
    }
    assert ends["softmax"].shape == (8, 3)
    np.testing.assert_allclose(ends["softRmax"][:, -1], 1 / 9, atol=1e-4)
    np.testing.assert_allclose(ends["softmax"][:, -1], 1, atol=1e-6)
    centred = wang2024_outliers._headed(wang2024_outliers._Centred(net), "softRmax")
    still = wang2024_outliers._rays(centred, 0, "cpu", bright=True)
    np.testing.assert_allclose(still[:, 1], still[:, 0], atol=1e-3)
    moved = wang2024_outliers._rays(wang2024_outliers._headed(net, "softRmax"), 0, "cpu", bright=True)
    assert np.abs(moved[:, 1] - moved[:, 0]).max() > 0.05


def test_the_verdict_far_away(tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def verdict(softmax: float, softrmax: float) -> str:
        def rays(model: nn.Module, seed: int, device: str, *, bright: bool = False) -> np.ndarray:
            end = softrmax if isinstance(model, nn.Sequential) and type(model[-1]).__name__ == "SoftRmax" else softmax
            return np.tile([0.5, 0.5, end], (4, 1))

        monkeypatch.setattr(wang2024_outliers, "_rays", rays)
        return wang2024_outliers.far_away(run).verdict

    assert verdict(1.0, 1 / 9 + 1e-4) == "holds"
    assert verdict(0.9, 1 / 9) == "cannot tell"  # it goes that way: how near is near, the source does not say
    assert verdict(1.0, 0.3) == "cannot tell"
    assert verdict(0.4, 1 / 9) == "fails"
    assert verdict(1.0, 0.6) == "fails"


def test_the_verdict_on_extra_measures(tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def verdict(*own: float) -> str:
        def areas(net: nn.Module, head: str, device: str) -> dict[str, dict[str, float]]:
            scores = ("posterior", "distance") if head == "softRmax" else ("posterior", *wang2024_outliers.EXTRA)
            best = dict.fromkeys(wang2024_outliers.SETS, 0.9)
            ours = dict(zip(wang2024_outliers.SETS, own, strict=True))
            return dict.fromkeys(scores, ours if head == "softRmax" else best)

        monkeypatch.setattr(wang2024_outliers, "_areas", areas)
        return wang2024_outliers.no_extra_measure(run).verdict

    assert verdict(0.9, 0.95, 0.895, 0.99) == "holds"
    assert verdict(0.8, 0.95, 0.95, 0.99) == "fails"


@pytest.mark.parametrize(("reach", "verdict"), [((3, 2, 1), "holds"), ((1, 2, 3), "fails"), ((2, 3, 2), "cannot tell")])
def test_the_verdict_on_the_power(
    tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run, reach: tuple[int, ...], verdict: str
) -> None:
    monkeypatch.setattr(wang2024_outliers, "DISTANCES", (1.0, 2.0, 4.0, 8.0))
    steps = dict(zip((1.0, 2.0, 4.0), reach, strict=True))

    def rays(model: nn.Module, seed: int, device: str, *, bright: bool = False) -> np.ndarray:
        head = model.get_submodule("1")
        assert isinstance(head, SoftRmax)
        return np.tile(np.where(np.arange(4) < steps[head.power], 0.9, 0.2), (4, 1))

    monkeypatch.setattr(wang2024_outliers, "_rays", rays)
    evidence = wang2024_outliers.power_drops(run)
    assert evidence.verdict == verdict
    assert evidence.measures[0].value == pytest.approx(2.0 ** reach[0])


def test_scores_tell_what_is_far_from_what_is_known(tiny: None) -> None:
    net = wang2024_outliers._trained("softmax", 0, "cpu")
    areas = wang2024_outliers._areas(net, "softmax", "cpu")
    assert set(areas) == {"posterior", *wang2024_outliers.EXTRA}
    assert areas["Mahalanobis"]["uniform noise"] > 0.9
    with pytest.raises(AssertionError):
        wang2024_outliers._areas(nn.Sequential(net, nn.Identity()), "softmax", "cpu")


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    forget()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        wang2024_outliers.far_away(run)
