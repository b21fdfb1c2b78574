from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from assay.claim import Claim
from assay.claims import _networks
from assay.claims import liu2021_ensembles as study
from assay.data import beyond, corruptions, fashion
from assay.errors import AssayError
from assay.methods.train.well_trained import Recipe
from assay.methods.uncertainty import ece, nll
from assay.nn.resnet import ResNet18
from assay.run import Run

CACHED = (
    *(study._data, study._made, study._fast, study._lam, study._seen, study._member_seconds),
    *(_networks.images, _networks.network),
)


def forget() -> None:
    for each in CACHED:
        each.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _kept_here_alone() -> Iterator[None]:
    """Networks of these few images serve every test of this file, and none elsewhere."""
    forget()
    yield
    forget()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 is a few images of the bundled sample in three equal colours, and every effort is small."""
    for name, value in {
        "SEEDS": 1, "MEMBERS": 2, "HELD_OUT": 20, "CORRUPTED": 20, "DRAWS": 2,
        "LAMBDAS": (5.0, 500.0),
    }.items():  # fmt: skip
        monkeypatch.setattr(study, name, value)
    for place in (study, _networks):
        monkeypatch.setattr(place, "SHORTER", Recipe(epochs=2, batch=40, lr=0.2, moved=2, mirrored=True))
        monkeypatch.setattr(place, "narrow_vgg16", lambda: ResNet18(width=1))
    whole = fashion.load_fashion()
    small = {
        name: type(data)(np.repeat(data.x[:100, :, ::2, ::2], 3, axis=1), data.labels[:100], data.classes)
        for name, data in whole.items()
    }
    monkeypatch.setattr(beyond, "cifar10", lambda: small)
    few = {name: corruptions.CORRUPTIONS[name] for name in ("gaussian-noise", "contrast")}
    monkeypatch.setattr(corruptions, "CORRUPTIONS", few)


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


def test_the_studies_run_on_a_few_images_and_repeat_themselves(tiny: None, run: Run) -> None:
    for each in study.SHELVED:
        evidence = each.test(run)
        assert evidence.verdict in ("holds", "fails", "cannot tell")
        for printed, measure in zip(each.published, evidence.measures, strict=False):
            assert {*printed.what.split(", ")} == {*measure.name.split(", ")}  # they correspond
            assert printed.unit == measure.unit
    table = {m.name: m.value or 0.0 for m in claim("closest-to-naive").test(run).measures}
    rows = len(study.METHODS) * len(study.IMAGES)
    assert len(table) == 3 * rows + len(study.CHEAP) * len(study.IMAGES)
    single = {m.name: m.value or 0.0 for m in claim("keeps-the-gain-clean").test(run).measures}
    assert single["NLL gain, naive"] == pytest.approx(table["NLL, clean, single"] - table["NLL, clean, naive"])
    assert single["ECE gain, FastEnsemble"] == pytest.approx(
        table["ECE, clean, single"] - table["ECE, clean, FastEnsemble"]
    )


def test_the_table_of_severities_holds_every_method_and_joins_to_the_whole(tiny: None, run: Run) -> None:
    table = {m.name: m.value or 0.0 for m in claim("gain-at-every-severity").test(run).measures}
    assert len(table) == 6 + 3 * 6 * (len(study.METHODS) + 1)
    whole = {m.name: m.value or 0.0 for m in claim("closest-to-naive").test(run).measures}
    for method in ("single", "naive", "batch"):
        for quantity in ("accuracy", "NLL"):
            each = [table[f"{quantity}, {method}, severity {s}"] for s in range(1, 6)]
            assert np.mean(each) == pytest.approx(whole[f"{quantity}, corrupted, {method}"], abs=1e-6)
        assert table[f"ECE, {method}, clean"] == pytest.approx(whole[f"ECE, clean, {method}"], abs=1e-6)
    gain = table["NLL, single, severity 3"] - table["NLL, naive, severity 3"]
    assert table["NLL gain, naive, severity 3"] == pytest.approx(gain)
    assert table["NLL, naive by logits, clean"] != table["NLL, naive, clean"]


@pytest.mark.parametrize("images", study.IMAGES)
def test_what_is_seen_are_accuracy_nll_and_ece(
    tiny: None, monkeypatch: pytest.MonkeyPatch, images: study.Images
) -> None:
    data = study._data("cpu").clean if images == "clean" else study._data("cpu").corrupted
    n = len(data.y)
    logits = 3 * torch.randn(n, 10, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logits[torch.arange(n), data.y] += torch.arange(n) % 4  # some bins are too sure, some not sure enough
    p = logits.softmax(1).numpy()
    monkeypatch.setattr(study, "_made", lambda *a: study._Made(None, 0.0))  # type: ignore[arg-type]
    monkeypatch.setattr(study, "_said", lambda model, x: np.log(p))
    seen = study._seen.__wrapped__("naive", images, 0, "cpu")  # kept nowhere
    y = data.y.numpy()
    assert seen.right.mean() == pytest.approx((p.argmax(1) == y).mean())
    assert seen.surprise.mean() == pytest.approx(nll(p, y))
    assert seen.ece == pytest.approx(ece(p, y, bins=study.BINS), abs=1e-9)
    assert seen.right.shape == ((1, 100) if images == "clean" else (10, 20))
    assert seen.gap.shape == (study.BINS, seen.right.shape[1])


def test_what_a_predictor_says_is_the_log_of_the_mean_probability_and_repeats_itself(tiny: None) -> None:
    x = study._data("cpu").clean.x
    for method in ("naive", "MC-dropout"):
        model = study._made(method, 0, "cpu").model  # type: ignore[arg-type]
        said = study._said(model, x)
        assert np.exp(said).sum(1) == pytest.approx(np.ones(len(x)))
        assert np.array_equal(study._said(model, x), said)
    with torch.no_grad():
        mean = study._made("naive", 0, "cpu").model.members(x).softmax(-1).mean(0)
    assert np.exp(study._said(study._made("naive", 0, "cpu").model, x)) == pytest.approx(mean.numpy(), abs=1e-6)


def test_corrupted_images_keep_their_labels_image_by_image(tiny: None) -> None:
    data = study._data("cpu")
    assert len(data.train) == 80
    assert len(data.held_out) == 20
    assert torch.equal(data.corrupted.y.view(10, 20), data.clean.y[:20].expand(10, 20))
    assert data.corrupted.x.shape == (200, 3, 14, 14)
    assert not torch.equal(data.corrupted.x[:20], data.clean.x[:20])


def test_fast_ensembles_start_from_the_single_net(tiny: None) -> None:
    x = study._data("cpu").clean.x
    single, fast, naive = (study._made(m, 0, "cpu").model for m in ("single", "FastEnsemble", "naive"))
    torch.testing.assert_close(fast.members(x)[0], single.members(x)[0])
    torch.testing.assert_close(naive.members(x)[0], single.members(x)[0])
    assert not any(p.requires_grad for p in fast.parameters())
    assert study._lam(0, "cpu") in study.LAMBDAS


def made_up(gains: Callable[[str, int], tuple[float, float, float]]) -> Callable[..., study._Seen]:
    """Predictors with these accuracies, NLL and ECE by method and seed, on 400 images, with a wobble."""

    def seen(method: str, images: str, seed: int, device: str) -> study._Seen:
        accuracy, nll, error = gains(method, seed)
        wobble = 1e-3 * np.sin(np.arange(400.0) + len(method))[None]
        gap: NDArray[np.float64] = np.zeros((study.BINS, 400))
        gap[-1] = -error + wobble[0]
        return study._Seen(accuracy + wobble, nll + wobble, gap, 0.01)

    return seen


@pytest.mark.parametrize(
    ("fast", "verdict"),
    [
        ((0.94, 0.32, 0.045), "holds"),
        ((0.94, 0.45, 0.045), "cannot tell"),  # little of the NLL gain
        ((0.94, 0.32, 0.055), "cannot tell"),  # little of the ECE gain
        ((0.94, 0.55, 0.045), "fails"),  # a higher NLL than the single net
        ((0.92, 0.32, 0.045), "fails"),  # less accurate than the single net
        ((0.93, 0.32, 0.045), "cannot tell"),
    ],
)
def test_verdicts_of_the_gain(
    monkeypatch: pytest.MonkeyPatch, run: Run, fast: tuple[float, float, float], verdict: str
) -> None:
    rows = {"single": (0.93, 0.5, 0.06), "naive": (0.95, 0.3, 0.04), "FastEnsemble": fast}
    monkeypatch.setattr(study, "_seen", made_up(lambda method, seed: rows[method]))
    monkeypatch.setattr(study, "_made", lambda method, *a: study._Made(None, 0.4 if "Fast" in method else 1.0))  # type: ignore[arg-type]
    monkeypatch.setattr(study, "_lam", lambda *a: 5.0)
    evidence = study.keeps_the_gain("clean", run)
    assert evidence.verdict == verdict
    assert "took 10.0 % of the time of a training" in evidence.says
    rows["naive"] = (0.95, 0.3, 0.07)  # no ECE gain to keep
    assert study.keeps_the_gain("clean", run).verdict == "cannot tell"


def test_verdicts_of_the_closest(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def verdict(snapshot: Callable[[int], float]) -> str:
        def row(method: str, seed: int) -> tuple[float, float, float]:
            accuracy = {"snapshot": snapshot(seed), "FastEnsemble": 0.94, "naive": 0.95}.get(method, 0.92)
            return accuracy, 0.4, 0.05

        monkeypatch.setattr(study, "_seen", made_up(row))
        return study.closest_to_naive(run).verdict

    assert verdict(lambda seed: 0.93) == "holds"
    assert verdict(lambda seed: 0.945) == "fails"
    assert verdict(lambda seed: 0.93 if seed else 0.945) == "cannot tell"  # the seeds disagree


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    for each in CACHED:
        each.cache_clear()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("closest-to-naive").test(run)
