"""A stain for each image of cells, with how sure it is: three small U-Nets that answer with their mean."""

from __future__ import annotations

from assay.data.digits import weights
from assay.data.stained_cells import DENSITIES, load_fields
from assay.nn.members import Ensemble
from assay.nn.translator import Translator
from assay.subject import Recipe, Subject
from assay.tasks import ImageToImage

TOLERANCE = 0.1  # the error of always saying the mean stain
MEMBERS = 3


def network() -> Translator:
    """Three sizes, 6 channels at the largest."""
    return Translator(1, 1, width=6, levels=3)


def task() -> ImageToImage:
    return ImageToImage((1, 64, 64), TOLERANCE)


def build() -> Subject:
    """The networks with their weights, the fields that they were trained and are tested on, and six domains."""
    model = Ensemble([network() for _ in range(MEMBERS)], average="answers")
    model.load_state_dict(weights("cells_translator"))
    sets = {name: fields.marked() for name, fields in load_fields(elsewhere=30).items()}
    home = {name: sets.pop(name) for name in ("train", "test")}
    return Subject.of(
        model.eval(),
        home,
        task(),
        name="cells-translator",
        domains=sets,
        at={name: float(cells) for name, cells in DENSITIES.items()},
        about="Three small U-Nets that draw the stain of cells on images of 64 x 64, trained on 200 of 8 cells each; "
        "closeness 0.8048 on the 60 test images, where an error of 0.1 is worth nothing.",
    )


SHELVED = Recipe(
    says="A stain for an image of cells, with its uncertainty: an ensemble of U-Nets on fields made by code",
    source="Liu, UCLA 2021, sec. 5.3 and 6, with three small U-Nets, on fields made by assay.data.stained_cells",
    build=build,
)
