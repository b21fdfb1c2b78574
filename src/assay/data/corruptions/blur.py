"""Blur: each pixel becomes a weighted mean of its neighbours.

    y = k * x,   sum k = 1,   k >= 0;   beyond its border the image is mirrored

Source: Hendrycks & Dietterich, ICLR 2019, arXiv:1903.12261, sec. 3 (defocus and motion blur) and its extra corruption,
    Gaussian blur.
Departs from print: lengths scale with the image. A strength is in pixels of an image with shorter side 32 and stands
    for strength (side / 32)^(3/4) pixels; the authors' own widths of the Gaussian grow from their 32-pixel to their
    224-pixel set by powers of the side from 0.5 (mildest) to 0.9 (hardest). The motion kernel is a uniform line in any
    direction, where theirs is half a Gaussian within 45 degrees of the horizontal. Kernels are laid over the image as
    bilinear interpolation reads it, not sampled at the pixels: below one pixel they still blur.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.data.corruptions.corruption import Corruption


def gaussian_blur(x: Tensor, sigma: float, _rng: torch.Generator | None = None) -> Tensor:  # n c h w -> n c h w
    """Blur with a normal density of standard deviation `sigma` (pixels at side 32)."""
    return _convolve(x, gaussian_kernel(_pixels(sigma, x), like=x))


def defocus_blur(x: Tensor, radius: float, _rng: torch.Generator | None = None) -> Tensor:  # n c h w -> n c h w
    """Blur with a disc of radius `radius` (pixels at side 32): a lens out of focus."""
    return _convolve(x, disc_kernel(_pixels(radius, x), like=x))


def motion_blur(x: Tensor, length: float, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """Blur along a line of length `length` (pixels at side 32), at a random angle for each image."""
    angle = math.pi * torch.rand(len(x), generator=rng, device=x.device, dtype=x.dtype)  # n
    return _convolve(x, line_kernels(_pixels(length, x), angle))


def gaussian_kernel(sigma: float, *, like: Tensor) -> Tensor:  # -> 1 k k
    """The normal density, cut off at three sigma, laid over the image read bilinearly."""
    width = 3 * sigma
    points = _midpoints(width, like)  # f
    weights = torch.exp(-((points / sigma) ** 2) / 2) @ _tents(points, math.ceil(width))  # k
    weights = weights / weights.sum()
    return (weights[:, None] * weights)[None]


def disc_kernel(radius: float, *, like: Tensor) -> Tensor:  # -> 1 k k
    """The disc laid over the image read bilinearly."""
    points = _midpoints(radius, like)  # f
    inside = (points[:, None] ** 2 + points**2 <= radius**2).to(like.dtype)  # f f
    tents = _tents(points, math.ceil(radius))  # f k
    kernel = tents.T @ inside @ tents
    return (kernel / kernel.sum())[None]


def line_kernels(length: float, angle: Tensor) -> Tensor:  # n -> n k k
    """A centred line at each angle (radians, counter-clockwise), laid over the image read bilinearly."""
    points = _midpoints(length / 2, angle)  # f
    reach = math.ceil(length / 2)
    across = _tents(angle.cos()[:, None] * points, reach)  # n f k
    down = _tents(-angle.sin()[:, None] * points, reach)  # n f k
    return torch.einsum("nfy,nfx->nyx", down, across) / len(points)


def _pixels(strength: float, x: Tensor) -> float:
    return float(strength * (min(x.shape[-2:]) / 32) ** 0.75)


def _midpoints(reach: float, like: Tensor) -> Tensor:  # -> f points, evenly within -reach..reach
    count = max(32, 8 * math.ceil(reach))  # at least four per pixel
    return ((2 * torch.arange(count, device=like.device, dtype=like.dtype) + 1) / count - 1) * reach


def _tents(points: Tensor, reach: int) -> Tensor:  # *f -> *f k
    """How much each pixel -reach..reach lends to a point between two of them, in linear interpolation."""
    pixels = torch.arange(-reach, reach + 1, device=points.device, dtype=points.dtype)
    return (1 - (points[..., None] - pixels).abs()).relu()


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:  # n c h w, (n or 1) k k -> n c h w
    """The convolution through the Fourier transform: one kernel per image at no extra cost, and full precision on GPUs,
    where a convolution layer would round to TF32. Mirrored margins keep the wrap-around off the image itself."""
    h, w = x.shape[-2:]
    reach = kernel.shape[-1] // 2
    wide = F.pad(x, (reach, reach, reach, reach), mode="reflect")
    size = (h + 2 * reach, w + 2 * reach)
    spectrum: Tensor = torch.fft.rfft2(wide) * torch.fft.rfft2(kernel[:, None], s=size)
    blurred: Tensor = torch.fft.irfft2(spectrum, s=size)
    return blurred[..., 2 * reach :, 2 * reach :]


BLUR = (
    Corruption(
        "gaussian-blur",
        "blur",
        "A normal density; strength: its standard deviation in pixels at side 32.",
        gaussian_blur,
        (0.3, 0.5, 0.7, 0.95, 1.3),
    ),
    Corruption(
        "defocus-blur",
        "blur",
        "A disc, as a lens out of focus; strength: its radius in pixels at side 32.",
        defocus_blur,
        (0.7, 1.0, 1.3, 1.7, 2.2),
    ),
    Corruption(
        "motion-blur",
        "blur",
        "A line at a random angle per image; strength: its length in pixels at side 32.",
        motion_blur,
        (2.0, 3.0, 4.0, 5.2, 6.8),
    ),
)
