"""The network of the softRmax claims: four convolutions and a linear layer on grey 28 x 28 images."""

from __future__ import annotations

import torch
from torch import nn


def four_convolutions(width: int, classes: int, seed: int) -> nn.Sequential:
    """Untrained, from the start that the seed names; the global generator is left as found."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU()),  # -> n w 14 14
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.ReLU()),  # -> n 2w 7 7
            nn.Flatten(),
            nn.Linear(2 * width * 49, classes),
        )
