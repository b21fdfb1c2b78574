"""What was looked at: pictures of scan paths made by code, of which who looked is known too."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from assay.attribute import Attribute
from assay.data.digits import weights
from assay.data.scan_paths import PEOPLE_NAMES, STIMULI, ScanPaths, load_scan_paths
from assay.nn.masked import StackClassifier
from assay.subject import Recipe, Subject

SIZE = 32


def network(size: int = SIZE) -> StackClassifier:
    """The stack of convolutions, narrow and with kernels of 3 x 3: n 3 size size -> n 4."""
    return StackClassifier((3, size, size), STIMULI, (8, 16, 32, 64), (3, 3, 3, 3), hidden=64)


def subject_of(model: nn.Module, splits: Mapping[str, ScanPaths], name: str = "scan-paths", about: str = "") -> Subject:
    """Any model of such pictures, with the people who looked."""
    return Subject.of(
        model.eval(),
        dict(splits),
        name=name,
        bounds=(0.0, 1.0),
        about=about,
        attributes={"who": Attribute("who", PEOPLE_NAMES, {part: each.paths.who for part, each in splits.items()})},
    )


def build() -> Subject:
    """The network with its weights and the paths that it was trained and is tested on."""
    model = network()
    model.load_state_dict(weights("scan_paths"))
    return subject_of(
        model,
        load_scan_paths(),
        about="Four convolutions that say at which of four stimuli somebody looked, from a picture of 32 x 32 of where "
        "the eye went, trained on 960 paths of 8 people; right on 0.9698 of the 960 test paths.",
    )


SHELVED = Recipe(
    says="What was looked at: scan paths of the eye made by code, with who looked known beside",
    source="Made by assay.data.scan_paths",
    build=build,
)
