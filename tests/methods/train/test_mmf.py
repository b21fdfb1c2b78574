"""MMF: the loss, what becomes of it at either end of lambda, where heads are put, and milder mistakes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.digits import load_digits
from assay.errors import AssayError, ShapeError
from assay.methods.train.fit import fit, reset
from assay.methods.train.mmf import Mmf, WithHeads, early_stage
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN
from assay.nn.vgg import Vgg16

GROUPS = (torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 2, 2]))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng())


def test_the_loss_is_the_equation() -> None:
    out, y = drawn(5, 4 + 2 + 3), torch.tensor([0, 3, 2, 2, 1])
    by_hand = 0.0
    for i, c in enumerate(y.tolist()):
        terms = ((0.6, out[i, :4], c), (0.1, out[i, 4:6], [0, 0, 1, 1][c]), (0.3, out[i, 6:], [0, 1, 2, 2][c]))
        by_hand += sum(w * float(z.exp().sum().log() - z[t]) for w, z, t in terms) / 5
    assert float(Mmf(GROUPS, (0.1, 0.3)).loss(out, y)) == pytest.approx(by_hand, rel=1e-5)


def test_at_weight_0_it_is_the_flat_loss_and_at_1_the_own_head_gets_no_gradient() -> None:
    y, net = torch.tensor([0, 3, 2, 2, 1]), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    heads = WithHeads(net, "1", (2, 3), drawn(2, 6), rng=rng()).train()
    out = heads(drawn(5, 6))
    assert out.shape == (5, 9)
    assert_close(Mmf(GROUPS, (0.0, 0.0)).loss(out, y), F.cross_entropy(out[:, :4], y))
    torch.autograd.backward(Mmf(GROUPS, (0.4, 0.6)).loss(out, y))
    assert net[2].weight.grad is not None
    assert not net[2].weight.grad.any()
    assert net[0].weight.grad is not None
    assert net[0].weight.grad.any()
    assert_close(heads.eval()(drawn(5, 6)), net(drawn(5, 6)))


def test_a_training_at_weight_0_ends_at_the_flat_networks_weights() -> None:
    data = load_digits()["train"]
    net = reset(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)), rng())
    flat, ours = copy.deepcopy(net), copy.deepcopy(net)
    tree = torch.arange(10) % 2
    options = {"epochs": 1, "lr": 0.1, "weight_decay": 5e-4}
    fit(flat, data, rng=rng(3), **options)  # type: ignore[arg-type]
    for weight in (0.0, 0.2):
        ours = copy.deepcopy(net)
        heads = WithHeads(ours, "2", (2,), drawn(2, 1, 8, 8), rng=rng(9))
        fit(heads, data, rng=rng(3), loss=Mmf([tree], [weight]).loss, **options)  # type: ignore[arg-type]
        heads.close()
        same = torch.allclose(ours[1].weight, flat[1].weight, atol=1e-6)  # type: ignore[arg-type]
        assert same is (weight == 0)
    assert not ours[2]._forward_hooks


def test_heads_read_maps_by_their_means_at_any_stage() -> None:
    net, x = SmallCNN(), drawn(3, 1, 28, 28)
    for stage, wide in (("body.0", 24), ("body.2", 48), ("features", 96)):
        heads = WithHeads(net, stage, (2,), x, rng=rng())
        assert heads.heads[0].weight.shape == (2, wide)
        assert heads.train()(x).shape == (3, 12)
        heads.close()


class Words(nn.Module):
    """Seven words of 16 features, which one layer widens to 64: n 7 -> n 3."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.wide, self.act, self.narrow = (
            nn.Embedding(20, 16),
            nn.Linear(16, 64),
            nn.ReLU(),
            nn.Linear(64, 16),
        )
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.narrow(self.act(self.wide(self.embed(x)))).mean(1))
        return out


def test_sequences_are_averaged_over_their_places_and_not_over_features() -> None:
    net, x = Words(), torch.randint(20, (3, 7), generator=rng())
    for stage, wide in (("embed", 16), ("act", 64), ("narrow", 16)):
        heads = WithHeads(net, stage, (2,), x, rng=rng()).train()
        assert heads.heads[0].weight.shape == (2, wide)
        assert heads(x).shape == (3, 5)
        heads.close()
    heads = WithHeads(net, "embed", (2,), x, rng=rng()).train()
    said = heads(x)[:, 3:]
    heads.close()
    assert_close(said, heads.heads[0](net.embed(x).mean(1)))
    assert early_stage(net, x) == "wide"  # all of one size: the middle
    along = nn.Sequential(nn.Conv1d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(30, 3))
    assert WithHeads(along, "1", (2,), drawn(3, 2, 8), rng=rng()).heads[0].weight.shape == (2, 5)


def test_the_early_stage_is_the_end_of_the_second_size() -> None:
    assert early_stage(SmallCNN(), drawn(2, 1, 28, 28)) == "body.2"
    assert early_stage(ResNet18(width=1), drawn(2, 3, 32, 32)) == "stages.1"
    assert early_stage(Vgg16(width=1), drawn(2, 3, 32, 32)) == "body.4"
    flat = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert early_stage(flat, drawn(2, 1, 2, 2)) == "1"
    even = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.Flatten())
    assert early_stage(even, drawn(2, 1, 4, 4)) == "1"
    with pytest.raises(AssayError, match="Linear has no module inside it that a head could read"):
        early_stage(nn.Linear(2, 2), drawn(2, 2))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(AssayError, match="2 trees and 1 weights"):
        Mmf(GROUPS, (0.1,))
    for bad in ((0.6, 0.6), (-0.1, 0.1), (0.1, float("nan"))):
        with pytest.raises(AssayError, match=f"weights={bad[0]},{bad[1]} are no shares"):
            Mmf(GROUPS, bad)
    with pytest.raises(ShapeError, match=r"shape \(5, 4\) for 4 classes and 5 groups"):
        Mmf(GROUPS, (0.1, 0.1)).loss(drawn(5, 4), torch.zeros(5, dtype=torch.long))
    with pytest.raises(AssayError, match="no module 'bodi'; did you mean"):
        WithHeads(SmallCNN(), "bodi", (2,), drawn(1, 1, 28, 28), rng=rng())


def test_few_digits_and_a_planted_tree_a_smaller_share_of_mistakes_leaves_the_group() -> None:
    """Forty digits to learn from, four times: 0.38 of mistakes, and 0.47 of the flat network's."""
    splits = load_digits()
    x, y = splits["test"].take(np.arange(497))
    group = torch.tensor([0, 1, 1, 1, 1, 0, 0, 1, 0, 1])  # round ones and others
    severe: dict[float, list[float]] = {0.0: [], 0.6: []}
    for weight, shares in severe.items():
        for seed in range(4):
            few = type(splits["train"])(
                *(part[seed * 40 : seed * 40 + 40] for part in (splits["train"].x, splits["train"].labels)),
                splits["train"].classes,
            )
            net = reset(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), rng(seed))
            heads = WithHeads(net, "2", (2,), x[:2], rng=rng(9))
            fit(heads, few, epochs=60, lr=0.1, batch=40, rng=rng(seed), loss=Mmf([group], [weight]).loss)
            said = net.eval()(x).argmax(1)
            wrong = said != y
            shares.append(float((group[said] != group[y])[wrong].float().mean()))
    assert np.mean(severe[0.6]) < np.mean(severe[0.0]) - 0.05
