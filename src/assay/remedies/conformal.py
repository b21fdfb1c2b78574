"""Answer with a set of classes that holds the true one as often as it promises."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from assay.data.held_out import held_out
from assay.errors import AssayError
from assay.methods.uncertainty.conformal import ScoreName, fit_conformal, inputs_needed, scores
from assay.nn.with_sets import WithSets
from assay.probe import undisturbed
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Conformal(Remedy):
    """Gives it sets of classes that hold the true one with probability 1 - alpha, whatever the model; no training.

    The threshold is fitted on the split 'calibration', else 'validation', else on a fixed half of 'test'. The answers
    stay as they were and no other question looks at the sets, so that the data stay too; `how-often-is-the-set-right`
    asks about the other half. `score` "lac" has the smallest sets on average, mostly of one class where the model is
    good; "aps" and "raps" grow on inputs that look hard, shifted ones too. `penalty` and `free` are for raps.
    With `per_class` the promise is kept for the inputs of each class by themselves, with a threshold for each class,
    mostly with larger sets; a class with too few held-out inputs is in every set.
    """

    alpha: float = 0.1
    score: ScoreName = "raps"
    penalty: float = 0.01
    free: int = 1
    per_class: bool = False

    source: ClassVar[str] = (
        "Sadinle, Lei & Wasserman, JASA 2019, arXiv:1609.00451 (lac); Romano, Sesia & Candes, NeurIPS 2020, "
        "arXiv:2006.02544 (aps); Angelopoulos et al., ICLR 2021, arXiv:2009.14193 (raps); Vovk, ACML 2012, "
        "arXiv:1209.2673 (per class)"
    )
    mends: ClassVar[tuple[str, ...]] = ("how-often-is-the-set-right",)

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise AssayError(f"alpha={self.alpha} is the share of misses allowed; give a number between 0 and 1.")
        if self.penalty < 0 or self.free < 0:
            raise AssayError(f"penalty={self.penalty} and free={self.free} of raps; neither may be negative.")

    def cost(self) -> Cost:
        return Cost(training=0, inference=1)

    def frame(self, subject: Subject) -> Subject:
        part = held_out(subject.data)
        rule = self.score if self.score != "raps" else f"raps, penalty {self.penalty:g}, free {self.free}"
        names = subject.task.classes
        rule += ", per class" if self.per_class else ""
        score = partial(scores, score=self.score, penalty=self.penalty, free=self.free)
        model = WithSets(
            subject.model,
            score,
            alpha=self.alpha,
            rule=rule,
            draws=subject.draws,
            classes=len(names) if self.per_class else None,
        )
        where = "one half of 'test'" if part.split == "test" else f"the split {part.split!r}"
        about = (
            f"{subject.about} It gives sets of classes ({rule}) that promise to hold the true one in "
            f"{100 * (1 - self.alpha):g} % of cases{' of each class' if self.per_class else ''}, fitted on "
            f"{len(part.fit):,} inputs: {where}."
        )
        counts = np.bincount(np.asarray(subject.data[part.split].labels)[part.fit], minlength=len(names))
        few = [name for name, n in zip(names, counts, strict=True) if n < inputs_needed(self.alpha)]
        if self.per_class and few:
            about += f" In every set, for too few held-out inputs: {', '.join(few)}."
        return replace(subject.cured(model, self.name()), about=about.strip())

    def apply(self, subject: Subject, run: Run) -> Subject:
        cured, part = self.frame(subject), held_out(subject.data)
        with undisturbed(subject.model, run):
            logits, labels = run.predict(subject, part.split, part.fit, "held-out inputs")
        fitted = fit_conformal(
            torch.from_numpy(logits).double().softmax(1),
            torch.from_numpy(labels),
            alpha=self.alpha,
            score=self.score,
            penalty=self.penalty,
            free=self.free,
            per_class=self.per_class,
            rng=torch.Generator().manual_seed(run.seed),
        )
        assert isinstance(cured.model, WithSets)  # frame
        cured.model.threshold.copy_(fitted.quantile)
        return cured


SHELVED = Conformal
