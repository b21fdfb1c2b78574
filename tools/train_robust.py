"""Train networks that hold under attack: a ResNet-18 on CIFAR-10, and the small network that Assay ships as robust.

    ASSAY_DATA=... python tools/train_robust.py cifar --out resnet.safetensors   minutes on one GPU
    python tools/train_robust.py fashion                                         writes the bundled weights

Both are trained by methods/train/robust.py at 8/255, the data on the GPU where there is one.

cifar: 180 epochs of SGD with Nesterov momentum, batches of 500, a one-cycle rate up to 0.4, weight decay 5e-4, an
attacker of 4 steps of 2/255 in the first half and of 7 in the second, random shifts by up to 4 pixels and flips, labels
smoothed by 0.1, weights perturbed by 0.006 of their length (methods/train/weight_perturbation.py), an exponential
average of the weights with batch normalisations measured anew, and early stopping: of the epochs of the last third, the
average that keeps most under the attack of the training, of 1,000 held-out training images. Test images are looked at
once, at the end: clean, and under the ensemble of methods/attack/ensemble.py, which searches in bf16 and is believed in
float32. Then the same of the network that is asked twice, with the mirror image: the attacks climb the mean of both
answers.
fashion: the same on all of the 10,000 bundled training images, with shifts by 1 pixel, a rate up to 0.1, unsmoothed
labels, weights where they are and a shorter average, without early stopping. The shipped weights were made with 8
threads and torch 2.11.

What was measured of cifar on one H200 with torch 2.11, on all 10,000 test images, clean and at 8/255: 180 epochs in 750
s, the epoch (123) after which most of the watched images held, 56 %: 81.6 and 47.2 %, asked with the mirror image 81.9
and 48.2 %. With an average of 1,000 steps and weights perturbed by 0.008 (--average 0.999 --perturb 0.008), 776 s,
epoch 122: 81.3 and 47.3 %; of the watched images 56 % held there and 52 % at the end, as the loss of training went from
1.49 to 1.06: that perturbation does not keep batches of 500 from overfitting. With that average, weights perturbed by
0.010 and black boxes in half of the images (arXiv:1708.04896; not kept), 793 s: 79.7 and 46.3 %, asked with the mirror
image 79.7 and 47.0 %; most of the watched images held near the end, 55 %, at a loss of 1.45: too much of both. With
targets that the average of the weights rectifies (arXiv:2305.12118, trust 0.7 to 0.85 at temperatures of 2.5 to 1.5;
not kept), weights perturbed by 0.005, an average of 300 steps, 170 epochs, 805 s: 81.1 and 47.1 %; of the watched
images 55 % held at most and 52 % at the end. In 20 epochs without perturbation, with an attacker that meets the
statistics of the batch as the public codes have it (not kept) 76.4 and 43.1 % (of 4,000), and without 76.2 and 43.0 %;
rectified 74.6 and 41.3 %. Whatever was tried, 47 % it is: batches of 500 make 98 steps an epoch, where public recipes
make 390, and smaller ones at as many epochs were not tried. The first with the epoch chosen by the sum of what was
right and what held, near the end, 722 s: 82.9 and 46.6 %, asked with the mirror image 82.9 and 48.3 %. Before: 90
epochs in batches of 250 with 7 steps throughout and weights perturbed by 0.005, 550 s: 79.5 and 46.5 %; 23 such epochs,
149 s: 74.8 and 43.8 %. Without perturbation 50 epochs ended at 82.1 and 41.8 % (of 1,000), overfitted. SiLU in place of
ReLU, weights perturbed by 0.0075, an average of 500 steps, 100 epochs of 250, 694 s: 75.4 and 44.0 %; it had not fitted
its training images yet. 80 and 48 %, which public recipes reach, are reached with the mirror image alone. They had the
original images; the copy at hand is JPEG of quality 75 with halved colours, and what that costs is not known.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from assay.data.fashion import load_fashion
from assay.data.whole import Whole, whole
from assay.methods.attack.ensemble import worst_case
from assay.methods.attack.swift import searching
from assay.methods.train.robust import ROBUST_CIFAR, RobustRecipe, accuracy, robustly_trained
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN

BUNDLED = Path(__file__).parents[1] / "src" / "assay" / "data" / "bundled"
RADIUS = 8 / 255
SEED = 20240917


def say(line: str) -> None:
    print(line, flush=True)


class Mirrored(nn.Module):
    """The mean of the answers to an image and to its mirror image: one network, asked twice."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n k
        here, there = self.net(torch.cat([x, x.flip(-1)])).chunk(2)
        return (here + there) / 2


