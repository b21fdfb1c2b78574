"""Remedy: something that builds a better subject out of a subject."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from assay.finding import View
    from assay.run import Run
    from assay.subject import Subject


class Cost(NamedTuple):
    """What a remedy asks for, as multiples of what the plain model took: its training and one forward pass."""

    training: float
    inference: float


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What a remedy did to one question where it was put to the test; `claim` is the record that says so."""

    probe: str
    says: str
    claim: str


@dataclass(frozen=True)
class Remedy(ABC):
    """Subclasses are frozen dataclasses: the fields are the settings, the docstring's first line is what it does."""

    needs: ClassVar[tuple[str, ...]] = ("classes",)
    """What its answers must hold, see `Task.gives`."""
    needs_train: ClassVar[bool] = False
    source: ClassVar[str]
    mends: ClassVar[tuple[str, ...]] = ()
    """The probes whose questions it is made for; the report offers it where one of them fails."""
    tried: ClassVar[tuple[Tried, ...]] = ()
    """What came of it, question by question, good or bad; each number stands in the ledger of claims."""

    @abstractmethod
    def apply(self, subject: Subject, run: Run) -> Subject:
        """A new subject that remembers where it came from; the old one stays as it was."""

    def cost(self) -> Cost | None:
        """By its settings; None where there is no plain training to compare with."""
        return None

    def settled(self, subject: Subject) -> Self:
        """The same remedy with the settings filled in that were left to the subject (how long to train)."""
        return self

    def control(self) -> Remedy | None:
        """What a remedy that trains anew is compared with: the same training without it. None: the subject itself."""
        return None

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        """What a reader of the comparison should know about the cured subject, a sentence each."""
        return ()

    def figures(self, cured: Subject, run: Run) -> tuple[View, ...]:
        """What there is to see of the cure itself, drawn on its page: how it went, what became of an input."""
        return ()

    def frame(self, subject: Subject) -> Subject:
        """The cured subject before its weights are known, with the data that it will be asked about.

        Kept weights are loaded into it instead of training again.
        """
        return subject.cured(copy.deepcopy(subject.model), self.name())

    def framed(self, subject: Subject, tensors: Mapping[str, Tensor]) -> Subject:
        """The frame for these kept weights, where what was learnt decides how large the cured model is."""
        return self.frame(subject)

    def beside(self, subject: Subject, cured: Subject, run: Run) -> tuple[str, ...]:
        """Remarks that need the subject it was made of, a sentence each."""
        return ()

    @classmethod
    def name(cls) -> str:
        return cls.__module__.rsplit(".", 1)[-1].replace("_", "-")

    @classmethod
    def promise(cls) -> str:
        return (cls.__doc__ or "").strip().splitlines()[0]

    def why_not(self, subject: Subject) -> str | None:
        lacks = subject.task.lacks(self.needs)
        if lacks is not None:
            return lacks
        if self.needs_train and "train" not in subject.data:
            return f"it trains, and the subject has no split 'train', only {sorted(subject.data)}"
        return None

    def settings(self) -> dict[str, Any]:
        return asdict(self)
