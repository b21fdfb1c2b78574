"""An autoencoder whose inner features can be switched off, and the networks that play around it.

The four share one stack of convolutions (Fuhl et al., ICANN 2021, table 1): 7 x 7 to 32, 7 x 7 to 64, 5 x 5 to 128,
5 x 5 to 256 channels, each with a ReLU and a max-pool that halves the picture.

Departs from print, where the table contradicts the text: the text has a bottleneck of 4 x 4 x 256 = 4096 features of
64 x 64 pixels, the table's three pools leave 8 x 8 x 256. A fourth pool and a fourth transposed convolution make it
4096 here; `as_published` keeps the table's three. Narrower `widths` and smaller `kernels` are for a CPU. A side that
the pools do not divide is filled up with zeros on the right and below, and cut again after decoding.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError

WIDTHS = (32, 64, 128, 256)  # of print
KERNELS = (7, 7, 5, 5)
UNDECIDED = 1e-3  # below 0.5


def _check(shape: tuple[int, ...], widths: tuple[int, ...], kernels: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise AssayError(f"The stack takes images of shape (c, h, w), got {shape}.")
    if len(widths) != len(KERNELS) or min(widths) < 1:
        raise AssayError(f"widths={widths} must be {len(KERNELS)} numbers of at least 1, such as {WIDTHS}.")
    if len(kernels) != len(KERNELS) or any(k < 1 or k % 2 == 0 for k in kernels):
        raise AssayError(f"kernels={kernels} must be {len(KERNELS)} odd numbers, such as {KERNELS}.")
    channels, height, width = shape
    return channels, height, width


def _stack(channels: int, widths: tuple[int, ...], pools: int, kernels: tuple[int, ...]) -> nn.Sequential:
    """Convolutions that keep the size, each with a ReLU, the first `pools` of them with a max-pool."""
    layers: list[nn.Module] = []
    for i, (kernel, wide) in enumerate(zip(kernels, widths, strict=True)):
        layers += [nn.Conv2d(channels, wide, kernel, padding=kernel // 2), nn.ReLU()]
        if i < pools:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        channels = wide
    return nn.Sequential(*layers)


def _smaller(side: int, pools: int) -> int:
    for _ in range(pools):
        side = -(-side // 2)
    return side


class Autoencoder(nn.Module):
    """Images of `shape` (c, h, w) to a bottleneck of maps and back; the features are the entries of the maps."""

    def __init__(
        self,
        shape: tuple[int, ...],
        widths: tuple[int, ...] = WIDTHS,
        kernels: tuple[int, ...] = KERNELS,
        *,
        as_published: bool = False,
    ) -> None:
        super().__init__()
        channels, *sides = _check(shape, widths, kernels)
        self.sides = tuple(sides)
        pools = 3 if as_published else 4
        self.many = 2**pools
        inner = [-(-side // self.many) for side in sides]
        self.bottleneck: tuple[int, ...] = (widths[3], *inner)
        self.encoder = _stack(channels, widths, pools, kernels)
        up = [(widths[i + 1], widths[i], kernels[i + 1 if i else 0]) for i in (2, 1, 0)]  # print: 5, 5, 7
        if not as_published:
            up.append((widths[0], widths[0], kernels[0]))
        layers: list[nn.Module] = []
        for a, b, kernel in up:
            layers += [nn.ConvTranspose2d(a, b, kernel, 2, kernel // 2, output_padding=1), nn.ReLU()]
        self.decoder = nn.Sequential(*layers, nn.Conv2d(widths[0], channels, kernels[0], padding=kernels[0] // 2))

    @property
    def features(self) -> int:
        return math.prod(self.bottleneck)

    def encode(self, x: Tensor) -> Tensor:  # n c h w -> n f
        down, right = (-side % self.many for side in self.sides)
        code: Tensor = self.encoder(F.pad(x, (0, right, 0, down)) if down or right else x)
        return code.flatten(1)

    def decode(self, code: Tensor) -> Tensor:  # n f -> n c h w
        image: Tensor = self.decoder(code.reshape(len(code), *self.bottleneck))
        return image[..., : self.sides[0], : self.sides[1]]

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n c h w
        return self.decode(self.encode(x))


class StackClassifier(nn.Module):
    """The stack with four pools, dropout of a half, one hidden layer: images of `shape` to `classes` logits."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        widths: tuple[int, ...] = WIDTHS,
        kernels: tuple[int, ...] = KERNELS,
        *,
        hidden: int = 512,
    ) -> None:
        super().__init__()
        channels, *sides = _check(shape, widths, kernels)
        if classes < 2 or hidden < 1:
            raise AssayError(f"StackClassifier got classes={classes}, hidden={hidden}; give at least 2 and 1.")
        height, width = (_smaller(side, 4) for side in sides)
        self.stack = _stack(channels, widths, 4, kernels)
        self.drop = nn.Dropout(0.5)
        self.hidden = nn.Linear(widths[3] * height * width, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n k
        logits: Tensor = self.head(self.hidden(self.drop(self.stack(x).flatten(1))).relu())
        return logits


class MaskNet(nn.Module):
    """What it is worth to switch each feature off, for an image: n c h w -> n 1 + features.

    The first number is the worth of the image with nothing switched off, the others stand around 0.5: from there on a
    feature is better off. It starts a hair below that for all, so that nothing is switched off before it has learned.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        features: int,
        widths: tuple[int, ...] = WIDTHS,
        kernels: tuple[int, ...] = KERNELS,
        *,
        as_published: bool = False,
    ) -> None:
        super().__init__()
        channels, *sides = _check(shape, widths, kernels)
        pools = 3 if as_published else 4
        height, width = (_smaller(side, pools) for side in sides)
        self.stack = _stack(channels, widths, pools, kernels)
        self.head = nn.Linear(widths[3] * height * width, 1 + features)
        self.start()

    def start(self) -> None:
        """As good as undecided: the head says the same of every feature, and 0 of the image."""
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, 0.5 - UNDECIDED)
        with torch.no_grad():
            self.head.bias[0] = 0.0

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n 1+f
        worth: Tensor = self.head(self.stack(x).flatten(1))
        return worth


class Masked(nn.Module):
    """Images through the autoencoder without the features that `chooser` calls better off: n c h w -> same."""

    def __init__(self, autoencoder: Autoencoder, chooser: MaskNet) -> None:
        super().__init__()
        self.autoencoder, self.chooser = autoencoder, chooser

    def mask(self, x: Tensor) -> Tensor:  # n c h w -> n f, 1 where a feature is left
        worth: Tensor = self.chooser(x)
        return (worth[:, 1:] < 0.5).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.autoencoder.decode(self.autoencoder.encode(x) * self.mask(x))


class FixedMask(nn.Module):
    """Images through the autoencoder with the same features switched off of all: n c h w -> same."""

    mask: Tensor

    def __init__(self, autoencoder: Autoencoder, mask: Tensor) -> None:  # f
        super().__init__()
        if mask.shape != (autoencoder.features,):
            raise AssayError(f"A mask of shape {tuple(mask.shape)} does not fit {autoencoder.features} features.")
        self.autoencoder = autoencoder
        self.register_buffer("mask", mask.float())

    def forward(self, x: Tensor) -> Tensor:
        return self.autoencoder.decode(self.autoencoder.encode(x) * self.mask)
