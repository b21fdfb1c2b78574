from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from assay.claim import Evidence, judged
from assay.claims import _networks, lehmann2021
from assay.data import beyond, fashion
from assay.data.arrays import Arrays
from assay.data.whole import Whole
from assay.engine.local import ThisProcess
from assay.errors import AssayError, MissingExtra
from assay.methods.train.well_trained import Recipe
from assay.methods.uncertainty import activation_clusters
from assay.nn.resnet import ResNet18
from assay.run import Budget, Run

KEPT = ("_net", "_clusters", "_sets")


class FirstTwo:
    """The first two dimensions, in place of UMAP."""

    def fit_transform(self, wide: NDArray[np.float64]) -> NDArray[np.float64]:
        return wide[:, :2]

    transform = fit_transform


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data sets are a few images of the bundled sample, and every effort is small."""
    for name, value in {
        "EPOCHS": 1,
        "BATCH": 20,
        "SEEDS": {"MNIST": 2, "CIFAR-10": 1},
        "MAPS": (2, 2, 4),
        "SLOW": 90,
        "ASKED": 40,
        "CLUSTERED": 90,
        "TESTED": 40,
        "COMPARED": 60,
    }.items():
        monkeypatch.setattr(lehmann2021, name, value)
    monkeypatch.setattr(lehmann2021, "_half_as_wide", lambda: ResNet18(width=1))
    monkeypatch.setattr(_networks, "RECIPES", dict.fromkeys(_networks.RECIPES, Recipe(epochs=1, batch=20, lr=0.1)))
    monkeypatch.setattr(activation_clusters, "CLUSTERS", range(2, 5))
    monkeypatch.setattr(activation_clusters, "_umap", lambda seed: FirstTwo())  # umap-learn compiles for half a minute
    whole = fashion.load_fashion()
    small = {name: Arrays(data.x[:100], data.labels[:100], data.classes) for name, data in whole.items()}
    wide = {n: Arrays(np.pad(d.x, ((0, 0), (0, 0), (2, 2), (2, 2))).repeat(3, 1), d.labels) for n, d in small.items()}
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    monkeypatch.setattr(beyond, "fashion_mnist", lambda: small)
    monkeypatch.setattr(beyond, "cifar10", lambda: wide)


def forget() -> None:
    for name in KEPT:
        getattr(lehmann2021, name).cache_clear()
    _networks.images.cache_clear()
    _networks.network.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _kept_here_alone() -> Iterator[None]:
    """Networks of these few images serve every test of this file, and none elsewhere."""
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def studied() -> dict[str, Evidence]:
    run = Run(engine=ThisProcess(), budget=Budget("tiny", samples=100, steps=5, restarts=1, shown=3))
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        return {claim.name: claim.test(run) for claim in lehmann2021.SHELVED}


def test_every_study_runs_small_and_measures_in_the_order_of_print(studied: dict[str, Evidence]) -> None:
    for claim in lehmann2021.SHELVED:
        evidence = studied[claim.name]
        assert evidence.verdict in ("holds", "fails", "cannot tell")
        assert evidence.says.endswith(".")
        names = [m.name for m in evidence.measures]
        assert len(set(names)) == len(names)
        assert names[: len(claim.published)] == [p.what for p in claim.published]
        assert all(p.value < 1 for p in claim.published)
    assert lehmann2021._net.cache_info().misses == 3  # both studies share the networks on MNIST


def test_the_attacks_keep_their_radii_and_the_layers_are_those_of_print(tiny: None) -> None:
    net, sets = lehmann2021._net("MNIST", 0, "cpu"), lehmann2021._sets(0, "cpu")
    for name, radius in (("FGSM", 0.25), ("BIM", 0.25), ("PGD", 0.2), ("PGD-DLR", 0.3)):
        change = (sets[name] - sets["test"]).abs()
        assert float(change.max()) == pytest.approx(radius, abs=1e-5)
        assert float(sets[name].min()) >= 0
        assert float(sets[name].max()) <= 1
    kinds = [type(net.model.get_submodule(name)).__name__ for name in net.layers]
    assert kinds == ["ReLU", "ReLU", "ReLU", "Linear"]  # convolutions after ReLU, and the output
    assert isinstance(net.model, nn.Sequential)
    with torch.no_grad():
        assert net.model[:6](sets["test"][:2]).shape == (2, 4, 1, 1)


def test_rates_rise_with_the_threshold(studied: dict[str, Evidence]) -> None:
    found = {m.name: m.value or 0.0 for m in studied["detection"].measures}
    for name in lehmann2021.SETS:
        rates = [found[f"{name}, t = {t:g}"] for t in lehmann2021.THRESHOLDS]
        assert rates == sorted(rates)


def test_silhouettes_are_compared_as_in_print_and_a_missing_package_leaves_its_cell_empty(
    tiny: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    fit = activation_clusters.ActivationClusters.fit

    def absent(
        model: nn.Module, x: torch.Tensor, y: torch.Tensor, **how: Any
    ) -> activation_clusters.ActivationClusters:
        asked.append((how["projection"], how["clustering"], len(x)))
        if how["projection"] == "umap":
            raise MissingExtra("projection='umap' needs umap-learn")
        return fit(model, x, y, **how)

    monkeypatch.setattr(activation_clusters.ActivationClusters, "fit", absent)
    found = lehmann2021._compared("MNIST", run)
    assert asked == [("umap", "kmeans", 60), ("tsne", "kmeans", 60), ("umap", "dbscan", 60)]
    assert found["UMAP"] is found["UMAP and DBSCAN"] is None
    assert -1 <= (found["t-SNE"] or -2) <= 1
    published = {p.what: p.value for p in lehmann2021.SHELVED[0].published if "silhouette" in p.what}
    assert list(published) == [f"median silhouette, {n}" for n in ("principal components", *found)]


def scored(monkeypatch: pytest.MonkeyPatch, rates: dict[str, tuple[float, ...]], right: dict[str, float]) -> None:
    """Networks that are right so often and whose test images are flagged so often at the three thresholds."""

    class Fixed:
        def __init__(self, name: str) -> None:
            self.name = name

        def fractions(self, x: torch.Tensor) -> torch.Tensor:  # 1 n 2
            at = torch.arange(len(x)) / len(x)
            score = torch.full((len(x),), 0.5)
            for t, rate in reversed(list(zip(lehmann2021.THRESHOLDS, rates[self.name], strict=True))):
                score[at < rate] = t
            return torch.stack([score, 0 * score], 1)[None]

    data = {"test": Whole(torch.zeros(1000, 1, 2, 2), torch.zeros(1000).long())}
    net = lehmann2021._Net(nn.Identity(), (), data)
    monkeypatch.setattr(lehmann2021, "TESTED", 1000)
    monkeypatch.setattr(lehmann2021, "_net", lambda *a: net)
    monkeypatch.setattr(lehmann2021, "_clusters", lambda name, flat, seed, device: Fixed(name))
    monkeypatch.setattr(
        lehmann2021,
        "_accuracies",
        lambda name, run: [(np.arange(1000) < 1000 * right[name]).astype(float)] * lehmann2021.SEEDS[name],
    )


@pytest.mark.parametrize(
    ("cifar", "accuracy", "verdict"),
    [
        ((0.05, 0.2, 0.6), 0.92, "holds"),
        ((0.05, 0.2, 0.21), 0.92, "fails"),  # they grow more on MNIST
        ((0.05, 0.2, 0.35), 0.92, "cannot tell"),  # more than on MNIST, and our factor alone would decide
        ((0.05, 0.2, 0.6), 0.85, "cannot tell"),  # a network unlike print's
    ],
)
def test_the_verdict_on_false_alarms(
    cifar: tuple[float, ...], accuracy: float, verdict: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    scored(monkeypatch, {"MNIST": (0.04, 0.05, 0.06), "CIFAR-10": cifar}, {"MNIST": 0.99, "CIFAR-10": accuracy})
    claim = next(c for c in lehmann2021.SHELVED if c.name == "false-alarms")
    assert judged(claim, lehmann2021.false_alarms(run)).verdict == verdict


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    forget()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        lehmann2021.detects(run)
