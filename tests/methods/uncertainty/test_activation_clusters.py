from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import silhouette_score
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, MissingExtra, ShapeError
from assay.methods.attack.fgsm import fgsm
from assay.methods.uncertainty import activation_clusters
from assay.methods.uncertainty.activation_clusters import ActivationClusters, Clustering, Layer, Projection, silhouettes
from assay.methods.uncertainty.detection import auroc, detection_rate

LAYERS = ("1", "3", "4")  # after each ReLU, and the output
THRESHOLDS = (-0.1, 0.0, 0.01, 0.05, 0.1, 0.3, 0.7, 0.99, 1.0)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Case(NamedTuple):
    model: nn.Sequential
    x: Tensor
    y: Tensor
    new: Tensor
    truth: Tensor
    noise: Tensor


@pytest.fixture(scope="module")
def case() -> Case:
    pixels, labels = load_digits(return_X_y=True)
    rng = torch.Generator().manual_seed(0)
    order = torch.randperm(len(pixels), generator=rng)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(15):
        for rows in torch.split(torch.randperm(1200, generator=rng), 100):
            adam.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x[rows]), y[rows]))
            adam.step()
    adam.zero_grad()
    return Case(model.eval(), x[:1200], y[:1200], x[1200:], y[1200:], torch.rand(400, 64, generator=rng))


@pytest.fixture(scope="module")
def fitted(case: Case) -> ActivationClusters:
    return ActivationClusters.fit(case.model, case.x, case.y, layers=LAYERS, rng=generator())


@pytest.fixture(scope="module", autouse=True)
def few_clusters() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activation_clusters, "CLUSTERS", range(2, 12))  # a part of the time
        yield


def test_the_score_is_the_published_rule_at_every_threshold(case: Case, fitted: ActivationClusters) -> None:
    for x in (case.new[:60], case.noise[:60]):
        score = fitted.score(x)
        for t in THRESHOLDS:
            sets = [{c for c in range(10) if row[c]} for row in fitted.class_sets(x, t).flatten(0, 1)]
            by_hand = [not set.intersection(*sets[i :: len(x)]) for i in range(len(x))]  # eq. 3 and 4
            assert fitted.detect(x, t).tolist() == by_hand
            assert ((score <= t) == fitted.detect(x, t)).all()
        assert (score >= 0).all()
        assert (score <= 1).all()


def test_detection_rises_with_the_threshold_and_with_every_layer(case: Case, fitted: ActivationClusters) -> None:
    for x in (case.x, case.new, case.noise):
        score = fitted.score(x)
        rates = detection_rate(score, THRESHOLDS)
        assert (rates.diff() >= 0).all()
        assert rates[0] == 0  # t < 0 flags nothing
        assert rates[-1] == 1  # t >= 1 flags everything
        for left_out in range(3):
            fewer = ActivationClusters(case.model, fitted.layers[:left_out] + fitted.layers[left_out + 1 :], 256)
            assert (fewer.score(x) >= score).all()  # input by input, hence in every rate


def test_fractions_are_those_of_the_training_inputs(case: Case, fitted: ActivationClusters) -> None:
    for i, layer in enumerate(fitted.layers):
        assert_close(layer.fractions.sum(1), torch.ones(len(layer.centres), dtype=torch.float64))
        rows = fitted.fractions(case.x)[i]  # n c
        for row in torch.unique(rows, dim=0):
            same = (rows == row).all(1)
            counts = torch.bincount(case.y[same], minlength=10)
            assert_close(row, counts / counts.sum(), check_dtype=False)


@pytest.mark.parametrize("projection", ["lda", "pca"])
def test_no_training_input_is_flagged_as_t_goes_to_zero(case: Case, projection: Projection) -> None:
    fitted = ActivationClusters.fit(
        case.model, case.x[:600], case.y[:600], layers=("3", "4"), rng=generator(), projection=projection
    )
    true = fitted.fractions(case.x[:600])[:, torch.arange(600), case.y[:600]]  # l n
    assert (true > 0).all()  # its own class is in its cluster, at every layer
    assert not fitted.detect(case.x[:600], 0.0).any()


def test_early_layers_have_the_larger_sets(case: Case) -> None:
    # not so with discriminants, which part the classes as well as a layer allows
    fitted = ActivationClusters.fit(
        case.model, case.x, case.y, layers=("1", "4"), rng=generator(), projection="pca", batch=400
    )
    sizes = fitted.class_sets(case.x, 0.05).sum(2).double().mean(1)  # l
    assert sizes[0] > sizes[-1]
    assert 1 <= sizes[-1] < 5


