"""Quilts: each tile of an image from another image, at its own place. Every detail is familiar and the whole is not."""

from __future__ import annotations

import torch
from torch import Tensor

TILES = 4  # along each side


def quilts(x: Tensor, *, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """As many as there are images, each tile of each image used once."""
    n, _, h, w = x.shape
    down, aside = ((torch.arange(side) * TILES // side) for side in (h, w))
    tile = (down[:, None] * TILES + aside).to(x.device)  # h w
    rows = torch.rand(n, TILES**2, generator=rng).argsort(0).to(x.device)  # of each tile, a shuffle
    return x.gather(0, rows[:, tile][:, None].expand_as(x))
