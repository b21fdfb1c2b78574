"""A small U-Net: a class for each pixel, from two convolutions at each size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from assay.errors import AssayError
from assay.nn.small_cnn import conv


class UNet(nn.Module):
    """`levels` sizes, each half of the last, down and up again, joined to their like: n i h w -> n classes h w.

    h and w must be multiples of 2^(levels - 1). `width` channels at full size, twice as many at each smaller one.
    `block(in, out)` builds what is done at each size on the way down, in place of two convolutions; `beside` channels
    from elsewhere join the last two on the way up (`decode`). `dropout` is the share that is dropped, while it trains,
    of what comes up from each smaller size.

    Source: Ronneberger, Fischer and Brox, MICCAI 2015, arXiv:1505.04597, sec. 2 (width 64, five levels). Departs from
        print as is usual since: convolutions keep the size and are normalised over the batch, and maps are enlarged by
        interpolation before one of 1 x 1.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        width: int = 16,
        levels: int = 3,
        block: Callable[[int, int], nn.Module] | None = None,
        beside: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise AssayError(f"UNet got dropout={dropout}; it is the share that is dropped, at least 0 and below 1.")
        if min(channels, classes, width, levels) < 1:
            raise AssayError(f"UNet got {channels}, {classes}, width={width}, levels={levels}; each is at least 1.")
        self.wide = [width * 2**level for level in range(levels)]
        wide, down = self.wide, block or _two
        self.down = nn.ModuleList([down(a, b) for a, b in zip([channels, *wide], wide, strict=False)])
        self.thin = nn.ModuleList([nn.Conv2d(2 * w, w, 1) for w in wide[:-1]])
        self.up = nn.ModuleList([_two(2 * w, w, 0 if level else beside) for level, w in enumerate(wide[:-1])])
        self.drop = nn.Dropout(dropout) if dropout else None
        self.head = nn.Conv2d(width, classes, 1)

    def encode(self, x: Tensor) -> list[Tensor]:  # n i h w -> n w h w, n 2w h/2 w/2, ...
        """The maps of each size, the largest first."""
        kept: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else max_pool2d(x, 2))
            kept.append(x)
        return kept

    def decode(self, kept: Sequence[Tensor], beside: Tensor | None = None) -> Tensor:  # ..., n b h w -> n k h w
        """Logits from the maps of each size; `beside` joins them before the last convolution of 3 x 3."""
        x = kept[-1]
        for level in reversed(range(len(self.up))):
            larger = self.thin[level](interpolate(x, scale_factor=2.0))
            larger = larger if self.drop is None else self.drop(larger)
            x = torch.cat([kept[level], larger], 1)
            for place, each in enumerate(cast("nn.Sequential", self.up[level])):
                x = each(x if beside is None or level or not place else torch.cat([x, beside], 1))
        logits: Tensor = self.head(x)
        return logits

    def forward(self, x: Tensor) -> Tensor:  # n i h w -> n k h w
        return self.decode(self.encode(x))


def _two(channels_in: int, channels: int, beside: int = 0) -> nn.Sequential:
    return nn.Sequential(conv(channels_in, channels), conv(channels + beside, channels))
