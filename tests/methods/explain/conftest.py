"""Small convolutional networks of either build, trained on scikit-learn's digits, in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from assay.methods.explain.gradcam import last_maps
from assay.nn.resnet import Block


class Net(NamedTuple):
    model: nn.Module
    layer: str
    x: Tensor  # n 1 8 8, test images
    y: Tensor  # n


def flattening(*hidden: int) -> nn.Sequential:
    """As VGG: maximum pooling behind the last maps, Flatten, and `hidden` layers before the logits."""
    sizes = (192, *hidden)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),  # 12 8 8 -> 12 4 4 -> 192
        *(layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())),
        nn.Linear(sizes[-1], 10),
    )


def residual() -> nn.Sequential:
    """As ResNet: residual blocks, global averages and one Linear."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(Block(8, 12, 2), Block(12, 12, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10)),
    )


BUILDS: dict[str, Callable[[], nn.Sequential]] = {
    "resnet": residual,
    "one linear": flattening,
    "two linears": lambda: flattening(24),
    "three linears": lambda: flattening(24, 16),
}


def trained(build: str, seed: int = 0) -> Net:
    data = load_digits()
    images, labels = torch.tensor(data.images[:, None] / 16).float(), torch.tensor(data.target)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = BUILDS[build]()
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(60):
            rows = torch.randint(0, 1500, (64,))
            loss = nn.functional.cross_entropy(net(images[rows]), labels[rows])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    net = net.double().eval().requires_grad_(False)
    held = images[1500:1560].double()
    return Net(net, last_maps(net, held), held, labels[1500:1560])


@pytest.fixture(scope="session")
def nets() -> dict[str, Net]:
    return {build: trained(build) for build in BUILDS}


@pytest.fixture(params=list(BUILDS))
def net(request: pytest.FixtureRequest, nets: dict[str, Net]) -> Net:
    return nets[request.param]
