from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError, ShapeError
from assay.methods.train.class_similarity import (
    Norm,
    class_distances,
    fit_encoder,
    similarity_labels,
    smoothed,
    uniform_labels,
    word_distances,
    word_vectors,
)
from assay.methods.train.fit import fit
from assay.methods.uncertainty import ece


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def apart(k: int, seed: int = 0) -> Tensor:
    """A symmetric matrix of distances, with something on the diagonal as averages over pairs have it."""
    d = draw(k, k, seed=seed)
    return d + d.T


def label_as_printed(distance: list[float], k: int, alpha: float, beta: float) -> list[float]:
    """Eq. 17 and 18 for one class in plain Python, the z-score over the other classes."""
    others = [d for j, d in enumerate(distance) if j != k]
    mean = sum(others) / len(others)
    sd = math.sqrt(sum((d - mean) ** 2 for d in others) / len(others))
    raw = [0.0 if j == k else math.exp(-beta * (d - mean) / sd) for j, d in enumerate(distance)]
    return [(1 - alpha) * (j == k) + alpha * r / sum(raw) for j, r in enumerate(raw)]


@settings(deadline=None, max_examples=15)
@given(k=st.integers(3, 8), alpha=st.floats(0, 0.9), beta=st.floats(0, 6), seed=st.integers(0, 99))
def test_labels_are_the_printed_ones(k: int, alpha: float, beta: float, seed: int) -> None:
    d = apart(k, seed)
    labels = similarity_labels(d, alpha=alpha, beta=beta)
    want = [label_as_printed(row, i, alpha, beta) for i, row in enumerate(d.tolist())]
    assert_close(labels, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    assert_close(labels.sum(1), torch.ones(k, dtype=torch.float64))
    assert (labels.diagonal() == 1 - alpha).all()


def test_the_nearer_class_gets_more_and_the_diagonal_is_not_read() -> None:
    d = apart(6)
    labels = similarity_labels(d, alpha=0.1, beta=2)
    other = ~torch.eye(6, dtype=torch.bool)
    away, mass = d[other].view(6, 5), labels[other].view(6, 5)
    assert torch.equal(away.argsort(1), mass.argsort(1, descending=True))
    assert_close(mass.sum(1), torch.full((6,), 0.1, dtype=torch.float64))
    assert not torch.allclose(labels, labels.T)  # though the distances are symmetric
    assert_close(similarity_labels(d + 100 * torch.eye(6), alpha=0.1, beta=2), labels)


def test_beta_runs_from_uniform_to_the_nearest_class() -> None:
    d = apart(5)
    flat = similarity_labels(d, alpha=0.2, beta=0)
    assert_close(flat[~torch.eye(5, dtype=torch.bool)], torch.full((20,), 0.05, dtype=torch.float64))
    sharp = similarity_labels(d, alpha=0.2, beta=50)
    nearest = (d + 100 * torch.eye(5)).argmin(1)
    assert_close(sharp[torch.arange(5), nearest], torch.full((5,), 0.2, dtype=torch.float64), rtol=0, atol=1e-3)
    alike = similarity_labels(torch.full((4, 4), 0.1 + 0.2), beta=6)  # equally far: nothing to tell them by
    assert_close(alike, similarity_labels(apart(4), beta=0))
    assert_close(similarity_labels(apart(2), alpha=0.1, beta=3), torch.tensor([[0.9, 0.1], [0.1, 0.9]]).double())


@settings(deadline=None, max_examples=15)
@given(scale=st.floats(0.01, 100), shift=st.floats(0, 50), seed=st.integers(0, 20))
def test_affine_changes_of_the_distances_change_nothing(scale: float, shift: float, seed: int) -> None:
    d = apart(5, seed)
    assert_close(similarity_labels(scale * d + shift, beta=3), similarity_labels(d, beta=3), rtol=1e-6, atol=1e-9)


def test_uniform_smoothing_is_weaker_at_equal_alpha() -> None:
    uniform = uniform_labels(10, alpha=0.1)
    assert_close(uniform.sum(1), torch.ones(10, dtype=torch.float64))
    moved = 1 - uniform.diagonal()
    equal = 1 - similarity_labels(apart(10), alpha=0.1, beta=0).diagonal()
    assert_close(moved / equal, torch.full((10,), 0.9, dtype=torch.float64))  # (K-1)/K
    assert_close(
        similarity_labels(apart(10), alpha=0.09, beta=0), uniform, rtol=1e-9, atol=0
    )  # the same labels at alpha (K-1)/K


def test_the_least_cross_entropy_is_that_of_the_label() -> None:
    labels = similarity_labels(apart(4), alpha=0.3, beta=1)
    loss = smoothed(labels)
    z = labels.log().requires_grad_()  # a network that is nothing but its logits
    value = loss(z, torch.arange(4))
    (slope,) = torch.autograd.grad(value, z)
    assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-15)  # and the loss is convex in z
    assert value.item() == pytest.approx(float(-(labels * labels.log()).sum(1).mean()))
    at = torch.zeros(4, 4, dtype=torch.float64)
    for _ in range(400):  # descent gets there
        at = at.requires_grad_()
        at = (at - 20 * torch.autograd.grad(loss(at, torch.arange(4)), at)[0]).detach()
    assert_close(at.softmax(1), labels, rtol=0, atol=1e-4)


