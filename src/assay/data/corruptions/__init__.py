"""Everyday corruptions of images at five severities: what happens to a picture without anyone attacking it.

    y = corrupt(x, "fog", 3, rng=torch.Generator(x.device).manual_seed(0))

Source: Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
    ICLR 2019, arXiv:1903.12261: ImageNet-C and its small variant CIFAR-10-C.
Departs from print: one set of strengths serves every image size, with lengths that scale with the side; the numbers are
    Assay's own, and errors here do not compare with published ImageNet-C ones. Each file says where its functions
    depart. Glass and zoom blur, snow, frost, spatter and the elastic transform are not here; rotation, translation,
    occlusion and gamma are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from assay.data.corruptions.blur import BLUR
from assay.data.corruptions.corruption import Corruption, Family
from assay.data.corruptions.digital import DIGITAL
from assay.data.corruptions.geometry import GEOMETRY
from assay.data.corruptions.noise import NOISE
from assay.data.corruptions.weather import WEATHER
from assay.errors import AssayError, ShapeError

__all__ = ["CORRUPTIONS", "Corruption", "Family", "corrupt"]

CORRUPTIONS: Mapping[str, Corruption] = MappingProxyType(
    {corruption.name: corruption for corruption in (*NOISE, *BLUR, *WEATHER, *DIGITAL, *GEOMETRY)}
)


def corrupt(
    x: Tensor, name: str, severity: int, *, rng: torch.Generator, low: float = 0.0, high: float = 1.0
) -> Tensor:  # n c h w -> n c h w
    """Corrupt each image of a batch on its own, at a severity from 1 (mild) to 5.

    Images are in [low, high] and come back in it, with their dtype and device. Half precision is worked on in single.
    `rng` lives on the images' device; the same state gives the same corruption, and across severities the same
    directions, angles and places wherever the draws do not depend on the strength.
    """
    if name not in CORRUPTIONS:
        raise AssayError(f"There is no corruption {name!r}; choose one of {', '.join(CORRUPTIONS)}.")
    if severity not in range(1, 6):
        raise AssayError(f"Severity {severity!r} of {name} is not one of 1, 2, 3, 4, 5; 1 is the mildest.")
    if x.ndim != 4 or x.shape[1] < 1 or min(x.shape[2:]) < 8:
        raise ShapeError(
            f"corrupt got a tensor of shape {tuple(x.shape)}; it wants images n c h w with h, w >= 8 "
            "(for a single image, pass x[None])."
        )
    if not x.is_floating_point():
        raise AssayError(f"corrupt got {x.dtype} images; it wants floating point, for 8-bit images x / 255.")
    if rng.device.type != x.device.type:
        raise AssayError(f"The generator is on {rng.device}, the images on {x.device}; use torch.Generator(x.device).")
    if len(x) == 0:
        return x.clone()
    least, most, slack = x.min().item(), x.max().item(), 1e-3 * (high - low)
    if not (low - slack <= least and most <= high + slack):  # also true of NaN
        raise AssayError(
            f"Images span [{least:.4g}, {most:.4g}], not [{low:g}, {high:g}]; rescale them, or pass low and high."
        )

    corruption = CORRUPTIONS[name]
    unit: Tensor = ((x.to(torch.promote_types(x.dtype, torch.float32)) - low) / (high - low)).clamp(0, 1)
    spoilt = corruption.function(unit, corruption.strengths[int(severity) - 1], rng)
    return (spoilt * (high - low) + low).to(x.dtype).clamp(low, high)
