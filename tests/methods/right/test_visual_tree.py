"""Trees found from features: the distance is that of pairs, groups that are there are found, units do not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.right.visual_tree import affinity, class_spreads, visual_tree

NAMES = [str(c) for c in range(9)]
GROUP = [0, 1, 2] * 3


def blocks(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Nine classes in three groups that lie apart, 20 features of each class."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(9).repeat(20)
    centre = 6 * torch.eye(3, 8)[torch.tensor(GROUP)] + torch.randn(9, 8, generator=draw)
    return scale * (centre[y] + 0.5 * torch.randn(180, 8, generator=draw)).view(180, 2, 4), y


def test_the_distance_is_the_mean_over_pairs_symmetric_and_not_zero_to_itself() -> None:
    x, y = blocks()
    ours = class_spreads(x, y, classes=9)
    rows = x.flatten(1).double()
    for i, j in ((0, 1), (4, 4), (8, 2)):
        pairs = torch.cdist(rows[y == i], rows[y == j]).square()
        assert_close(ours[i, j] ** 2, pairs.mean())
    assert_close(ours, ours.T)
    assert float(ours.diagonal().min()) > 0
    alike = affinity(ours)
    assert alike.min() > 0
    assert alike.max() <= 1


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_blocks_are_found_whatever_the_units(scale: float) -> None:
    tree = visual_tree(*blocks(scale), NAMES, groups=3)
    assert tree.group_of().tolist() == GROUP
    assert tree.is_three_levels
    assert visual_tree(*blocks(scale), NAMES).group_of().tolist() == GROUP  # 0.3 of nine is three too


def test_as_published_the_scale_is_one_and_underflows_on_raw_features() -> None:
    assert visual_tree(*blocks(), NAMES, groups=3, as_published=True).group_of().tolist() == GROUP
    np.testing.assert_allclose(affinity(torch.full((2, 2), 3.0), as_published=True), np.exp(-3.0))
    np.testing.assert_allclose(affinity(torch.full((2, 2), 3.0)), np.exp(-1.0))
    with pytest.raises(AssayError, match=r"exp\(-dis / 1\) is 0 from class 0 to all others"):
        visual_tree(*blocks(1e4), NAMES, as_published=True)


def test_what_cannot_be_grouped_is_refused_in_one_line() -> None:
    x, y = blocks()
    for groups in (1, 9):
        with pytest.raises(AssayError, match=f"9 classes cannot have groups={groups}; give a number from 2 to 8"):
            visual_tree(x, y, NAMES, groups=groups)
    with pytest.raises(AssayError, match="2 classes cannot have groups=2"):
        visual_tree(x[:2], y[:2], NAMES[:2])
    with pytest.raises(AssayError, match="there is no input of '4', '8'; give trees=FILE"):
        visual_tree(x[(y != 4) & (y != 8)], y[(y != 4) & (y != 8)], NAMES)
    with pytest.raises(AssayError, match="no input of class 4 of 9"):
        class_spreads(x[y != 4], y[y != 4], classes=9)
    with pytest.raises(AssayError, match="NaN or inf"):
        visual_tree(x * torch.inf, y, NAMES)
    with pytest.raises(ShapeError, match="labels of shape"):
        class_spreads(x, y[:3], classes=9)
