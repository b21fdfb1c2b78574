"""Maps of a change: scale-free, sign-free, in [0, 1]; overlays and regions as printed."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.rank.maps import blend, grey, overlay, tessellate


def pictures(n=3, c=3, side=6, seed=0):
    return torch.rand(n, c, side, side, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def printed(a, b):
    """Equations 28 and 29, pixel by pixel."""
    out = torch.zeros(len(a), *a.shape[2:], dtype=a.dtype)
    for i in range(len(a)):
        for y in range(a.shape[2]):
            for x in range(a.shape[3]):
                out[i, y, x] = sum((a[i, k, y, x] - b[i, k, y, x]) ** 2 for k in range(a.shape[1])) ** 0.5
        out[i] = (out[i] - out[i].min()) / (out[i].max() - out[i].min())
    return out


def test_the_grey_map_is_the_printed_one():
    a, b = pictures(seed=1), pictures(seed=2)
    assert_close(grey(a, b), printed(a, b))


def test_with_one_channel_it_is_the_rescaled_absolute_difference():
    a, b = pictures(c=1, seed=1), pictures(c=1, seed=2)
    gap = (a - b).abs()[:, 0]
    low, high = gap.amin((1, 2), keepdim=True), gap.amax((1, 2), keepdim=True)
    assert_close(grey(a, b), (gap - low) / (high - low))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 50), negative=st.booleans())
def test_it_ignores_length_and_sign_and_order_and_reaches_both_ends(seed, scale, negative):
    a, eps = pictures(seed=seed), pictures(seed=seed + 1) - 0.5
    once = grey(a, a + eps)
    assert_close(grey(a, a + (-scale if negative else scale) * eps), once, rtol=1e-9, atol=1e-9)
    assert_close(grey(a + eps, a), once, rtol=0, atol=0)
    assert_close(once.amin((1, 2)), torch.zeros(3, dtype=torch.float64), rtol=0, atol=0)
    assert_close(once.amax((1, 2)), torch.ones(3, dtype=torch.float64), rtol=0, atol=0)


def test_no_change_and_a_constant_change_give_zeros_without_a_warning():
    a = pictures(c=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for after in (a, torch.full_like(a, 0.25)):
            heat = grey(a if after is a else torch.zeros_like(a), after)
            assert_close(heat, torch.zeros_like(heat), rtol=0, atol=0)


def test_inputs_that_are_no_images_have_a_value_for_each_entry():
    heat = grey(torch.zeros(1, 3), torch.tensor([[1.0, -3.0, 2.0]]))
    assert_close(heat, torch.tensor([[0.0, 1.0, 0.5]]))


def test_an_overlay_has_map_and_picture_in_two_channels_and_nothing_in_the_third():
    a = pictures()
    heat = grey(a, pictures(seed=5))
    first, second = overlay(a, heat), overlay(a, heat, "red-blue")
    assert_close(first[:, 0], a.mean(1))
    assert_close(first[:, 1], heat)
    assert (first[:, 2] == 0).all()
    assert_close(second, first[:, [1, 2, 0]], rtol=0, atol=0)  # the flavours are a permutation of one another
    assert (first >= 0).all()
    assert (first <= 1).all()


def test_a_region_has_its_largest_value_or_its_mean():
    a = pictures(n=2)
    heat = grey(a, pictures(n=2, seed=7))
    label = torch.arange(36).view(6, 6) // 5
    top, mean = tessellate(a, heat, segments=label), tessellate(a, heat, segments=label, reduce="mean")
    for i in range(2):
        for k in range(int(label.max()) + 1):
            inside = heat[i][label == k]
            assert (top[i][label == k] == inside.max()).all()
            assert_close(mean[i][label == k], inside.mean().expand(len(inside)))
    assert (top >= mean).all()


def test_one_region_is_all_ones_and_a_region_for_each_pixel_is_the_map():
    a = pictures()
    heat = grey(a, pictures(seed=3))
    assert (tessellate(a, heat, segments=torch.zeros(6, 6, dtype=torch.long)) == 1).all()
    assert_close(tessellate(a, heat, segments=torch.arange(36).view(6, 6)), heat, rtol=0, atol=0)


def test_a_single_pixel_colours_its_region_by_the_maximum_and_hardly_by_the_mean():
    a, after = torch.zeros(1, 1, 6, 6), torch.zeros(1, 1, 6, 6)
    after[0, 0, 0, 0] = 1
    half = (torch.arange(6) // 3).expand(6, 6).T.contiguous()  # upper and lower
    heat = grey(a, after)
    assert (tessellate(a, heat, segments=half)[0, :3] == 1).all()
    assert_close(tessellate(a, heat, segments=half, reduce="mean")[0, :3], torch.full((3, 6), 1 / 18))


@pytest.mark.parametrize("c", [1, 3])
def test_superpixels_follow_the_picture(c):
    pytest.importorskip("skimage")
    a = torch.zeros(1, c, 28, 28, dtype=torch.float64)
    a[:, :, :, 14:] = 1
    after = a.clone()
    after[0, 0, 3, 3] += 0.5  # in the dark half
    cut = tessellate(a, grey(a, after), segments=8)
    assert set(cut.unique().tolist()) == {0.0, 1.0}
    assert (cut[0, :, :14] == 1).sum() > 20
    assert (cut[0, :, 14:] == 0).all()  # no region reaches over the edge


@pytest.mark.parametrize("colours", ["jet", "viridis"])
def test_a_blend_lies_between_the_picture_and_the_colours(colours):
    a = pictures()
    heat = grey(a, pictures(seed=4))
    half, full, none = (blend(a, heat, colours=colours, weight=w) for w in (0.5, 1, 0))
    assert_close(none, a.mean(1, keepdim=True).expand(-1, 3, -1, -1))
    assert_close(half, (full + none) / 2)
    assert (half >= 0).all()
    assert (half <= 1).all()
    if colours == "jet":  # from dark blue to dark red
        assert_close(full[heat.eq(0)[:, None].expand_as(full)].view(-1), torch.tensor([0, 0, 0.5] * 3).double())
        assert_close(full[heat.eq(1)[:, None].expand_as(full)].view(-1), torch.tensor([0.5, 0, 0] * 3).double())


def test_what_does_not_fit_is_refused():
    a = pictures()
    heat = torch.zeros(3, 6, 6)
    with pytest.raises(ShapeError, match=r"one shape, got \(3, 3, 6, 6\) and \(3, 3, 6\)"):
        grey(a, a[..., 0])
    with pytest.raises(ShapeError, match=r"\(3, 6\) does not lie on pictures"):
        overlay(a, heat[:, 0])
    with pytest.raises(AssayError, match="no overlay 'pink'; choose green-red or red-blue"):
        overlay(a, heat, "pink")
    with pytest.raises(AssayError, match="cannot be reduced by 'sum'"):
        tessellate(a, heat, reduce="sum")
    with pytest.raises(ShapeError, match=r"\(2, 2\) do not fit maps \(6, 6\)"):
        tessellate(a, heat, segments=torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(AssayError, match="no colours 'rainbow'"):
        blend(a, heat, colours="rainbow")
    with pytest.raises(AssayError, match="weight from 0 to 1, got 2"):
        blend(a, heat, weight=2)
