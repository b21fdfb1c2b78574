"""A small U-Net: a class for each pixel, from two convolutions at each size."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from assay.errors import AssayError
from assay.nn.small_cnn import conv


class UNet(nn.Module):
    """`levels` sizes, each half of the last, down and up again, joined to their like: n i h w -> n classes h w.

    h and w must be multiples of 2^(levels - 1). `width` channels at full size, twice as many at each smaller one.

    Source: Ronneberger, Fischer and Brox, MICCAI 2015, arXiv:1505.04597, sec. 2 (width 64, five levels). Departs from
        print as is usual since: convolutions keep the size and are normalised over the batch, and maps are enlarged by
        interpolation before one of 1 x 1.
    """

    def __init__(self, channels: int, classes: int, *, width: int = 16, levels: int = 3) -> None:
        super().__init__()
        if min(channels, classes, width, levels) < 1:
            raise AssayError(f"UNet got {channels}, {classes}, width={width}, levels={levels}; each is at least 1.")
        wide = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList([_two(a, b) for a, b in zip([channels, *wide], wide, strict=False)])
        self.thin = nn.ModuleList([nn.Conv2d(2 * w, w, 1) for w in wide[:-1]])
        self.up = nn.ModuleList([_two(2 * w, w) for w in wide[:-1]])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:  # n i h w -> n k h w
        kept: list[Tensor] = []
        for level, two in enumerate(self.down):
            x = two(x if level == 0 else max_pool2d(x, 2))
            kept.append(x)
        for level in reversed(range(len(self.up))):
            larger = self.thin[level](interpolate(x, scale_factor=2.0))
            x = self.up[level](torch.cat([kept[level], larger], 1))
        logits: Tensor = self.head(x)
        return logits


def _two(channels_in: int, channels: int) -> nn.Sequential:
    return nn.Sequential(conv(channels_in, channels), conv(channels, channels))
