"""How long until a network of the studies is as good as it will be, and how good is that?

    ASSAY_DATA=... python benchmarks/networks.py                  ResNet-18 on CIFAR-10: seconds to 90, 93 and 94 %
    ASSAY_DATA=... python benchmarks/networks.py vgg16            VGG16, and so `narrow` (its half), `mnist`, `fashion`
    ASSAY_DATA=... python benchmarks/networks.py resnet18 --seeds 3 --epochs 60
    python benchmarks/networks.py resnet18 --tiny                 two epochs on a few bundled images: that it runs

The recipe is methods/train/well_trained.py. Test images are looked at after every epoch, outside the clock. The first
seconds are those of loading kernels and of recording the step; they are counted.

Beside it, the fastest public recipes for the original images on one GPU: 94 % in 3.3 s of an A100 with a network of its
own (Jordan 2024, arXiv:2404.00498); 94 % in 26 s of a V100 with a ResNet of nine layers (Page 2018, 'How to train your
ResNet'). They are trained for that number alone; here the network is the published ResNet-18, the loss plain, and the
images a JPEG copy with halved colours, on which nobody has said what can be reached.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch
from clock import now
from torch import Tensor, nn

from assay.claims._networks import RECIPES, SHORTER, Name, narrow_vgg16, resnet18, started, vgg16
from assay.data.whole import Whole, whole
from assay.methods.train.well_trained import Recipe, well_trained

LIMITS = {"CIFAR-10": (0.90, 0.93, 0.94), "MNIST": (0.99, 0.995), "Fashion-MNIST": (0.92, 0.93)}
MINUTES = 5  # that a training may take on one GPU


def grey() -> nn.Module:
    from assay.nn.small_cnn import SmallCNN

    return SmallCNN()


WHICH: dict[str, tuple[Name, object]] = {
    "resnet18": ("CIFAR-10", resnet18),
    "vgg16": ("CIFAR-10", vgg16),
    "narrow": ("CIFAR-10", narrow_vgg16),
    "mnist": ("MNIST", grey),
    "fashion": ("Fashion-MNIST", grey),
}


@torch.no_grad()
def accuracy(net: nn.Module, test: Whole) -> float:
    net.eval()
    said: Tensor = torch.cat([net(part).argmax(1) for part in torch.split(test.x, 1000)])
    return float((said == test.y).double().mean())


def images(name: Name, device: str, tiny: bool) -> dict[str, Whole]:
    from assay.data import beyond, fashion

    if tiny:
        few = whole(fashion.load_fashion(), device)
        colours = 3 if name == "CIFAR-10" else 1
        return {part: Whole(data.x[:200].repeat(1, colours, 1, 1), data.y[:200]) for part, data in few.items()}
    read = {"CIFAR-10": beyond.cifar10, "MNIST": beyond.mnist, "Fashion-MNIST": beyond.fashion_mnist}[name]
    return whole(read(), device)


def timed(
    name: Name, build: object, recipe: Recipe, data: dict[str, Whole], seed: int, device: str
) -> tuple[float, float]:
    """Seconds of the training, and the accuracy at its end; prints when each limit was first met."""
    net = started(build, seed)  # type: ignore[arg-type]
    left = list(LIMITS[name])
    looked, start = 0.0, now(device)

    def told(epoch: int) -> None:
        nonlocal looked
        before = now(device)
        right = accuracy(net, data["test"])
        while left and right >= left[0]:
            seconds = before - start - looked
            print(f"  seed {seed}: {100 * left.pop(0):g} % after {seconds:.1f} s, epoch {epoch}", flush=True)
        looked += now(device) - before

    well_trained(net, data["train"], recipe, seed=seed, device=device, on_epoch=told)
    seconds = now(device) - start - looked
    found = accuracy(net, data["test"])
    print(f"  seed {seed}: {100 * found:.2f} % at the end, after {seconds:.1f} s", flush=True)
    return seconds, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="?", choices=tuple(WHICH), default="resnet18")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, help="in place of the recipe's")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name, build = WHICH[given.which]
    recipe = SHORTER if given.which == "narrow" else RECIPES[name]
    if given.epochs or given.tiny:
        recipe = replace(recipe, epochs=given.epochs or 2, batch=50 if given.tiny else recipe.batch)
    print(f"{given.which} on {name}, {recipe}, {device}", flush=True)
    data = images(name, device, given.tiny)
    found = np.array([timed(name, build, recipe, data, seed, device) for seed in range(given.seeds)])
    seconds, right = found.mean(0)
    kept = "kept" if seconds <= 60 * MINUTES else "MISSED"
    between = f"{100 * found[:, 1].min():.2f} to {100 * found[:, 1].max():.2f}"
    print(f"{100 * right:.2f} % ({between}) in {seconds:.1f} s a training, limit {60 * MINUTES} s: {kept}")


if __name__ == "__main__":
    main()
