"""Liu & JaJa 2021: class-similarity smoothing beside all controls of its paper, with the beta that was chosen there."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from assay.claim import Claim, Evidence, Gate, Published
from assay.claims import liu2021_smoothing as study
from assay.claims._elsewhere import RULE, elsewhere
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

Control = Literal["one-hot", "TS", "uniform", "mixup", "DirODIR", "ETS"]
Ours = Literal["AE", "names"]
CONTROLS: tuple[Control, ...] = ("one-hot", "TS", "uniform", "mixup", "DirODIR", "ETS")
OURS: tuple[Ours, ...] = ("AE", "names")
MIX = 0.2


class _Said(NamedTuple):
    """Logits of a network, or the logarithms of what it says, which are as good."""

    held: Tensor  # m k
    test: Tensor  # n k


@cache
def _mixed(seed: int, device: str) -> _Said:
    """What a network says that was trained by mixup, from the start and in the order that the seed names."""
    from assay.methods.train.mixup import mixup

    learn, held = study._split(device)
    net = study._fitted(learn, torch.nn.functional.cross_entropy, seed, device, mixup(study.CLASSES, a=MIX))
    with torch.no_grad():
        held_out, test = (
            torch.cat([net(part).double() for part in torch.split(x, 1000)]).cpu()
            for x in (held.x, study._data(device)["test"].x)
        )
    return _Said(held_out, test)


def _said(how: Literal["one-hot", "uniform", "mixup", "AE", "names"], seed: int, device: str) -> _Said:
    """Of the network that liu2021-smoothing is about too, with the beta that it chose."""
    if how == "mixup":
        return _mixed(seed, device)
    told = study._answers(how, seed, device)
    return _Said(torch.from_numpy(told.held).log(), torch.from_numpy(told.probabilities).log())


def _probabilities(arm: Control | Ours, seed: int, device: str) -> Tensor:  # -> n k
    """On the test images; what scales is fitted on the held-out ones, on top of the one-hot network."""
    from assay.methods.uncertainty.dirichlet import fit_dirichlet
    from assay.methods.uncertainty.ensemble_temperature import fit_ensemble_temperature
    from assay.methods.uncertainty.scaling import fit_temperature

    if arm != "TS" and arm != "DirODIR" and arm != "ETS":
        return _said(arm, seed, device).test.softmax(1)
    said, y = _said("one-hot", seed, device), study._split(device)[1].y.cpu()
    fit = {"TS": fit_temperature, "DirODIR": fit_dirichlet, "ETS": fit_ensemble_temperature}[arm]
    scaled: Tensor = fit(said.held, y).apply(said.test)  # type: ignore[operator]
    return scaled


def beats_every_control(run: Run) -> Evidence:
    device, seeds = run.device, [run.seed + s for s in range(study.SEEDS)]
    y = study._data(device)["test"].y.cpu().numpy()
    arms = (*CONTROLS, *OURS)
    with run.progress("training networks", len(arms) * len(seeds)) as tick:
        gaps: dict[tuple[str, str], list[study.Array]] = {}
        right: dict[str, list[float]] = {}
        for arm in arms:
            for seed in seeds:
                p = _probabilities(arm, seed, device).numpy()
                right.setdefault(arm, []).append(float((p.argmax(1) == y).mean()))
                for kind in "PO":
                    gaps.setdefault((arm, kind), []).append(study._gaps(p, y, kind == "O"))
                tick(1)
    ones = np.ones((1, len(y)))
    errors = [
        Measure(
            name=f"{arm}, {kind}",
            value=float(np.mean([study._error(g, ones)[0] for g in gaps[arm, kind]])),
            better="lower",
            n=len(y),
            unit="%",
        )
        for kind in "PO"
        for arm in arms
    ]
    judged = [
        study._compare(f"names less {rival}, {kind}", gaps["names", kind], gaps[rival, kind], run.seed)
        for rival in CONTROLS
        for kind in "PO"
        if rival != "ETS"
    ]
    told: dict[study.Arm, list[study._Answers]] = {
        arm: [study._answers(arm, seed, device) for seed in seeds] for arm in OURS
    }
    return elsewhere(
        study._below(judged),
        says=f"Over {len(seeds)} paired seeds the errors differ, in points, by: "
        f"{', '.join(f'{g.measure.name} {study._points(g)}' for g in judged)} (95 % intervals over the images). The "
        f"betas chosen: {study._chosen(told, *OURS)}.",
        measures=(
            *errors,
            *(g.measure for g in judged),
            *(
                Measure(name=f"accuracy, {arm}", value=float(np.mean(each)), better="higher", n=len(y), unit="%")
                for arm, each in right.items()
            ),
        ),
        gates=(
            Gate(
                what="The accuracy of the one-hot network",
                values=tuple(right["one-hot"]),
                printed=None,
                low=study.LEAST,
            ),
        ),
        seeds=len(seeds),
    )


# Table 1, CIFAR-100, RN, in %: one-hot, TS, uniform, mixup, DirODIR, ETS, AE, WE.
PRINTED = {
    "P": (22.96, 1.98, 2.35, 2.70, 1.85, 1.71, 2.02, 1.74),
    "O": (50.07, 3.13, 3.80, 5.03, 2.98, 2.90, 3.34, 2.47),
}

SHELVED = (
    Claim(
        name="beats-every-control",
        source=study.SOURCE,
        says="Labels smoothed by the similarity of class names calibrate a network better than temperature scaling, "
        "uniform smoothing, mixup and Dirichlet calibration do.",
        published=tuple(
            Published(f"{arm}, {kind}", round(value / 100, 4), f"table 1, CIFAR-100, RN, Hist {kind}", "%")
            for kind, row in PRINTED.items()
            for arm, value in zip((*CONTROLS, *OURS), row, strict=True)
        ),
        here=f"ResNet-18 ({study.WIDTH} channels at first) on CIFAR-10 less {study.HELD_OUT:,} held-out training "
        f"images, {study.EPOCHS} epochs, {study.SEEDS} paired seeds, alpha {study.ALPHA:g}; beta of "
        f"{', '.join(f'{b:g}' for b in study.BETAS)} with the least error on the held-out images, on which TS, DirODIR "
        f"and ETS are fitted too, on top of the one-hot network; mixup with a = {MIX:g}. ETS stands beside and is not "
        f"judged: in print it is ahead in Hist P. {study.JUDGING.split(';')[0]}; names as in beats-uniform; {RULE} "
        "(CIFAR-100, with word vectors)",
        minutes=1500,
        test=beats_every_control,
        seeds=study.SEEDS,
    ),
)
