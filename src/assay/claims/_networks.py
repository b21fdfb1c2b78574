"""Well-trained networks that studies share: one for each seed, made by methods/train/well_trained.py, and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

import torch
from torch import nn

from assay.claims._kept import Tensors, kept
from assay.data.whole import Whole, whole
from assay.methods.train.well_trained import CIFAR, CLOTHES, DIGITS, Recipe, well_trained

Name = Literal["CIFAR-10", "MNIST", "Fashion-MNIST"]
Build = Callable[[], nn.Module]
RECIPES: dict[Name, Recipe] = {"CIFAR-10": CIFAR, "MNIST": DIGITS, "Fashion-MNIST": CLOTHES}
SHORTER = replace(CIFAR, epochs=60)  # of narrow networks, many of which are needed
HELD_OUT = 5000  # training images that a study may choose by
TRAINED = (
    f"trained as all studies' are ({CIFAR.epochs} epochs of SGD with one cycle, images moved, mirrored and in part "
    "covered)"
)
NARROW = (
    f"VGG16 of width 32 on all but {HELD_OUT:,} training images of CIFAR-10, {SHORTER.epochs} epochs and else {TRAINED}"
)


def resnet18() -> nn.Module:
    from assay.nn.resnet import ResNet18

    return ResNet18(width=64)


def vgg16() -> nn.Module:
    from assay.nn.vgg import Vgg16

    return Vgg16(width=64)


def narrow_vgg16() -> nn.Module:
    from assay.nn.vgg import Vgg16

    return Vgg16(width=32)


def narrow(seed: int, device: str) -> nn.Module:
    """VGG16 of half the width, of which studies of ensembles and of defences need many."""
    return network("CIFAR-10", narrow_vgg16, seed, device, held_out=HELD_OUT, recipe=SHORTER)


@cache
def images(name: Name, device: str) -> dict[str, Whole]:
    from assay.data import beyond

    splits = {"CIFAR-10": beyond.cifar10, "MNIST": beyond.mnist, "Fashion-MNIST": beyond.fashion_mnist}[name]()
    return whole(splits, device)


def started(build: Build, seed: int) -> nn.Module:
    """Untrained, from the start that the seed names; the global generator is left as found."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()


@cache  # all studies of one process are about the same networks
def network(
    name: Name, build: Build, seed: int, device: str, *, held_out: int = 0, recipe: Recipe | None = None
) -> nn.Module:
    """Trained on all training images but the last `held_out`; in eval mode, its weights no longer trained.

    One and the same for all who ask: a study that changes it takes a copy.
    """
    data, net = images(name, device)["train"], started(build, seed)
    kept_back = min(held_out, len(data) // 3)
    some = Whole(data.x[: len(data) - kept_back], data.y[: len(data) - kept_back])
    chosen = RECIPES[name] if recipe is None else recipe

    def make() -> Tensors:
        return well_trained(net, some, chosen, seed=seed, device=device).state_dict()

    told = (str(net), chosen, seed)
    weights = kept(make, "assay.methods.train.well_trained", told, device, (*net.state_dict().values(), some))
    net.load_state_dict(weights)
    return net.to(device).eval().requires_grad_(False)
