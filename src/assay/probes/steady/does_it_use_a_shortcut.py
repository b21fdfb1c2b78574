"""A cue that speaks for a class, a walking aid for a severe case: does the model read it, and will it hold in use?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.domain import LEAST
from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Finding, Measure, Table
from assay.inputs.row import Row
from assay.methods.shift.cue import association, association_interval, crossed, speaks_for, spoken_for_at_home
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.given import Data
    from assay.run import Run
    from assay.subject import Subject

LOST = "lost where the cue is wrong"
SPEAKS = "cue that speaks for the label"
FOLLOWED = "answers that follow a wrong cue"
MOST = 100  # values that a cue has
Ints = NDArray[np.int64]
Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class DoesItUseAShortcut(Probe):
    """Does it answer by a cue that need not hold where it is used?

    The cue of each input is something that can be read off beside what the label is about. It comes with the data: an
    array `cue` in an .npz beside x and y, an attribute `cue` of data in Python, or a column of a table that `cue`
    names. It may be anything that has a few values; it speaks for the label that is commonest with it at home.

    What is lost where the cue is wrong is taken within each split and averaged over those that have enough inputs of
    both kinds, so that a harder domain is not taken for a shortcut. The association has no direction: a cue that is
    turned round is as tied as before, and the share of inputs whose cue speaks for the label tells it.

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
        counts = {name: crossed(cues[name], _labels(subject, name), len(values), k) for name in told}
        speaks = speaks_for(counts[home])
        cells: dict[str, tuple[Hits, Hits]] = {}
        followed: list[Hits] = []
        measures: list[Measure] = []
        columns: dict[str, NDArray[np.generic]] = {}
        for name in (split for split in told if split != "train"):
            index = run.pick(subject.data[name])
            logits, label = run.predict(subject, name, index, f"answers on {name}")
            said, spoken = logits.argmax(1), speaks[cues[name][index]]
            right, known = said == label, spoken >= 0
            with_it, against = known & (spoken == label), known & (spoken != label)
            cells[name] = right[with_it], right[against]
            followed.append((said == spoken)[against])
            for what, hits in zip(("right with the cue", "right against the cue"), cells[name], strict=True):
                if len(hits):
                    measures.append(Measure.proportion(f"{what}, {name}", hits, better="higher"))
            if name == "test":
                columns = {"index": index, "label": label, "said": said, "right": right, "cue speaks for": spoken}
        ties = {name: self._tied(name, counts[name], home, counts[home]) for name in told}
        shares = {home: spoken_for_at_home(cues[home], _labels(subject, home), len(values), k, seed=run.seed)}
        for name in told:
            spoken = speaks[cues[name]]
            shares.setdefault(name, (spoken == _labels(subject, name))[spoken >= 0])
        speaking = {name: self._speaking(name, hits, home, shares[home]) for name, hits in shares.items() if len(hits)}
        alarms, stronger = _moved(home, counts, speaks, ties, speaking)
        bars = Bars(
            name="tied",
            title="How much the cue is tied to the label",
            y_label="association",
            labels=tuple(told),
            values=tuple(m.value or 0.0 for m in ties.values()),
            low=tuple(m.low or 0.0 for m in ties.values()),
            high=tuple(m.high or 0.0 for m in ties.values()),
            unit_y=True,
            says="0: the cue says nothing of the label; 1: it tells it. Where it is lower than at home, what was "
            "learnt from it will not hold.",
        )
        misses, after = np.concatenate([against for _, against in cells.values()]), np.concatenate(followed)
        measures = [*ties.values(), *speaking.values(), *measures]
        if len(after):
            chance = (1 - float(misses.mean())) / max(1, k - 1)
            about = "of inputs whose cue speaks for another class than the label"
            spread = Beside("were its mistakes spread over all other classes", chance)
            measures.insert(0, Measure.proportion(FOLLOWED, after, better="lower", about=about, beside=(spread,)))
        counted = _counted(cells)
        if not counted:
            none = "Of no split are there inputs whose cue speaks for the label and others whose cue speaks against it"
            return Finding(
                says=f"{none}: whether the model needs the cue cannot be told.{stronger}",
                measures=(
                    Measure(
                        name=LOST,
                        value=None,
                        better="lower",
                        n=sum(len(hits) for both in cells.values() for hits in both),
                    ),
                    *measures,
                ),
                views=(bars,),
                alarms=(*alarms, Alarm(f"{none}; give a domain that has both.", (LOST,))),
            )
        near, far = ([(1 / len(counted), both[i]) for both in counted.values()] for i in (0, 1))
        lost = Measure.contrast(
            LOST, [*near, *((-weight, hits) for weight, hits in far)], better="lower",
            about="right answers where the cue speaks for the label, less those where it speaks against it; mean over "
            f"{', '.join(counted)}",
        )  # fmt: skip
        few, what, where = min(
            (len(hits), what, name)
            for name, both in counted.items()
            for what, hits in zip(("for", "against"), both, strict=True)
        )
        if few < LEAST:
            alarms.append(
                Alarm(f"Only {few} inputs of {where!r} have a cue that speaks {what} their label; under {LEAST} say "
                      "too little.", doubts=(LOST, FOLLOWED) if len(misses) < LEAST else (LOST,))
            )  # fmt: skip
        rates = [sum(weight * float(hits.mean()) for weight, hits in some) for some in (near, far)]
        shown = ", ".join(f"{values[i]} for {names[s]!r}" for i, s in enumerate(speaks[:4]) if s >= 0)
        return Finding(
            says=f"Where the cue speaks for the label it is right on {100 * rates[0]:.0f} %, where it speaks against "
            f"it on {100 * rates[1]:.0f} % ({'mean over ' if len(counted) > 1 else ''}{', '.join(counted)}). The cue "
            f"speaks, at home ({home}): {shown}{' and so on' if len(speaks) > 4 else ''}.{stronger}",
            measures=(lost, *measures),
            samples=Table("test", columns) if columns else None,
            views=(bars,),
            alarms=tuple(alarms),
        )

    def _tied(self, name: str, counts: Ints, home: str, at_home: Ints) -> Measure:
        low, high = association_interval(counts)
        return Measure(
            name=f"association of cue and label, {name}", value=float(association(counts)), low=low, high=high,
            n=int(counts.sum()), better="neither",
            about="Cramér's V, corrected: 0 where there is none, 1 where the cue tells the label, whichever it is",
            beside=() if name == home else (Beside(home, float(association(at_home))),),
        )  # fmt: skip

    def _speaking(self, name: str, hits: Hits, home: str, at_home: Hits) -> Measure:
        how = "as the other half of them has it" if name == home else f"as {home} has it"
        return Measure.proportion(
            f"{SPEAKS}, {name}", hits, better="neither", about=f"inputs whose cue speaks for their label, {how}",
            beside=() if name == home else (Beside(home, float(at_home.mean())),),
        )  # fmt: skip

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
        if kinds > max(30, min(MOST, len(data) // 10)):
            raise AssayError(
                f"The cue of {name!r} has {kinds} values for {len(data)} inputs; a cue has a few: group them."
            )
        return cue


def _labels(subject: Subject, name: str) -> Ints:  # n
    return np.asarray(subject.data[name].labels, dtype=np.int64)


def _counted(cells: Mapping[str, tuple[Hits, Hits]]) -> dict[str, tuple[Hits, Hits]]:
    """The splits that have inputs with and against the cue; where some have enough of both, those alone.

    What is lost is lost within a split: a split that is harder as a whole, and has other cues, says nothing of the cue.
    """
    both = {name: pair for name, pair in cells.items() if min(map(len, pair))}
    return {name: pair for name, pair in both.items() if min(map(len, pair)) >= LEAST} or both


def _moved(
    home: str, counts: Mapping[str, Ints], speaks: Ints, tied: Mapping[str, Measure], shares: Mapping[str, Measure]
) -> tuple[list[Alarm], str]:
    """Where the cue holds less than at home, or speaks for other labels, and a sentence on where it holds more.

    By intervals that do not meet, of a cue that is tied to the label at home: the share of inputs whose cue speaks for
    the label has a direction, which the association lacks, but turns with how common the labels are.
    """
    alarms: list[Alarm] = []
    more: list[str] = []
    if home not in shares or not tied[home].low:
        return alarms, ""
    for name in (each for each in shares if each != home):
        fewer, weaker = _below(shares[name], shares[home]), _below(tied[name], tied[home])
        seen = counts[name] / max(1, counts[name].sum())
        untied = float(seen.sum(1)[speaks >= 0] @ seen.sum(0)[speaks[speaks >= 0]])
        there, here = (100 * (shares[n].value or 0.0) for n in (name, home))
        if fewer and (shares[name].high or 0.0) < untied:
            alarms.append(
                Alarm(
                    f"The cue speaks for the label of {there:.0f} % of {name!r}, and of {here:.0f} % at home: it is "
                    "turned round, and what was learnt from it does not hold there."
                )
            )
        elif fewer or (weaker and not _below(shares[home], shares[name])):
            alarms.append(
                Alarm(
                    f"The {tied[name].name} is {tied[name].value:.2f}, and {tied[home].value:.2f} at home; it speaks "
                    f"for the label of {there:.0f} %, and of {here:.0f} %: what was learnt from the cue does not hold "
                    "there."
                )
            )
        elif _below(shares[home], shares[name]):
            more.append(f" In {name!r} the cue holds more than at home: for {there:.0f} %, and {here:.0f} %.")
    return alarms, "".join(more)


def _below(one: Measure, other: Measure) -> bool:
    """Whether the interval of the one lies below that of the other."""
    return one.high is not None and other.low is not None and one.high < other.low


def _labelled(subject: Subject) -> list[str]:
    return [name for name, domain in subject.domains().items() if domain.labelled]


def _columns(subject: Subject) -> tuple[str, ...]:
    return tuple(c.name for c in subject.kind.columns) if isinstance(subject.kind, Row) else ()


SHELVED = DoesItUseAShortcut