def test_equally_mixed_classes_are_flagged_from_one_over_c_on() -> None:
    mixed = Layer("0", torch.eye(2), torch.zeros(2), torch.eye(2), torch.zeros(1, 2), torch.full((1, 4), 0.25), 0.0)
    clusters = ActivationClusters(nn.Sequential(nn.Identity()).eval(), (mixed,), 256)
    assert not clusters.detect(torch.rand(5, 2), 0.249).any()
    assert clusters.detect(torch.rand(5, 2), 0.25).all()


def test_noise_and_attacks_are_found_more_often_than_new_inputs(case: Case, fitted: ActivationClusters) -> None:
    attacked = fgsm(case.model, case.new, case.truth, radius=0.25).x
    alarms, noise, broken = (float(fitted.detect(x).double().mean()) for x in (case.new, case.noise, attacked))
    assert alarms < 0.15
    assert noise > alarms + 0.1
    assert broken > alarms + 0.1
    assert auroc(fitted.score(case.new), fitted.score(case.noise)) > 0.65


def test_an_input_far_from_every_cluster_can_pass() -> None:
    near = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    layer = Layer("0", torch.eye(2), torch.zeros(2), torch.eye(2), near, torch.eye(2, dtype=torch.float64), 0.0)
    clusters = ActivationClusters(nn.Sequential(nn.Identity()).eval(), (layer,), 256)
    assert clusters.score(torch.tensor([[1e6, 0.0]])).item() == 1  # k-means has no outside: known, not hidden


def test_the_same_seed_gives_the_same_answers(case: Case, fitted: ActivationClusters) -> None:
    again = ActivationClusters.fit(case.model, case.x, case.y, layers=LAYERS, rng=generator())
    assert (again.score(case.noise) == fitted.score(case.noise)).all()
    assert (fitted.score(case.noise) == fitted.score(case.noise)).all()
    assert all(p.grad is None for p in case.model.parameters())
    assert all(not m._forward_hooks for m in case.model.modules())


