"""Networks that hold under attack, as well trained as a claim about them supposes, in minutes of one GPU.

PGD adversarial training: at each step the attacker of adversary.py searches around the batch, and the weights move
against what it finds. One cycle of SGD with Nesterov momentum, or a constant rate that falls at the end, images shifted
and mirrored; where the recipe says so labels are smoothed, weights perturbed (weight_perturbation.py), and the attacker
takes fewer steps in the first half, as a network that holds little yet is broken by few. What is given is an
exponential average of the weights,

    m_t = average m_{t-1} + (1 - average) w_t,

with batch normalisations measured anew on attacked images; with images to watch, that of the epoch of the last third
after which most of them held: what holds falls again while clean accuracy still grows. On CUDA passes are compiled, in
bf16 and channels-last.

Sources: Madry et al., ICLR 2018, arXiv:1706.06083 (the training); Wu et al., NeurIPS 2020, arXiv:2004.05884 (weights
that are perturbed); Rice et al., ICML 2020, arXiv:2002.11569 (stopping early, soon after a constant rate
has fallen); Pang et al., ICLR 2021, arXiv:2010.00467 (which details count).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.data.whole import Whole
from assay.methods.train.adversary import Adversary
from assay.methods.train.fit import Schedule, fit
from assay.methods.train.pgd_training import PgdTraining
from assay.methods.train.weight_perturbation import WeightPerturbation

MEASURED = 5000  # training images that batch normalisations are measured anew on
WATCHING = 20240917  # the seed of what watches a training: the same for every network


@dataclass(frozen=True)
class RobustRecipe:
    """How long, how fast, against whom, and what is done to images, labels and weights."""

    epochs: int
    batch: int
    lr: float
    radius: float = 8 / 255
    steps: int = 7
    early: int | None = None  # steps in the first half
    shift: int = 4  # pixels, at most
    fall: int = 0  # epochs at the end in which a constant rate falls to 0; none: one cycle
    smoothing: float = 0.0
    perturb: float = 0.0
    average: float = 0.995
    weight_decay: float = 5e-4

    def rounds(self) -> list[tuple[int, Schedule]]:
        """Epochs, and how the rate goes in them."""
        if not self.fall:
            return [(self.epochs, "one-cycle")]
        return [(self.epochs - self.fall, "constant"), (self.fall, "cosine")]


ROBUST_CIFAR = RobustRecipe(epochs=180, batch=500, lr=0.4, early=4, smoothing=0.1, perturb=0.006)


def moved(x: Tensor, by: int, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """Flip half of the images and shift each by at most `by` pixels, black where nothing was."""
    n, _, height, width = x.shape
    flip = torch.rand(n, 1, 1, 1, generator=rng, device=x.device) < 0.5
    top, left = torch.randint(0, 2 * by + 1, (2, n, 1), generator=rng, device=x.device)
    rows = (top + torch.arange(height, device=x.device))[:, :, None]  # n h 1
    columns = (left + torch.arange(width, device=x.device))[:, None, :]  # n 1 w
    wide = F.pad(torch.where(flip, x.flip(-1), x), (by, by, by, by)).permute(0, 2, 3, 1)
    return wide[torch.arange(n, device=x.device).view(-1, 1, 1), rows, columns].permute(0, 3, 1, 2)


def robustly_trained(
    model: nn.Module,
    data: Whole,
    recipe: RobustRecipe,
    *,
    seed: int,
    watch: Whole | None = None,
    swift: bool = False,
    told: Callable[[str], None] = lambda line: None,
) -> nn.Module:
    """The averaged network of a training of `model` on `data`, where they lie, in eval mode; `model` is used up."""
    epochs, batch, steps = recipe.epochs, recipe.batch, recipe.steps
    device = data.x.device
    rng = torch.Generator(device).manual_seed(seed)
    first = steps if recipe.early is None else recipe.early
    adversary = Adversary(
        model.to(device).requires_grad_(True), recipe.radius, steps=first, step=recipe.radius / 4, swift=swift
    )
    against = PgdTraining(adversary)

    def cost(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y, label_smoothing=recipe.smoothing)

    def changed(x: Tensor, y: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        return against.augment(moved(x, recipe.shift, draw), y, draw)

    nearby = WeightPerturbation(model, recipe.perturb, first=changed, loss=cost, swift=swift)
    mean = best = model
    most, start = -1.0, time.monotonic()

    @torch.no_grad()
    def stepped() -> None:
        nonlocal mean
        if mean is model:  # after the first step
            mean = copy.deepcopy(model)
        else:
            torch._foreach_lerp_(floats(mean), floats(model), 1 - recipe.average)

    def ended(before: int, epoch: int, loss: float) -> None:
        nonlocal best, most
        epoch += before
        told(f"epoch {epoch}: loss {loss:.4f}, {time.monotonic() - start:.0f} s")
        adversary.steps = steps if 2 * epoch >= epochs else first
        if watch is None or 3 * epoch <= 2 * epochs:
            return
        # the average is looked at in the model's place, for which the passes are compiled
        own = copy.deepcopy(model.state_dict())
        model.load_state_dict(mean.state_dict())
        remeasure(adversary, data, batch=batch, shift=recipe.shift)
        draw = torch.Generator(device).manual_seed(WATCHING)
        rows = zip(torch.split(watch.x, batch), torch.split(watch.y, batch), strict=True)
        under = Whole(torch.cat([adversary.worst(x, y, draw) for x, y in rows]), watch.y)
        model.eval()
        clean, held = accuracy(model, watch), accuracy(model, under)
        told(f"  held out: {clean:.4f} clean, {held:.4f} under attack")
        if held > most:
            best, most = copy.deepcopy(model), held
        model.load_state_dict(own)

    done = 0
    for count, schedule in recipe.rounds():
        fit(
            model,
            data,
            epochs=count,
            lr=recipe.lr,
            batch=batch,
            weight_decay=recipe.weight_decay,
            schedule=schedule,
            rng=rng,
            augment=nearby.augment,
            loss=cost,
            after_backward=nearby.back,
            after_step=stepped,
            on_epoch=partial(ended, done),
            device=device,
            swift=swift,
        )
        done += count
    return (mean if watch is None else best).eval().requires_grad_(False)


def floats(model: nn.Module) -> list[Tensor]:
    """What is averaged of a model: its weights and its running means and variances."""
    return [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]


def remeasure(against: Adversary, data: Whole, *, batch: int, shift: int) -> None:
    """Take the means and variances of the batch normalisations of its model anew, on attacked inputs.

    Those that were averaged along with the weights are of noisier ones, and too large for their average.
    """
    model = against.model
    rng = torch.Generator(data.x.device).manual_seed(WATCHING)
    order = torch.split(torch.randperm(len(data), generator=rng, device=rng.device)[:MEASURED], batch)
    seen = [against.worst(moved(data.x[rows], shift, rng), data.y[rows], rng) for rows in order]
    norms = [(m, m.momentum) for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm, _ in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all batches
    with torch.no_grad():
        for x in seen:
            model(x)
    for norm, momentum in norms:
        norm.momentum = momentum


@torch.no_grad()
def accuracy(model: nn.Module, data: Whole) -> float:
    hits = [(model(data.x[k : k + 500]).argmax(-1) == data.y[k : k + 500]).sum() for k in range(0, len(data), 500)]
    return int(sum(hits)) / len(data)
