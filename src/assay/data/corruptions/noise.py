"""Noise: every value of the image is disturbed on its own, so the strengths do not depend on the size of the image.

Source: Hendrycks & Dietterich, ICLR 2019, arXiv:1903.12261, sec. 3 (Gaussian, shot and impulse noise) and its extra
    corruption, speckle noise. As there, the channels of a colour image are disturbed independently.
Departs from print: the strengths lie between the authors' for ImageNet and their far milder ones for CIFAR-10, as one
    scale has to serve every size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.data.corruptions.corruption import Corruption


def gaussian_noise(x: Tensor, sigma: float, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """x + sigma e,  e ~ N(0, 1): a sensor in low light."""
    return x + sigma * _normal_like(x, rng)


def shot_noise(x: Tensor, photons: float, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """Poisson(photons x) / photons: light that comes in quanta; a white pixel counts `photons` of them on average."""
    return torch.poisson(x * photons, generator=rng) / photons


def impulse_noise(x: Tensor, fraction: float, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """Salt and pepper: each value is replaced with probability `fraction`, by 0 or 1 with equal chance."""
    u = torch.rand(x.shape, generator=rng, device=x.device, dtype=x.dtype)
    pepper, salt = u < fraction / 2, u >= 1 - fraction / 2
    return x.masked_fill(pepper, 0.0).masked_fill(salt, 1.0)


def speckle_noise(x: Tensor, sigma: float, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """x + sigma x e,  e ~ N(0, 1): noise that grows with the brightness."""
    return x + sigma * x * _normal_like(x, rng)


def _normal_like(x: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=rng, device=x.device, dtype=x.dtype)


NOISE = (
    Corruption(
        "gaussian-noise",
        "noise",
        "Normal noise added to every value; strength: its standard deviation.",
        gaussian_noise,
        (0.04, 0.08, 0.12, 0.18, 0.26),
    ),
    Corruption(
        "shot-noise",
        "noise",
        "Poisson noise of light counted in quanta; strength: quanta in a white pixel.",
        shot_noise,
        (200.0, 80.0, 35.0, 15.0, 6.0),
    ),
    Corruption(
        "impulse-noise",
        "noise",
        "Salt and pepper; strength: fraction of values replaced.",
        impulse_noise,
        (0.02, 0.04, 0.08, 0.14, 0.22),
    ),
    Corruption(
        "speckle-noise",
        "noise",
        "Normal noise in proportion to the brightness; strength: its standard deviation at white.",
        speckle_noise,
        (0.08, 0.14, 0.22, 0.32, 0.45),
    ),
)
