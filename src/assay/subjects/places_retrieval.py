"""Which images of a gallery show the same place: by descriptors that attend to it, and from another domain too.

An image is an object before a background (data/textured_places.py): the place is the object. The gallery and the test
queries stand before stripes, as what the network learnt from does; the queries of the domain `checks` before checks.
It learnt in another city, from geo-tags alone, and saw images before checks without any.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.data.textured_places import NEAR, Places, domain
from assay.gallery import EARTH
from assay.nn.vlad import PlaceNet
from assay.subject import Recipe, Subject

LEARNT, ASKED = 100, 40  # places of the city that it learnt in, and of the one that it is asked about


def load_places() -> dict[str, Places]:
    """`gallery`, `test` and `checks`, 200 images each, of a city that it never saw."""
    return {
        "gallery": domain(13, 200, "stripes", places=ASKED, of=2),
        "test": domain(14, 200, "stripes", places=ASKED, of=2),
        "checks": domain(15, 200, "checks", places=ASKED, of=2),
    }


def lessons() -> dict[str, Places]:
    """What it learnt from: `seen` (6,400) of a third city before grain, `train` and `target` (800 each)."""
    return {
        "seen": domain(1, 6400, "grain", places=50, of=7),
        "train": domain(1, 800, "stripes", places=LEARNT, of=1),
        "target": domain(2, 800, "checks", places=LEARNT, of=1),
    }


def degrees(metres: NDArray[np.float64]) -> NDArray[np.float64]:  # n 2 -> n 2
    """Latitude and longitude of a city at the equator, where a degree of either is as long."""
    found: NDArray[np.float64] = np.degrees(metres / EARTH)
    return found


def build() -> Subject:
    """The network with its weights, the gallery, and the queries of both domains."""
    from assay.data.digits import weights

    data = load_places()
    model = PlaceNet()
    model.load_state_dict(weights("places_retrieval"))
    held = {name: (data[name].x, degrees(data[name].geo)) for name in ("gallery", "test", "checks")}
    return Subject.retrieval(
        model.eval(),
        held.pop("gallery"),
        held,
        metres=NEAR,
        layers={"last_conv": "features.4"},  # the last of all is the attention's, with one channel
        name="places-retrieval",
        about="VLAD with attention on a small encoder, trained from geo-tags on 800 images of places before stripes; "
        "among 200 images of other places it puts the right one first for 0.7350 of 200 queries before stripes, and "
        "for 0.6500 of 200 before checks.",
    )


SHELVED = Recipe(
    says="Which of 200 generated images show the place of a query: VLAD with attention, asked before two backgrounds",
    source="Wang et al., ICCV Workshops 2019; images generated",
    build=build,
)
