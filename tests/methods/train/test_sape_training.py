"""Training of three branches: key points under a block, losses by hand, and weights that are given or learned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from assay.data.figures import figures
from assay.errors import ShapeError
from assay.methods.train.sape import SHY, SURE, behind, look, losses_of, teach
from assay.nn.sape import Sape


def network() -> Sape:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4))
    return Sape(backbone, 8, (8, 4), reduction=4)


@pytest.fixture(scope="module")
def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    data = figures(range(4), 4, seed=0)
    x, y, points = (torch.from_numpy(part) for part in (data.x, data.labels, data.points))
    return x, y, points


def test_points_under_the_block_are_not_sure(drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    x, _, points = drawn
    where = torch.rand(16, 2, generator=torch.Generator().manual_seed(0))
    hidden, sure = behind(x, points, 0.75, where, 0.25)
    for n in range(16):
        for q in range(14):
            r, c = (int(v // 1) for v in points[n, q])
            inside = 0 <= r < 32 and 0 <= c < 16
            under = inside and bool((hidden[n, :, r, c] == 0.25).all())
            assert float(sure[n, q]) == pytest.approx(SURE if inside and not under else SHY)
    assert 0 < float((sure < 0.2).float().mean()) < 0.6
    assert behind(x, points, 1.0, where, 0.25)[0].equal(x)
    with pytest.raises(ShapeError, match="give n q 2"):
        behind(x, points[:3], 0.75, where, 0.25)


def test_shy_points_are_left_out_of_the_pose_alone(drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    x, _, points = drawn
    net = network().eval()
    shy = torch.full((16, 14), SHY)
    moved = points.roll(1, 0)
    assert_close(look(net, x, points, shy).pose, look(net, x, moved, shy).pose)
    assert not torch.allclose(look(net, x, points, shy, 0.0).pose, look(net, x, moved, shy, 0.0).pose)


def test_losses_are_cross_entropies_and_stripes_add_up(drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    x, y, points = drawn
    net = network().eval()
    seen = look(net, x, points, torch.full((16, 14), SURE))
    heads = [nn.Linear(8, 4) for _ in range(5)]
    spatial, parts, pose = losses_of(seen, heads, y)
    assert_close(spatial, F.cross_entropy(heads[0](seen.spatial), y))
    assert_close(parts, sum(F.cross_entropy(heads[1 + p](seen.stripes[p]), y) for p in range(3)))
    assert_close(pose, F.cross_entropy(heads[4](seen.pose), y))


def test_weights_given_stay_and_those_learned_turn_to_what_is_met(
    drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    x, y, points = drawn
    done = [
        teach(network(), x, y, points, weights=w, steps=6, each=2, lr=0.05, rng=torch.Generator().manual_seed(0))
        for w in ((1.0, 0.0, 0.0), None)
    ]
    assert done[0].tolist() == [1.0, 0.0, 0.0]
    assert done[1][1] < min(done[1][0], done[1][2])  # three stripes cost three times as much
    alone = network()
    before = [p.detach().clone() for p in alone.fusion.parameters()]
    teach(alone, x, y, points, weights=(1.0, 0.0, 0.0), steps=2, each=2, lr=0.05, rng=torch.Generator().manual_seed(0))
    assert all(torch.equal(p, q) for p, q in zip(alone.fusion.parameters(), before, strict=True))
    assert not alone.training
