"""Liu & JaJa 2021: class-similarity smoothing beside all controls of its paper, beta chosen on held-out images."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from assay.claim import Claim, Evidence, Gate, Published
from assay.claims import liu2021_smoothing as study
from assay.claims._elsewhere import RULE, elsewhere
from assay.data.whole import Whole
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.methods.train.fit import Loss
    from assay.run import Run

Control = Literal["one-hot", "TS", "uniform", "mixup", "DirODIR", "ETS"]
Ours = Literal["AE", "names"]
CONTROLS: tuple[Control, ...] = ("one-hot", "TS", "uniform", "mixup", "DirODIR", "ETS")
OURS: tuple[Ours, ...] = ("AE", "names")
BETAS = (0.5, 1.0, 2.0, 4.0, 6.0)
HELD_OUT, MIX = 5000, 0.2


class _Said(NamedTuple):
    """Logits of a network."""

    held: Tensor  # m k
    test: Tensor  # n k


@cache
def _split(device: str) -> tuple[Whole, Whole]:
    """Training images to learn from, and others to choose and fit by."""
    train = study._data(device)["train"]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).to(train.x.device)
    held = min(HELD_OUT, len(train) // 3)
    return tuple(Whole(train.x[rows], train.y[rows]) for rows in (order[held:], order[:held]))  # type: ignore[return-value]


@cache
def _distances(arm: Ours, seed: int, device: str) -> Tensor:  # -> k k
    from assay.methods.train.class_similarity import class_distances, fit_encoder, word_distances

    if arm == "names":
        rows = [[float(word in row) for word in study.SAID] for row in study.NAMES.values()]
        return word_distances(torch.tensor(rows, device=device))
    learn, _ = _split(device)
    rng = torch.Generator(device).manual_seed(seed)
    encoder = fit_encoder(learn, code=study.CODE, epochs=study.ENCODER_EPOCHS, rng=rng, device=device)
    codes = torch.cat([encoder(part) for part in torch.split(learn.x, 5000)])
    return class_distances(codes, learn.y, classes=study.CLASSES)


@cache
def _trained(how: Literal["one-hot", "uniform", "mixup", "AE", "names"], beta: float, seed: int, device: str) -> _Said:
    """What a network says that was trained in this way, from the start and in the order that the seed names."""
    from assay.methods.train.class_similarity import similarity_labels, smoothed, uniform_labels
    from assay.methods.train.mixup import mixup

    learn, held = _split(device)
    if how in ("AE", "names"):
        labels = similarity_labels(_distances(how, seed, device), alpha=study.ALPHA, beta=beta)
    else:
        labels = uniform_labels(study.CLASSES, alpha=study.ALPHA if how == "uniform" else 0.0)
    loss: Loss = torch.nn.functional.cross_entropy if how == "mixup" else smoothed(labels.float().to(device))
    net = study._fitted(learn, loss, seed, device, mixup(study.CLASSES, a=MIX) if how == "mixup" else None)
    with torch.no_grad():
        held_out, test = (
            torch.cat([net(part).double() for part in torch.split(x, 1000)]).cpu()
            for x in (held.x, study._data(device)["test"].x)
        )
    return _Said(held_out, test)


def _beta(arm: Ours, seed: int, device: str) -> float:
    """The beta with the least calibration error of the largest score on the held-out images."""
    from assay.methods.uncertainty import ece

    y = _split(device)[1].y.cpu().numpy()
    errors = [ece(_trained(arm, beta, seed, device).held.softmax(1).numpy(), y, bins=study.BINS) for beta in BETAS]
    return BETAS[int(np.argmin(errors))]


def _probabilities(arm: Control | Ours, seed: int, device: str) -> Tensor:  # -> n k
    """On the test images; what scales is fitted on the held-out ones, on top of the one-hot network."""
    from assay.methods.uncertainty.dirichlet import fit_dirichlet
    from assay.methods.uncertainty.ensemble_temperature import fit_ensemble_temperature
    from assay.methods.uncertainty.scaling import fit_temperature

    if arm == "AE" or arm == "names":
        return _trained(arm, _beta(arm, seed, device), seed, device).test.softmax(1)
    if arm == "one-hot" or arm == "uniform" or arm == "mixup":
        return _trained(arm, 0.0, seed, device).test.softmax(1)
    said, y = _trained("one-hot", 0.0, seed, device), _split(device)[1].y.cpu()
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
    chosen = ", ".join(f"{arm} {', '.join(f'{_beta(arm, seed, device):g}' for seed in seeds)}" for arm in OURS)
    return elsewhere(
        study._below(judged),
        says=f"Over {len(seeds)} paired seeds the errors differ, in points, by: "
        f"{', '.join(f'{g.measure.name} {study._points(g)}' for g in judged)} (95 % intervals over the images). The "
        f"betas chosen: {chosen}.",
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
        here=f"ResNet-18 ({study.WIDTH} channels at first) on CIFAR-10 less {HELD_OUT:,} held-out training images, "
        f"{study.EPOCHS} epochs, {study.SEEDS} paired seeds, alpha {study.ALPHA:g}; beta of "
        f"{', '.join(f'{b:g}' for b in BETAS)} with the least error on the held-out images, on which TS, DirODIR and "
        f"ETS are fitted too, on top of the one-hot network; mixup with a = {MIX:g}. ETS stands beside and is not "
        f"judged: in print it is ahead in Hist P. {study.JUDGING.split(';')[0]}; names as in beats-uniform; {RULE} "
        "(CIFAR-100, with word vectors)",
        minutes=1500,
        test=beats_every_control,
        seeds=study.SEEDS,
    ),
)
