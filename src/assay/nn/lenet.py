"""LeNet-5 with rectifiers and maximum pooling, the small network of many studies on MNIST."""

from __future__ import annotations

from torch import Tensor, nn

from assay.errors import AssayError


class LeNet(nn.Module):
    """A convolutional classifier of grey 28 x 28 images in [0, 1]: 61,706 parameters for ten classes.

    Source: LeCun, Bottou, Bengio and Haffner, Proc. IEEE 1998. Departs from print as is usual since: ReLU and maximum
    pooling for tanh and trained averages, every map of the first layer into every one of the second, a linear head.
    """

    def __init__(self, classes: int = 10):
        super().__init__()
        if classes < 2:
            raise AssayError(f"LeNet needs at least 2 classes, got {classes}.")
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),  # n 1 28 28 -> n 6 28 28
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),  # -> n 16 10 10
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),  # -> n 400
        )
        self.features = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())  # -> n 84
        self.head = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:  # n 1 28 28 -> n c
        logits: Tensor = self.head(self.features(self.body(x)))
        return logits
