"""The bundled network's sibling that was trained under attack."""

from __future__ import annotations

from assay.subject import Recipe, Subject


def build() -> Subject:
    """The architecture and the images of fashion-cnn, with weights from PGD adversarial training."""
    from assay.data.fashion import CLASSES, fashion_weights, load_fashion
    from assay.nn.small_cnn import SmallCNN

    model = SmallCNN()
    model.load_state_dict(fashion_weights("robust"))
    return Subject.classifier(
        model.eval(),
        load_fashion(),
        name="fashion-robust",
        classes=CLASSES,
        about="The small CNN of fashion-cnn, trained on the same 10,000 images as an attacker changes them by 8/255; "
        "right on 0.8685 of the 2,000 test images, and on 0.7885 of them under that attacker.",
    )


SHELVED = Recipe(
    says="The network of fashion-cnn after adversarial training: what holding costs, beside its plain sibling",
    source="Madry et al., ICLR 2018, arXiv:1706.06083; data: Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747",
    build=build,
)
