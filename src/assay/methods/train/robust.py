"""Networks that hold under attack, as well trained as a claim about them supposes, in minutes of one GPU.

PGD adversarial training: at each step an attacker searches around the batch, and the weights move against what it
finds. One cycle of SGD with Nesterov momentum, images shifted and mirrored; where the recipe says so labels are
smoothed and weights perturbed (weight_perturbation.py), and each image is shown a second time, varied strongly
(varied.py) and with batch normalisations of its own (nn/two_norms.py); with a plain network to label them, the loss has
helper examples (helper.py). What is given is an exponential average of the weights,

    m_t = average m_{t-1} + (1 - average) w_t,   m_0 = w_0,

with batch normalisations measured anew on attacked images. An attacker of full strength can hold a deep network at a
constant answer from its first step on: where the recipe says so the radius grows to its own over the first epochs,

    radius_e = radius min(1, e / (rise + 1)),   e = 1, 2, ...

With images to watch, what is given is that of the last epoch of the last third after which as many of them held as
after the best, but for one standard error: what holds falls again while clean accuracy still grows, and where it does
not fall the later is the better. On CUDA passes are compiled, in bf16 and channels-last, and a step, attack and average
and all, is one recorded graph (recorded.py): batches of 125 would else wait for the host.

Sources: Madry et al., ICLR 2018, arXiv:1706.06083 (the training); Wu et al., NeurIPS 2020, arXiv:2004.05884 (weights
that are perturbed); Rice et al., ICML 2020, arXiv:2002.11569 (stopping early); Pang et al., ICLR 2021,
arXiv:2010.00467 (which details count); Addepalli et al., NeurIPS 2022, arXiv:2210.15318 (strongly varied images).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.data.whole import Whole
from assay.errors import AssayError
from assay.methods.attack.attacked import Slope
from assay.methods.attack.loss import Goal, Loss
from assay.methods.train.adversary import Adversary
from assay.methods.train.fit import laid_out, swiftly
from assay.methods.train.helper import Helpers
from assay.methods.train.recorded import fit_recorded, generator
from assay.methods.train.varied import varied
from assay.methods.train.weight_perturbation import WeightPerturbation
from assay.nn.two_norms import ask_both, with_first_norms, with_two_norms

MEASURED = 5000  # training images that batch normalisations are measured anew on
VARIED = 5000  # images that are varied at once, anew for each epoch
WATCHING = 20240917  # the seed of what watches a training: the same for every network


@dataclass(frozen=True)
class RobustRecipe:
    """How long, how fast, against whom, and what is done to images, labels and weights."""

    epochs: int
    batch: int
    lr: float
    radius: float = 8 / 255
    steps: int = 7
    rise: int = 0  # epochs in which the radius is smaller
    shift: int = 4  # pixels, at most
    twice: bool = False  # whether each image is shown varied strongly, too
    smoothing: float = 0.0
    perturb: float = 0.0
    average: float = 0.995
    weight_decay: float = 5e-4

    @property
    def step(self) -> float:
        """Of the attacker: a quarter of the radius where it takes seven, as far in all where it takes others."""
        return 1.75 * self.radius / self.steps


ROBUST_CIFAR = RobustRecipe(epochs=140, batch=125, lr=0.1, smoothing=0.1, perturb=0.005, average=0.999)


def moved(x: Tensor, by: int, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """Flip half of the images and shift each by at most `by` pixels, black where nothing was."""
    n, _, height, width = x.shape
    flip = torch.rand(n, 1, 1, 1, generator=rng, device=x.device) < 0.5
    top, left = torch.randint(0, 2 * by + 1, (2, n, 1), generator=rng, device=x.device)
    rows = (top + torch.arange(height, device=x.device))[:, :, None]  # n h 1
    columns = (left + torch.arange(width, device=x.device))[:, None, :]  # n 1 w
    wide = F.pad(torch.where(flip, x.flip(-1), x), (by, by, by, by)).permute(0, 2, 3, 1)
    return wide[torch.arange(n, device=x.device).view(-1, 1, 1), rows, columns].permute(0, 3, 1, 2)


def climbed(
    ask: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    recipe: RobustRecipe,
    rng: torch.Generator,
    loss: Literal["ce"] | Loss = "ce",
    reach: Tensor | None = None,
) -> Tensor:  # n c h w, n -> n c h w
    """What `Adversary.worst` gives for inputs in [0, 1], without its checks, which no recording can make.

    `reach` is the share of its radius that the attacker has, all of it where none is given.
    """
    reach = torch.ones((), device=x.device) if reach is None else reach
    radius, step = reach * recipe.radius, reach * recipe.step
    low, high = (x - radius).clamp_min(0), (x + radius).clamp_max(1)
    at = laid_out(torch.lerp(low, high, torch.rand(x.shape, generator=rng, device=x.device)))
    slope = Slope(ask, Goal(y, None, loss, as_published=True), head="logits")
    for _ in range(recipe.steps):
        at = torch.clamp(torch.addcmul(at, slope.gradient(at).sign_(), step), low, high)
    return at


def robustly_trained(
    model: nn.Module,
    data: Whole,
    recipe: RobustRecipe,
    *,
    seed: int,
    watch: Whole | None = None,
    helpers: Helpers | None = None,
    swift: bool = False,
    told: Callable[[str], None] = lambda line: None,
) -> nn.Module:
    """The averaged network of a training of `model` on `data`, where they lie, in eval mode; `model` is used up."""
    device, batch = data.x.device, min(recipe.batch, len(data))
    if recipe.twice and helpers is not None:
        raise AssayError("Helper examples and images that are shown twice are not trained together; leave one out.")
    if recipe.twice:
        model = with_two_norms(model)
    model = model.to(device, memory_format=torch.channels_last).requires_grad_(True)  # type: ignore[call-overload]
    adversary = Adversary(model, recipe.radius, steps=recipe.steps, step=recipe.step, swift=swift)
    ask = swiftly(model) if swift else model
    draw = generator(str(device))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if helpers is not None:
            return helpers.loss(out, y, recipe.smoothing)
        return F.cross_entropy(out, y, label_smoothing=recipe.smoothing)

    nearby = WeightPerturbation(model, recipe.perturb, loss=loss, ask=ask)
    mean, best = copy.deepcopy(model), model
    total, reach = torch.zeros((), device=device), torch.full((), 1 / (recipe.rise + 1), device=device)
    most, start = 0.0, time.monotonic()
    again = torch.empty_like(data.x) if recipe.twice else data.x
    anew = torch.Generator(device).manual_seed(WATCHING + seed)

    @torch.no_grad()
    def averaged() -> None:
        torch._foreach_lerp_(floats(mean), floats(model), 1 - recipe.average)

    def vary() -> None:
        for part, x in zip(torch.split(again, VARIED), torch.split(data.x, VARIED), strict=True):
            part.copy_(varied(x, anew))

    def cost(rows: Tensor) -> Tensor:  # n -> 1
        nearby.back()
        averaged()
        x, y = data.rows(rows)
        x = moved(torch.cat([x, again[rows]]) if recipe.twice else x, recipe.shift, draw)
        x, y = laid_out(x), y.repeat(2) if recipe.twice else y
        with adversary.asked() as asked:
            away: Literal["ce"] | Loss = "ce" if helpers is None else helpers.away(asked, x)
            worst = climbed(asked, x, y, recipe, draw, away, reach)
        x, y = (worst, y) if helpers is None else (helpers.shown(x, worst), helpers.aims(y, worst))
        nearby.move(x, y)
        value = loss(ask(x), y)
        total.add_(value.detach())
        return value

    def ended(epoch: int) -> None:
        nearby.back()
        ask_both(model, False)
        told(f"epoch {epoch}: loss {float(total) / (len(data) // batch):.4f}, {time.monotonic() - start:.0f} s")
        total.zero_()
        reach.fill_(min(1.0, (epoch + 1) / (recipe.rise + 1)))
        if watch is not None and 3 * epoch > 2 * recipe.epochs:
            look_at(watch)
        began()

    def began() -> None:
        ask_both(model, recipe.twice)
        if recipe.twice:
            vary()

    def look_at(watch: Whole) -> None:
        nonlocal best, most
        # the average is looked at in the model's place, for which the passes are compiled
        own = copy.deepcopy(model.state_dict())
        model.load_state_dict(mean.state_dict())
        remeasure(adversary, data, batch=batch, shift=recipe.shift, helpers=helpers)
        look = torch.Generator(device).manual_seed(WATCHING)
        rows = zip(torch.split(watch.x, batch), torch.split(watch.y, batch), strict=True)
        under = Whole(torch.cat([adversary.worst(x, y, look) for x, y in rows]), watch.y)
        model.eval()
        clean, held = accuracy(model, watch), accuracy(model, under)
        told(f"  held out: {clean:.4f} clean, {held:.4f} under attack")
        most = max(held, most)
        if held >= most - math.sqrt(most * (1 - most) / len(watch)):
            best = copy.deepcopy(model)
        model.load_state_dict(own)

    began()
    fit_recorded(
        model, list(model.parameters()), cost, len(data), epochs=recipe.epochs, batch=batch, lr=recipe.lr, seed=seed,
        device=str(device), weight_decay=recipe.weight_decay, on_epoch=ended,
    )  # fmt: skip
    averaged()
    ask_both(model, False)
    given = mean if watch is None else best
    return (with_first_norms(given) if recipe.twice else given).eval().requires_grad_(False)


def floats(model: nn.Module) -> list[Tensor]:
    """What is averaged of a model: its weights and its running means and variances."""
    return [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]


def remeasure(against: Adversary, data: Whole, *, batch: int, shift: int, helpers: Helpers | None = None) -> None:
    """Take the means and variances of the batch normalisations of its model anew, on what a training shows it.

    Those that were averaged along with the weights are of noisier ones, and too large for their average.
    """
    model = against.model
    rng = torch.Generator(data.x.device).manual_seed(WATCHING)
    order = torch.split(torch.randperm(len(data), generator=rng, device=rng.device)[:MEASURED], batch)
    seen = []
    for rows in order:
        x = moved(data.x[rows], shift, rng)
        worst = against.worst(x, data.y[rows], rng)
        seen.append(worst if helpers is None else helpers.shown(x, worst))
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