def test_the_loss_is_the_sum_over_the_classes() -> None:
    labels, z, y = uniform_labels(3, alpha=0.2), draw(5, 3).float(), torch.tensor([0, 2, 1, 1, 0])
    want = -(labels[y].float() * z.log_softmax(1)).sum(1).mean()
    assert_close(smoothed(labels)(z, y), want)
    assert_close(smoothed(torch.eye(3))(z, y), nn.functional.cross_entropy(z, y))


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_class_distances_are_means_over_all_pairs(norm: Norm) -> None:
    x, y = draw(40, 2, 3), torch.arange(40) % 3
    x[5] = x[6]  # ties in every coordinate
    got = class_distances(x, y, classes=3, norm=norm)
    rows = x.flatten(1)
    for k in range(3):
        for j in range(3):
            pairs = [rows[a] - rows[b] for a in range(40) for b in range(40) if y[a] == k and y[b] == j]
            want = torch.stack([p.abs().sum() if norm == "l1" else p.norm() for p in pairs]).mean()
            assert got[k, j].item() == pytest.approx(want.item(), rel=1e-9)
    assert_close(got, got.T)
    assert (got.diagonal() > 0).all()
    assert_close(class_distances((x + 7).float(), y, classes=3, norm=norm), got, rtol=1e-4, atol=0)


def test_class_distances_in_parts_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.methods.train import class_similarity

    x, y = draw(60, 7), torch.arange(60) % 4
    whole = [class_distances(x, y, classes=4, norm=norm) for norm in ("l1", "l2")]
    monkeypatch.setattr(class_similarity, "CELLS", 500)
    parts = [class_distances(x, y, classes=4, norm=norm) for norm in ("l1", "l2")]
    assert_close(parts, whole)


def test_parity_with_scikit_learn() -> None:
    pairwise = pytest.importorskip("sklearn.metrics").pairwise_distances
    x, y = draw(50, 6).numpy(), np.arange(50) % 2
    for norm in ("l1", "l2"):
        want = pairwise(x[y == 0], x[y == 1], metric=norm).mean()
        got = class_distances(torch.as_tensor(x), torch.as_tensor(y), classes=2, norm=norm)  # type: ignore[arg-type]
        assert got[0, 1].item() == pytest.approx(want, rel=1e-9)


def test_the_autoencoder_gives_the_inputs_back_and_its_codes_know_the_classes() -> None:
    x = 0.1 * draw(300, 1, 4, 4).float()
    y = torch.arange(300) % 3
    x[y == 1, :, :2] += 0.5
    x[y == 2, :, :2] += 0.6  # classes 1 and 2 are alike
    before = torch.random.get_rng_state()
    seen: list[float] = []
    encoder = fit_encoder(
        Arrays(x, y), code=3, width=16, epochs=40, rng=torch.Generator().manual_seed(0), lr=1e-2,
        on_epoch=lambda epoch, loss: seen.append(loss),
    )  # fmt: skip
    assert torch.equal(torch.random.get_rng_state(), before)
    assert seen[-1] < 0.5 * float(x.var())  # what the mean alone leaves
    codes = encoder(x)
    assert codes.shape == (300, 3)
    d = class_distances(codes, y, classes=3)
    assert d[1, 2] < d[0, 1] < d[0, 2] * 1.2
    again = fit_encoder(Arrays(x, y), code=3, width=16, epochs=40, rng=torch.Generator().manual_seed(0), lr=1e-2)
    assert torch.equal(again(x), codes)


