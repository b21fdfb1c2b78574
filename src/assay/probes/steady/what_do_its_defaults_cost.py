"""What nobody chose: the same network with one default exchanged for an alternative, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from assay.finding import Alarm, Finding, Matrix, Measure
from assay.methods.attack.pgd import pgd
from assay.methods.attack.swift import searching
from assay.methods.shift.defaults import DEFAULTS, Default, exchanged, is_last
from assay.probe import Need, Probe

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

LEARNT = 2000  # training inputs that a head learns on
LOOKED_AT = 32
FAR = 1000.0  # ranges of an input
AGAINST: dict[Default, str] = {"softRmax": "softmax", "t": "softmax", "prior": "as it is"}
SAYS: dict[Default, str] = {
    "softRmax": "a polynomial head in the place of softmax",
    "t": "a head of t densities in the place of softmax",
    "prior": "classes taken to be equally common, not as in training",
}


@dataclass(frozen=True)
class WhatDoItsDefaultsCost(Probe):
    """What do the defaults cost that nobody chose?

    Each row exchanges one default of the last step for one alternative: softmax for softRmax or for t densities, the
    classes of the training data for equally common ones. A new head learns on the model's own features; beside it
    softmax learns again in the same way, so that what differs is the head. Told are the changes in accuracy, in the
    confidence far away from the data, where a model should be unsure, and in accuracy under attack within `radius`.
    It measures and sets no limit: which default is right is for whoever answers for the model.
    """

    radius: float = 8 / 255
    steps: int | None = None

    needs: ClassVar[tuple[Need, ...]] = ("classes", "gradients", "train")
    in_quick: ClassVar[bool] = False
    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Wang, TU Delft 2024, ch. 8 (the audit of defaults); Wang & Loog, CVPR 2022, arXiv:2203.12693; Menon et al., "
        "ICLR 2021, arXiv:2007.07314"
    )

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius")
        self.refuse_beyond_the_range("radius")
        self.refuse_below(1, "steps")

    def why_not(self, subject: Subject) -> str | None:
        lacks = super().why_not(subject)
        if lacks is not None:
            return lacks
        if subject.draws > 1:
            return "it exchanges the head of a model that answers the same each time, and this one is random"
        head = subject.layers.get("head")
        if head is None or not isinstance(subject.model.get_submodule(head), nn.Linear):
            return "it exchanges the last linear layer, and the model has none that is a module"
        return None

    def ask(self, subject: Subject, run: Run) -> Finding:
        head, train = subject.layers["head"], subject.data["train"]
        x, y = (part.to(run.device) for part in train.take(run.pick(train, LEARNT, bounded=False)))
        if not is_last(subject.model, head, x[:LOOKED_AT]):
            why = f"What the layer {head!r} gives out is not the model's answer: no other head fits in its place."
            return Finding(
                says=why,
                measures=(Measure(name="accuracy, softRmax less softmax", value=None, better="higher"),),
                alarms=(Alarm(why, doubts=("accuracy, softRmax less softmax",)),),
            )
        models = {"as it is": subject.model}
        with run.progress("heads", len(DEFAULTS)) as tick:
            for default in DEFAULTS:
                models[default] = exchanged(subject.model, head, default, x, y)
                tick(1)
        index = run.pick(subject.data["test"])
        few = run.pick(subject.data["test"], run.budget.dear or run.budget.samples)
        rows: dict[str, Mapping[str, np.ndarray]] = {}
        for name, model in models.items():
            of = replace(subject, model=model)
            looked = run.map(partial(_looked, of), of, "test", index, f"answers with {name}")
            attacked = run.map(partial(self._attacked, of, run), of, "test", few, f"attack on {name}")
            rows[name] = {"right": looked["right"], "far": looked["far"], "held": attacked["held"]}
        measures = []
        for default, other in AGAINST.items():
            for what, about, better in (
                ("right", "accuracy", "higher"),
                ("far", "confidence far away", "lower"),
                ("held", "accuracy under attack", "higher"),
            ):
                change = rows[default][what].astype(np.float64) - rows[other][what].astype(np.float64)
                told = SAYS[default] + (", its features the same" if other == "softmax" else "")
                measures.append(
                    Measure.mean(
                        f"{about}, {default} less {other}", change, better="higher" if better == "higher" else "lower",
                        seed=run.seed, unit="%", about=told,
                    )
                )  # fmt: skip
        columns = ("right", "far", "held")
        return Finding(
            says="With the default and with one alternative: "
            + "; ".join(
                f"{name} is right on {100 * r['right'].mean():.0f} %, {100 * r['far'].mean():.0f} % sure far away, "
                f"holds {100 * r['held'].mean():.0f} % under attack"
                for name, r in rows.items()
            )
            + ".",
            measures=tuple(measures),
            views=(
                Matrix(
                    name="defaults",
                    title="One default exchanged, one row each",
                    row_label="last step",
                    column_label="share",
                    rows=tuple(rows),
                    columns=("right", "confidence far away", f"right within {self.radius:.3g}"),
                    values=tuple(tuple(float(r[c].mean()) for c in columns) for r in rows.values()),
                ),
            ),
        )

    def _attacked(self, of: Subject, run: Run, shard: Shard) -> dict[str, Tensor]:
        """By the margin of the logits: the loss of a flat head leads astray."""
        steps = self.steps or run.budget.steps
        model, precision = searching(of.model, shard.x, draws=of.draws)
        found = pgd(
            model, shard.x, shard.y, radius=self.radius, steps=steps, loss="margin", precision=precision, rng=shard.rng
        )
        return {"held": ~found.success & (of.predict(shard.x).argmax(1) == shard.y)}


def _looked(of: Subject, shard: Shard) -> dict[str, Tensor]:
    out = of.predict(shard.x)
    way = torch.randn(shard.x.shape, generator=shard.rng, device=shard.rng.device).sign().to(shard.x)
    far = of.predict(shard.x + FAR * way)
    return {"right": out.argmax(1) == shard.y, "far": far.softmax(1).amax(1)}


SHELVED = WhatDoItsDefaultsCost
