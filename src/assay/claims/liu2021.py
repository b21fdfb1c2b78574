"""Liu 2021: attacks on networks with random noise, and the step of an attack that averages over it."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Held
from assay.claims import _over_seeds as over

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = (
    "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021 (dissertation), sec. 2.3.4, with its public code, "
    "xuanqing94/NeuralSDE"
)
Norm = Literal["linf", "l2"]
RADIUS: dict[Norm, float] = {"linf": 0.05, "l2": 1.0}
STEPS, DRAWS, LINF_STEP = 20, 10, 0.007  # of the attacks; the step is the public code's
SEEDS, EPOCHS, BATCH, LR = 5, 10, 128, 0.05
IMAGES, MEMBERS = 1000, 20  # test images, and passes whose mean softmax is the answer
FIRST_NOISE, INNER_NOISE, WIDTH = 0.2, 0.1, 16
AS_STRONG = 0.02  # an attack that leaves at most this much more accuracy


class _Noise(nn.Module):
    """x + N(0, std^2), afresh at every pass, in training and in evaluation."""

    def __init__(self, std: float, rng: torch.Generator) -> None:
        super().__init__()
        self.std, self.rng = std, rng

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *d
        return x + self.std * torch.randn(x.shape, generator=self.rng, device=x.device, dtype=x.dtype)


@cache  # both claims are about the same networks
def _trained(seed: int, device: str) -> tuple[nn.Module, torch.Generator]:
    """Three convolutions with noise before each, trained on the bundled sample of Fashion-MNIST; and their noise."""
    from assay.data.fashion import load_fashion
    from assay.methods.train.fit import fit
    from assay.nn.small_cnn import conv

    rng = torch.Generator(device).manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = nn.Sequential(
            *(_Noise(FIRST_NOISE, rng), conv(1, WIDTH), nn.AvgPool2d(2)),
            *(_Noise(INNER_NOISE, rng), conv(WIDTH, 2 * WIDTH), nn.AvgPool2d(2)),
            *(_Noise(INNER_NOISE, rng), conv(2 * WIDTH, 4 * WIDTH)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * WIDTH, 10)),
        )
    fit(
        model,
        load_fashion()["train"],
        epochs=EPOCHS,
        lr=LR,
        batch=BATCH,
        device=device,
        rng=torch.Generator(device).manual_seed(seed),
    )
    return model.eval().requires_grad_(False), rng


def _changed(model: nn.Module, x: Tensor, y: Tensor, norm: Norm, draws: int, divide: bool) -> Tensor:
    """PGD as the public code has it, from x to the last point; `divide` its step by the number of draws, as it does."""
    from assay.methods.attack import pgd

    share = draws if divide else 1
    if norm == "linf":
        step = LINF_STEP / share
        found = pgd(
            model, x, y, radius=RADIUS[norm], steps=STEPS, step=step, eot=draws, random_start=False, as_published=True
        )
        return found.x
    return _adam(model, x, y, RADIUS[norm], 2 * RADIUS[norm] / STEPS / share, draws)


def _adam(model: nn.Module, x: Tensor, y: Tensor, radius: float, step: float, draws: int) -> Tensor:
    """The public l2 attack: Adam on the pixels and back to the ball after each step: n *d, n -> n *d."""
    at = x.clone().requires_grad_()
    optimiser = torch.optim.Adam([at], lr=step)
    for _ in range(STEPS):
        at.grad = -torch.stack([_slope(model, at, y) for _ in range(draws)]).sum(0)
        optimiser.step()
        with torch.no_grad():
            change = at - x
            size = change.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, 1, 1, 1)
            at.copy_((x + change * (radius / size).clamp_max(1)).clamp(0, 1))
    return at.detach()


def _slope(model: nn.Module, at: Tensor, y: Tensor) -> Tensor:
    """The gradient of the cross-entropy, divided by 100, the public batch: Adam's 1e-8 does see that scale."""
    loss = nn.functional.cross_entropy(model(at), y, reduction="sum") / 100
    return torch.autograd.grad(loss, at)[0]


