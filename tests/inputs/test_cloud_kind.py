"""Clouds: turns and scales in closed form, lost points replaced by points that are left, and clusters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.inputs import SEVERITIES, Cloud
from assay.inputs.cloud import dropped, occluded, scaled, strayed, turned

ROOMY = Cloud(40, ((-9.0, 9.0),) * 3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(n: int, p: int = 40) -> Tensor:
    return torch.randn(n, p, 3, generator=seeded(2), dtype=torch.float64).clamp(-3, 3)


@pytest.mark.parametrize("up", [0, 1, 2])
def test_a_turn_keeps_heights_middles_and_distances(up: int):
    x = points(12)
    y = turned(x, 35.0, seeded(), up=up)
    assert_close(y[..., up], x[..., up])
    assert_close(y.mean(1), x.mean(1))
    assert_close(torch.cdist(y, y), torch.cdist(x, x), atol=1e-6, rtol=0)
    level = [axis for axis in range(3) if axis != up]
    a, b = ((z - z.mean(1, keepdim=True))[..., level] for z in (x, y))
    cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
    assert_close(cosine, torch.full_like(cosine, math.cos(math.radians(35))))
    way = (a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]).sign()
    assert (way == way[:, :1]).all()  # a cloud turns as one
    assert len(way[:, 0].unique()) == 2  # some left, some right


def test_a_scale_is_about_the_middle():
    x = points(20)
    y = scaled(x, 0.2, seeded())
    ratio = (y - y.mean(1, keepdim=True)).norm(dim=-1) / (x - x.mean(1, keepdim=True)).norm(dim=-1)
    assert set((10 * ratio).round().unique().tolist()) == {8.0, 12.0}
    assert_close(y.mean(1), x.mean(1))


@pytest.mark.parametrize("change", [dropped, occluded])
def test_lost_points_are_replaced_by_points_that_are_left(change):
    x = points(10)
    for share in (0.1, 0.5, 0.99):
        y = change(x, share, seeded())
        lost = min(39, round(share * 40))
        for before, after in zip(x, y, strict=True):
            known = {tuple(p) for p in before.tolist()}
            left = {tuple(p) for p in after.tolist()}
            assert left <= known
            assert len(known) - len(left) == lost
            assert int((before != after).any(1).sum()) == lost  # the others stay where they are
    assert torch.equal(change(x[:, :1], 0.5, seeded()), x[:, :1])  # the last point is never lost


def test_what_is_hidden_lies_beyond_a_plane():
    """No point that is left lies inside the hull's cut: some direction parts the lost from the others."""
    x = points(6)
    y = occluded(x, 0.35, seeded(3))
    way = torch.randn(6, 3, 1, generator=seeded(3), dtype=torch.float64)  # the direction that it drew
    along = (x @ way)[..., 0]
    moved = (x != y).any(-1)
    for row in range(6):
        assert along[row][moved[row]].min() >= along[row][~moved[row]].max()


def test_outliers_are_anywhere_in_the_box():
    x = torch.zeros(200, 50, 3)
    y = strayed(x, 0.2, seeded(), low=torch.tensor([-1.0, 2.0, 0.0]), span=torch.tensor([2.0, 1.0, 5.0]))
    moved = (y != 0).any(-1)
    assert 0.18 < moved.float().mean() < 0.22
    assert_close(y[moved].mean(0), torch.tensor([0.0, 2.5, 2.5]), atol=0.15, rtol=0)


def test_clusters_are_near_their_centres_and_points_that_coincide_are_one():
    x = torch.cat([torch.randn(20, 3, generator=seeded(k)) * 0.01 + 3 * k for k in range(2)])
    features = ROOMY.features(x, count=2)
    assert len(features) == 2
    assert len(features.groups[:20].unique()) == len(features.groups[20:].unique()) == 1
    assert len(ROOMY.features(torch.ones(40, 3), count=5)) == 1
    assert len(ROOMY.features(x, "points")) == 40
    assert torch.equal(ROOMY.features(x, "points").positions(1), torch.tensor([3, 4, 5]))
    with pytest.raises(AssayError, match="cut into clusters or points"):
        ROOMY.features(x, "patches")  # type: ignore[arg-type]


def test_how_a_cloud_is_shown():
    x = points(1)[0]
    shown = Cloud(40, ((-9.0, 9.0), (-8.0, 8.0), (-7.0, 7.0)), up=1).show(x)
    assert (shown.x_label, shown.y_label, shown.x_range, shown.y_range) == ("x", "y", (-9.0, 9.0), (-8.0, 8.0))
    assert shown.x == tuple(x[:, 0].tolist())
    assert shown.y == tuple(x[:, 1].tolist())


def test_clouds_from_arrays_and_bad_ones():
    x = points(3)
    kind = Cloud.of(x)
    assert kind.points == 40
    assert kind.box[2] == (float(x[..., 2].min()), float(x[..., 2].max()))
    for name, change in kind.everyday().items():
        for severity in SEVERITIES:
            kind.check(change(x, severity, seeded()))
        assert change(x, 5, seeded()).ne(x).any(), name
    with pytest.raises(ShapeError, match="three numbers a point"):
        Cloud.of(torch.zeros(2, 5, 4))
    with pytest.raises(AssayError, match="vertical axis is 0, 1 or 2"):
        Cloud(4, up=3)
    with pytest.raises(ShapeError, match="at least 1 point"):
        Cloud(0)
    with pytest.raises(AssayError, match="give finite ones"):
        Cloud.of(torch.full((1, 2, 3), math.inf))
