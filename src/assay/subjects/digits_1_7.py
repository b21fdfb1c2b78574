"""A small dense ReLU network that tells ones from sevens, taught by a hundred labels: few enough for each to count."""

from __future__ import annotations

from torch import nn

from assay.subject import Recipe, Subject


def network() -> nn.Sequential:
    """64 - 16 - 2 with ReLUs."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))  # n 1 8 8 -> n 2


def build() -> Subject:
    """The network with its weights and the images that it was trained and is tested on."""
    from assay.data.digits_1_7 import CLASSES, digits_1_7_weights, load_digits_1_7

    model = network()
    model.load_state_dict(digits_1_7_weights())
    return Subject.classifier(
        model.eval(),
        load_digits_1_7(),
        name="digits-1-7",
        classes=CLASSES,
        about="A dense network with 16 ReLUs trained on 100 ones and sevens of 8 x 8; right on all 261 test images.",
    )


SHELVED = Recipe(
    says="A dense ReLU network with 16 hidden units on ones and sevens of scikit-learn's digits: 100 training images",
    source="Alpaydin and Kaynak 1998, doi:10.24432/C50P49",
    build=build,
)
