"""The losses that persons are told apart by: zeros, targets, the hardest of a batch by a loop, and a short training."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from assay.data.figures import LEFT, RIGHT, figures
from assay.errors import AssayError, ShapeError
from assay.methods.train.reid import (
    batch_hard,
    matching_loss,
    part_features,
    smoothed_loss,
    smoothed_target,
    symmetric_loss,
    teach,
)
from assay.nn.heat_maps import heat_maps
from assay.nn.parts_net import PartsNet

RNG = torch.Generator().manual_seed(0)


def some(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=RNG)


def test_sides_that_are_alike_or_not_there_cost_nothing() -> None:
    f, g, a, b = some(4, 6, 3), some(4, 6, 3), some(4, 6), some(4, 6)
    assert_close(symmetric_loss(f, f, a, b), torch.zeros(4))
    assert_close(symmetric_loss(f, g, torch.zeros(4, 6), torch.zeros(4, 6)), torch.zeros(4))
    by_hand = sum(
        float(((f[1, i] - g[1, i]) ** 2).sum()) * (1 - abs(float(a[1, i] - b[1, i]))) * float(a[1, i] + b[1, i])
        for i in range(6)
    )
    assert float(symmetric_loss(f, g, a, b)[1]) == pytest.approx(by_hand / 6, rel=1e-5)
    a[:, 2] = b[:, 2] = 0  # one part that nobody saw does not matter
    other = f.clone()
    other[:, 2] += 7
    assert_close(symmetric_loss(other, g, a, b), symmetric_loss(f, g, a, b))


@pytest.mark.parametrize("classes", [2, 5])
def test_smoothed_targets_sum_to_one_and_torch_has_the_same_loss(classes: int) -> None:
    y = torch.arange(7) % classes
    target = smoothed_target(y, classes, 0.1)
    assert_close(target.sum(1), torch.ones(7))
    assert_close(target[torch.arange(7), y], torch.full((7,), 0.9))
    assert_close(smoothed_target(y, classes, 0.0), F.one_hot(y, classes).float())
    assert float(target[0, 1]) == pytest.approx(0.1 / (classes - 1))
    logits = 3 * some(7, classes)
    assert_close(smoothed_loss(logits, y), -(target * logits.log_softmax(1)).sum(1).mean())


def test_the_hardest_of_a_batch_are_those_of_a_loop() -> None:
    f, y = some(9, 4), torch.arange(9) % 3
    total = 0.0
    for i in range(9):
        d = [float((f[i] - f[j]).norm()) for j in range(9)]
        far = max(d[j] for j in range(9) if y[j] == y[i])
        near = min(d[j] for j in range(9) if y[j] != y[i])
        total += max(far - near + 0.3, 0.0)
    assert float(batch_hard(f, y)) == pytest.approx(total / 9, rel=1e-5)
    assert float(batch_hard(10.0 * F.one_hot(y, 3).float(), y)) == 0.0
    same = torch.ones(4, 2, requires_grad=True)
    loss = batch_hard(same, torch.tensor([0, 0, 1, 1]))
    assert float(loss.detach()) == pytest.approx(0.3)
    assert bool(torch.autograd.grad(loss, same)[0].isfinite().all())
    for bad in (torch.zeros(9).long(), torch.arange(9)):
        with pytest.raises(AssayError, match="several classes with at least 2"):
            batch_hard(f, bad)


def test_parts_that_find_themselves_cost_little_and_alike_ones_log_p() -> None:
    parts = torch.eye(5).expand(3, 5, 5)
    assert float(matching_loss(parts, parts)) == pytest.approx(math.log(1 + 4 * math.exp(-10)), rel=1e-3)
    assert float(matching_loss(parts, parts.flip(1))) > 5
    assert float(matching_loss(torch.ones(3, 5, 4), torch.ones(3, 5, 4))) == pytest.approx(math.log(5))


def test_features_of_a_part_are_the_map_weighed_by_its_heat() -> None:
    z, heat = some(2, 3, 4, 2), some(2, 5, 4, 2)
    f, sure = part_features(z, heat)
    assert_close(f[1, 2], (z[1] * heat[1, 2]).mean((1, 2)))
    assert_close(sure[1, 2], heat[1, 2].max())
    with pytest.raises(ShapeError, match="n c h w and n p h w"):
        part_features(z, heat[:, :, :2])


@pytest.fixture(scope="module")
def taught() -> tuple[PartsNet, list[float], torch.Tensor, torch.Tensor]:
    data = figures(range(6), 6, seed=0)
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.labels) + 3  # any numbers
    heat = heat_maps(torch.from_numpy(data.points), torch.ones(36, 14), (32, 16), (8, 4))
    torch.manual_seed(0)
    net = PartsNet(3, (4, 8, 8), (1, 1, 1), alpha=0.02)
    rng = torch.Generator().manual_seed(0)
    losses = teach(net, x, y, steps=20, each=2, lr=1e-2, rng=rng, heat=heat, sides=(LEFT, RIGHT))
    return net, losses, x, y


def test_a_short_training_descends(taught: tuple[PartsNet, list[float], torch.Tensor, torch.Tensor]) -> None:
    net, losses, _, _ = taught
    assert len(losses) == 20
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])
    assert not net.training


def test_matching_and_symmetry_move_the_net_only_with_heat_maps(
    taught: tuple[PartsNet, list[float], torch.Tensor, torch.Tensor],
) -> None:
    _, losses, x, y = taught
    torch.manual_seed(0)
    net = PartsNet(3, (4, 8, 8), (1, 1, 1), alpha=0.02)
    plain = teach(net, x, y, steps=2, each=2, lr=1e-2, rng=torch.Generator().manual_seed(0))
    assert plain[0] < losses[0] - 1  # parts that nobody has told apart cost about log 14
    seen: list[torch.Tensor] = []

    def keep(z: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        seen.append(z)
        return z * 0

    flat = teach(net, x, y, steps=1, each=2, lr=1e-9, rng=torch.Generator().manual_seed(0), augment=keep)
    assert seen[0].shape == (12, 3, 32, 16)
    assert flat[0] > 1.5  # nothing is told apart in black pictures: 2 * 0.3 and about log 6
