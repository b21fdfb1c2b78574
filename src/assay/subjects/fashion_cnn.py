"""The subject that comes with Assay: a small convolutional network on a sample of Fashion-MNIST."""

from __future__ import annotations

from assay.subject import Recipe, Subject


def build() -> Subject:
    """The bundled network with its weights and the images that it was trained and is tested on."""
    from assay.data.fashion import CLASSES, fashion_weights, load_fashion
    from assay.nn.small_cnn import SmallCNN

    model = SmallCNN()
    model.load_state_dict(fashion_weights())
    return Subject.classifier(
        model.eval(),
        load_fashion(),
        name="fashion-cnn",
        classes=CLASSES,
        about="A small CNN trained on 10,000 images of Fashion-MNIST; right on 0.9095 of the 2,000 test images.",
    )


SHELVED = Recipe(
    says="A small CNN on a sample of Fashion-MNIST: 10,000 training and 2,000 test images of clothes",
    source="Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747",
    build=build,
)