def test_maps_are_flattened_and_a_part_of_the_inputs_gives_the_axes(
    digits_model: tuple[nn.Module, dict[str, tuple[np.ndarray, np.ndarray]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = digits_model
    x, y = (torch.tensor(a) for a in data["train"])
    monkeypatch.setattr(activation_clusters, "ROWS", 300)
    monkeypatch.setattr(activation_clusters, "SAMPLE", 400)
    fitted = ActivationClusters.fit(model, x, y, layers=("2", "4"), rng=generator(), batch=128)
    assert fitted.layers[0].weight.shape == (512, 50)
    assert fitted.layers[1].weight.shape == (10, 10)
    assert not fitted.detect(x, 0.0).any()
    with pytest.raises(ShapeError, match="Layer '2' gave 32 numbers an input, 512 in fitting"):
        fitted.layers[0].cluster(x[:3, :, :4].reshape(3, -1))


def test_two_classes_have_one_discriminant(case: Case) -> None:
    pair = case.y < 2
    fitted = ActivationClusters.fit(case.model, case.x[pair], case.y[pair], layers=("3",), rng=generator())
    assert fitted.layers[0].centres.shape[1] == 1
    assert not fitted.detect(case.x[pair], 0.0).any()


def test_silhouettes_are_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = generator()
    points = np.concatenate([rng.normal(c, 0.5, (30, 2)) for c in (0, 2, 5)])
    labelings = [rng.integers(0, k, 90) for k in (2, 3, 7)] + [np.arange(90) // 30]
    labelings.append(np.where(np.arange(90) == 0, 2, labelings[0]))  # one point alone in its cluster
    monkeypatch.setattr(activation_clusters, "TABLE", 900)  # ten rows at a time
    want = [silhouette_score(points, labels) for labels in labelings]
    np.testing.assert_allclose(silhouettes(points, labelings), want, atol=1e-10)


def test_umap_is_asked_for_by_name_or_runs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name == "umap":
            raise ImportError(name)
        return plain(name, package)

    monkeypatch.setattr(activation_clusters, "import_module", without)
    with pytest.raises(MissingExtra, match=r"pip install 'assay\[clusters\]'"):
        ActivationClusters.fit(case.model, case.x, case.y, layers=("4",), rng=generator(), projection="umap")


def test_with_umap_the_same_input_gets_the_same_answer(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("numba").config, "DISABLE_JIT", 1)  # 20 s of compiling for 80 points
    pytest.importorskip("umap")
    plain = activation_clusters._umap
    monkeypatch.setattr(activation_clusters, "_umap", lambda seed: plain(seed).set_params(n_epochs=30, n_neighbors=6))
    x, y = case.x[:80], case.y[:80]
    fitted = ActivationClusters.fit(case.model, x, y, layers=("4",), rng=generator(), projection="umap", batch=500)
    new = case.new[:60]
    assert torch.get_num_threads() == 1  # Numba sets those of the whole process
    assert (fitted.score(new) == fitted.score(new)).all()
    assert torch.get_num_threads() == 1
    assert fitted.score(new).unique().numel() > 2
    assert fitted.detect(x, 0.0).double().mean() < 0.05  # transform puts training inputs almost where they were


@pytest.mark.parametrize("projection", ["lda", "tsne"])
@pytest.mark.parametrize("clustering", ["kmeans", "dbscan"])
def test_every_pair_of_projection_and_clustering_knows_its_own(
    case: Case, projection: Projection, clustering: Clustering
) -> None:
    few = 120 if projection == "tsne" else 300
    x, y, layers = case.x[:few], case.y[:few], ("4",) if projection == "tsne" else ("3", "4")
    fitted = ActivationClusters.fit(
        case.model, x, y, layers=layers, rng=generator(), projection=projection, clustering=clustering
    )
    if projection == "lda":  # t-SNE puts noise where some training input is: whether it then stands out is luck
        assert auroc(fitted.score(case.new), fitted.score(case.noise)) > 0.5  # a coin
    assert (fitted.score(case.new) == fitted.score(case.new)).all()
    own = fitted.fractions(x)[:, torch.arange(few), y]  # l n
    inside = own > 0
    assert inside.all() if clustering == "kmeans" else inside.double().mean() > 0.5
    for layer in fitted.layers:
        rows = layer.fractions.sum(1)
        want = torch.ones(len(rows), dtype=torch.float64)
        want[-1] = float(clustering == "kmeans")  # the last one of DBSCAN is the outside
        assert_close(rows, want)
        assert -1 < layer.silhouette < 1


def test_with_dbscan_what_lies_far_from_every_cluster_belongs_to_none() -> None:
    rng = generator()
    y = torch.arange(120) % 3
    x = torch.tensor(rng.normal(0, 0.1, (120, 2)) + np.array([[0, 0], [3, 0], [0, 3]])[y], dtype=torch.float32)
    net = nn.Sequential(nn.Identity()).eval()
    fitted = ActivationClusters.fit(net, x, y, layers=("0",), rng=generator(), projection="pca", clustering="dbscan")
    (layer,) = fitted.layers
    assert len(layer.fractions) == 4  # three and the outside
    assert layer.silhouette > 0.8
    assert_close(fitted.score(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])), torch.ones(3, dtype=torch.float64))
    assert (fitted.score(torch.tensor([[1.5, 1.5], [1e6, 0.0]])) == 0).all()
    cores, member, eps, _ = activation_clusters._dbscan(layer.centres.numpy(), rng)
    assert int(member.max()) == 2
    assert eps > 0
    assert len(cores) <= len(layer.centres)
    with pytest.raises(AssayError, match="no two clusters"):
        activation_clusters._dbscan(np.zeros((50, 2)), rng)


def test_bad_input_gets_one_line(case: Case) -> None:
    def fit(x: Tensor = case.x, y: Tensor = case.y, layers: tuple[str, ...] = ("4",), **how: Any) -> None:
        ActivationClusters.fit(case.model, x, y, layers=layers, rng=generator(), **how)

    cases: list[tuple[Callable[[], None], str]] = [
        (lambda: fit(y=0 * case.y), "All 1200 training inputs are of class 0"),
        (lambda: fit(x=case.x[:10], y=case.y[:10]), "more than 11 inputs"),
        (lambda: fit(y=case.y[1:]), r"labels of shape \(1199,\)"),
        (lambda: fit(layers=()), "no layers"),
        (lambda: fit(layers=("last",)), "no module 'last'"),
        (lambda: fit(projection="som"), "no projection 'som'; choose one of pca, lda, umap, tsne"),
        (lambda: fit(clustering="ward"), "no clustering 'ward'; choose one of kmeans, dbscan"),
        (lambda: fit(x=case.x * float("nan")), "gave NaN or inf on training inputs"),
    ]
    for call, words in cases:
        with pytest.raises(AssayError, match=words):
            call()
    assert get_args(Projection) == ("pca", "lda", "umap", "tsne")


@pytest.mark.parametrize("projection", ["pca", "lda"])
def test_units_that_never_fire_leave_no_axis_behind(case: Case, projection: Projection) -> None:
    first = nn.Linear(64, 64)
    first.load_state_dict(case.model[0].state_dict())
    with torch.no_grad():
        first.bias[:40] = -1e3
    model = nn.Sequential(first, *case.model[1:]).eval()
    found = ActivationClusters.fit(model, case.x, case.y, layers=("1",), projection=projection, rng=generator())
    assert found.score(case.new).isfinite().all()
