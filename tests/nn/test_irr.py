"""The vote over bands: what it does not depend on, its ties, and what it is blended into."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from assay.data.textured_places import background
from assay.errors import AssayError, ShapeError
from assay.nn.irr import bands_of, blended, interesting, votes
from assay.nn.parts_net import PartsNet


def maps(seed: int = 0, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (5, 8, 9, 4)), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999), n=st.integers(1, 4), c=st.integers(1, 9), h=st.integers(1, 10), w=st.integers(1, 5))
def test_shares_sum_to_one_and_are_those_of_a_loop(seed: int, n: int, c: int, h: int, w: int) -> None:
    x = maps(seed, n, c, h, w)
    p = votes(x)
    assert_close(p.sum(1), torch.ones(n))
    if h * w == 1:
        assert_close(p, torch.full((n, 3), 1 / 3))
        return
    for i in range(n):
        count = [0, 0, 0]
        for channel in x[i]:
            count[3 * (int(channel.argmax()) // w) // h] += 1
        assert_close(p[i], torch.tensor(count) / c)


def test_neither_rising_scales_of_channels_nor_their_order_matter() -> None:
    x = maps()
    slope, shift = torch.rand(8, 1, 1) + 0.1, torch.randn(8, 1, 1)
    for other in (slope * x + shift, x.exp() * slope, x**3, x[:, torch.randperm(8)]):
        assert_close(votes(other), votes(x))
        assert interesting(other).tolist() == interesting(x).tolist()
    assert not torch.allclose(votes(-x), votes(x))


@pytest.mark.parametrize("band", [0, 1, 2])
def test_a_map_with_all_its_maxima_in_a_third_gives_that_third(band: int) -> None:
    x = maps()
    x[:, :, 3 * band : 3 * band + 3] += 100
    assert interesting(x).tolist() == [band] * 5
    assert votes(x)[:, band].tolist() == [1.0] * 5


def test_rules_for_ties() -> None:
    two = torch.zeros(1, 1, 6, 2)
    two[0, 0, 1, 1] = two[0, 0, 5, 0] = 1  # the first in reading order is the point
    assert votes(two).tolist() == [[1.0, 0.0, 0.0]]
    split = torch.zeros(1, 2, 6, 1)
    split[0, 0, 4] = split[0, 1, 2] = 1  # as many votes for the middle as for the bottom
    assert votes(split).tolist() == [[0.0, 0.5, 0.5]]
    assert interesting(split).item() == 1
    flat = torch.zeros(1, 3, 6, 1)
    flat[0, 2, 5] = 1  # the two that are flat have no largest value
    assert votes(flat).tolist() == [[0.0, 0.0, 1.0]]
    assert_close(votes(torch.ones(1, 3, 6, 1)), torch.full((1, 3), 1 / 3))
    assert interesting(torch.ones(1, 3, 6, 1)).item() == 0


def test_a_third_behind_a_flat_block_is_chosen_less_often_than_by_chance() -> None:
    """Before textures that are as bright in the mean. An edge that stands out more than what is there draws votes."""
    x = torch.from_numpy(background(300, "grain", np.random.default_rng(0))).float()[:, None]
    kernels = maps(1, 16, 1, 3, 3)
    kernels -= kernels.mean((2, 3), keepdim=True)
    band = bands_of(32)
    for third in range(3):
        hidden = x.clone()
        hidden[:, :, band == third] = 0.5
        early = torch.nn.functional.conv2d(hidden, kernels, padding=1).relu()
        share = (interesting(early) == third).double().mean().item()
        assert share < 1 / 3 - 0.08  # three standard errors


def test_rows_lie_in_three_bands_that_are_as_equal_as_can_be() -> None:
    for rows in range(3, 20):
        count = torch.bincount(bands_of(rows), minlength=3)
        assert int(count.max() - count.min()) <= 1
        assert bands_of(rows).tolist() == sorted(bands_of(rows).tolist())


def test_alpha_is_the_weight_of_the_band() -> None:
    x, band = maps(), torch.tensor([0, 1, 2, 1, 0])
    whole = x.mean((2, 3))
    rows = torch.stack([x[i, :, 3 * b : 3 * b + 3].mean((1, 2)) for i, b in enumerate(band.tolist())])
    assert_close(blended(x, band, 0.0), whole)
    assert_close(blended(x, band, 0.3), whole + 0.3 * rows)
    with pytest.raises(ShapeError, match="2 rows"):
        blended(x[:, :, :2], band, 0.1)
    with pytest.raises(ShapeError, match="wants n c h w"):
        votes(x[0])


def test_a_network_blends_in_training_alone() -> None:
    x = maps(3, 4, 3, 16, 8)
    torch.manual_seed(0)
    plain, irr = PartsNet(3, (4, 6), (0, 0)), PartsNet(3, (4, 6), (0, 0), alpha=0.5)
    irr.load_state_dict(plain.state_dict())
    assert not torch.allclose(plain(x), irr(x))
    first, last = irr.maps(x)
    assert_close(irr.descriptor(first, last), blended(last, interesting(first), 0.5))
    irr.load_state_dict(plain.state_dict())  # the running means, which each pass moves
    assert_close(plain.eval()(x), irr.eval()(x), rtol=1e-4, atol=1e-5)
    assert plain(x).shape == (4, 6)
    with pytest.raises(AssayError, match="2 widths and 1 numbers"):
        PartsNet(3, (4, 6), (0,))