def report(model: nn.Module, test: Whole, attacked: int, steps: int) -> None:
    """Clean accuracy on all, and what the ensemble leaves of the first few, as float32 passes judge it."""
    start = time.monotonic()
    few = Whole(test.x[:attacked], test.y[:attacked])
    asked, precision = searching(model, few.x)
    rng = torch.Generator().manual_seed(0)
    broken = worst_case(asked, few.x, few.y, radius=RADIUS, steps=steps, precision=precision, rng=rng).success
    held = 1 - float(broken.float().mean())
    print(
        f"accuracy {accuracy(model, test):.4f} on {len(test)} test images; on the first {len(few)} "
        f"{accuracy(model, few):.4f} and {held:.4f} at 8/255, found in {time.monotonic() - start:.0f} s",
        flush=True,
    )


def keep(model: nn.Module, out: Path | None) -> None:
    if out is not None:
        save_file({name: t.cpu().contiguous() for name, t in model.state_dict().items()}, out)


def cifar(given: argparse.Namespace, device: str) -> None:
    from assay.data.beyond import cifar10

    data = cifar10()
    torch.manual_seed(SEED)  # the initial weights
    start = time.monotonic()
    held = whole({"train": data["train"]}, device)["train"]
    watch, learnt = Whole(held.x[:1000], held.y[:1000]), Whole(held.x[1000:], held.y[1000:])
    recipe = replace(
        ROBUST_CIFAR, epochs=given.epochs or ROBUST_CIFAR.epochs, lr=given.lr, batch=given.batch, early=given.early,
        perturb=given.perturb, average=given.average, fall=given.fall,
    )  # fmt: skip
    model = robustly_trained(ResNet18(), learnt, recipe, seed=SEED, watch=watch, swift=device == "cuda", told=say)
    print(f"trained in {time.monotonic() - start:.0f} s", flush=True)
    keep(model, given.out)
    test = whole({"test": data["test"]}, device)["test"]
    report(model, test, given.attacked or 10_000, 100)
    print("asked twice, with the mirror image:", flush=True)
    report(Mirrored(model).eval(), test, given.attacked or 10_000, 100)


def fashion(given: argparse.Namespace, device: str) -> None:
    data = load_fashion()
    held = whole({"train": data["train"]}, device)["train"]
    torch.manual_seed(SEED)
    net = SmallCNN(mean=held.x.mean().item(), std=held.x.std().item())
    recipe = RobustRecipe(epochs=given.epochs or 25, lr=0.1, batch=125, shift=1, average=0.99)
    model = robustly_trained(net, held, recipe, seed=SEED, swift=device == "cuda", told=say)
    keep(model, given.out or BUNDLED / "fashion_robust.safetensors")
    report(model, whole({"test": data["test"]}, device)["test"], given.attacked or 2000, 50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("cifar", "fashion"))
    parser.add_argument("--epochs", type=int, help="180 for cifar, 25 for fashion")
    parser.add_argument("--perturb", type=float, default=0.006, help="of cifar: how far weights move, 0.006")
    parser.add_argument(
        "--fall", type=int, default=0, help="of cifar: epochs in which a constant rate falls at the end; 0: one cycle"
    )
    parser.add_argument(
        "--average", type=float, default=ROBUST_CIFAR.average, help="of cifar: what the average keeps at a step, 0.995"
    )
    parser.add_argument("--batch", type=int, default=500, help="of cifar: 500")
    parser.add_argument("--lr", type=float, default=0.4, help="of cifar: the largest rate, 0.4")
    parser.add_argument(
        "--early", type=int, default=4, help="of cifar: steps of the attacker in the first half: 4; 7 later"
    )
    parser.add_argument("--attacked", type=int, help="test images that meet the ensemble, from the first on: all")
    parser.add_argument(
        "--out", type=Path, help="where to write the weights; fashion's place is among the bundled ones"
    )
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    {"cifar": cifar, "fashion": fashion}[given.which](given, device)


if __name__ == "__main__":
    main()
