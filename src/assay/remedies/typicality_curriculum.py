"""Train the same architecture on its inputs in an order: those that are most typical of their class first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn

from assay.errors import AssayError
from assay.inputs.reach import Reach
from assay.methods.train.curriculum import Schedule, Scheduler
from assay.methods.train.fit import Optimiser
from assay.methods.train.typicality import Curriculum, comparable, neighbours, typicality, unit_rows
from assay.remedies._retraining import GENTLER, Hardening, PlainRetraining
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run
    from assay.subject import Subject

BATCH = 32
ADAM = 1e-3  # the learning rate
MOST_BYTES = 2**31  # of inputs that are compared with each other
AT_ONCE = 2**23  # values of inputs in one batch: what a small CNN makes of them on its way takes 100 times as much
SOURCE = "Krysinska, Morzy & Kajdanowicz, ICANN 2021"


@dataclass(frozen=True)
class _Scheduled(Hardening):
    """What the curriculum and its control share: how an order becomes batches."""

    weight_decay: float = 0.0
    optimiser: Optimiser = "adam"
    scheduler: Scheduler = "batch-repetition"
    times: int = 4
    more: int = 4
    batch: int = field(default=BATCH, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.schedule  # what makes no batches is refused before anything is trained

    @property
    def learning_rate(self) -> float:
        """Print's, of Adam; of SGD that of any training."""
        if self.lr is not None or self.optimiser == "sgd":
            return super().learning_rate
        return ADAM * (GENTLER if self.start == "weights" else 1)

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.scheduler, self.batch, self.times, self.more)

    def cost(self) -> Cost | None:
        """By how many inputs are seen; of repeat-until-remember that hangs on how many there are."""
        seen = {"ordered": 1, "mini-batch": 1, "batch-repetition": self.times}
        return Cost(seen[self.scheduler], 1) if self.scheduler in seen else None

    def fewest(self, subject: Subject) -> int:
        n = len(subject.data["train"])
        return min(n, self.batch) if self.scheduler == "repeat-until-remember" else super().fewest(subject)

    def why_not(self, subject: Subject) -> str | None:
        layers = subject.model.modules()
        if self.scheduler == "ordered" and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in layers):
            return "it has batch normalisation, for which batches of one input are too few; set another scheduler"
        if self.scheduler == "repeat-until-remember" and "train" in subject.data and len(subject.data["train"]):
            n, one = len(subject.data["train"]), subject.data["train"].take(np.arange(1))[0]
            if n * one.numel() > AT_ONCE:
                return (
                    f"repeat-until-remember ends each epoch with all {n:,} training inputs in one batch, and for "
                    f"{one.numel():,} values each at most {AT_ONCE // one.numel():,} fit; set another scheduler"
                )
        return super().why_not(subject)


@dataclass(frozen=True)
class TypicalityCurriculum(_Scheduled):
    """Trains it on the most typical inputs first, with more updates; the order itself mostly does nothing.

    `curriculum` says by what inputs are typical: by how many are like them, by how pure the class of those is, or by
    both. `scheduler` makes batches of the order: of one input (ordered), of `batch` inputs (mini-batch), each of those
    `times` times over (batch-repetition), or growing by `more` inputs each (repeat-until-remember, whose cost grows
    with the square of the number of inputs). Inputs are alike that are more so than two usually are, or with `nearest`
    the so many nearest of each; `as_published` ranks by the printed sign, the least typical first. It is compared with
    as many updates in a random order, and that with a plain retraining: only the first difference is the order's. `lr`
    left out is 0.001 for Adam and AdamW here.
    """

    curriculum: Curriculum = "degree-adjusted"
    nearest: int | None = None
    as_published: bool = False

    source: ClassVar[str] = SOURCE
    mends: ClassVar[tuple[str, ...]] = ("accuracy", "which-labels-look-wrong")

    def control(self) -> Remedy | None:
        return EqualUpdates(
            self.epochs,
            self.learning_rate,
            self.weight_decay,
            self.optimiser,
            self.start,
            self.scheduler,
            self.times,
            self.more,
            momentum=self.momentum,
            batch=self.batch,
        )

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is not None:
            return reason
        if subject.tokens:
            return "it compares inputs by their values, and an input here is a row of words by number"
        n = len(subject.data["train"])
        if self.nearest is not None and not 1 <= self.nearest < n:
            return f"nearest={self.nearest} of {n:,} training inputs are none; give a number from 1 to {n - 1:,}"
        return _too_many(subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        order = self.schedule.in_order(self._ranked(subject, run))
        self.train(model, subject, run, rng, about="training in order", order=order, resumes=True)
        return subject.cured(model, self.name())

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        n = len(cured.data["train"])
        plain, ours = Schedule("mini-batch", self.batch).updates(n), self.schedule.updates(n)
        return (
            f"An epoch of it has {ours:,} updates, one of a plain retraining {plain:,}: what it gains over that "
            f"retraining may come from the {'order' if ours == plain else 'updates'}; only what it gains over "
            "equal updates in a random order comes from the order.",
        )

    def _ranked(self, subject: Subject, run: Run) -> Tensor:  # -> n
        if (why := _too_many(subject)) is not None:
            raise AssayError(f"{why}.")
        data, choices = subject.data["train"], _choices(subject)
        rows = run.map(
            lambda shard: {"x": comparable(shard.x, choices), "y": shard.y},
            subject,
            "train",
            np.arange(len(data)),
            "how typical each training input is",
        )
        u, y = unit_rows(torch.as_tensor(rows["x"], device=run.device)), torch.as_tensor(rows["y"], device=run.device)
        counts = neighbours(u, y, len(subject.task.classes), nearest=self.nearest, as_published=self.as_published)
        return typicality(counts, y, as_published=self.as_published).ranked(self.curriculum, run.rng())


def _choices(subject: Subject) -> Tensor | None:
    """How many codes each value of an input has, where its kind says so."""
    reach = subject.kind.reach if subject.kind is not None else None
    return reach.choices if isinstance(reach, Reach) else None


def _too_many(subject: Subject) -> str | None:
    """Why its training inputs cannot be compared with each other."""
    data = subject.data["train"]
    width = comparable(data.take(np.arange(1))[0], _choices(subject)).shape[1]
    if 4 * len(data) * width <= MOST_BYTES:
        return None
    return (
        f"{len(data):,} training inputs of {width:,} values are too many to compare with each other; at most "
        f"{MOST_BYTES // (4 * width):,} can be"
    )


@dataclass(frozen=True)
class EqualUpdates(_Scheduled):
    """As many updates on batches of the same sizes, in an order that is new each epoch."""

    source: ClassVar[str] = f"the control of {SOURCE}, which that paper lacks"

    @classmethod
    def name(cls) -> str:
        return "shuffled-retraining"

    def control(self) -> Remedy | None:
        return PlainRetraining(
            self.epochs,
            self.learning_rate,
            self.weight_decay,
            self.optimiser,
            self.start,
            momentum=self.momentum,
            batch=self.batch,
        )

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        order = self.schedule.in_random_order(len(subject.data["train"]))
        self.train(model, subject, run, rng, about="training with equal updates", order=order, resumes=True)
        return subject.cured(model, self.name())


SHELVED = TypicalityCurriculum
