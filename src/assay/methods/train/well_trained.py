"""Networks as well trained as a claim about networks supposes, in minutes of one GPU.

One cycle of SGD with Nesterov momentum on images that are moved, mirrored and in part covered, the data on the GPU as a
whole, in bfloat16 and channels-last, each step one recorded graph (recorded.py). The loss is the plain cross-entropy
and the last weights are the ones: labels that are smoothed, or weights that are averaged, would answer questions about
confidence and about sharpness before they are asked.

    rate(t) = lr * min(t / 0.25, (1 - t) / 0.75),   t: the share of the steps that is done

The CIFAR-10 at hand is JPEG of quality 75 with halved colours, on which the same training reaches less than on the
original images: a study says what its own networks reach.

Sources: Smith & Topin 2019, arXiv:1708.07120 (one cycle); DeVries & Taylor 2017, arXiv:1708.04552 (a square that is
covered); Coleman et al., 'DAWNBench', 2017 (the time to 93 or 94 % on CIFAR-10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.data.whole import Whole
from assay.methods.train.recorded import fit_net

if TYPE_CHECKING:
    from assay.methods.train.fit import Augment


@dataclass(frozen=True)
class Recipe:
    """How long and how fast, and what is done to the images."""

    epochs: int
    batch: int
    lr: float
    weight_decay: float = 5e-4
    moved: int = 0  # pixels, at most
    mirrored: bool = False
    covered: int = 0  # pixels on each side of the square


CIFAR = Recipe(epochs=100, batch=500, lr=0.4, moved=4, mirrored=True, covered=16)
DIGITS = Recipe(epochs=12, batch=500, lr=0.2, moved=2)
CLOTHES = Recipe(epochs=25, batch=500, lr=0.2, moved=2, mirrored=True, covered=6)


class Half(nn.Module):
    """Trains in bfloat16 on a GPU. What a net says is asked of the one inside, in full precision."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n c
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            out: Tensor = self.net(x)
        return out.float()


def moved(
    x: Tensor, y: Tensor, rng: torch.Generator, *, by: int = 4, mirrored: bool = True
) -> tuple[Tensor, Tensor]:  # n c h w, n -> n c h w, n
    """Each image moved by up to so many pixels, its edge mirrored, and every second one from left to right."""
    n, _, h, w = x.shape
    places = 2 * by + 1
    down, right, turned = torch.randint(0, 2 * places, (3, n, 1), generator=rng, device=x.device)
    across, along = torch.arange(h, device=x.device), torch.arange(w, device=x.device)
    rows = down % places + across  # n h
    columns = right % places + (torch.where(turned % 2 == 0, along, along.flip(0)) if mirrored else along)  # n w
    padded = F.pad(x, (by, by, by, by), mode="reflect")
    which = torch.arange(n, device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2), y


def covered(x: Tensor, side: int, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """A square of each image is its mean colour, at a place whose centre lies anywhere in it."""
    n, _, h, w = x.shape
    centre = torch.rand(2, n, 1, generator=rng, device=x.device)
    inside = [
        ((torch.arange(size, device=x.device) + 0.5 - at * size).abs() <= side / 2)  # n size
        for at, size in zip(centre, (h, w), strict=True)
    ]
    square = inside[0][:, :, None] & inside[1][:, None, :]
    return torch.where(square[:, None], x.mean((2, 3), keepdim=True), x)


def changed(recipe: Recipe) -> Augment:
    """What the recipe does to a batch of images."""

    def augment(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        if recipe.moved:
            x, y = moved(x, y, rng, by=recipe.moved, mirrored=recipe.mirrored)
        return (covered(x, recipe.covered, rng) if recipe.covered else x), y

    return augment


def well_trained(
    net: nn.Module,
    data: Whole,
    recipe: Recipe,
    *,
    seed: int,
    device: str,
    on_epoch: Callable[[int], None] | None = None,
) -> nn.Module:
    """`net`, trained in place on all of `data`, in full precision and eval mode; the order of images is the seed's."""
    fit_net(
        Half(net.to(device)), data, seed=seed, device=device, augment=changed(recipe), epochs=recipe.epochs,
        batch=recipe.batch, lr=recipe.lr, weight_decay=recipe.weight_decay, on_epoch=on_epoch,
    )  # fmt: skip
    return net.eval()


def inside(half: nn.Module) -> nn.Module:
    """The net of a `Half`."""
    return half.get_submodule("net")
