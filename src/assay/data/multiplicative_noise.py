r"""The three noises by which LocalNorm was judged, as they are printed and as the public code makes them.

    AGN   x (1 + e),   e ~ N(0, sigma^2)      coded: e ~ sigma U[0, 1)
    APN   x (1 + e),   e ~ Poisson(sigma)
    MBN   x m,         m = 0 with chance sigma, else 1, the same for all channels

"Additive" Gaussian noise is neither added nor, in the code, Gaussian: it makes images brighter, by half of sigma on
average. The code then stretches each channel of the whole noisy set to the range of the training images, which takes
most of that away again, and leaves what is printed with values beyond the range. "Poisson(0, sigma)" in print is read
as a rate of sigma; "x + 255 e", which print also has, is not in the code. Print's formula would keep a pixel with
chance sigma; its words and the code remove it so.

Source: Yin, Scholte and Bohte, ICANN 2021, doi:10.1007/978-3-030-86380-7_20, sec. 4; code: byin-cwi/LocalNorm1.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.errors import AssayError

Noise = Literal["AGN", "APN", "MBN"]
Form = Literal["printed", "coded"]


def spoil(
    x: Tensor, noise: Noise, sigma: float, rng: torch.Generator, *, form: Form, low: float = 0.0, high: float = 1.0
) -> Tensor:  # n c h w -> n c h w
    """A set of images under one of the noises; `low` and `high` are the range of the training images."""
    if noise not in get_args(Noise) or form not in get_args(Form):
        raise AssayError(
            f"noise={noise!r}, form={form!r} are not known; it knows {', '.join(get_args(Noise))}, "
            f"{' and '.join(get_args(Form))}."
        )
    if not 0 <= sigma < math.inf or (noise == "MBN" and sigma > 1):
        raise AssayError(f"sigma={sigma} is no strength of {noise}; give at least 0, and of MBN at most 1.")
    shape = (len(x), 1, *x.shape[2:]) if noise == "MBN" else x.shape
    u = torch.rand(shape, generator=rng, device=rng.device).to(x)
    if noise == "MBN":
        spoilt = x * (u >= sigma)
    elif noise == "APN":
        spoilt = x * (1 + torch.poisson(torch.full(shape, sigma, device=rng.device), generator=rng).to(x))
    elif form == "coded":
        spoilt = x * (1 + sigma * u)
    else:
        spoilt = x * (1 + sigma * torch.randn(shape, generator=rng, device=rng.device).to(x))
    if form == "printed":
        return spoilt
    least, most = spoilt.amin((0, 2, 3), keepdim=True), spoilt.amax((0, 2, 3), keepdim=True)
    width = torch.where(most > least, most - least, 1)
    return low + (spoilt - least) / width * (high - low)
