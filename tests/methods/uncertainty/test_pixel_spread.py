"""Mean and spread of members: the ambiguity, what copies have, and regions against a flood by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay.errors import ShapeError
from assay.methods.uncertainty.pixel_spread import gain, regions, together


def test_the_mean_is_better_by_the_variance_of_the_members() -> None:
    rng = torch.Generator().manual_seed(0)
    members, target = torch.rand(4, 5, 2, 6, 7, generator=rng), torch.rand(5, 2, 6, 7, generator=rng)
    mean, spread = together(members)
    assert (mean.shape, spread.shape) == ((5, 2, 6, 7), (5, 6, 7))
    seen = gain(members, target)
    assert seen.single - seen.together == pytest.approx(float(members.double().var(0, correction=0).mean()), rel=1e-6)
    assert seen.together <= seen.single
    turned = together(members.flip(0))  # members have no order
    assert_close(turned.mean, mean)
    assert_close(turned.spread, spread)


def test_one_member_and_copies_have_no_spread() -> None:
    one = torch.rand(1, 3, 1, 4, 4)
    assert (together(one).spread == 0).all()
    assert together(one.repeat(5, 1, 1, 1, 1)).spread.max() < 1e-7
    assert gain(one, one[0]).share == 0
    with pytest.raises(ShapeError, match="members, images, channels"):
        together(one[0])


def test_regions_are_pieces_that_touch() -> None:
    spread = np.zeros((6, 8))
    spread[0, 0] = spread[1, 1] = spread[4, 5:8] = 1  # the first two touch at a corner
    first, second = regions(spread, 0.5)
    assert first == (5, 4, 8, 5, 3)
    assert second == (0, 0, 2, 2, 2)
    assert regions(spread, 0.5, least=3) == [first]
    assert regions(spread, 2) == []
