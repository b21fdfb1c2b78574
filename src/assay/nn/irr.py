r"""IRR: the third of an image in which most channels of an early map are largest, blended into the descriptor.

    (h_c, w_c)  =  argmax_{h, w}  F[c, h, w]                          one point of each channel
    p_b         =  share of the points with  floor(3 h_c / H) = b     b: top, middle, bottom
    band        =  argmax_b  p_b
    f           =  mean of the last map  +  alpha  *  mean of its rows of the band

In training alone: a descriptor that is asked for is the mean of the whole map. Nothing of the choice has a gradient.

Ties: of equal values in a channel the first in reading order is the point; of bands with as many points the upper one
is chosen. A channel of one value everywhere has no largest one and casts no vote; where all are so, each band has 1/3.

Source: Meng et al., "Interesting Receptive Region and Feature Excitation for Partial Person Re-identification", ICANN
    2021, eq. 1 and 2 and sec. 3.1. Print says of alpha only that it is 0.02, and 0 off: a weight is one reading.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import ShapeError

BANDS = 3


def bands_of(rows: int, device: torch.device | None = None) -> Tensor:  # -> h
    """The band of each row of a map, from the top: 0, 1, 2."""
    return torch.arange(rows, device=device) * BANDS // rows


def votes(early: Tensor) -> Tensor:  # n c h w -> n 3
    """p_b: the share of channels whose largest value lies in each band."""
    if early.ndim != 4 or not early.numel():
        raise ShapeError(f"IRR got a map of shape {tuple(early.shape)}; it wants n c h w, none of them 0.")
    width = early.shape[3]
    flat = early.detach().flatten(2)
    band = bands_of(early.shape[2], early.device)[flat.argmax(2) // width]  # n c; argmax is the first of equals
    votes_cast = flat.amax(2) > flat.amin(2)
    count = (torch.nn.functional.one_hot(band, BANDS) * votes_cast[..., None]).sum(1)  # n 3
    total = count.sum(1, keepdim=True)
    return torch.where(total > 0, count / total.clamp_min(1), 1 / BANDS)


def interesting(early: Tensor) -> Tensor:  # n c h w -> n
    """The band with most votes; of equals the upper one."""
    return votes(early).argmax(1)


def blended(late: Tensor, band: Tensor, alpha: float) -> Tensor:  # n c h w, n -> n c
    """The mean of a map, and alpha times the mean of its rows in the band of each."""
    if late.shape[2] < BANDS:
        raise ShapeError(f"IRR got a map of {late.shape[2]} rows; it wants at least {BANDS}, one for each band.")
    inside = (bands_of(late.shape[2], late.device) == band[:, None]).to(late)  # n h
    rows = late.mean(3)  # n c h
    return rows.mean(2) + alpha * (rows * inside[:, None]).sum(2) / inside.sum(1, keepdim=True)
