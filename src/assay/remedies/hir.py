"""Train the same architecture to answer a class alike in every domain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from assay.methods.train.hir import WEIGHT, pairs
from assay.methods.train.hir import Hir as Method
from assay.remedies._across_domains import AcrossDomains

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Hir(AcrossDomains):
    """Trains it on several labelled domains to answer each class alike in all; its features may differ.

    `alpha` weighs the sum over pairs of inputs of a class that are answered differently; left out, it gives their mean
    the weight 3, as print has with 3,000 pairs. `across=false` leaves out pairs of two domains: an ablation, as what is
    gained without them does not come of the domains. `hold_out` names a domain that it must not see and is judged by.
    """

    alpha: float | None = None
    across: bool = True

    source: ClassVar[str] = "Wang, Loog & van Gemert, ICPR 2020, arXiv:2010.07591"
    mends: ClassVar[tuple[str, ...]] = ("does-it-extrapolate", "confidence-under-shift")

    def __post_init__(self) -> None:
        super().__post_init__()
        Method(self.alpha or 0.0)

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        if not self.across and self.each(subject) < 2:
            least = 2 * len(self.roles(subject).sources) * (self.in_domain(subject) // self.each(subject))
            return f"across=false wants two inputs of each class from each domain; set batch={least} or more"
        return None

    def settled(self, subject: Subject) -> Self:
        return replace(super().settled(subject), alpha=self._weight(subject))

    def _weight(self, subject: Subject) -> float:
        if self.alpha is not None:
            return self.alpha
        domains, each = len(self.roles(subject).sources), self.each(subject)
        classes = self.in_domain(subject) // each
        return WEIGHT / (pairs(classes, domains * each) if self.across else pairs(classes * domains, each))

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        domains = None if self.across else len(self.roles(subject).sources)
        loss = Method(self._weight(subject), domains=domains).loss
        self.trained(model, subject, run, rng, about="training for the same answer in every domain", loss=loss)
        return self.cured(model, subject)


SHELVED = Hir
