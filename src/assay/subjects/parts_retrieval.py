"""Who it is of whom a query shows a part: drawn figures, whole in the gallery, cropped or behind a block as queries."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from assay.data.arrays import Arrays
from assay.data.figures import Figures, figures
from assay.nn.parts_net import PartsNet
from assay.subject import Recipe, Subject

TAUGHT, SOUGHT = range(60), range(60, 120)
"""Persons that the network was trained on, and persons that it is asked to find."""
EACH, ITEMS, ASKED = 12, 2, 6  # images of a person: trained on, in the gallery, queries
CROPPED, COVERED = 0.7, 0.8
"""The share of a query that is seen: of its height, or of its area."""
GREY = 0.5


class Scene(NamedTuple):
    """What was trained on, the whole images to find, and the queries: the first half of each person cropped."""

    taught: Figures
    gallery: Arrays
    queries: Arrays


def network() -> PartsNet:
    """n 3 32 16 -> n 48: four stages, with feature excitation; IRR in training."""
    return PartsNet(3, (16, 32, 40, 48), (2, 1, 1, 0), alpha=0.02)


def load_parts() -> Scene:
    """720 images of 60 persons to learn from; of 120 persons 2 images each to find, of the other 60 6 queries each."""
    taught = figures(TAUGHT, EACH, seed=0)
    gallery = figures((*TAUGHT, *SOUGHT), ITEMS, seed=1)
    whole = figures(SOUGHT, ASKED, seed=2)
    names = gallery.classes
    return Scene(taught, Arrays(gallery.x, gallery.labels, names), Arrays(_in_part(whole), whole.labels, names))


def _in_part(whole: Figures) -> Tensor:  # -> n c h w
    from assay.methods.retrieve.parts import covered, cropped

    x = torch.from_numpy(whole.x)
    where = torch.rand(len(x), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first = (torch.arange(len(x)) % ASKED < ASKED // 2)[:, None, None, None]
    return (
        torch.where(first, cropped(x, CROPPED, where[:, 0]), covered(x, COVERED, where, GREY)).mul(1e4).round().div(1e4)
    )


def build() -> Subject:
    """The network with its weights, whole figures of 120 persons, and queries that show 60 of them in part."""
    from assay.data.digits import weights

    scene, model = load_parts(), network()
    model.load_state_dict(weights("parts_retrieval"))
    seen = Arrays(scene.taught.x, scene.taught.labels, scene.gallery.classes)
    return Subject.retrieval(
        model.eval(),
        scene.gallery,
        {"train": seen, "test": scene.queries},
        name="parts-retrieval",
        about="An embedding of drawn figures of 32 x 16 with feature excitation and IRR, trained on 60 persons, that "
        "looks for 60 others among whole figures of all 120; of 360 queries, half cropped to 70 % of the height and "
        "half with a fifth behind a block, it has the person first for 0.4722, precision of the first five 0.6250.",
    )


SHELVED = Recipe(
    says="Which of 120 drawn persons a query shows a part of: by embeddings with feature excitation",
    source="Meng et al. 2021, ICANN",
    build=build,
)
