"""Train networks that hold under attack: a ResNet-18 on CIFAR-10, and the small network that Assay ships as robust.

    ASSAY_DATA=... python tools/train_robust.py cifar --out resnet.safetensors   14 minutes of one H200
    python tools/train_robust.py fashion                                         writes the bundled weights

Both are trained by methods/train/robust.py to hold at 8/255, the data on the GPU where there is one.

cifar: 118 epochs of SGD with Nesterov momentum, batches of 125, a one-cycle rate up to 0.1, weight decay 5e-4, an
attacker of 3 steps within 9.5/255, random shifts by up to 4 pixels and flips, each image a second time, varied strongly
(methods/train/varied.py), labels smoothed by 0.1, weights perturbed by 0.005 of their length
(methods/train/weight_perturbation.py), an exponential average of the weights over some 3,000 steps with batch
normalisations measured anew; of the epochs of the last third the last that holds as much as the best, within one
standard error, of 1,000 held-out training images. Test images are looked at once, at the end: clean, and under the
ensemble of methods/attack/ensemble.py, which searches in bf16 and is believed in float32. Then the same of the network
that is asked twice, with the mirror image: the attacks climb the mean of both answers.
fashion: 25 epochs on all of the 10,000 bundled training images, each shown once, against 7 steps within 8/255, with
shifts by 1 pixel, unsmoothed labels, weights where they are and a shorter average, without early stopping. The shipped
weights were made with 8 threads and torch 2.11 by a form of this training whose steps were not recorded and whose
average began after the first of them.

What was measured of cifar on one H200 with torch 2.11, on all 10,000 test images, clean and at 8/255; asked are 80 and
48 % within 900 s. The copy of CIFAR-10 at hand is JPEG of quality 75 with halved colours, and what that costs is not
known. Tries of images that are shown once name what differs from ROBUST_CIFAR.
- This recipe, 827 s beside audits on the same host: 80.47 and 48.40 %, asked with the mirror image 80.58 and 49.57 %.
  Of the watched images 80.8 % were right and 52.9 % held (at 9.5/255) after 100 epochs, 81.7 and 52.8 % after 107, 82.5
  and 51.7 % at the end, which is the epoch that was chosen; the loss still fell, from 1.69 to 1.57. An epoch took
  6.3 s, and 6.8 with its look at watched images.
- Images shown once, against 8/255 in 7 steps, 140 epochs, 827 s, but the epoch (105) after which most of the watched
  images held: 80.1 and 47.2 %, asked with the mirror image 80.0 and 48.4 %. Of the watched images 81.1 % were right and
  56.3 % held there; at the end 83.3 and 55.7 %, at a loss of 1.26, so that the last epoch would have been the better
  choice, and is what is chosen now.
- --radius 9.5 --steps 5 --epochs 165, 850 s, the epoch (155) that is chosen now: 79.81 and 48.01 %, 19 images short.
  Of the watched images 80.1 % were right and 52.2 % held (at 9.5/255) after 139 epochs, 80.8 and 51.1 % after 155, 81.4
  and 50.6 % at the end.
- Against an attacker of 10/255 (--radius 10), 95 epochs, 561 s, the epoch of the largest sum of both: 77.2 and 47.9
  %. It was still learning, clean and attacked, as its rate fell.
- Batches of 500 at a rate of 0.4, where steps were not recorded yet and small batches waited for the host, 4 steps in
  the first half: weights perturbed by 0.006, an average of 200 steps, 180 epochs, 750 s: 81.6 and 47.2 %, with the
  mirror image 81.9 and 48.2 %; by 0.008 and of 1,000 steps, 776 s: 81.3 and 47.3 %. Both overfitted: 56 % of the
  watched images held after 123 epochs, 52 % at the end.
- Batches of 500 with black boxes in half of the images (arXiv:1708.04896), 793 s: 79.7 and 46.3 %; with targets that
  the average rectifies (arXiv:2305.12118), 805 s: 81.1 and 47.1 %; an attacker that meets the statistics of its
  batch, 20 epochs: 76.4 and 43.1 %, without 76.2 and 43.0 %. None is kept.
- With helper examples (--beta 4 --perturb 0 --smoothing 0 --lr 0.2 --steps 5 --epochs 40), 303 s beside another
  program on the GPU, the last epoch: 80.6 and 45.8 %. Of the watched images 79.8 % were right and 50.5 % held after 30
  epochs, 81.6 and 52.6 % after 40: it was still learning both.
- The same with perturbed weights and longer (--beta 4.5 --perturb 0.005 --smoothing 0 --lr 0.15 --average 0.9995
  --steps 5 --epochs 102), 823 s, the last epoch: 81.1 and 46.9 %, with the mirror image 81.1 and 47.9 %. Of the watched
  images 80.5 % were right and 52.4 % held after 80 epochs, 81.7 and 53.9 % after 93, 82.2 and 53.6 % at the end, at a
  loss that still fell from 1.74 to 1.63: what is clean was to spare. A larger beta or radius is not tried.
- Against 9/255 in batches of 250 (--radius 9 --steps 5 --perturb 0.0075 --batch 250 --lr 0.2 --average 0.9985 --epochs
  216), 784 s to the epoch before the last: of the watched images 83.1 % were right and 50.5 % held at 9/255 then. The
  machine was lost before the test images were looked at. Against 9.5/255 in batches of 125 it ended at 81.4 and 50.6 %
  at 9.5/255: more was overfitted here.
- The divergence without helper examples (TRADES), against a radius that grows to 8/255 over the first nine tenths as in
  arXiv:2210.15318, in batches of 250 (beta 8, 3 steps, a rate of 0.3, perturbed by 0.005, an average of 1,000 steps,
  200 epochs), 847 s beside the suite on the same host: 79.9 and 47.2 %, the last epoch. Of the watched images 80.8 %
  were right and 54.2 % held after 171 epochs, 80.6 and 54.8 % at the end. It is not kept.
- Batches of 250, weights perturbed by 0.005, 90 epochs, 550 s: 79.5 and 46.5 %. Without perturbation 50 epochs ended
  at 82.1 and 41.8 % (of 1,000). SiLU in place of ReLU, 694 s: 75.4 and 44.0 %.
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
from assay.methods.train.helper import Helpers
from assay.methods.train.robust import ROBUST_CIFAR, RobustRecipe, accuracy, robustly_trained
from assay.methods.train.well_trained import CIFAR, well_trained
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN

BUNDLED = Path(__file__).parents[1] / "src" / "assay" / "data" / "bundled"
RADIUS = 8 / 255
SEED = 20240917
OWN = replace(ROBUST_CIFAR, epochs=118, radius=9.5 / 255, steps=3, twice=True, average=0.9997)
PLAIN = 25  # epochs of the plain network that labels helpers


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
        OWN, epochs=given.epochs or OWN.epochs, lr=given.lr, batch=given.batch, steps=given.steps,
        perturb=given.perturb, average=given.average, radius=given.radius / 255, smoothing=given.smoothing,
        twice=given.twice,
    )  # fmt: skip
    net, helpers = ResNet18(), None
    if given.beta is not None:
        plain = well_trained(ResNet18(), learnt, replace(CIFAR, epochs=PLAIN, covered=0), seed=SEED, device=device)
        say(f"{accuracy(plain, watch):.4f} of what is watched plainly right, {time.monotonic() - start:.0f} s")
        helpers = Helpers(plain, beta=given.beta, gamma=given.gamma)
    model = robustly_trained(
        net, learnt, recipe, seed=SEED, watch=watch, helpers=helpers, swift=device == "cuda", told=say
    )
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
    parser.add_argument("--epochs", type=int, help=f"{OWN.epochs} for cifar, 25 for fashion")
    own = OWN
    parser.add_argument("--perturb", type=float, default=own.perturb, help=f"cifar: weights move by {own.perturb}")
    parser.add_argument("--average", type=float, default=own.average, help=f"cifar: {own.average} a step")
    parser.add_argument("--batch", type=int, default=own.batch, help=f"cifar: {own.batch}")
    parser.add_argument("--lr", type=float, default=own.lr, help=f"cifar: the largest rate, {own.lr}")
    parser.add_argument("--steps", type=int, default=own.steps, help=f"cifar: of the attacker, {own.steps}")
    parser.add_argument("--radius", type=float, default=9.5, help="cifar: of the attacker, in 255ths: 9.5")
    parser.add_argument("--smoothing", type=float, default=own.smoothing, help=f"cifar: of labels, {own.smoothing}")
    parser.add_argument(
        "--twice", action=argparse.BooleanOptionalAction, default=own.twice,
        help="cifar: each image is shown varied strongly, too; not with helper examples",
    )  # fmt: skip
    parser.add_argument("--beta", type=float, help="cifar: with helper examples, and this weight of the divergence")
    parser.add_argument("--gamma", type=float, default=0.5, help="cifar: the weight of helper examples, 0.5")
    parser.add_argument("--attacked", type=int, help="test images that meet the ensemble, from the first on: all")
    parser.add_argument(
        "--out", type=Path, help="where to write the weights; fashion's place is among the bundled ones"
    )
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    {"cifar": cifar, "fashion": fashion}[given.which](given, device)


if __name__ == "__main__":
    main()
