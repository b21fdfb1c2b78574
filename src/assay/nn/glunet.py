r"""GLUNet: a U-Net with attention on what it passes across, and a branch that looks for edges.

    GAM     A = F + R(R(F) * M_c * M_s)                     on the maps F of each size that pass across
            M_c = sigmoid(MLP(mean over places of F') + MLP(max over places of F'))           one number a channel
            M_s = sigmoid(conv_7x7([mean over channels of M_c F'; max over channels]))        one number a place
            R   = x + two normalised convolutions of 3 x 3,  F' = R(F)
    LEDM    the maps of each size but the smallest through 1 x 1 and 3 x 3 convolutions at full size, weighted by
            1, 1/2, 1/4, ..., concatenated; one convolution of 1 x 1 makes an edge map of them that is taught, one what
            joins the decoder before its last convolution of 3 x 3

Taught by lambda L_seg + (1 - lambda) L_edge, lambda = 0.7 (`methods/train/lovasz.py`).

Source: Wang and Quan, "GLUNet: Global-Local Fusion U-Net for 2D Medical Image Segmentation", ICANN 2021, sec. 3; the
attention is that of Woo et al., ECCV 2018, arXiv:1807.06521; dense blocks of Huang et al., CVPR 2017, arXiv:1608.06993,
make the encoder. Print has DenseNet-121's (6, 12, 24, 16 layers of 32); here they are as small as `growth` and `layers`
say. Print does not give the weights of the sizes, only that they fall. Its eq. 3 adds each size to the next where its
text and figure concatenate all (`as_published` adds).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from assay.errors import AssayError
from assay.nn.small_cnn import conv
from assay.nn.unet import UNet

REDUCTION = 16  # of channels in the attention's hidden layer, as usual


class Residual(nn.Module):
    """x plus two normalised convolutions of it: n c h w -> same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = conv(channels, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.norm(self.second(self.first(x)))
        return out


class Attention(nn.Module):
    """What each channel and then each place is worth, from 0 to 1 (CBAM): n c h w -> n c 1 1, n 1 h w."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(1, channels // REDUCTION)
        self.shared = nn.Sequential(nn.Conv2d(channels, hidden, 1), nn.ReLU(), nn.Conv2d(hidden, channels, 1))
        self.place = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        by_channel = torch.sigmoid(
            self.shared(x.mean((2, 3), keepdim=True)) + self.shared(x.amax((2, 3), keepdim=True))
        )
        x = by_channel * x
        by_place = torch.sigmoid(self.place(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)))
        return by_channel, by_place


class GAM(nn.Module):
    """F + R(R(F) * M_c * M_s): n c h w -> same. Of `blocks` residual blocks the odd one comes before the attention."""

    def __init__(self, channels: int, *, blocks: int = 2) -> None:
        super().__init__()
        if blocks < 0:
            raise AssayError(f"GAM got blocks={blocks}; give 0 or more.")
        after = blocks // 2
        self.before = nn.Sequential(*(Residual(channels) for _ in range(blocks - after)))
        self.attention = Attention(channels)
        self.after = nn.Sequential(*(Residual(channels) for _ in range(after)))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.before(x)
        by_channel, by_place = self.attention(inner)
        out: Tensor = x + self.after(inner * by_channel * by_place)
        return out


class LEDM(nn.Module):
    """Edges from the encoder's maps, each half the size of the last: n c_1 h w, n c_2 h/2 w/2 ... -> n 1 h w, n e h w.

    A normalised convolution of 1 x 1 sees one place at a time, so that it is done before the map is enlarged.
    """

    def __init__(self, wide: Sequence[int], edge: int, *, as_published: bool = False) -> None:
        super().__init__()
        if len(wide) < (2 if as_published else 1) or edge < 1:
            raise AssayError(f"LEDM got maps of {list(wide)} channels and edge={edge}; give more maps, and at least 1.")
        self.adds = as_published
        self.thin = nn.ModuleList(
            nn.Sequential(nn.Conv2d(w, edge, 1, bias=False), nn.BatchNorm2d(edge), nn.ReLU()) for w in wide
        )
        self.around = nn.ModuleList(conv(edge, edge) for _ in wide)
        joined = edge * (len(wide) - as_published)
        self.edges = nn.Conv2d(joined, 1, 1)
        self.beside = nn.Conv2d(joined, edge, 1)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        levels = zip(self.thin, self.around, maps, strict=True)
        found = [
            around(interpolate(thin(x), scale_factor=float(2**level))) * 0.5**level
            for level, (thin, around, x) in enumerate(levels)
        ]
        if self.adds:
            found = [a + b for a, b in pairwise(found)]
        joined = torch.cat(found, 1)
        return self.edges(joined), self.beside(joined)


class Dense(nn.Module):
    """`layers` convolutions, each of all that was there before and joined to it, then 1 x 1: n a h w -> n b h w."""

    def __init__(self, channels_in: int, channels: int, *, layers: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv(channels_in + i * growth, growth) for i in range(layers))
        wide = channels_in + layers * growth
        self.join = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        out: Tensor = self.join(x)
        return out


class GLUNet(nn.Module):
    """A class for each pixel, of images of any size: n i h w -> n classes h w; `both` gives the edge map too.

    `gam` and `ledm` put its two parts in or leave them out; `blocks` are the residual ones of a GAM. `layers` dense
    ones of `growth` channels at each size; 0 keeps the U-Net's two convolutions. Sides that are no multiple of
    2^(levels - 1) are filled up with the last row and column, and cut again.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        width: int = 16,
        levels: int = 5,
        gam: bool = True,
        ledm: bool = True,
        blocks: int = 2,
        layers: int = 4,
        growth: int = 8,
        edge: int = 8,
        as_published: bool = False,
    ) -> None:
        super().__init__()
        if levels < 2 or layers < 0 or growth < 1:
            raise AssayError(f"GLUNet got levels={levels}, layers={layers}, growth={growth}; give at least 2, 0 and 1.")
        self.many = 2 ** (levels - 1)
        self.unet = UNet(
            channels,
            classes,
            width=width,
            levels=levels,
            block=(lambda a, b: Dense(a, b, layers=layers, growth=growth)) if layers else None,
            beside=edge if ledm else 0,
        )
        across = self.unet.wide[:-1]
        self.gam = nn.ModuleList(GAM(w, blocks=blocks) if gam else nn.Identity() for w in across)
        self.ledm = LEDM(across, edge, as_published=as_published) if ledm else None

    def both(self, x: Tensor) -> tuple[Tensor, Tensor | None]:  # n i h w -> n k h w, n 1 h w
        """Logits of the classes and of an edge; None without LEDM."""
        height, width = x.shape[-2:]
        down, right = -height % self.many, -width % self.many
        maps = self.unet.encode(pad(x, (0, right, 0, down), "replicate") if down or right else x)
        edges, beside = (None, None) if self.ledm is None else self.ledm(maps[:-1])
        across = [gam(each) for gam, each in zip(self.gam, maps, strict=False)]
        logits = self.unet.decode([*across, maps[-1]], beside)[..., :height, :width]
        return logits, None if edges is None else edges[..., :height, :width]

    def forward(self, x: Tensor) -> Tensor:  # n i h w -> n k h w
        return self.both(x)[0]
