from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.claim import Evidence, judged
from assay.claims import wang2024_outliers
from assay.data import beyond, fashion
from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.uncertainty.detection import auroc, auroc_interval
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


def area(value: float) -> wang2024_outliers.Area:
    """An AUROC of this value, in which inputs differ a little."""
    wobble = np.linspace(-0.005, 0.005, 20)
    return wang2024_outliers.Area(value + wobble, value + wobble[::-1])


def judge_extra(
    monkeypatch: pytest.MonkeyPatch, run: Run, own: dict[str, float], others: dict[str, dict[str, float]]
) -> Evidence:
    """The study of extra measures with these AUROCs, by set; a measure that is not named has 0.7 on all."""

    def areas(net: nn.Module, head: str, device: str) -> dict[str, wang2024_outliers.Areas]:
        scores = {score for score, on in wang2024_outliers.MEASURES if on == head}
        low = dict.fromkeys(wang2024_outliers.SETS, 0.7)
        values = {"posterior": own if head == "softRmax" else low}
        values |= {score: others.get(f"{score} on {head}", low) for score in scores}
        return {score: {name: area(v) for name, v in of.items()} for score, of in values.items()}

    monkeypatch.setattr(wang2024_outliers, "_areas", areas)
    return wang2024_outliers.no_extra_measure(run)


def on(*values: float) -> dict[str, float]:
    return dict(zip(wang2024_outliers.SETS, values, strict=True))


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ({}, "holds"),
        ({"ViM on softmax": on(0.88, 0.89, 0.87, 0.88)}, "holds"),
        ({"ViM on softmax": on(0.92, 0.94, 0.91, 0.93)}, "fails"),
        ({"Mahalanobis on softRmax": on(0.92, 0.94, 0.91, 0.93)}, "fails"),  # beside it, on the same network
        ({"ViM on softmax": on(0.6, 0.95, 0.95, 0.95)}, "cannot tell"),  # which is ahead hangs on the sets
        (  # the best of four, chosen on each set, would be ahead: none is by itself
            {
                "ViM on softmax": on(0.95, 0.6, 0.6, 0.6),
                "energy on softmax": on(0.6, 0.95, 0.6, 0.6),
                "Mahalanobis on softmax": on(0.6, 0.6, 0.95, 0.6),
                "nearest neighbours on softmax": on(0.6, 0.6, 0.6, 0.95),
            },
            "holds",
        ),
    ],
)
def test_the_verdict_on_extra_measures(
    tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run, others: dict[str, dict[str, float]], verdict: str
) -> None:
    evidence = judge_extra(monkeypatch, run, on(0.9, 0.9, 0.9, 0.9), others)
    assert evidence.verdict == verdict
    claim = next(c for c in wang2024_outliers.SHELVED if c.name == "no-extra-measure")
    found = judged(replace(claim, seeds=2), evidence)
    assert found.verdict == "cannot tell"  # networks of one epoch on few images miss the gate
    assert verdict == "cannot tell" or "The accuracy on known digits is" in found.says


def test_a_measure_stands_beside_each_set_and_the_chosen_best_decides_nothing(
    tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    evidence = judge_extra(monkeypatch, run, on(0.9, 0.9, 0.9, 0.9), {"ViM on softmax": on(0.6, 0.95, 0.8, 0.8)})
    values = {m.name: m for m in evidence.measures}
    assert values["gain over ViM on softmax"].value == pytest.approx(0.9 - 0.7875)
    assert values["gain over ViM on softmax, glyphs"].value == pytest.approx(-0.05)
    assert values["gain over the best of four, chosen on the set, glyphs"].value == pytest.approx(-0.05)
    whole, one = values["gain over ViM on softmax"], values["gain over ViM on softmax, glyphs"]
    assert whole.high - whole.low > 10 * (one.high - one.low)  # sets are drawn too


def test_an_area_is_the_auroc_and_its_interval_is_that_of_inputs() -> None:
    rng = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(400, generator=rng) + 1, torch.randn(300, generator=rng)
    outside[:30] = inside[:30]  # ties
    of = wang2024_outliers._area(inside, outside)
    assert of.value == pytest.approx(auroc(inside, outside))
    assert of.outside.mean() == pytest.approx(of.value)
    even = wang2024_outliers.Area(np.full(400, 0.5), np.full(300, 0.5))
    found = wang2024_outliers._gain("gain", [{"glyphs": of}], [{"glyphs": even}], ("glyphs",), 0)
    low, high = auroc_interval(inside, outside)
    assert found.measure.low == pytest.approx(low - 0.5, abs=0.01)
    assert found.measure.high == pytest.approx(high - 0.5, abs=0.01)


@pytest.mark.parametrize(
    ("ways", "verdict"),
    [
        (((3, 2, 1), (6, 5, 4)), "holds"),
        (((1, 2, 3), (4, 5, 6)), "fails"),
        (((2, 3, 2), (5, 6, 5)), "cannot tell"),
        (((1, 2, 3), (6, 5, 4)), "cannot tell"),  # sooner or later hangs on how far down is asked
    ],
)
def test_the_verdict_on_the_power(
    tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run, ways: tuple[tuple[int, ...], ...], verdict: str
) -> None:
    """Rays that stay at 0.9 for some steps, and then at 0.2 for some."""
    monkeypatch.setattr(wang2024_outliers, "DISTANCES", tuple(2.0**i for i in range(8)))
    steps = {power: (first, last) for power, first, last in zip((1.0, 2.0, 4.0), *ways, strict=True)}

    def rays(model: nn.Module, seed: int, device: str, *, bright: bool = False) -> np.ndarray:
        head = model.get_submodule("1")
        assert isinstance(head, SoftRmax)
        first, last = steps[head.power]
        return np.tile(np.select([np.arange(8) < first, np.arange(8) < last], [0.9, 0.2], 1 / 9), (4, 1))

    monkeypatch.setattr(wang2024_outliers, "_rays", rays)
    evidence = wang2024_outliers.power_drops(run)
    assert evidence.verdict == verdict
    values = {m.name: m.value for m in evidence.measures}
    assert values["distance at which 0.5 is left, power 1"] == pytest.approx(2.0 ** ways[0][0])
    assert values["distance at which 0.01 is left, power 4"] == pytest.approx(2.0 ** ways[1][2])
    assert values["tenfolds sooner, power 4 than power 1, 0.5 left"] == pytest.approx(
        np.log10(2) * (ways[0][0] - ways[0][2])
    )


def test_a_posterior_that_never_falls_is_at_the_last_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wang2024_outliers, "DISTANCES", (1.0, 4.0))
    assert wang2024_outliers._first_below(np.array([[0.9, 0.9], [0.1, 0.1]]), 0.5) == pytest.approx(2)


def test_scores_tell_what_is_far_from_what_is_known(tiny: None) -> None:
    net = wang2024_outliers._trained("softmax", 0, "cpu")
    areas = wang2024_outliers._areas(net, "softmax", "cpu")
    assert set(areas) == {"posterior", *wang2024_outliers.EXTRA}
    assert areas["Mahalanobis"]["uniform noise"].value > 0.9
    with pytest.raises(AssertionError):
        wang2024_outliers._areas(nn.Sequential(net, nn.Identity()), "softmax", "cpu")


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    forget()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        wang2024_outliers.far_away(run)
