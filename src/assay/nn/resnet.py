"""Residual networks for 32 x 32 colour images, that of eighteen layers first."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from assay.errors import AssayError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training images, per channel


class Block(nn.Module):
    """relu( bn(conv(relu(bn(conv(x))))) + shortcut(x) ); the shortcut is a 1 x 1 convolution where shapes change."""

    gives: ClassVar[int] = 1  # times its channels

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = self.layers(channels_in, channels, stride)
        out = self.gives * channels
        self.shortcut: nn.Module = nn.Identity() if stride == 1 and channels_in == out else nn.Sequential(
            nn.Conv2d(channels_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))  # fmt: skip
        self.last = nn.ReLU()  # a module, so that what replaces or watches layers finds it

    @staticmethod
    def layers(channels_in: int, channels: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:  # n i h w -> n c h/s w/s
        out: Tensor = self.last(self.body(x) + self.shortcut(x))
        return out


class Bottleneck(Block):
    """A block of 1 x 1, 3 x 3 and 1 x 1 convolutions, the last four times as wide."""

    gives: ClassVar[int] = 4

    @staticmethod
    def layers(channels_in: int, channels: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels))  # fmt: skip


class ResNet(nn.Module):
    """Inputs in [0, 1]; the normalisation is part of it. `width` 64 is the published network, fewer a smaller one.

    Four stages of so many `blocks`: (3, 4, 6, 3) are 34 layers, or 50 of the kind `Bottleneck`.

    Source: He et al., CVPR 2016, arXiv:1512.03385, in the form for small images: a 3 x 3 first convolution, no pooling
    before the blocks.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, classes: int = 10, *, width: int = 64, blocks: tuple[int, ...] = (2, 2, 2, 2), kind: type[Block] = Block
    ) -> None:
        super().__init__()
        if width < 1:
            raise AssayError(f"{type(self).__name__} needs width >= 1, got {width}; 64 is the published one.")
        self.register_buffer("mean", torch.tensor(MEAN).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(-1, 1, 1))
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        stages, wide = [], width
        for i, count in enumerate(blocks):
            own = width * 2**i
            first = kind(wide, own, 1 if i == 0 else 2)
            wide = kind.gives * own
            stages.append(nn.Sequential(first, *(kind(wide, own, 1) for _ in range(count - 1))))
        self.stages = nn.Sequential(*stages)
        self.features = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(wide, classes)

    def forward(self, x: Tensor) -> Tensor:  # n 3 32 32 -> n c
        logits: Tensor = self.head(self.features(self.stages(self.stem((x - self.mean) / self.std))))
        return logits


class ResNet18(ResNet):
    """The one of eighteen layers."""

    def __init__(self, classes: int = 10, *, width: int = 64) -> None:
        super().__init__(classes, width=width)
