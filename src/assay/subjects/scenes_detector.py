"""Boxes around the things in a scene, and what they are: 16 proposals, one for each field of a grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.data.digits import weights
from assay.data.scenes import KINDS, load_scenes
from assay.subject import Recipe, Subject
from assay.tasks import Detection

GRID = 4
LARGEST = 0.6  # the side of a box, as a share of the scene


class Detector(nn.Module):
    """Four convolutions; each field of the last says one box around a centre at most a field away: n 1 32 32 -> n 16 8.

    Source: after Redmon et al. 2016, arXiv:1506.02640, with one box for each field.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),  # -> n 16 16 16
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),  # -> n 32 8 8
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, stride=2, padding=1),  # -> n 48 4 4
            nn.ReLU(),
            nn.Conv2d(48, 48, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(48, 5 + len(KINDS), 1)
        self.fields: Tensor
        place = (torch.arange(GRID) + 0.5) / GRID
        down, right = torch.meshgrid(place, place, indexing="ij")
        self.register_buffer("fields", torch.stack([right, down], -1).reshape(-1, 2), persistent=False)  # 16 2

    def forward(self, x: Tensor) -> Tensor:  # n 1 32 32 -> n 16 8
        said = self.head(self.features(x)).flatten(2).transpose(1, 2)  # n 16 8
        centre = self.fields + said[..., :2].tanh() / GRID
        half = LARGEST / 2 * said[..., 2:4].sigmoid()
        return torch.cat([centre - half, centre + half, said[..., 4:]], 2)


def task() -> Detection:
    return Detection(KINDS)


def build() -> Subject:
    """The network with its weights and the scenes that it was trained and is tested on."""
    model = Detector()
    model.load_state_dict(weights("scenes_detector"))
    return Subject.of(
        model.eval(),
        {part: (scenes.x, scenes.boxes) for part, scenes in load_scenes().items()},
        task(),
        name="scenes-detector",
        about="A detector with 16 proposals on scenes of 32 x 32, trained on 3,000 of them; F1 of the boxes 0.7731 on "
        "the 500 test scenes.",
    )


SHELVED = Recipe(
    says="Boxes around things: discs, squares and triangles in scenes made by code",
    source="Redmon et al. 2016, arXiv:1506.02640, with one box for each field of a 4 x 4 grid",
    build=build,
)
