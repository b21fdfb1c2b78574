"""The small convolutional network that Assay ships trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.errors import AssayError


class SmallCNN(nn.Module):
    """A convolutional classifier of grey 28 x 28 images in [0, 1]; the normalisation (x - mean) / std is part of it.

    Only convolutions, batch normalisation, ReLU and means: in eval mode everything but the ReLUs is affine, which is
    what certificates and relevance rules handle exactly. The inner points have names: `last_conv` gives the last map
    (n 96 7 7, after its ReLU), `features` the vector that the head sees (n 96), `head` is the final Linear.
    136,498 parameters; the weights that Assay ships reach 0.9095 on the 2,000 bundled test images of Fashion-MNIST.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, classes: int = 10, *, mean: float = 0.5, std: float = 0.5):
        super().__init__()
        if classes < 2:
            raise AssayError(f"SmallCNN needs at least 2 classes, got {classes}.")
        if std <= 0:
            raise AssayError(f"SmallCNN divides by std, so it must be positive, got {std}; 1.0 leaves the scale alone.")
        self.register_buffer("mean", torch.tensor(float(mean)))
        self.register_buffer("std", torch.tensor(float(std)))
        self.body = nn.Sequential(
            conv(1, 24),  # n 1 28 28 -> n 24 28 28
            nn.AvgPool2d(2),
            conv(24, 48),  # -> n 48 14 14
            nn.AvgPool2d(2),
            conv(48, 96),  # -> n 96 7 7
        )
        self.last_conv = conv(96, 96)  # -> n 96 7 7
        self.features = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())  # -> n 96
        self.head = nn.Linear(96, classes)

    def forward(self, x: Tensor) -> Tensor:  # n 1 28 28 -> n c
        z = self.last_conv(self.body((x - self.mean) / self.std))
        logits: Tensor = self.head(self.features(z))
        return logits


def conv(channels_in: int, channels_out: int) -> nn.Sequential:
    """A 3 x 3 convolution without bias (the batch normalisation has one), batch normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )
