"""Weather: more light, or fog between the camera and the scene.

Source: Hendrycks & Dietterich, ICLR 2019, arXiv:1903.12261, sec. 3 (fog, brightness). Its snow and frost need drawn
    flakes and photographs of ice and are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.data.corruptions.corruption import Corruption

SLOPE = 1.5  # amplitude ~ 1 / f^SLOPE: clouds with broad shapes and some fine structure


def brightness(x: Tensor, shift: float, _rng: torch.Generator | None = None) -> Tensor:  # n c h w -> n c h w
    """x + shift.

    Departs from print: the paper raises the value channel of HSV. For grey images that is the same; in colour it
    multiplies the dark pixels' chroma, and a plain sum has a meaning for any number of channels.
    """
    return x + shift


def fog(x: Tensor, thickness: float, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """White air light in front of the scene, thicker in some places than in others.

        y = (1 - a) x + a,   a = thickness (1 + f) / 2,   f a random cloud in [0, 1] per image, shared by the channels

    Departs from print: the blend is the usual model of haze (transmission 1 - a, air light 1) instead of a sum that is
        scaled back; the cloud has a spectrum of 1 / f^1.5 instead of diamond-square plasma, which runs on any size
        without a loop and looks alike at every resolution.
    """
    alpha = thickness * (1 + _cloud(x, rng)) / 2  # n 1 h w
    return x + alpha * (1 - x)


def _cloud(x: Tensor, rng: torch.Generator) -> Tensor:  # n c h w -> n 1 h w in [0, 1]
    n, _, h, w = x.shape
    white = torch.randn(n, 1, h, w, generator=rng, device=x.device, dtype=x.dtype)
    down = torch.fft.fftfreq(h, device=x.device, dtype=x.dtype)  # h
    across = torch.fft.rfftfreq(w, device=x.device, dtype=x.dtype)  # w/2+1
    frequency = torch.hypot(down[:, None], across)
    frequency[0, 0] = torch.inf  # no mean: the cloud is scaled to [0, 1] anyway
    cloud: Tensor = torch.fft.irfft2(torch.fft.rfft2(white) * frequency**-SLOPE, s=(h, w))
    low, high = cloud.amin((-2, -1), keepdim=True), cloud.amax((-2, -1), keepdim=True)
    return (cloud - low) / (high - low)


WEATHER = (
    Corruption(
        "brightness",
        "weather",
        "The same light added everywhere; strength: how much.",
        brightness,
        (0.08, 0.15, 0.22, 0.3, 0.4),
    ),
    Corruption(
        "fog",
        "weather",
        "A white cloud in front of the scene; strength: the cover where it is thickest.",
        fog,
        (0.25, 0.4, 0.55, 0.7, 0.85),
    ),
)
