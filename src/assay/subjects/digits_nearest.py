"""The nearest neighbour among scikit-learn's digits: a model whose robustness is known exactly."""

from __future__ import annotations

from assay.subject import Recipe, Subject


def build() -> Subject:
    """1-NN on the training images, which are all there is to it, with the test images of `digits-mlp`."""
    import numpy as np

    from assay.data.digits import CLASSES, load_digits
    from assay.nn.nearest_neighbour import NearestNeighbour

    data = load_digits()
    model = NearestNeighbour(*data["train"].take(np.arange(len(data["train"]))))
    return Subject.classifier(
        model.eval(),
        data,
        name="digits-nearest",
        classes=CLASSES,
        about="The nearest of 1,300 digits of 8 x 8 gives its label; right on 0.9899 of the 497 test images.",
    )


SHELVED = Recipe(
    says="The nearest neighbour on scikit-learn's digits: 1,300 training and 497 test images",
    source="Alpaydin and Kaynak 1998, doi:10.24432/C50P49",
    build=build,
)
