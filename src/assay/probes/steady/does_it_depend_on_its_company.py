"""Whether the answer to an input is its own, or that of the batch which it came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.door import alone, is_steady, moved
from assay.finding import Alarm, Bars, Beside, Finding, Measure, Table, bootstrap, share
from assay.probe import Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

OWN = "accuracy among its own kind"
FEW = 8  # inputs of one kind in a batch: fewer are hardly a company


@dataclass(frozen=True)
class DoesItDependOnItsCompany(Probe):
    """Is the answer to an input the same alone, in a mixed batch, and in a batch of its own kind?

    A network that normalises over the batch that it is shown (batch normalisation in training mode, statistics taken
    anew at test time) answers for the batch. Such statistics leak what the batch is made of: they help where batches
    are mixed as in training, and mislead where they come sorted, or one by one. `company` is the size of a batch; the
    last has those that are left over, too. One of its own kind has inputs of one class alone, which may be fewer; of
    numbers those of about the same value.
    """

    company: int = 32

    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = "Ioffe & Szegedy, ICML 2015, arXiv:1502.03167, sec. 3.1; Yin, Scholte & Bohte, ICANN 2021"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.05),)

    def __post_init__(self) -> None:
        self.refuse_below(2, "company")

    def ask(self, subject: Subject, run: Run) -> Finding:
        picked = run.pick(subject.data["test"], run.budget.dear)
        index = np.random.default_rng(run.seed).permutation(picked)
        company = min(self.company, len(index))
        starts = _cut(len(index), company)
        rows = run.map(
            lambda shard: _alone_and_in_company(subject, _Party.of(subject, index, shard, starts)),
            subject,
            "test",
            index,
            "alone and in company",
        )
        by_itself, mixed, shifted, steady = (
            rows[name].astype(bool) for name in ("alone", "in company", "moved", "steady")
        )
        shifted = shifted | (steady & (by_itself != mixed))
        trivial = (Beside(*subject.trivially_right("test", picked)),)
        accuracies = [
            Measure.proportion(
                "accuracy alone", by_itself, better="higher", column="alone", beside=trivial,
                about="each input as a batch of its own",
            ),
            Measure.proportion(
                "accuracy in mixed company", mixed, better="higher", column="mixed", beside=trivial,
                about=f"in batches of {company} drawn at random, what is left over being in the last",
            ),
        ]  # fmt: skip
        columns: dict[str, NDArray[np.generic]] = {"index": index, "alone": by_itself, "mixed": mixed}
        lost, alarms = [], []
        among = f"among {company - 1} or more others drawn at random"
        kinds = _by_kind(np.asarray(subject.data["test"].labels)[index], company, "numbers" in subject.task.gives)
        if kinds is not None:
            sorted_index = index[kinds.order]
            found = run.map(
                lambda shard: _in_company(subject, _Party.of(subject, sorted_index, shard, kinds.starts)),
                subject,
                "test",
                sorted_index,
                "among its own kind",
            )
            own, stirred = np.empty(len(index), dtype=bool), np.empty(len(index), dtype=bool)
            own[kinds.order], stirred[kinds.order] = found["in company"], found["moved"]
            shifted = shifted | stirred | (steady & (by_itself != own))
            among += ", or among its own kind"
            columns["own"] = own
            accuracies.append(
                Measure.proportion(OWN, own, better="higher", column="own", beside=trivial, about=kinds.about(company))
            )
            columns["lost among its own kind"] = mixed.astype(float) - own
            lost.append(_lost("among its own kind", columns, kinds.batches(), subject.draws, run.seed))
            if kinds.usual < min(FEW, company):
                alarms.append(
                    Alarm(
                        f"A batch of one kind usually has {kinds.usual} of the inputs asked, where company={company}: "
                        "what more of a kind would do is not seen; ask more inputs with --inputs or a larger --budget.",
                        (OWN,),
                    )
                )
        columns["moved"] = shifted
        columns["lost alone"] = mixed.astype(float) - by_itself
        lost.append(_lost("alone", columns, _batches(starts, len(index)), subject.draws, run.seed))
        moves = Measure.proportion(
            "answers moved by company",
            shifted,
            better="lower",
            column="moved",
            about=f"share of inputs answered otherwise alone than {among}, beyond rounding and chance, or right in one "
            "and wrong in the other",
        )
        return Finding(
            says=_told({m.name: m for m in accuracies}, shifted, whole=kinds is not None and not alarms),
            measures=(moves, *accuracies, *lost),
            samples=Table("test", columns),
            views=(_bars(accuracies),),
            alarms=tuple(alarms),
        )


class _Kinds(NamedTuple):
    """An order in which those of a kind stand together, and the batches that are cut out of it."""

    order: NDArray[np.int64]  # n
    starts: NDArray[np.int64]  # of the batches
    valued: bool

    def batches(self) -> NDArray[np.int64]:  # -> n
        """For each input, in the order in which it was asked, the number of its batch."""
        numbers = np.empty_like(self.order)
        numbers[self.order] = _batches(self.starts, len(self.order))
        return numbers

    @property
    def usual(self) -> int:
        """How many are in the batch of the middle input."""
        sizes = np.diff(np.append(self.starts, len(self.order)))
        return int(np.sort(np.repeat(sizes, sizes))[len(self.order) // 2])

    def about(self, company: int) -> str:
        if self.valued:
            return f"in batches of {company} sorted by their targets, what is left over being in the last"
        left = ", what is left over being in the last" if self.usual >= company else ", as those asked have no more"
        return f"in batches of one kind alone, usually of {self.usual}{left}"


class _Party(NamedTuple):
    """The inputs of a shard with all that share a batch with one of them: where a shard ends, a batch need not."""

    x: Tensor  # m *d
    y: Tensor  # m *t
    batches: tuple[Tensor, ...]  # places in x
    own: slice  # of the shard's inputs

    @classmethod
    def of(cls, subject: Subject, index: NDArray[np.int64], shard: Shard, starts: NDArray[np.int64]) -> _Party:
        ends = np.append(starts[1:], len(index))
        first = int(np.flatnonzero(index == shard.index[0])[0])
        touched = (starts < first + len(shard.index)) & (ends > first)
        low, high = int(starts[touched][0]), int(ends[touched][-1])
        whole = high - low == len(shard.index)
        x, y = (shard.x, shard.y) if whole else subject.data["test"].take(index[low:high])
        batches = tuple(torch.arange(a - low, b - low) for a, b in zip(starts[touched], ends[touched], strict=True))
        here = slice(first - low, first - low + len(shard.index))
        return cls(x.to(shard.x.device), y.to(shard.y.device), batches, here)


def _alone_and_in_company(subject: Subject, party: _Party) -> Mapping[str, Tensor]:
    by_itself = _right(subject, party, alone(len(party.x))[party.own])
    steady = subject.draws == 1 and is_steady(subject.model, party.x)
    return {"alone": by_itself, "steady": torch.full_like(by_itself, steady), **_in_company(subject, party)}


def _in_company(subject: Subject, party: _Party) -> Mapping[str, Tensor]:
    """Whether each input of the shard is right in its batch, and whether its answer is another there than alone."""
    shifted = moved(subject.model, party.x, party.batches, alone(len(party.x)))
    return {"in company": _right(subject, party, party.batches)[party.own], "moved": shifted[party.own]}


def _right(subject: Subject, party: _Party, batches: Sequence[Tensor]) -> Tensor:  # -> those of the batches
    places = [rows.to(party.x.device) for rows in batches]
    return torch.cat([subject.task.right(subject.predict(party.x[rows]), party.y[rows]) for rows in places])


def _cut(count: int, company: int) -> NDArray[np.int64]:
    """Where batches of so many start; what is left over is in the last."""
    return np.arange(max(1, count // company)) * company


def _batches(starts: NDArray[np.int64], count: int) -> NDArray[np.int64]:  # -> count
    """The number of the batch that each place is in."""
    return np.searchsorted(starts, np.arange(count), side="right") - 1


def _by_kind(target: NDArray[np.generic], company: int, valued: bool) -> _Kinds | None:  # n *t
    """Batches of one class each, or of about the same value; None where targets have no such order.

    A batch that went on with the next class would be mixed again: of ten classes and a hundred inputs, three in each.
    """
    if target.ndim != 1:
        return None
    order = np.argsort(target, kind="stable")
    if valued or target.dtype.kind == "f":
        return _Kinds(order, _cut(len(order), company), True)
    _, first, sizes = np.unique(target[order], return_index=True, return_counts=True)
    starts = [at + _cut(int(size), company) for at, size in zip(first, sizes, strict=True)]
    return _Kinds(order, np.concatenate(starts), False)


def _lost(
    where: str, columns: Mapping[str, NDArray[np.generic]], batch: NDArray[np.int64], draws: int, seed: int
) -> Measure:  # batch: n, which each input was in
    """Inputs of a batch may share one throw of a random model's dice: the wider interval of inputs and batches."""
    name, lost = f"lost {where}", columns[f"lost {where}"].astype(np.float64)
    mean = Measure.mean(
        f"accuracy {name}",
        lost,
        better="neither",
        seed=seed,
        unit="%",
        column=name,
        about="accuracy in mixed company minus this one, input by input; below 0 where it gains",
    )
    if draws == 1:
        return mean
    total, size = np.bincount(batch, lost), np.bincount(batch).astype(np.float64)
    about = f"{mean.about}; the interval allows for luck that the inputs of each of the {len(size)} batches share"
    if len(size) == 1:  # which tells nothing of the next
        return replace(mean, low=None, high=None, column=None, about=about)
    low, high = bootstrap(lambda counts: (counts @ total) / (counts @ size), len(size), seed=seed)
    low, high = min(low, mean.low or 0.0), max(high, mean.high or 0.0)
    return replace(mean, low=low, high=high, column=None, about=about)


