"""Wang & Loog 2022: discriminant analysis with polynomial tails."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.claim import Claim, Evidence, Published
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = (
    "Wang & Loog, 'Enhancing Classifier Conservativeness and Robustness by Polynomiality', CVPR 2022 (numbered as in "
    "Wang's dissertation, TU Delft 2024, ch. 5)"
)
REPEATS, INPUTS = 20, 500  # draws of the data, and inputs of each class in one
BULK, NEAR, FAR = -1.5, -10.0, -1e4
WIDE = 4.0  # of the second class, where the first is 1 wide
Array = NDArray[np.float64]


def _drawn(seed: int, width: float) -> tuple[Tensor, Tensor]:  # -> n 1, n
    """Class 0 uniform on [-2, -1], class 1 uniform on [1, 1 + width]."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-2, -1, INPUTS), rng.uniform(1, 1 + width, INPUTS)])
    return torch.as_tensor(x)[:, None], torch.arange(2).repeat_interleave(INPUTS)


def _posteriors(run: Run, places: tuple[float, ...], *, nu: float, width: float, pooled: bool) -> Array:
    """p(y_0 | x) at each place: places draws."""
    from assay.nn.student_lda import fit_student_lda

    at = torch.tensor(places, dtype=torch.float64)[:, None]
    rows = []
    for seed in range(run.seed, run.seed + REPEATS):
        x, y = _drawn(seed, width)
        rows.append(fit_student_lda(x, y, classes=2, nu=nu, pooled=pooled)(at).exp()[:, 0].numpy())
    return np.stack(rows, 1)


def _mean(name: str, values: Array, seed: int) -> Measure:
    return Measure.mean(name, values, better="neither", seed=seed, unit="%")


def returns_to_chance(run: Run) -> Evidence:
    places = (BULK, NEAR, FAR)
    bell, tail = (_posteriors(run, places, nu=nu, width=1.0, pooled=True) for nu in (math.inf, 1.0))
    sure = bool((bell > 0.99).all() and (tail[0] > 0.99).all())
    unsure = float(np.abs(tail[-1] - 0.5).max())
    return Evidence(
        verdict="holds" if sure and unsure < 0.01 else "fails",
        says=f"At x = {FAR:g} p(y_0 | x) is {bell[-1].mean():.4f} with Gaussians and {tail[-1].mean():.4f} with t "
        f"densities (nu = 1); within the class, at {BULK:g}, {bell[0].mean():.4f} and {tail[0].mean():.4f}; at "
        f"{NEAR:g}, five widths from the data, the latter still says {tail[1].mean():.2f}.",
        measures=tuple(
            _mean(f"p(y_0 | x = {x:g}), {name}", told[i], run.seed)
            for name, told in (("Gaussian", bell), ("t", tail))
            for i, x in enumerate(places)
        ),
    )


def equal_powers_suffice(run: Run) -> Evidence:
    own, shared = (_posteriors(run, (FAR, -FAR), nu=1.0, width=WIDE, pooled=p) for p in (False, True))
    apart = float(np.abs(own - 0.5).min())
    return Evidence(
        verdict="fails" if apart > 0.05 else "holds",
        says=f"With classes 1 and {WIDE:g} wide and a scale for each, p(y_0 | x) goes to {own[0].mean():.3f} and "
        f"{own[1].mean():.3f} at x = {FAR:g} and {-FAR:g}, though both densities fall with the same power: the limit "
        f"is s_0^nu / (s_0^nu + s_1^nu). With one scale for both it is {shared[0].mean():.3f} and "
        f"{shared[1].mean():.3f}.",
        measures=tuple(
            _mean(f"p(y_0 | x = {x:g}), {name}", told[i], run.seed)
            for name, told in (("a scale each", own), ("one scale", shared))
            for i, x in enumerate((FAR, -FAR))
        ),
    )


SHELVED = (
    Claim(
        name="tails",
        source=SOURCE,
        says="Far from the data, discriminant analysis with Gaussians is certain, and with t densities near 1/k.",
        published=(),
        here=f"sec. 5.3.1 and figure 5.1, which shows curves and no numbers: {INPUTS} inputs a class, uniform on "
        f"[-2, -1] and [1, 2], {REPEATS} draws, nu = 1 (not given), one scale; near: within 0.01 at x = {FAR:g}",
        minutes=0.1,
        test=returns_to_chance,
    ),
    Claim(
        name="equal-powers",
        source=SOURCE,
        says="If the class densities fall with the same power, the posterior far away is 1/k under equal priors.",
        published=(
            Published(
                "p(y_0 | x), limit", 0.5, "sec. 5.3.1, below eq. 5.7", "%", f"p(y_0 | x = {FAR:g}), a scale each"
            ),
        ),
        here=f"{INPUTS} inputs a class, uniform on [-2, -1] and [1, {1 + WIDE:g}], {REPEATS} draws, t densities with "
        "nu = 1, a scale for each class; the printed example has classes of one width, which hides it",
        minutes=0.1,
        test=equal_powers_suffice,
    ),
)
