"""Whether the answer to an input is its own, or that of the batch which it came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.door import alone, is_steady, moved
from assay.finding import Bars, Beside, Finding, Measure, Table, share
from assay.probe import Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

OWN = "accuracy among its own kind"


@dataclass(frozen=True)
class DoesItDependOnItsCompany(Probe):
    """Is the answer to an input the same alone, in a mixed batch, and in a batch of its own kind?

    A network that normalises over the batch that it is shown (batch normalisation in training mode, statistics taken
    anew at test time) answers for the batch. Such statistics leak what the batch is made of: they help where batches
    are mixed as in training, and mislead where they come sorted, or one by one. `company` is the size of a batch; the
    last has those that are left over, too.
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
        rows = run.map(
            lambda shard: _both(subject, _Party.of(subject, index, shard, company)),
            subject,
            "test",
            index,
            "alone and in company",
        )
        by_itself, mixed, shifted = (rows[name].astype(bool) for name in ("alone", "mixed", "moved"))
        trivial = (Beside(*subject.trivially_right("test", picked)),)
        measures = [
            Measure.proportion(
                "answers moved by company",
                shifted,
                better="lower",
                column="moved",
                about=f"share of inputs answered otherwise alone than among {company - 1} or more others drawn at "
                "random, beyond rounding and chance, or right in one and wrong in the other",
            ),
            Measure.proportion(
                "accuracy alone", by_itself, better="higher", column="alone", beside=trivial,
                about="each input as a batch of its own",
            ),
            Measure.proportion(
                "accuracy in mixed company", mixed, better="higher", column="mixed", beside=trivial,
                about=f"in batches of {company} drawn at random, what is left over being in the last",
            ),
        ]  # fmt: skip
        columns: dict[str, NDArray[np.generic]] = {
            "index": index, "alone": by_itself, "mixed": mixed, "moved": shifted,
        }  # fmt: skip
        order = _by_kind(np.asarray(subject.data["test"].labels)[index])
        if order is not None:
            own = np.empty(len(index), dtype=bool)
            found = run.map(
                lambda shard: {"right": _in_company(subject, _Party.of(subject, index[order], shard, company))},
                subject,
                "test",
                index[order],
                "among its own kind",
            )
            own[order] = found["right"]
            columns["own"] = own
            measures.append(
                Measure.proportion(
                    OWN, own, better="higher", column="own", beside=trivial,
                    about=f"in batches of {company} sorted by their targets, what is left over being in the last",
                )
            )  # fmt: skip
            columns["lost among its own kind"] = mixed.astype(float) - own
            measures.append(_lost("among its own kind", columns, run.seed))
        columns["lost alone"] = mixed.astype(float) - by_itself
        measures.append(_lost("alone", columns, run.seed))
        return Finding(
            says=_told(measures, shifted),
            measures=tuple(measures),
            samples=Table("test", columns),
            views=(_bars([m for m in measures if m.name.startswith("accuracy") and "lost" not in m.name]),),
        )


class _Party(NamedTuple):
    """The inputs of a shard with all that share a batch with one of them: where a shard ends, a batch need not."""

    x: Tensor  # m *d
    y: Tensor  # m *t
    batches: tuple[Tensor, ...]  # places in x
    own: slice  # of the shard's inputs

    @classmethod
    def of(cls, subject: Subject, index: NDArray[np.int64], shard: Shard, company: int) -> _Party:
        starts = np.arange(max(1, len(index) // company)) * company
        ends = np.append(starts[1:], len(index))
        first = int(np.flatnonzero(index == shard.index[0])[0])
        touched = (starts < first + len(shard.index)) & (ends > first)
        low, high = int(starts[touched][0]), int(ends[touched][-1])
        whole = high - low == len(shard.index)
        x, y = (shard.x, shard.y) if whole else subject.data["test"].take(index[low:high])
        batches = tuple(torch.arange(a - low, b - low) for a, b in zip(starts[touched], ends[touched], strict=True))
        here = slice(first - low, first - low + len(shard.index))
        return cls(x.to(shard.x.device), y.to(shard.y.device), batches, here)


def _both(subject: Subject, party: _Party) -> Mapping[str, Tensor]:
    each = alone(len(party.x))
    by_itself, mixed = _right(subject, party, each[party.own]), _in_company(subject, party)
    shifted = moved(subject.model, party.x, party.batches, each)[party.own].to(mixed.device)
    if subject.draws == 1 and is_steady(subject.model, party.x):
        shifted = shifted | (by_itself != mixed)
    return {"alone": by_itself, "mixed": mixed, "moved": shifted}


def _in_company(subject: Subject, party: _Party) -> Tensor:  # -> n
    """Whether each input of the shard is right, in its batch."""
    return _right(subject, party, party.batches)[party.own]


def _right(subject: Subject, party: _Party, batches: Sequence[Tensor]) -> Tensor:  # -> those of the batches
    places = [rows.to(party.x.device) for rows in batches]
    return torch.cat([subject.task.right(subject.predict(party.x[rows]), party.y[rows]) for rows in places])


def _by_kind(target: NDArray[np.generic]) -> NDArray[np.int64] | None:  # n *t
    """An order in which those of one class, or of about the same value, stand together; None where there is none."""
    return np.argsort(target, kind="stable") if target.ndim == 1 else None


def _lost(where: str, columns: Mapping[str, NDArray[np.generic]], seed: int) -> Measure:
    return Measure.mean(
        f"accuracy lost {where}",
        columns[f"lost {where}"],
        better="neither",
        seed=seed,
        unit="%",
        column=f"lost {where}",
        about="accuracy in mixed company minus this one, input by input; below 0 where it gains",
    )


def _told(measures: list[Measure], shifted: NDArray[np.bool_]) -> str:
    values = {m.name: 100 * (m.value or 0.0) for m in measures}
    if not shifted.any():
        return (
            f"Its answer to an input is the same in any company; alone it is right on {values['accuracy alone']:.0f} %."
        )
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
