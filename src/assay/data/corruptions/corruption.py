"""What one corruption is: a function of image, strength and randomness, with the five strengths it is used at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Family = Literal["noise", "blur", "weather", "digital", "geometry"]


@dataclass(frozen=True)
class Corruption:
    """One everyday way for an image to go bad.

    `function(x, strength, rng)` takes images in [0, 1] (n c h w, float32 or float64) and may leave that range;
    `corrupt` clips. What the strength means is the function's own (a standard deviation, a quality, a fraction of the
    side): `strengths` holds one per severity, mildest first, and is not always ascending.
    """

    name: str
    family: Family
    description: str
    function: Callable[[Tensor, float, torch.Generator], Tensor]
    strengths: tuple[float, float, float, float, float]
