"""Geometry: the camera turns or slips, or something stands in the way.

Source: rotation and translation are among the perturbations of Hendrycks & Dietterich, ICLR 2019, arXiv:1903.12261,
    sec. 3 (ImageNet-P); occlusion is the cutout of DeVries & Taylor 2017, arXiv:1708.04552, used here as a test.
Departs from print: how far is set by the severity and only the direction is drawn, so that every image of a severity
    is disturbed alike. Lengths are fractions of the shorter side. Beyond its border the image repeats its outermost
    pixels: black margins would be a second corruption, and mirrored ones add a second object.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.data.corruptions.corruption import Corruption


def rotation(x: Tensor, degrees: float, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """Turn about the centre by `degrees`, either way round at random, read bilinearly."""
    sign = 2.0 * torch.randint(2, (len(x),), generator=rng, device=x.device) - 1
    return rotate(x, math.radians(degrees) * sign.to(x.dtype))


def rotate(x: Tensor, angle: Tensor) -> Tensor:  # n c h w, n -> n c h w
    """Turn each image counter-clockwise by its angle in radians."""
    h, w = x.shape[-2:]
    down = torch.arange(h, device=x.device, dtype=x.dtype)[:, None] - (h - 1) / 2  # h 1
    across = torch.arange(w, device=x.device, dtype=x.dtype) - (w - 1) / 2  # w
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]  # n 1 1
    from_across, from_down = cos * across - sin * down, sin * across + cos * down  # n h w: where each pixel comes from
    grid = torch.stack((from_across * (2 / w), from_down * (2 / h)), -1)  # n h w 2, the image spans [-1, 1]
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def translation(x: Tensor, fraction: float, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """Move by `fraction` of the shorter side in a random direction, to the nearest whole pixel and at least by one."""
    length = max(1.0, fraction * min(x.shape[-2:]))
    angle = 2 * math.pi * torch.rand(len(x), generator=rng, device=x.device, dtype=x.dtype)  # n
    return translate(x, (length * angle.sin()).round().long(), (length * angle.cos()).round().long())


def translate(x: Tensor, down: Tensor, right: Tensor) -> Tensor:  # n c h w, n, n -> n c h w
    """Move each image by whole pixels ; fractions of one would blur it too."""
    n, c, h, w = x.shape
    rows = (torch.arange(h, device=x.device) - down[:, None]).clamp(0, h - 1)  # n h
    columns = (torch.arange(w, device=x.device) - right[:, None]).clamp(0, w - 1)  # n w
    moved = x.gather(2, rows[:, None, :, None].expand(n, c, h, w))
    return moved.gather(3, columns[:, None, None, :].expand(n, c, h, w))


def occlusion(x: Tensor, fraction: float, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """Cover a square, `fraction` of the shorter side wide and anywhere inside the image, with middle grey."""
    h, w = x.shape[-2:]
    side = round(fraction * min(h, w))
    u = torch.rand(2, len(x), generator=rng, device=x.device, dtype=x.dtype)
    top, left = (u[0] * (h - side + 1)).floor(), (u[1] * (w - side + 1)).floor()  # n, n
    rows = torch.arange(h, device=x.device) - top[:, None]  # n h, 0..side-1 within the square
    columns = torch.arange(w, device=x.device) - left[:, None]  # n w
    covered = ((rows >= 0) & (rows < side))[:, :, None] & ((columns >= 0) & (columns < side))[:, None, :]  # n h w
    return x.masked_fill(covered[:, None], 0.5)


GEOMETRY = (
    Corruption(
        "rotation",
        "geometry",
        "A turn about the centre, either way round; strength: degrees.",
        rotation,
        (5.0, 10.0, 16.0, 23.0, 32.0),
    ),
    Corruption(
        "translation",
        "geometry",
        "A move in a random direction; strength: its length as a fraction of the side.",
        translation,
        (0.04, 0.08, 0.12, 0.17, 0.23),
    ),
    Corruption(
        "occlusion",
        "geometry",
        "A grey square somewhere; strength: its width as a fraction of the side.",
        occlusion,
        (0.15, 0.25, 0.35, 0.45, 0.55),
    ),
)
