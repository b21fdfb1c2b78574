r"""Feature excitation: a map weighed by a coarse look at itself, each channel by its own.

    D  =  G_n( ... G_1(F))                    G: a convolution of 3 x 3 for each channel, stride 2, normalised over
                                              the batch; a ReLU between two of them
    E  =  F * sigmoid( up(D) )                up: bilinear, to the size of F
    E  =  F + F * sigmoid( up(D) )            `additive`

The shape stays; of the first form |E| <= |F|. n = 0 is no excitation: E = F. A map of one pixel stays one, so that any
n fits any map.

Source: Meng et al., ICANN 2021, sec. 3.2; n is 8, 4, 2, 2 after conv2 to conv5 of a ResNet-50 there. The form of the
    fusion is a figure there; this is that of Hu et al., "Gather-Excite", NeurIPS 2018, arXiv:1810.12348, sec. 3.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError


class FeatureExcitation(nn.Module):
    """n c h w -> n c h w, by `n` gathering convolutions."""

    def __init__(self, channels: int, n: int, *, additive: bool = False) -> None:
        super().__init__()
        if channels < 1 or n < 0:
            raise AssayError(f"FeatureExcitation got channels={channels}, n={n}; it wants at least 1, and 0 or more.")
        self.additive = additive
        layers: list[nn.Module] = []
        for _ in range(n):
            layers += [
                nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
            ]
        self.gather = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        if not len(self.gather):
            return x
        gate = F.interpolate(self.gather(x), x.shape[2:], mode="bilinear", align_corners=False).sigmoid()
        return x + x * gate if self.additive else x * gate
