"""A cue that speaks for a class, a walking aid for a severe case: does the model read it, and will it hold in use?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.domain import LEAST
from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Finding, Measure, Table, share
from assay.inputs.row import Row
from assay.methods.shift.cue import association, association_interval, crossed, speaks_for
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.given import Data
    from assay.run import Run
    from assay.subject import Subject

LOST = "lost where the cue is wrong"
FOLLOWED = "answers that follow a wrong cue"
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class DoesItUseAShortcut(Probe):
    """Does it answer by a cue that need not hold where it is used?

    The cue of each input is something that can be read off beside what the label is about. It comes with the data: an
    array `cue` in an .npz beside x and y, an attribute `cue` of data in Python, or a column of a table that `cue`
    names. It may be anything that has a few values; it speaks for the label that is commonest with it at home.

    A cue that is as much tied to the label in use as in training may be a fair one, which people use too: the report
    says how much it is tied where, and what is lost where it is wrong, and leaves the choice to whoever answers for the
    model.
    """

    cue: str | None = None

    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    source: ClassVar[str] = (
        "Wang, TU Delft 2024, ch. 8 (consistent bias); Geirhos et al., Nat. Mach. Intell. 2020, arXiv:2004.07780; "
        "Bergsma, J. Korean Stat. Soc. 2013 (the corrected association)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.1),)

    def why_not(self, subject: Subject) -> str | None:
        lacks = super().why_not(subject)
        if lacks is not None:
            return lacks
        if self.cue is not None and not isinstance(subject.kind, Row):
            return f"cue={self.cue} names a column, and an input here is no row of a table"
        if self.cue is not None and self.cue not in _columns(subject):
            known = ", ".join(_columns(subject))
            return f"it has no column {self.cue!r} to read the cue from; its columns are {known}"
        home = subject.data[subject.home]
        if self.cue is None and getattr(home, "cue", None) is None:
            return (
                f"it needs to know the cue of each input: an array 'cue' beside x and y in the .npz of "
                f"{subject.home!r}, or cue=COLUMN of a table"
            )
        return None

    def ask(self, subject: Subject, run: Run) -> Finding:
        home, k, names = subject.home, len(subject.task.classes), subject.task.classes
        told = {
            name: self._cues(subject, name)
            for name in dict.fromkeys((home, "test", *_labelled(subject)))
            if self._told(subject, name)
        }
        values, places = np.unique(np.concatenate(list(told.values())), return_inverse=True)
        cues = dict(zip(told, np.split(places, np.cumsum([len(c) for c in told.values()])[:-1]), strict=True))
        counts = {
            name: crossed(cues[name], np.asarray(subject.data[name].labels, dtype=np.int64), len(values), k)
            for name in told
        }
        speaks = speaks_for(counts[home])
        agree: list[NDArray[np.bool_]] = []
        conflict: list[NDArray[np.bool_]] = []
        followed: list[NDArray[np.bool_]] = []
        measures: list[Measure] = []
        columns: dict[str, NDArray[np.generic]] = {}
        for name in (split for split in told if split != "train"):
            index = run.pick(subject.data[name])
            logits, label = run.predict(subject, name, index, f"answers on {name}")
            said, spoken = logits.argmax(1), speaks[cues[name][index]]
            right, known = said == label, spoken >= 0
            with_it, against = known & (spoken == label), known & (spoken != label)
            agree.append(right[with_it])
            conflict.append(right[against])
            followed.append((said == spoken)[against])
            for what, rows in (("right with the cue", with_it), ("right against the cue", against)):
                if rows.any():
                    measures.append(Measure.proportion(f"{what}, {name}", right[rows], better="higher"))
            if name == "test":
                columns = {"index": index, "label": label, "said": said, "right": right, "cue speaks for": spoken}
        ties = [self._tied(name, counts[name], home, counts[home], run.seed) for name in told]
        hits, misses, after = (np.concatenate(parts) for parts in (agree, conflict, followed))
        bars = Bars(
            name="tied",
            title="How much the cue is tied to the label",
            y_label="association",
            labels=tuple(told),
            values=tuple(m.value or 0.0 for m in ties),
            low=tuple(m.low or 0.0 for m in ties),
            high=tuple(m.high or 0.0 for m in ties),
            unit_y=True,
            says="0: the cue says nothing of the label; 1: it tells it. Where it is lower than at home, what was "
            "learnt from it will not hold.",
        )
        if not len(hits) or not len(misses):
            return Finding(
                says=f"The cue {'speaks for' if len(hits) else 'is against'} the label of every input that was asked "
                "about: whether the model needs it cannot be told.",
                measures=(Measure(name=LOST, value=None, better="lower", n=len(hits) + len(misses)), *ties, *measures),
                views=(bars,),
                alarms=(
                    Alarm("No input shows what it does where the cue is wrong; give a domain in which it is.", (LOST,)),
                ),
            )
        lost = Measure.contrast(
            LOST, [(1.0, hits), (-1.0, misses)], better="lower",
            about="right answers where the cue speaks for the label, less those where it speaks against it",
        )  # fmt: skip
        chance = (1 - float(misses.mean())) / max(1, k - 1)
        measures = [
            lost,
            Measure.proportion(
                FOLLOWED, after, better="lower", about="of inputs whose cue speaks for another class than the label",
                beside=(Beside("were its mistakes spread over all other classes", chance),),
            ),
            *ties,
            *measures,
        ]  # fmt: skip
        alarms = [*self._moved(ties)]
        if min(len(hits), len(misses)) < LEAST:
            few, what = (len(misses), "against") if len(misses) <= len(hits) else (len(hits), "for")
            alarms.append(
                Alarm(f"Only {few} inputs have a cue that speaks {what} their label; under {LEAST} say too little.",
                      doubts=(LOST, FOLLOWED))
            )  # fmt: skip
        shown = ", ".join(f"{values[i]} for {names[s]!r}" for i, s in enumerate(speaks[:4]) if s >= 0)
        return Finding(
            says=f"Where the cue speaks for the label it is right on {share(int(hits.sum()), len(hits))}, where it "
            f"speaks against it on {share(int(misses.sum()), len(misses))}. The cue speaks, at home ({home}): {shown}"
            f"{' and so on' if len(speaks) > 4 else ''}.",
            measures=tuple(measures),
            samples=Table("test", columns) if columns else None,
            views=(bars,),
            alarms=tuple(alarms),
        )

    def _tied(self, name: str, counts: Ints, home: str, at_home: Ints, seed: int) -> Measure:
        low, high = association_interval(counts, seed=seed)
        return Measure(
            name=f"association of cue and label, {name}", value=float(association(counts)), low=low, high=high,
            n=int(counts.sum()), better="neither",
            about="Cramér's V, corrected: 0 where there is none, 1 where the cue tells the label",
            beside=() if name == home else (Beside(home, float(association(at_home))),),
        )  # fmt: skip

    def _moved(self, ties: list[Measure]) -> list[Alarm]:
        """Where the cue is tied to the label less, or more, than at home, by intervals that do not meet."""
        home, *others = ties
        assert home.low is not None
        assert home.high is not None
        moved = [
            m for m in others
            if m.low is not None and m.high is not None and (m.high < home.low or m.low > home.high)
        ]  # fmt: skip
        return [
            Alarm(
                f"The {m.name} is {m.value:.2f}, and {home.value:.2f} at home: what was learnt from the cue does not "
                "hold there."
            )
            for m in moved
        ]

    def _told(self, subject: Subject, name: str) -> bool:
        return name in subject.data and (self.cue is not None or getattr(subject.data[name], "cue", None) is not None)

    def _cues(self, subject: Subject, name: str) -> NDArray[np.generic]:  # n
        """What the cue of each input is: of few values."""
        data: Data = subject.data[name]
        if self.cue is None:
            cue = np.asarray(data.cue)  # type: ignore[attr-defined]
        else:
            place = _columns(subject).index(self.cue)
            parts = [
                data.take(np.arange(start, min(start + 4096, len(data))))[0][:, place].numpy()
                for start in range(0, len(data), 4096)
            ]
            cue = np.concatenate(parts)
        if cue.shape != (len(data),):
            raise AssayError(f"The cues of {name!r} have shape {cue.shape} for {len(data)} inputs; give one for each.")
        kinds = len(np.unique(cue))
        if kinds < 2 and name == subject.home:
            raise AssayError(f"The cue has one value in {name!r}, {cue[0]}: it speaks for nothing; name another one.")
        if kinds > max(30, len(data) // 10):
            raise AssayError(
                f"The cue of {name!r} has {kinds} values for {len(data)} inputs; a cue has a few: group them."
            )
        return cue


def _labelled(subject: Subject) -> list[str]:
    return [name for name, domain in subject.domains().items() if domain.labelled]


def _columns(subject: Subject) -> tuple[str, ...]:
    return tuple(c.name for c in subject.kind.columns) if isinstance(subject.kind, Row) else ()


SHELVED = DoesItUseAShortcut
