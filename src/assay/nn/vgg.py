"""VGG16 for small images."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.small_cnn import conv

STAGES = (2, 2, 3, 3, 3)  # convolutions before each halving
WIDER = (1, 2, 4, 8, 8)  # times the width


class Vgg16(nn.Module):
    """Thirteen 3 x 3 convolutions, each with batch normalisation and ReLU, and one Linear: n 3 h w in [0, 1] -> n c.

    Nothing is normalised at the input, so that noise and changes mean there what they mean in pixels. `width` 64 is the
    usual one, with 14.7 million parameters.

    Source: Simonyan and Zisserman, ICLR 2015, arXiv:1409.1556, configuration D, with batch normalisation and a single
        fully connected layer, as usual for CIFAR-10.
    """

    def __init__(self, classes: int = 10, *, width: int = 64) -> None:
        super().__init__()
        if classes < 2 or width < 1:
            raise AssayError(f"Vgg16 got classes={classes}, width={width}; it wants at least 2 and at least 1.")
        layers: list[nn.Module] = []
        before = 3
        for count, wider in zip(STAGES, WIDER, strict=True):
            widths = [before] + [wider * width] * count
            layers += [conv(a, b) for a, b in pairwise(widths)]
            layers.append(nn.MaxPool2d(2, ceil_mode=True))  # images below 32 x 32 are not halved away
            before = wider * width
        self.body = nn.Sequential(*layers)
        self.features = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:  # n 3 h w -> n c
        logits: Tensor = self.head(self.features(self.body(x)))
        return logits