def _right(model: nn.Module, x: Tensor, y: Tensor) -> NDArray[np.float64]:
    """Whether the mean softmax of MEMBERS fresh passes answers y: n."""
    with torch.no_grad():
        chance = torch.stack([model(x).softmax(1) for _ in range(MEMBERS)]).mean(0)
    right: NDArray[np.float64] = (chance.argmax(1) == y).double().cpu().numpy()
    return right


def divided_step(norm: Norm, run: Run) -> Evidence:
    from assay.data.fashion import load_fashion

    test = load_fashion()["test"]
    x, y = (part.to(run.device) for part in test.take(np.arange(min(IMAGES, len(test)))))
    arms = ((1, False), (DRAWS, False), (DRAWS, True))
    seen = np.zeros((SEEDS, 1 + len(arms), len(x)))  # seeds (clean, one draw, many, many with the step divided) images
    with run.progress(f"attacking {SEEDS} networks", SEEDS * len(arms)) as tick:
        for s in range(SEEDS):
            model, noise = _trained(run.seed + s, run.device)
            noise.manual_seed(run.seed + s)  # whatever was attacked before
            seen[s, 0] = _right(model, x, y)
            for a, (draws, divide) in enumerate(arms, 1):
                noise.manual_seed(run.seed + s)
                seen[s, a] = _right(model, _changed(model, x, y, norm, draws, divide), y)
                tick(1)
    gaps = seen[:, 3] - seen[:, 2]  # seeds images
    added = over.mean("accuracy that the division adds", list(gaps), "%", "lower")
    gap, low, high = added.measure, added.low, added.high
    verdict: Held = "cannot tell"
    if low > AS_STRONG and (added.seeds > AS_STRONG).all():  # above 0, by the statement itself, and by more
        verdict = "fails"
    elif high <= AS_STRONG and (added.seeds <= AS_STRONG).all():
        verdict = "holds"
    names = ("clean", "1 draw", f"{DRAWS} draws", f"{DRAWS} draws, step divided")
    means = tuple(over.accuracy(f"accuracy, {name}", list(seen[:, i])) for i, name in enumerate(names))
    one, many, divided = (100 * (m.value or 0) for m in means[1:])
    return Evidence(
        verdict=verdict,
        says=f"In {norm} at {RADIUS[norm]:g} the attack with one draw leaves {one:.1f} %, with {DRAWS} draws "
        f"{many:.1f} %, and with {DRAWS} draws and the step divided by {DRAWS} {divided:.1f} %: dividing adds "
        f"{100 * (gap.value or 0):+.1f} points (95 % interval {100 * low:+.1f} to {100 * high:+.1f}). Neither the sign "
        "nor Adam sees the scale of a gradient, so that the division only shortens the steps.",
        measures=(*means, gap),
        seeds=SEEDS,
    )


def _claim(norm: Norm, steps: str) -> Claim:
    return Claim(
        name=f"divided-step-{norm}",
        source=SOURCE,
        says=f"Where an {norm} attack sums the gradient over k draws of a network's noise, a step divided by k makes "
        "up for the sum and the attack is as strong (a comment in the public code).",
        published=(),
        here=f"a network of three convolutions with Gaussian noise before each ({FIRST_NOISE:g}, then {INNER_NOISE:g}) "
        f"on the bundled sample of Fashion-MNIST, {EPOCHS} epochs, {SEEDS} seeds; {STEPS} steps {steps}, k = {DRAWS}, "
        f"radius {RADIUS[norm]:g}, {IMAGES} test images, answers from the mean of {MEMBERS} passes; as strong: it "
        f"leaves at most {100 * AS_STRONG:g} points more, over the images and in every seed. The public scripts set k "
        "to 1, and once to 30; with which the printed figures were made is not known",
        minutes=30,
        test=partial(divided_step, norm),
        seeds=SEEDS,
    )


SHELVED = (
    _claim("linf", f"of sign(gradient), {LINF_STEP:g} long"),
    _claim("l2", "of Adam at rate 2 radius / steps"),
)
