"""What the remedies that train across domains share: which inputs they may see, the batches, the control, the remarks.

Trained on are 'train' and one half of every domain with labels, the other half of which is asked about, before and
after; the halves are always the same. A domain that is held out is not looked at, neither its labels nor its inputs,
until it is asked about whole: leave-one-domain-out. What a remedy may see without labels is one half of a domain that
has none, or of one that `target` names: of features that were trained to lie alike, those inputs say nothing new.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
import torch

from assay.data.held_out import Part, apart_from, held_out
from assay.data.joined import Joined
from assay.domain import Unlabelled
from assay.errors import AssayError
from assay.methods.train.alignment import Alignment, Beside, WithFeatures
from assay.methods.train.balanced import balanced
from assay.methods.train.fit import Augment, Loss, Optimiser, Order, Rows
from assay.remedies._retraining import Hardening, kept_as
from assay.remedy import Remedy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Generator, Tensor, nn

    from assay.run import Run
    from assay.subject import Data, Subject

BATCH = 250  # in print, for 5 domains of 10 classes


class Roles(NamedTuple):
    """What is trained on with labels, what without, and the data that are left to ask about."""

    sources: dict[str, Data]
    targets: dict[str, Data]
    asked: dict[str, Data]
    unlabelled: dict[str, Data]
    """What is left of the domains without labels."""


@dataclass(frozen=True)
class AcrossDomains(Hardening):
    """A training on several domains, in batches that hold as many inputs of every class from each of them.

    `hold_out` names a domain that it must not see: the one to judge it by.
    """

    weight_decay: float = 0.0
    optimiser: Optimiser = "adam"
    hold_out: str = field(default="", kw_only=True)
    batch: int = field(default=BATCH, kw_only=True)

    groups: ClassVar[int] = 2
    """How many domains it needs to train on."""
    evenly: ClassVar[bool] = True
    """Whether its batches hold as many inputs of every class from each domain."""

    @property
    def targets(self) -> tuple[str, ...] | None:
        """The domains of which it sees the inputs alone; empty: those without labels; None: it sees none so."""
        return None

    def settled(self, subject: Subject) -> Self:
        return super().settled(self.gathered(subject))

    def control(self) -> Remedy | None:
        return JointRetraining(
            self.epochs,
            self.learning_rate,
            self.weight_decay,
            self.optimiser,
            self.start,
            hold_out=self.hold_out,
            target=self.targets or (),
            even=self.evenly,
            momentum=self.momentum,
            batch=self.batch,
        )

    def roles(self, subject: Subject) -> Roles:
        """Who is trained on, seen without labels, and asked about."""
        sources: dict[str, Data] = {"train": subject.data["train"]}
        targets: dict[str, Data] = {}
        used: list[Data] = []
        for name, domain in subject.domains().items():
            if name == self.hold_out:
                continue
            if domain.labelled:
                hidden = name in (self.targets or ())
                seen: Data = Unlabelled(domain.data) if hidden else domain.data  # not even the cut reads its labels
                half = held_out({"test": seen})
                used.append(Part(domain.data, half.fit))
                (targets if hidden else sources)[name] = Part(seen, half.fit)
            elif self.sees(name):
                half = held_out({"test": domain.data})
                used.append(Part(_bare(domain.data), half.fit))
                targets[name] = Part(domain.data, half.fit)
        bare = {name: _bare(data) for name, data in subject.unlabelled.items()}
        left = {name: each for name, each in apart_from(bare, used).items() if each is not bare[name]}
        return Roles(sources, targets, apart_from(subject.data, used), {**subject.unlabelled, **left})

    def sees(self, name: str) -> bool:
        """Whether it trains on inputs of this domain, which has no labels."""
        return self.targets is not None and name != self.hold_out and (not self.targets or name in self.targets)

    def left(self, subject: Subject) -> Subject:
        """The subject with the data that it is asked about."""
        roles = self.roles(subject)
        return replace(subject, data=roles.asked, unlabelled=roles.unlabelled)

    def gathered(self, subject: Subject) -> Subject:
        """The subject whose training data are those of every domain that it trains on."""
        return replace(subject, data={**subject.data, "train": Joined(self.roles(subject).sources)})

    def each(self, subject: Subject) -> int:
        """How many inputs of every class a batch holds from each domain."""
        sources = self.roles(subject).sources
        return self.batch // (len(sources) * len(_classes(sources)))

    def in_domain(self, subject: Subject) -> int:
        """How many inputs a batch holds from each domain."""
        return self.each(subject) * len(_classes(self.roles(subject).sources))

    def fewest(self, subject: Subject) -> int:
        return self.batch if self.evenly else super().fewest(subject)  # even ones hold every class

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        domains = subject.domains()
        labelled = [name for name, domain in domains.items() if domain.labelled]
        wanted = self.targets or ()
        if not (labelled or (self.targets is not None and domains)):
            kind = "a domain with labels" if self.targets is None else "a domain"
            return f"it needs {kind} beside train and test (--domain NAME=PATH), and there are {sorted(subject.data)}"
        for option, names in (("hold-out", (self.hold_out,) if self.hold_out else ()), ("target", wanted)):
            for name in names:
                if name not in domains:
                    return f"{option}={name} is no domain of it; there are {', '.join(domains)}"
        if self.hold_out in wanted:
            return f"{self.hold_out!r} is both held out and a target, whose inputs are seen; choose one"
        for name in domains:
            if name != self.hold_out and (name in labelled or self.sees(name)) and len(domains[name].data) < 2:
                return f"the domain {name!r} has one input, and half of a domain is trained on; leave it out"
        sources, targets, *_ = self.roles(subject)
        seen = [*sources, *targets]
        if len(seen) < self.groups:
            but = f" with {self.hold_out!r} held out" if self.hold_out else ""
            return f"it needs {self.groups} domains to train on, and{but} there is only {seen[0]!r}"
        return self._lacking(subject, sources) if self.evenly else None

    def _lacking(self, subject: Subject, sources: Mapping[str, Data]) -> str | None:
        """What the batches cannot be made of."""
        classes = _classes(sources)
        for name, data in sources.items():
            there = np.unique(np.asarray(data.labels))
            lost = [subject.task.classes[c] for c in classes if c not in there]
            if lost:
                part = "" if name == "train" else " in the half that is trained on"
                return (
                    f"the domain {name!r} has no input of class {lost[0]!r}{part}, and batches hold every class of "
                    "every domain; leave that domain out"
                )
        cells = len(sources) * len(classes)
        if self.batch < cells:
            return (
                f"a batch of {self.batch} does not hold one input of {len(classes)} classes from {len(sources)} "
                f"domains; set batch={cells} or more"
            )
        return None

    def frame(self, subject: Subject) -> Subject:
        return self.cured(copy.deepcopy(subject.model), subject)

    def trained(
        self,
        model: nn.Module,
        subject: Subject,
        run: Run,
        rng: Generator,
        *,
        about: str,
        loss: Loss = torch.nn.functional.cross_entropy,
        augment: Augment | None = None,
        even: bool | None = None,
        rows: Rows | None = None,
    ) -> None:
        """Train `model` in place; `even`, where it is not what its kind has, as `evenly`."""
        gathered = self.gathered(subject)
        order: Order | None = None
        if self.evenly if even is None else even:
            whole = gathered.data["train"]
            assert isinstance(whole, Joined)
            parts = torch.from_numpy(whole.domain), torch.from_numpy(whole.labels)
            order = balanced(*parts, each=self.each(subject))
        self.hardened(model, gathered, run, rng, about=about, loss=loss, augment=augment, order=order, rows=rows)

    def cured(self, model: nn.Module, subject: Subject) -> Subject:
        """The subject with this model, and the data that are left to ask about."""
        return self.left(subject).cured(model, self.name())

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        hidden = (self.hold_out, *(self.targets or ()))
        trained = [name for name, domain in cured.domains().items() if domain.labelled and name not in hidden]
        told = [f"It was trained on 'train'{_and(trained, ' and on one half of ')}."]
        without = [*(self.targets or ())] or [name for name in cured.unlabelled if name != self.hold_out]
        if self.targets is not None and without:
            told.append(
                f"Of {_listed(without)} it saw one half of the inputs and no label; the other half is asked about."
            )
        told.append(
            f"{self.hold_out!r} was held out: neither trained on nor looked at until it was asked about, so that what "
            "changed there is what it does in a place that it never saw."
            if self.hold_out
            else "No domain was held out: what it does in a place that it never saw is not told. --set hold-out=NAME "
            "does that."
        )
        return (" ".join(told),)


@dataclass(frozen=True)
class Adapting(AcrossDomains):
    """A training that also sees inputs without labels: of the domains that have none, or of those `target` names.

    Of a domain with labels that `target` names none is read. Half of the inputs of each is kept to ask about.
    """

    target: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def targets(self) -> tuple[str, ...] | None:
        return self.target


@dataclass(frozen=True)
class JointRetraining(Adapting):
    """Trains it again on all domains together and does nothing else: what training across domains is compared with.

    `even` batches hold as many inputs of every class from each domain.
    """

    even: bool = field(default=True, kw_only=True)

    source: ClassVar[str] = "the control of an experiment: AGG in Wang, Loog & van Gemert, ICPR 2020, arXiv:2010.07591"
    groups: ClassVar[int] = 1

    @classmethod
    def name(cls) -> str:
        return "joint-retraining"

    def control(self) -> Remedy | None:
        return None

    def sees(self, name: str) -> bool:
        return False  # it has no use for inputs without labels

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        self.trained(model, subject, run, rng, about="training on all domains, to compare", even=self.even)
        return self.cured(model, subject)


@dataclass(frozen=True)
class Aligning(Adapting):
    """Trains it so that its features lie alike in every domain, by a `distance` of two samples."""

    weight: float = 1.0

    @abstractmethod
    def distance(self, a: Tensor, b: Tensor) -> Tensor: ...  # m f, n f -> scalar

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight(self.weight, self.name())

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or why_no_features(subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        targets, each = self.roles(subject).targets, self.in_domain(subject)
        about = "training for features that lie alike"
        if self.weight == 0:
            self.trained(model, subject, run, rng, about=about)
            return self.cured(model, subject)
        both = WithFeatures(model, subject.layers["head"])
        loss = Alignment(self.distance, self.weight, classes=len(subject.task.classes), each=each).loss
        augment = Beside(list(targets.values()), each).augment if targets else None
        with kept_as(model):
            self.trained(both, subject, run, rng, about=about, loss=loss, augment=augment)
        both.close()
        return self.cured(model, subject)


def why_no_features(subject: Subject) -> str | None:
    if "head" in subject.layers:
        return None
    return "its features are what enters the last linear layer, and the model has none (layers={'head': NAME} names it)"


def check_weight(weight: float, owner: str) -> None:
    if not 0 <= weight < float("inf"):
        raise AssayError(f"weight={weight} of {owner!r} is none; give a number of at least 0, such as 1.")


def _bare(data: Data) -> Data:
    """The data that `Unlabelled` hides: a split may hold rows of the same."""
    return data.whole if isinstance(data, Unlabelled) else data


def _classes(sources: Mapping[str, Data]) -> list[int]:
    found: list[int] = np.unique(np.concatenate([np.asarray(data.labels) for data in sources.values()])).tolist()
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:-1])) + (" and " if len(names) > 1 else "") + repr(names[-1])


def _and(names: list[str], before: str) -> str:
    return before + _listed(names) if names else ""
