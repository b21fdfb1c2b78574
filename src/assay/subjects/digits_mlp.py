"""A small dense ReLU network on scikit-learn's digits: small enough for the tightest certificates."""

from __future__ import annotations

from torch import nn

from assay.subject import Recipe, Subject


def network() -> nn.Sequential:
    """64 - 32 - 32 - 10 with ReLUs."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    )  # n 1 8 8 -> n 10


def build() -> Subject:
    """The network with its weights and the images that it was trained and is tested on."""
    from assay.data.digits import CLASSES, digits_weights, load_digits

    model = network()
    model.load_state_dict(digits_weights())
    return Subject.classifier(
        model.eval(),
        load_digits(),
        name="digits-mlp",
        classes=CLASSES,
        about="A dense network with 64 ReLUs trained on 1,300 digits of 8 x 8; right on 0.9638 of the 497 test images.",
    )


SHELVED = Recipe(
    says="A dense ReLU network with 64 hidden units on scikit-learn's digits: 1,300 training and 497 test images",
    source="Alpaydin and Kaynak 1998, doi:10.24432/C50P49",
    build=build,
)