def test_word_vectors_are_read_by_name(tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("5 3\nboot 1 0 0\nSneaker 0 1 0\nt-shirt 0 0 1\ntop 0 0 3\nankle 0 2 0\n", encoding="utf-8")
    vectors = word_vectors(file, ["Sneaker", "Ankle boot", "T-shirt/top"])
    assert vectors.tolist() == [[0, 1, 0], [0.5, 1, 0], [0, 0, 2]]
    d = word_distances(vectors)
    assert d[0, 1].item() == pytest.approx(0.5)
    assert_close(d, d.T)
    assert (d.diagonal() == 0).all()
    with pytest.raises(AssayError, match="no word of the class 'Bag'"):
        word_vectors(file, ["Bag", "boot"])
    with pytest.raises(AssayError, match=r"Cannot read word vectors from .*nowhere"):
        word_vectors(tmp_path / "nowhere.txt", ["boot"])
    file.write_text("boot a b c\n", encoding="utf-8")
    with pytest.raises(AssayError, match="could not convert"):
        word_vectors(file, ["boot"])


def test_smoothing_calibrates_an_overfitted_network_and_makes_it_doubt_strangers() -> None:
    """Blobs on a line, so that neighbours are confused and distant classes never: one-hot is worst."""
    errors: dict[str, list[float]] = {"one-hot": [], "uniform": [], "similar": []}
    sure: dict[str, list[float]] = {name: [] for name in errors}
    for seed in range(2):
        rng = torch.Generator().manual_seed(seed)
        y = torch.arange(1400) % 7
        x = torch.randn(1400, 12, generator=rng)
        x[:, 0] += 1.5 * y
        train, new = slice(0, 400), slice(400, None)
        d = class_distances(x[train], y[train], classes=7)
        tables = {
            "one-hot": torch.eye(7),
            "uniform": uniform_labels(7, alpha=0.3),
            "similar": similarity_labels(d, alpha=0.3, beta=2),
        }
        for name, table in tables.items():
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                net = nn.Sequential(nn.Linear(12, 100), nn.ReLU(), nn.Linear(100, 7))
            fit(net, Arrays(x[train], y[train]), epochs=30, lr=0.01, optimiser="adam", schedule="constant",
                loss=smoothed(table.float()), rng=torch.Generator().manual_seed(seed))  # fmt: skip
            with torch.no_grad():
                p = net(x[new]).softmax(1)
                strange = net(6 * torch.randn(500, 12, generator=rng)).softmax(1)
            errors[name].append(ece(p.numpy(), y[new].numpy()))
            sure[name].append(float(strange.amax(1).mean()))
    one_hot, uniform, similar = (np.mean(errors[name]) for name in errors)
    assert one_hot > 1.5 * uniform
    assert uniform >= similar - 0.01
    assert np.mean(sure["one-hot"]) > np.mean(sure["uniform"]) > 0.3
    assert np.mean(sure["one-hot"]) > np.mean(sure["similar"])


def test_what_it_refuses() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        similarity_labels(torch.ones(2, 3))
    with pytest.raises(AssayError, match=r"alpha=1.*\[0, 1\)"):
        similarity_labels(apart(3), alpha=1)
    with pytest.raises(AssayError, match="beta=-1"):
        similarity_labels(apart(3), beta=-1)
    with pytest.raises(AssayError, match="negative, NaN"):
        similarity_labels(torch.full((3, 3), math.nan))
    with pytest.raises(AssayError, match="alpha=-0.1"):
        uniform_labels(3, alpha=-0.1)
    with pytest.raises(ShapeError, match="one row a class"):
        smoothed(torch.ones(3))
    x, y = draw(6, 2), torch.arange(6) % 2
    with pytest.raises(AssayError, match="each of the 3 classes"):
        class_distances(x, y, classes=3)
    with pytest.raises(AssayError, match="'l3'"):
        class_distances(x, y, classes=2, norm="l3")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="n float inputs"):
        class_distances(x.long(), y, classes=2)
    with pytest.raises(AssayError, match="NaN"):
        class_distances(x * math.nan, y, classes=2)
    with pytest.raises(AssayError, match="code=0"):
        fit_encoder(Arrays(x, y), code=0, rng=torch.Generator())
    with pytest.raises(ShapeError, match="one a class"):
        word_distances(torch.ones(3))
