"""The residual network of eighteen layers for 32 x 32 colour images."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from assay.errors import AssayError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training images, per channel


class Block(nn.Module):
    """relu( bn(conv(relu(bn(conv(x))))) + shortcut(x) ); the shortcut is a 1 x 1 convolution where shapes change."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))  # fmt: skip
        same = stride == 1 and channels_in == channels
        self.shortcut: nn.Module = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))  # fmt: skip
        self.last = nn.ReLU()  # a module, so that what replaces or watches layers finds it

    def forward(self, x: Tensor) -> Tensor:  # n i h w -> n c h/s w/s
        out: Tensor = self.last(self.body(x) + self.shortcut(x))
        return out


class ResNet18(nn.Module):
    """Inputs in [0, 1]; the normalisation is part of it. `width` 64 is the published network, fewer a smaller one.

    Source: He et al., CVPR 2016, arXiv:1512.03385, in the form for small images: a 3 x 3 first convolution, no pooling
    before the blocks.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, classes: int = 10, *, width: int = 64) -> None:
        super().__init__()
        if width < 1:
            raise AssayError(f"ResNet18 needs width >= 1, got {width}; 64 is the published one.")
        self.register_buffer("mean", torch.tensor(MEAN).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(-1, 1, 1))
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(
            *(nn.Sequential(Block(a, b, 1 if i == 0 else 2), Block(b, b, 1))
              for i, (a, b) in enumerate(pairwise(widths))))  # fmt: skip
        self.features = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:  # n 3 32 32 -> n c
        logits: Tensor = self.head(self.features(self.stages(self.stem((x - self.mean) / self.std))))
        return logits
