"""Relations of places, stripes, key points: what permutes with what, what covers what, and what is left of nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.nn.heat_maps import heat_maps
from assay.nn.sape import PoseFusion, RelationAttention, Sape, relations, stacked, stripes


@pytest.fixture
def a() -> torch.Tensor:
    return torch.randn(3, 16, 6, 2, generator=torch.Generator().manual_seed(0))


def m_of(attention: RelationAttention, a: torch.Tensor) -> torch.Tensor:
    return relations(attention.gives(a).flatten(2), attention.takes(a).flatten(2))


def test_places_in_another_order_give_rows_and_columns_in_that_order(a: torch.Tensor) -> None:
    attention = RelationAttention(16, (6, 2), 4).eval()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    moved = a.flatten(2)[:, :, order].reshape(a.shape)
    m = m_of(attention, a)
    assert_close(m_of(attention, moved), m[:, order][:, :, order])
    assert not torch.allclose(m, m.transpose(1, 2))


def test_the_same_weights_both_ways_make_relations_symmetric(a: torch.Tensor) -> None:
    attention = RelationAttention(16, (6, 2), 4).eval()
    attention.takes.load_state_dict(attention.gives.state_dict())
    m = m_of(attention, a)
    assert_close(m, m.transpose(1, 2))


def test_a_place_is_told_its_row_and_then_its_column() -> None:
    m = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(2))
    s = stacked(m)
    assert s.shape == (2, 8, 4)
    assert_close(s[1, :, 2], torch.cat([m[1, 2], m[1, :, 2]]))
    u, v = torch.rand(2, 3, 4), torch.rand(2, 3, 4)
    assert_close(relations(u, v)[1, 0, 3], u[1, :, 0] @ v[1, :, 3])


def test_attention_is_one_channel_between_0_and_1(a: torch.Tensor) -> None:
    attention = RelationAttention(16, (6, 2), 4)
    gate = attention(a)
    assert gate.shape == (3, 1, 6, 2)
    assert bool(((gate > 0) & (gate < 1)).all())
    with pytest.raises(ShapeError, match=r"maps of \(6, 2\)"):
        attention(a[:, :, :4])
    with pytest.raises(AssayError, match="reduced 32 times"):
        RelationAttention(16, (6, 2), 32)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_stripes_cover_the_map_once(a: torch.Tensor, count: int) -> None:
    parts = stripes(a, count)
    assert len(parts) == count
    assert_close(torch.cat(parts, 2), a)
    rows = [part.shape[2] for part in parts]
    assert max(rows) - min(rows) <= 1
    with pytest.raises(AssayError, match="1 to 6"):
        stripes(a, 7)


def test_one_stripe_is_the_whole(a: torch.Tensor) -> None:
    net = Sape(nn.Identity(), 16, (6, 2), count=1, reduction=4).eval()
    seen = net(a, torch.zeros(3, 14, 6, 2))
    assert_close(seen.stripes[0], net.attend(a).mean((2, 3)))
    three = Sape(nn.Identity(), 16, (6, 2), count=3, reduction=4).eval()
    assert_close(torch.stack(three(a, torch.zeros(3, 14, 6, 2)).stripes).mean(0), three.attend(a).mean((2, 3)))
    whole = three(a, torch.zeros(3, 14, 6, 2)).descriptor()
    assert whole.shape == (3, 16 + 3 * 16 + 16)
    assert_close(whole.square().sum(1), torch.full((3,), 3.0))


def test_without_a_point_that_is_sure_the_pose_says_nothing(a: torch.Tensor) -> None:
    points, sure = torch.rand(3, 14, 2) * torch.tensor([32.0, 16.0]), 0.9 * torch.rand(3, 14)
    none = heat_maps(points, sure, (32, 16), (6, 2), at_least=0.95)
    assert not none.any()
    net = Sape(nn.Identity(), 16, (6, 2), reduction=4).eval()
    elsewhere = heat_maps(points.flip(1), sure, (32, 16), (6, 2), at_least=0.95)
    assert_close(net(a, none).pose, net(a, elsewhere).pose)
    attended = net.attend(a)
    nothing = torch.cat([torch.zeros_like(attended), attended], 1)
    assert_close(net(a, none).pose, net.fusion.fused(nothing).mean((2, 3)))
    some = heat_maps(points, sure, (32, 16), (6, 2), at_least=0.0)
    assert not torch.allclose(net(a, some).pose, net(a, none).pose)
    assert_close(net(a, some).spatial, net(a, none).spatial)


def test_a_body_that_is_everywhere_is_no_mask(a: torch.Tensor) -> None:
    fusion = PoseFusion(16)
    assert_close(fusion(a, torch.ones(3, 1, 6, 2)), fusion.fused(torch.cat([fusion.seen(a), a], 1)))
