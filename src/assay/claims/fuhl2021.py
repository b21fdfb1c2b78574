"""Fuhl & Kasneci 2021: weight and gradient centralisation."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Published
from assay.claims import _over_seeds as over
from assay.claims._networks import images, started
from assay.finding import Measure
from assay.methods.train.well_trained import Half, moved

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = "Fuhl & Kasneci, 'Weight and Gradient Centralization in Deep Neural Networks', ICANN 2021"
STEPS, SEEDS, EPOCHS, WIDTH, BATCH = 300, 5, 12, 24, 500
RATES: dict[str, float] = {"sgd": 0.2, "adam": 2e-3}
LOW, HIGH = 0.81, 0.88  # of the plain network's accuracy, which is 84.67 % in print
Array = NDArray[np.float64]


def _trained(optimiser: str, weights: bool, gradients: bool, seed: int) -> list[Tensor]:
    """The hidden weights of a small network after STEPS steps in float64, from one centred start."""
    from assay.methods.train.centralize import Centralizer

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4)
        ).double()
        x, y = torch.randn(64, 1, 8, 8, dtype=torch.float64), torch.randint(0, 4, (64,))
    Centralizer(model).after_step()
    steps = (
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        if optimiser == "sgd"
        else (torch.optim.Adam(model.parameters(), lr=0.003))
    )
    centring = Centralizer(model, weights=weights, gradients=gradients)
    for _ in range(STEPS):
        steps.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        centring.after_backward()
        steps.step()
        centring.after_step()
    return [layer.weight.detach() for layer in centring.layers.values()]


def _largest_gap(optimiser: str, seed: int) -> float:
    both, wc, gc = (_trained(optimiser, w, g, seed) for w, g in ((True, True), (True, False), (False, True)))
    return max(float((a - b).abs().max()) for other in (wc, gc) for a, b in zip(both, other, strict=True))


def same_weights(run: Run) -> Evidence:
    sgd, adam = _largest_gap("sgd", run.seed), _largest_gap("adam", run.seed)
    return Evidence(
        verdict="fails" if sgd < 1e-10 else "holds",
        says=f"Under SGD with momentum and weight decay, WC, GC from a centred start, and both together end at the "
        f"same weights (largest difference {sgd:.1e} after {STEPS} steps in float64), so that the printed differences "
        f"between them cannot come from the method; under Adam they differ (by {adam:.2g}).",
        measures=(
            Measure(name="largest weight difference, SGD", value=sgd, better="neither", n=STEPS),
            Measure(name="largest weight difference, Adam", value=adam, better="neither", n=STEPS),
        ),
    )


@cache
def _right(optimiser: Literal["sgd", "adam"], centred: bool, seed: int, device: str) -> Array:  # -> n
    """Whether each test image is right; both arms have the same start and the same order of images."""
    from assay.methods.train.centralize import Centralizer
    from assay.methods.train.fit import fit
    from assay.nn.vgg import Vgg16

    data = images("CIFAR-10", device)
    net = started(lambda: Vgg16(width=WIDTH), seed).to(device)
    centring = Centralizer(net, weights=centred, gradients=centred, output="head")
    fit(
        Half(net), data["train"], epochs=EPOCHS, lr=RATES[optimiser], batch=BATCH, weight_decay=5e-4,
        optimiser=optimiser, schedule="one-cycle", augment=moved, device=device,
        rng=torch.Generator(device).manual_seed(seed), after_backward=centring.after_backward,
        after_step=centring.after_step,
    )  # fmt: skip
    net.eval()
    with torch.no_grad():
        said = torch.cat([net(part).argmax(1) for part in torch.split(data["test"].x, 1000)])
    right: Array = (said == data["test"].y).double().cpu().numpy()
    return right


def accuracy_gain(run: Run) -> Evidence:
    seen: dict[tuple[str, bool], list[Array]] = {}
    optimisers: tuple[Literal["sgd", "adam"], ...] = ("sgd", "adam")
    with run.progress(f"training {4 * SEEDS} networks", 4 * SEEDS) as tick:
        for optimiser in optimisers:
            for centred in (False, True):
                for seed in range(run.seed, run.seed + SEEDS):
                    seen.setdefault((optimiser, centred), []).append(_right(optimiser, centred, seed, run.device))
                    tick(1)
    gain, by_adam = (
        over.gap(name, seen[optimiser, True], seen[optimiser, False])
        for name, optimiser in (("gain", "sgd"), ("gain under Adam", "adam"))
    )
    return over.evidence(
        over.above(0.0, gain),
        f"Over {SEEDS} paired seeds WC+GC changed the accuracy by {over.points(gain)} points under SGD "
        f"({_ends(gain)}) and by {over.points(by_adam)} under Adam ({_ends(by_adam)}).",
        (over.gate("The accuracy of the plain network", seen["sgd", False], 0.8467, LOW, HIGH),),
        over.accuracy("accuracy, plain", seen["sgd", False]),
        over.accuracy("accuracy, WC+GC", seen["sgd", True]),
        gain.measure,
        over.accuracy("accuracy, plain, Adam", seen["adam", False]),
        over.accuracy("accuracy, WC+GC, Adam", seen["adam", True]),
        by_adam.measure,
    )


def _ends(gap: over.Gap) -> str:
    return f"95 % interval {100 * gap.low:+.2f} to {100 * gap.high:+.2f}"


SHELVED = (
    Claim(
        name="combination-differs",
        source=SOURCE,
        says="Weight and gradient centralisation together train to another network than either of them alone.",
        published=(
            Published("CIFAR-10 accuracy, model c, WC", 0.8595, "table 3, model c", "%"),
            Published("CIFAR-10 accuracy, model c, GC", 0.8489, "table 3, model c", "%"),
            Published("CIFAR-10 accuracy, model c, WC+GC", 0.8746, "table 3, model c", "%"),
        ),
        here=f"a two-layer CNN in float64, {STEPS} steps of SGD with momentum 0.9 and weight decay 1e-3, and of Adam",
        minutes=0.2,
        test=same_weights,
    ),
    Claim(
        name="accuracy",
        source=SOURCE,
        says="Weight and gradient centralisation raise the accuracy of a network with batch normalisation.",
        published=(
            Published(
                "CIFAR-10 accuracy, model a with BN, base",
                0.8467,
                "table 3, model a, BN",
                "%",
                measured="accuracy, plain",
            ),
            Published(
                "CIFAR-10 accuracy, model a with BN, WC+GC",
                0.8548,
                "table 3, model a, BN",
                "%",
                measured="accuracy, WC+GC",
            ),
            Published("gain", 0.0081, "table 3, difference of the two", "%"),
        ),
        here=f"VGG16 of width {WIDTH} with batch normalisation on CIFAR-10 (print: a small network of its own), "
        f"{EPOCHS} epochs with one cycle, images moved and mirrored, {SEEDS} paired seeds; under SGD, where it is "
        f"judged, and under Adam; `cannot tell` unless the plain network's accuracy lies between {100 * LOW:g} and "
        f"{100 * HIGH:g} % in every seed (printed: 84.67)",
        minutes=240,
        test=accuracy_gain,
        seeds=SEEDS,
    ),
)
