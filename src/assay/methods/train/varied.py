"""Images that are varied strongly: bent, moved, and with other colours.

Each image goes through two of fourteen operations, drawn anew for each, as strong as a number s that is uniform in
[-1, 1] says. With f = 1 + 0.9 s, and for images in [0, 1]:

    as it is; shear across or down by 0.3 s; move across or down by 0.3 s of a side; turn by 30 s degrees
    clamp(base + f (x - base)) with the base black (brightness), its mean grey (contrast), grey (colour), smooth
    (sharpness); its darkest and brightest to 0 and 1 (autocontrast), its histogram to a flat one (equalise), all above
    1 - |s| turned into its negative (solarise), its last 4 |s| of 8 bits left out (posterise)

Source: Cubuk et al., NeurIPS 2020, arXiv:1909.13719 (RandAugment: the fourteen, two of them), with the strengths of
    Cubuk et al., CVPR 2019, arXiv:1805.09501.
Departs from print: strengths are uniform, not one for all; images are read bilinearly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError

ROUNDS = 2
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue in what the eye calls bright
SMOOTH = 13.0  # a pixel counts five times, each of its eight neighbours once


def varied(x: Tensor, rng: torch.Generator) -> Tensor:  # n 3 h w -> n 3 h w
    """Each image of a batch in [0, 1] through `ROUNDS` operations; nothing asks the host."""
    if x.shape[1] != 3:
        raise AssayError(f"Images of red, green and blue are varied, these have {x.shape[1]} channel(s).")
    for _ in range(ROUNDS):
        which = torch.randint(len(OPERATIONS), (len(x), 1, 1, 1), generator=rng, device=x.device)
        strength = 2 * torch.rand(len(x), 1, 1, 1, generator=rng, device=x.device) - 1
        out = x
        for k, operation in enumerate(OPERATIONS):
            out = torch.where(which == k, operation(x, strength), out)
        x = out
    return x


def same(x: Tensor, s: Tensor) -> Tensor:
    return x


def _bent(x: Tensor, across: tuple[Tensor, Tensor, Tensor], down: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Each pixel from where the two rows of a map say, in units where the image spans [-1, 1]; grey from beyond."""
    rows = [torch.cat([part.expand(len(x), 1, 1, 1).flatten(1) for part in row], 1) for row in (across, down)]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x - 0.5, grid, align_corners=False) + 0.5


def shear_across(x: Tensor, s: Tensor) -> Tensor:
    one, none = torch.ones_like(s), torch.zeros_like(s)
    return _bent(x, (one, 0.3 * s, none), (none, one, none))


def shear_down(x: Tensor, s: Tensor) -> Tensor:
    one, none = torch.ones_like(s), torch.zeros_like(s)
    return _bent(x, (one, none, none), (0.3 * s, one, none))


def move_across(x: Tensor, s: Tensor) -> Tensor:
    one, none = torch.ones_like(s), torch.zeros_like(s)
    return _bent(x, (one, none, 0.6 * s), (none, one, none))


def move_down(x: Tensor, s: Tensor) -> Tensor:
    one, none = torch.ones_like(s), torch.zeros_like(s)
    return _bent(x, (one, none, none), (none, one, 0.6 * s))


def turn(x: Tensor, s: Tensor) -> Tensor:
    none, angle = torch.zeros_like(s), math.pi / 6 * s
    return _bent(x, (angle.cos(), -angle.sin(), none), (angle.sin(), angle.cos(), none))


def _away(x: Tensor, base: Tensor, s: Tensor) -> Tensor:
    return torch.lerp(base, x, 1 + 0.9 * s).clamp(0, 1)


def _grey(x: Tensor) -> Tensor:  # n 3 h w -> n 1 h w
    return sum((weight * x[:, k : k + 1] for k, weight in enumerate(GREY)), start=torch.zeros_like(x[:, :1]))


def brightness(x: Tensor, s: Tensor) -> Tensor:
    return _away(x, torch.zeros_like(x), s)


def contrast(x: Tensor, s: Tensor) -> Tensor:
    return _away(x, _grey(x).mean((2, 3), keepdim=True).expand_as(x), s)


def colour(x: Tensor, s: Tensor) -> Tensor:
    return _away(x, _grey(x).expand_as(x), s)


def sharpness(x: Tensor, s: Tensor) -> Tensor:
    """The outermost pixels have no smooth base and stay."""
    smooth = (9 * F.avg_pool2d(x, 3, 1) + 4 * x[..., 1:-1, 1:-1]) / SMOOTH
    base = x.clone()
    base[..., 1:-1, 1:-1] = smooth
    return _away(x, base, s)


def autocontrast(x: Tensor, s: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-6), x)


def equalise(x: Tensor, s: Tensor) -> Tensor:
    """A value becomes the share of its channel's pixels that are at most as bright, from 0 for the darkest."""
    each = x.flatten(2).contiguous()
    ordered = each.sort(-1).values
    upto = torch.searchsorted(ordered, each, right=True).to(x.dtype)
    least = torch.searchsorted(ordered, ordered[..., :1].contiguous(), right=True).to(x.dtype)
    count = each.shape[-1]
    return torch.where(least < count, (upto - least) / (count - least).clamp_min(1), each).view_as(x)


def solarise(x: Tensor, s: Tensor) -> Tensor:
    return torch.where(x >= 1 - s.abs(), 1 - x, x)


def posterise(x: Tensor, s: Tensor) -> Tensor:
    left_out = torch.exp2((4 * s.abs()).round())
    return (x * 255 / left_out).add(1e-3).floor() * left_out / 255


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    same, shear_across, shear_down, move_across, move_down, turn, brightness, contrast, colour, sharpness,
    autocontrast, equalise, solarise, posterise,
)  # fmt: skip
