r"""Queries that show only a part: a band of the picture, or the picture behind a block.

    cropped   rows from a to a + s h of the height h, stretched to the whole frame: a photograph of a part, scaled
              to what the network takes
    covered   a block of the picture's own form over the share 1 - s of its area, in one flat value

`where` in [0, 1] says how far down (and right) the part lies; the visible share of the picture is s.

Source: of partial queries Zheng et al., "Partial person re-identification", ICCV 2015 (crops of whole bodies); of
    blocks Zhong et al., AAAI 2020, arXiv:1708.04896, sec. 3.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError


def cropped(x: Tensor, visible: float, where: Tensor) -> Tensor:  # n c h w, n -> n c h w
    """A band of the height, the same share for all, each at its own place, stretched back."""
    _check(visible)
    n, c, h, w = x.shape
    rows = max(1, round(visible * h))
    top = (where * (h - rows)).round().long().clamp(0, h - rows)
    at = (top[:, None] + torch.arange(rows, device=x.device))[:, None, :, None].expand(n, c, rows, w)
    return F.interpolate(x.gather(2, at), (h, w), mode="bilinear", align_corners=False)


def covered(x: Tensor, visible: float, where: Tensor, value: float) -> Tensor:  # n c h w, n 2 -> n c h w
    """A block of `value` over the rest, each at its own place: down, and right."""
    _check(visible)
    h, w = x.shape[2:]
    side = (1 - visible) ** 0.5
    tall, wide = round(side * h), round(side * w)
    sizes = torch.tensor([h - tall, w - wide], device=x.device)
    top, left = (where * sizes).round().long().T
    row, column = (torch.arange(s, device=x.device) for s in (h, w))
    down = (row >= top[:, None]) & (row < top[:, None] + tall)
    across = (column >= left[:, None]) & (column < left[:, None] + wide)
    return x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], value)


def _check(visible: float) -> None:
    if not 0 < visible <= 1:
        raise AssayError(f"A visible share of {visible:g}; give one above 0 and up to 1, such as 0.5.")
