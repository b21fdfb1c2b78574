"""A class for each pixel of blobs and vessels: ground, blob or vessel, by a network that was taught edges as well."""

from __future__ import annotations

import torch

from assay.data.digits import weights
from assay.data.vessels import CLASSES, load_vessels
from assay.nn.glunet import GLUNet
from assay.subject import Recipe, Subject
from assay.tasks import Segmentation


def network() -> GLUNet:
    """Three sizes, 6 channels at the largest."""
    return GLUNet(1, len(CLASSES), width=6, levels=3, layers=3, growth=4, edge=4)


def task() -> Segmentation:
    return Segmentation(CLASSES)


def build() -> Subject:
    """The network with its weights and the images that it was trained and is tested on."""
    model = network()
    model.load_state_dict(weights("vessels_glunet"))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a fifth off its time
    return Subject.of(
        model.eval(),
        {part: tuple(images) for part, images in load_vessels().items()},
        task(),
        name="vessels-glunet",
        about="A small GLUNet on images of 32 x 32, trained on 1,000 of them by Lovász losses of classes and edges; "
        "mean IoU 0.8078 on the 300 test images.",
    )


SHELVED = Recipe(
    says="A class for each pixel: blobs and thin vessels in images made by code",
    source="Wang and Quan, ICANN 2021 (GLUNet), with three sizes, on images made by assay.data.vessels",
    build=build,
)
