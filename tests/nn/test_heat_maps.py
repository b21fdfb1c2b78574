"""Key points as bumps: where they are, how high, and which are left out."""

from __future__ import annotations

import pytest
import torch

from assay.errors import ShapeError
from assay.nn.heat_maps import heat_maps

POINTS = torch.rand(3, 14, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([32.0, 16.0])
SURE = torch.rand(3, 14, generator=torch.Generator().manual_seed(1))


def test_a_bump_lies_where_the_point_is_and_is_as_high_as_it_is_sure() -> None:
    whole = heat_maps(torch.tensor([[[20.5, 7.5]]]), torch.tensor([[0.7]]), (32, 16), (32, 16))
    assert whole.shape == (1, 1, 32, 16)
    assert divmod(int(whole.argmax()), 16) == (20, 7)
    assert float(whole.max()) == pytest.approx(0.7)
    assert float(whole[0, 0, 21, 7]) == pytest.approx(0.7 * 2.718281828**-0.5)
    small = heat_maps(torch.tensor([[[20.5, 7.5]]]), torch.tensor([[0.7]]), (32, 16), (8, 4))
    assert divmod(int(small.argmax()), 4) == (5, 1)


def test_a_bound_of_0_keeps_all_points_and_one_above_all_none() -> None:
    def kept(bound: float) -> torch.Tensor:
        return (heat_maps(POINTS, SURE, (32, 16), (8, 4), at_least=bound).amax((2, 3)) > 0).sum(1)

    assert kept(0.0).tolist() == [14, 14, 14]
    assert kept(float(SURE.max()) + 0.01).tolist() == [0, 0, 0]
    assert kept(0.2).tolist() == (SURE >= 0.2).sum(1).tolist()
    edge = heat_maps(POINTS, SURE, (32, 16), (8, 4), at_least=float(SURE[0, 0]))
    assert float(edge[0, 0].max()) > 0  # as sure as the bound is sure enough


def test_shapes_that_do_not_fit_are_told() -> None:
    with pytest.raises(ShapeError, match="n q 2 and n q"):
        heat_maps(POINTS, SURE[:, :3], (32, 16), (8, 4))
