"""Strongly varied images: each operation is that of its name, and no image leaves [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from assay.errors import AssayError
from assay.methods.train import varied as v
from assay.methods.train.varied import varied

SIDE = 20
LEVEL = 1 / 255


def pictures(n: int = 3, seed: int = 0) -> Tensor:  # n 3 h w, values of 8 bits
    """Smooth stains on noise, of other brightness in each channel, none of which is all black or all white."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 5, 5, generator=rng)
    x = torch.nn.functional.interpolate(coarse, SIDE, mode="bilinear") + 0.1 * torch.rand(
        n, 3, SIDE, SIDE, generator=rng
    )
    return (x * torch.tensor([0.6, 0.7, 0.8]).view(3, 1, 1)).mul(255).round() / 255


def strength(x: Tensor, s: float) -> Tensor:
    return torch.full((len(x), 1, 1, 1), s)


def as_pil(x: Tensor) -> list[Image.Image]:
    return [Image.fromarray((one * 255).round().byte().permute(1, 2, 0).numpy()) for one in x]


def as_tensor(images: list[Image.Image]) -> Tensor:
    return torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) / 255 for one in images])


@pytest.mark.parametrize("s", [-1.0, -0.4, 0.0, 0.7, 1.0])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (v.brightness, ImageEnhance.Brightness),
        (v.contrast, ImageEnhance.Contrast),
        (v.colour, ImageEnhance.Color),
        (v.sharpness, ImageEnhance.Sharpness),
    ],
)
def test_enhancements_are_those_of_pillow(
    ours: Callable[[Tensor, Tensor], Tensor], theirs: Callable[[Image.Image], ImageEnhance._Enhance], s: float
) -> None:
    """But for what Pillow rounds: greys and smooth pixels to whole levels, and what it gives once more."""
    x = pictures()
    there = as_tensor([theirs(one).enhance(1 + 0.9 * s) for one in as_pil(x)])
    assert (ours(x, strength(x, s)) - there).abs().max() <= 2.01 * LEVEL


def test_autocontrast_solarise_and_posterise_are_those_of_pillow() -> None:
    x = pictures()
    there = as_tensor([ImageOps.autocontrast(one) for one in as_pil(x)])
    assert (v.autocontrast(x, strength(x, 0.3)) - there).abs().max() <= 1.01 * LEVEL
    for s in (0.5, -0.75):
        threshold = math.ceil((1 - abs(s)) * 255)
        there = as_tensor([ImageOps.solarize(one, threshold) for one in as_pil(x)])
        torch.testing.assert_close(v.solarise(x, strength(x, s)), there)
    for s, bits in ((0.0, 8), (0.25, 7), (-0.5, 6), (1.0, 4)):
        there = as_tensor([ImageOps.posterize(one, bits) for one in as_pil(x)])
        torch.testing.assert_close(v.posterise(x, strength(x, s)), there)


def test_equalised_values_are_shares_of_pixels() -> None:
    """Brute force: of each channel's pixels beyond those of its darkest value, the share that is at most as bright."""
    x = pictures(2)
    found = v.equalise(x, strength(x, 0.0)).numpy()
    for image, out in zip(x.numpy(), found, strict=True):
        for channel, given in zip(image, out, strict=True):
            least = (channel == channel.min()).sum()
            for value in np.unique(channel):
                share = ((channel <= value).sum() - least) / (channel.size - least)
                np.testing.assert_allclose(given[channel == value], share, atol=1e-6)
    flat = torch.full((1, 3, 4, 4), 0.3)
    torch.testing.assert_close(v.equalise(flat, strength(flat, 1.0)), flat)
    torch.testing.assert_close(v.autocontrast(flat, strength(flat, 1.0)), flat)


@pytest.mark.parametrize("s", [-1.0, -0.35, 0.6])
def test_bent_images_are_those_of_pillow_where_both_see_the_image(s: float) -> None:
    """Pillow's maps count in pixels from a corner, with centres at halves; ours from the middle, in half sides."""
    x, half = pictures(2), SIDE / 2
    angle = math.pi / 6 * s
    cos, sin = math.cos(angle), math.sin(angle)
    maps = {
        v.shear_across: (1, 0.3 * s, -0.3 * s * half, 0, 1, 0),
        v.shear_down: (1, 0, 0, 0.3 * s, 1, -0.3 * s * half),
        v.move_across: (1, 0, 0.3 * s * SIDE, 0, 1, 0),
        v.move_down: (1, 0, 0, 0, 1, 0.3 * s * SIDE),
        v.turn: (cos, -sin, half - half * cos + half * sin, sin, cos, half - half * sin - half * cos),
    }
    seen = slice(5, -5)
    for operation, rows in maps.items():
        here = operation(x, strength(x, s))
        for image, out in zip(x, here, strict=True):
            for channel, given in zip(image, out, strict=True):
                layer = Image.fromarray(channel.numpy(), mode="F")
                there = layer.transform((SIDE, SIDE), Image.Transform.AFFINE, rows, Image.Resampling.BILINEAR)
                inside = torch.from_numpy(np.array(there))[seen, seen]
                if operation in (v.move_across, v.move_down):  # up to six pixels come from beyond
                    inside, given = inside[2:-2, 2:-2], given[2:-2, 2:-2]
                torch.testing.assert_close(given[seen, seen] if given.shape[-1] == SIDE else given[5:-5, 5:-5], inside,
                                           atol=1e-4, rtol=0)  # fmt: skip


def test_what_lies_beyond_is_grey() -> None:
    x = torch.ones(1, 3, SIDE, SIDE)
    for operation in (v.move_across, v.move_down):
        moved = operation(x, strength(x, 1.0))
        assert float((moved == 0.5).float().mean()) == pytest.approx(0.3)
        assert set(moved.unique().tolist()) == {0.5, 1.0}


@pytest.mark.parametrize("operation", v.OPERATIONS, ids=lambda f: f.__name__)
def test_each_operation_stays_in_the_box_and_only_some_are_the_same(
    operation: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x = pictures()
    for s in (-1.0, 1.0):
        out = operation(x, strength(x, s))
        assert out.shape == x.shape
        assert 0 <= out.min() <= out.max() <= 1 + 1e-6
        assert torch.equal(out, x) == (operation is v.same)


def test_each_image_has_draws_of_its_own_and_the_seed_repeats_them() -> None:
    x = pictures(1).expand(200, -1, -1, -1)
    out = varied(x, torch.Generator().manual_seed(0))
    assert torch.equal(out, varied(x, torch.Generator().manual_seed(0)))
    different = len(out.flatten(1).unique(dim=0))
    # of 14 x 14 pairs, (same, same) alone leaves the image; pairs without a strength repeat each other
    assert 150 < different < 200
    assert x.unique(dim=0).shape[0] == 1


def test_images_without_three_channels_are_refused() -> None:
    with pytest.raises(AssayError, match="1 channel"):
        varied(torch.rand(2, 1, 8, 8), torch.Generator().manual_seed(0))