def _told(accuracies: Mapping[str, Measure], shifted: NDArray[np.bool_], *, whole: bool) -> str:
    values = {name: 100 * (m.value or 0.0) for name, m in accuracies.items()}
    if not shifted.any():
        where = "in any company" if whole else "alone and in mixed company"
        return f"Its answer to an input is the same {where}; alone it is right on {values['accuracy alone']:.0f} %."
    own = f", among its own kind on {values[OWN]:.0f} %" if OWN in values else ""
    return (
        f"The answers to {share(int(shifted.sum()), len(shifted))} of the inputs move with their company: alone it is "
        f"right on {values['accuracy alone']:.0f} %, in mixed company on "
        f"{values['accuracy in mixed company']:.0f} %{own}."
    )


def _bars(shown: list[Measure]) -> Bars:
    return Bars(
        name="company",
        title="Accuracy by company",
        y_label="accuracy",
        labels=tuple(m.name.removeprefix("accuracy ") for m in shown),
        values=tuple(m.value or 0.0 for m in shown),
        low=tuple(m.low or 0.0 for m in shown),
        high=tuple(m.high or 0.0 for m in shown),
        unit_y=True,
        says="Bars are 95 % intervals. The same inputs each time: what differs is what else is in the batch.",
    )


SHELVED = DoesItDependOnItsCompany
