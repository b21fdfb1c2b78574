"""Yoshida & Kitamura 2021: machines that let no training impostor in, and what that is worth with strangers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from assay.claim import Claim, Evidence, Held, Published
from assay.claims._elsewhere import RULE, elsewhere
from assay.data.signatures import PERSONS, STEPS, load_signatures
from assay.finding import Measure
from assay.methods.verify.fit import MachineName, choose, train
from assay.methods.verify.mahalanobis import mahalanobis
from assay.nn.cosines import Cosines
from assay.nn.kernel import Kernel, usual_gamma

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = (
    "Yoshida & Kitamura, 'Semi-Hard Margin Support Vector Machines for Personal Authentication with an Aerial "
    "Signature Motion', ICANN 2021"
)
ARMS: tuple[MachineName, ...] = ("l2-svm", "sh-svm", "sh-twsvm", "sh-svdd")
Arm = MachineName | Literal["cm"]  # CM: the distance from the genuine mean
SEEDS, KEPT = 5, 4
SHARES, LAMS = (0.1, 1.0), (1.0, 100.0, 1e4)
Array = NDArray[np.float64]
HERE = (
    f"{PERSONS} persons by {SEEDS} seeds of signatures made by code, {3 * KEPT} slow waves of each as features; print "
    "has tracks of a Leap Motion and EfficientNet features of drawings of them, which are not at hand; kernel and "
    "lambda by three folds for each person; "
)


def _one(machine: Arm, person: int, seed: int) -> tuple[float, float, float]:
    """FAR on the training impostors, FAR on strangers, and FRR."""
    waves, splits = Cosines(STEPS, KEPT), load_signatures(person, seed=seed)
    x = {part: waves(torch.from_numpy(each.x)).double() for part, each in splits.items()}
    y = {part: np.where(each.y == 1, 1.0, -1.0) for part, each in splits.items()}
    if machine == "cm":
        near = mahalanobis(x["train"].numpy(), y["train"])
        return _told(near.decide(x["train"].numpy()), near.decide(x["test"].numpy()), y)
    kernels = [Kernel("rbf", gamma=share * usual_gamma(x["train"])) for share in SHARES]
    lams = LAMS[:1] if machine == "sh-twsvm" else LAMS  # a twin has none
    best = choose(x["train"].numpy(), y["train"], machine=machine, kernels=kernels, lams=lams, seed=seed)
    known = best.kernel(x["train"], x["train"]).numpy()
    found = train(machine, known, y["train"], lam=best.lam)
    old = found.decide(known, np.diagonal(known))
    new = found.decide(best.kernel(x["test"], x["train"]).numpy(), best.kernel.own(x["test"]).numpy())
    return _told(old, new, y)


def _told(old: Array, new: Array, y: dict[str, Array]) -> tuple[float, float, float]:  # of train and of test
    impostor = y["test"] < 0
    return (
        float((old[y["train"] < 0] > 0).mean()),
        float((new[impostor] > 0).mean()),
        float((new[~impostor] <= 0).mean()),
    )


@cache  # all claims are about the same machines
def _rates(machine: Arm, seed: int) -> Array:
    """seeds x persons x (FAR in training, FAR, FRR)."""
    return np.array([[_one(machine, person, seed + s) for person in range(PERSONS)] for s in range(SEEDS)])


def _all(run: Run, *machines: Arm) -> list[Array]:
    with run.progress("machines for each person", len(machines)) as tick:
        found = []
        for machine in machines:
            found.append(_rates(machine, run.seed))
            tick(1)
    return found


def _mean(name: str, values: Array, seed: int) -> Measure:  # seeds persons
    """Over persons and seeds; persons of one seed share their impostors, so that seeds are resampled."""
    by_seed = values.mean(1)
    return Measure.mean(name, by_seed, better="lower", seed=seed, unit="%")


def _zero_in_training(run: Run) -> Evidence:
    arms = dict(zip(ARMS[1:], _all(run, *ARMS[1:]), strict=True))
    measures = []
    for name, found in arms.items():
        measures += [
            _mean(f"FAR of {name}, training impostors", found[..., 0], run.seed),
            _mean(f"FAR of {name}, strangers", found[..., 1], run.seed),
        ]
    worst = max(float(found[..., 0].max()) for found in arms.values())
    strangers = _mean("", arms["sh-svm"][..., 1], run.seed)
    held: Held = "fails" if worst > 0 else "holds" if (strangers.low or 0) > 0 else "cannot tell"
    return Evidence(
        verdict=held,
        says=f"The largest FAR on training impostors of any machine, person and seed is {100 * worst:g} %, by "
        f"construction; of strangers sh-svm lets {100 * (strangers.value or 0):.1f} % in.",
        measures=tuple(measures),
    )


def _twin_rejects(run: Run) -> Evidence:
    twin, svm = _all(run, "sh-twsvm", "sh-svm")
    frr = _mean("FRR of sh-twsvm at threshold 0", twin[..., 2], run.seed)
    gap = _mean("more than sh-svm", twin[..., 2] - svm[..., 2], run.seed)
    held: Held = "holds" if (gap.low or 0) > 0 else "fails" if (gap.high or 0) < 0 else "cannot tell"
    return elsewhere(
        held,
        f"At threshold 0 sh-twsvm rejects {100 * (frr.value or 0):.0f} % of the genuine.",
        (frr, gap, _mean("FRR of sh-svm", svm[..., 2], run.seed)),
    )


def _lower_far(run: Run) -> Evidence:
    plain, svm, ball, near = _all(run, "l2-svm", "sh-svm", "sh-svdd", "cm")
    measures = [
        _mean(f"FAR of {n}", a[..., 1], run.seed)
        for n, a in zip(("svm", "sh-svm", "sh-svdd", "cm"), (plain, svm, ball, near), strict=True)
    ]
    gap = _mean("FAR of sh-svm less that of svm", svm[..., 1] - plain[..., 1], run.seed)
    fewer = float((svm[..., 1] < plain[..., 1]).mean())
    held: Held = "holds" if (gap.high or 0) < 0 else "fails" if (gap.low or 0) > 0 else "cannot tell"
    return elsewhere(
        held, f"sh-svm lets fewer strangers in than svm for {100 * fewer:.0f} % of the persons.", (*measures, gap)
    )


def _sphere_is_near(run: Run) -> Evidence:
    svm, ball = _all(run, "sh-svm", "sh-svdd")
    gaps = [
        _mean(f"{what} of sh-svdd less that of sh-svm", ball[..., i] - svm[..., i], run.seed)
        for i, what in ((1, "FAR"), (2, "FRR"))
    ]
    near = all((g.low or 0) > -0.05 and (g.high or 0) < 0.05 for g in gaps)
    apart = any((g.low or 0) > 0.05 or (g.high or 0) < -0.05 for g in gaps)
    held: Held = "holds" if near else "fails" if apart else "cannot tell"
    rates = (_mean(f"FRR of {n}", a[..., 2], run.seed) for n, a in (("sh-svm", svm), ("sh-svdd", ball)))
    return elsewhere(held, "Near is taken to be within 5 points.", (*gaps, *rates))


def _printed(*rows: tuple[str, float, str]) -> tuple[Published, ...]:
    return tuple(Published(what, value / 100, "Table 2, row Ave", "%", here) for what, value, here in rows)


SHELVED = (
    Claim(
        name="zero-in-training",
        source=SOURCE,
        says="The semi-hard machines let no training impostor in; strangers they do.",
        published=_printed(
            ("FAR of SH-SVM on print's strangers", 5.53, ""),
            ("of SH-TWSVM", 2.73, ""),
            ("of SH-SVDD", 6.27, ""),
        ),
        here=HERE + "holds if no training impostor is let in at all and strangers are",
        minutes=1.0,
        test=_zero_in_training,
    ),
    Claim(
        name="twin-rejects",
        source=SOURCE,
        says="SH-TWSVM at threshold 0 rejects most of the genuine.",
        published=_printed(
            ("FRR of SH-TWSVM", 87.6, "FRR of sh-twsvm at threshold 0"), ("FRR of SH-SVM", 51.2, "FRR of sh-svm")
        ),
        here=HERE + RULE,
        minutes=1.0,
        test=_twin_rejects,
    ),
    Claim(
        name="lower-far",
        source=SOURCE,
        says="SH-SVM lets fewer strangers in than an SVM, in 7 of 10 persons.",
        published=_printed(
            ("FAR of SVM", 15.6, "FAR of svm"),
            ("of SH-SVM", 5.53, "FAR of sh-svm"),
            ("of SH-SVDD", 6.27, "FAR of sh-svdd"),
            ("of CM", 1.33, "FAR of cm"),
        ),
        here=HERE + RULE,
        minutes=1.0,
        test=_lower_far,
    ),
    Claim(
        name="sphere-is-near",
        source=SOURCE,
        says="SH-SVDD and SH-SVM with an RBF kernel have about the same FAR and FRR.",
        published=_printed(("FRR of SH-SVM", 51.2, "FRR of sh-svm"), ("FRR of SH-SVDD", 46.4, "FRR of sh-svdd")),
        here=HERE + RULE,
        minutes=1.0,
        test=_sphere_is_near,
    ),
)
