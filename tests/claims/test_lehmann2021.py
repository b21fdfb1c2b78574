from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from assay.claim import Evidence
from assay.claims import lehmann2021
from assay.data import beyond, fashion
from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError, MissingExtra
from assay.finding import Measure
from assay.methods.uncertainty import activation_clusters
from assay.run import Budget, Run

KEPT = ("_net", "_clusters", "_sets")


class FirstTwo:
    """The first two dimensions, in place of UMAP."""

    def fit_transform(self, wide: NDArray[np.float64]) -> NDArray[np.float64]:
        return wide[:, :2]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data sets are a few images of the bundled sample, and every effort is small."""
    for name, value in {
        "EPOCHS": {"MNIST": 1, "CIFAR-10": 1},
        "BATCH": {"MNIST": 20, "CIFAR-10": 20},
        "MAPS": (2, 2, 4),
        "WIDTH": 1,
        "CLUSTERED": 90,
        "TESTED": 40,
        "COMPARED": 60,
    }.items():
        monkeypatch.setattr(lehmann2021, name, value)
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
    assert lehmann2021._net.cache_info().misses == 2  # both studies share the network on MNIST


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


def share(hits: int, n: int = 1000) -> Measure:
    return Measure.proportion("", np.arange(n) < hits, better="higher")


def test_verdicts_look_at_whole_intervals() -> None:
    assert lehmann2021._above(share(300), share(100)) == "holds"
    assert lehmann2021._above(share(100), share(300)) == "fails"
    assert lehmann2021._above(share(110), share(100)) == "cannot tell"
    assert lehmann2021._grows(share(100), share(110)) == "fails"  # less than twice
    assert lehmann2021._grows(share(100), share(300)) == "holds"
    assert lehmann2021._all("holds", "holds") == "holds"
    assert lehmann2021._all("holds", "cannot tell") == "cannot tell"
    assert lehmann2021._all("cannot tell", "fails") == "fails"


def test_the_verdict_on_false_alarms(tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def verdict(*cifar: float) -> str:
        rates = {"MNIST": (0.04, 0.05, 0.06), "CIFAR-10": cifar}

        def flagged(name: str, score: torch.Tensor, t: float) -> Measure:
            data = "CIFAR-10" if "CIFAR" in name else "MNIST"
            hits = round(10_000 * rates[data][lehmann2021.THRESHOLDS.index(t)])
            return Measure.proportion(name, np.arange(10_000) < hits, better="lower")

        monkeypatch.setattr(lehmann2021, "_flagged", flagged)
        return lehmann2021.false_alarms(run).verdict

    assert verdict(0.05, 0.2, 0.6) == "holds"
    assert verdict(0.05, 0.2, 0.21) == "fails"
    assert verdict(0.05, 0.2, 0.4) == "cannot tell"


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    forget()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        lehmann2021.detects(run)
