"""Verify: whether a stored run is what was found, from what is stored alone, and with its subject at hand.

A run may come from a stranger. Nothing in it is run, and nothing in it is taken for consent: code runs only where the
caller opens a subject. Without one, every link of the chain of digests is checked, measures are computed again from
their samples, and verdicts judged again by the standards that are stored. With one, the subject's and its data's
fingerprints are compared, labels and clean inputs with the data itself, what was answered to inputs as they are with
fresh answers, and every witness is judged afresh; nothing is attacked. What nothing here can see, where every digest
was made anew, is a limit that was loosened, a number without samples that was changed, or a weakness that was found and
left out: a seal says whose word that is, and only asking again says whether it is true.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay import shelf
from assay.audit import Audit, Judged, describe, judgements, open_audit
from assay.errors import AssayError
from assay.finding import EVERYTHING, Alarm, Gallery, Measure, Table, Witnesses, bootstrap, wilson
from assay.jobs.audit.rounds import error_of, searches
from assay.probe import Answer, judge_witnesses, undisturbed
from assay.run import environment
from assay.store import answers, chain
from assay.store.files import read, strict_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.run import Run
    from assay.subject import Subject

CLOSE = 1e-6  # of the range, or of the number: what float32 on another machine may round
SURE = 1e-3  # an answer whose two likeliest classes are closer than this may be the other one elsewhere
AT_ONCE = 256  # inputs that are held at a time
AS_IT_IS = "as it is"  # how a witness was found that nobody changed


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One question: how many of its measures follow from its samples, and how many of its witnesses hold."""

    probe: str
    measures: int
    follow: int
    own_intervals: int
    """Of those that follow: whose interval is the probe's own kind, and was not computed again."""
    witnesses: int
    left_out: int = 0
    """How many more witnesses were found than there was room for."""
    held: int | None = None


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What came of it; each sentence says which link broke, which witness was lost, or what could not be checked."""

    questions: tuple[Checked, ...]
    broken: tuple[str, ...]
    lost: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def status(self) -> int:
        """1 where a link is broken or a witness lost, 3 where something could not be checked, else 0."""
        return 1 if self.broken or self.lost else 3 if self.unchecked else 0


def verify(
    folder: Path,
    opened: Callable[[], tuple[Subject, tuple[Alarm, ...]]] | None = None,
    run: Run | None = None,
    doing: Callable[[str], None] = lambda what: None,
) -> Verified:
    """Check a run; `opened` admits the subject that the caller named, and is called once the rest was looked at."""
    doing("checking every link")
    broken = chain.broken(folder)
    told = chain.head(folder)
    try:
        stored = open_audit(folder)
    except AssayError as e:  # what is left of it cannot be judged: say which links are broken, if any is
        if not broken:
            raise
        return Verified(questions=(), broken=(*broken, str(e)), lost=(), unchecked=("everything else",))
    broken += _head(stored, told)
    questions, kept = [], []
    for row in stored.rows:
        doing(f"checking what was found of {row.answer.probe}")
        found, samples, witnesses = _stored(folder, row.answer)
        broken += found
        checked, wrong = _measures(row.answer, samples, stored)
        broken += wrong
        if witnesses:
            left = answers.witnesses_kept(folder, row.answer.probe)[1]
            checked = dataclasses.replace(checked, witnesses=len(witnesses), left_out=left)
        questions.append(checked)
        kept.append((row.answer.probe, samples, witnesses))
    wrong, unchecked = _pages(folder, stored)
    broken += wrong
    if opened is None or run is None:
        waiting = (*unchecked, "the model and the data: no --subject was given", *_waiting(questions))
        return Verified(questions=tuple(questions), broken=tuple(broken), lost=(), unchecked=waiting)
    doing("opening the subject")
    subject, alarms = opened()
    other = _another(stored, subject)
    if other is not None:
        return Verified(questions=tuple(questions), broken=(*broken, other), lost=(), unchecked=tuple(unchecked))
    wrong, untold = _same_subject(stored, subject, alarms)
    broken += wrong
    unchecked += untold
    lost: list[str] = []
    asked, subject = subject.in_classes().everywhere(), subject.everywhere()
    with undisturbed(asked.model, run):
        for i, (probe, samples, witnesses) in enumerate(kept):
            doing(f"comparing {probe} with the subject")
            if samples is not None:
                ordered = asked if "label" in samples.columns else subject  # pairs without an order have no label
                broken += _labels(probe, "samples", samples.split, samples.columns, ordered)
                broken += _answers(probe, samples, asked, run)
            if witnesses is None:
                continue
            wrong = _clean(probe, witnesses, asked)
            broken += wrong
            held = 0
            if not wrong:  # else there is nothing to judge
                holds, reasons = judge_witnesses(witnesses, asked, run)
                held = int(holds.sum())
                lost += [
                    f"{probe}, input {witnesses.index[j]}, {witnesses.how[j]}: {why}"
                    for j, why in enumerate(reasons)
                    if why
                ]
            questions[i] = dataclasses.replace(questions[i], held=held)
    return Verified(questions=tuple(questions), broken=tuple(broken), lost=tuple(lost), unchecked=tuple(unchecked))


def reference(folder: Path) -> str | None:
    """The subject of a run that is Assay's own, by its plain name: its code and data come from here, not from the run.

    A third party's subject, a file, data, or any option is the user's to type.
    """
    source = chain.head(folder).get("source")
    return next((name for name in shelf.ours("subjects") if source == [name]), None)


# What needs no subject.


def _head(stored: Audit, told: Mapping[str, Any]) -> Iterator[str]:
    """What audit.json says against what its findings say, and its verdicts against its standards."""
    said = json.loads(strict_json(stored.to_json()))  # as it would stand there
    linked = set(stored.links)
    names = [row.answer.probe for row in stored.rows]
    for twice in sorted({n for n in names if names.count(n) > 1}):
        yield f"audit.json tells of {twice} twice"
    for name in sorted(n for n in linked if n.startswith("findings/") and n[9:-5] not in names):
        yield f"audit.json vouches for {name} and tells nothing of it"
    for row, was, now in zip(stored.rows, told["rows"], said["rows"], strict=True):
        probe = row.answer.probe
        if row.answer.finding is not None and f"findings/{probe}.json" not in linked:
            yield f"audit.json tells of {probe} and vouches for no finding of it"
        other = sorted(k for k in now if k not in ("judgements", "verdict") and was.get(k) != now[k])
        if other:
            yield f"audit.json says otherwise than findings/{probe}.json about its {', '.join(other)}"
        judged = judgements(row.answer, row.standards, stored.alarms)
        if [(j.measure, j.verdict) for j in judged] != [(j.measure, j.verdict) for j in row.judgements]:
            found = ", ".join(f"{j.measure} {j.verdict}" for j in judged) or "nothing"
            yield f"the verdicts on {probe} in audit.json do not follow from its standards, which give: {found}"
        elif was.get("verdict") != Judged(answer=row.answer, judgements=judged).verdict:
            yield f"the verdict {was.get('verdict')!r} on {probe} in audit.json is not the worst of its judgements"
    if told.get("status") != said["status"]:
        yield f"the status {told.get('status')!r} in audit.json is not that of its verdicts, which is {said['status']}"


def _stored(folder: Path, answer: Answer) -> tuple[list[str], Table | None, Witnesses | None]:
    """The samples and witnesses of an answer, where they are whole; else why they cannot be read."""
    name, broken = f"findings/{answer.probe}.json", []
    samples = witnesses = None
    if answer.finding is None:
        return [], None, None
    try:
        links = chain.finding_links(folder, name)
    except AssayError:
        return [], None, None  # told already
    for other, wanted in links.items():
        if not chain.holds(folder, other, wanted):
            continue  # told already
        try:
            if other == answers.samples_of(answer.probe):
                samples = answers.read_table(read(folder, other))
            else:
                witnesses = answers.read_witnesses(read(folder, other))
        except answers.BROKEN as e:
            broken.append(f"{other} cannot be read: {e}")
    if any(m.column for m in answer.finding.measures) and answers.samples_of(answer.probe) not in links:
        broken.append(f"{name} tells of samples, and vouches for none")
    return broken, samples, witnesses


def _measures(answer: Answer, samples: Table | None, stored: Audit) -> tuple[Checked, list[str]]:
    measures = answer.finding.measures if answer.finding else ()
    follow, own, broken = 0, 0, []
    for m in measures if samples is not None else ():
        if m.column is None or m.value is None:
            continue
        assert samples is not None
        wrong, ours = _follows(m, samples, stored, answer)
        follow, own = follow + (not wrong), own + (not wrong and not ours)
        if wrong:
            broken.append(
                f"{m.name!r} in findings/{answer.probe}.json does not follow from "
                f"{answers.samples_of(answer.probe)}: {wrong}"
            )
    columns = samples.columns if samples is not None else {}
    if {"said", "label", "right"} <= set(columns) and answer.probe in shelf.ours("probes"):
        false = int(((columns["said"] == columns["label"]) != columns["right"]).sum())
        if false:
            broken.append(f"{answers.samples_of(answer.probe)} calls {false} answers right or wrong against its labels")
    return (
        Checked(probe=answer.probe, measures=len(measures), follow=follow, own_intervals=own, witnesses=0),
        broken,
    )


def _follows(m: Measure, samples: Table, stored: Audit, answer: Answer) -> tuple[str, bool]:
    """Why a measure is not the mean of its column ("" where it is), and whether its interval was computed again too."""
    import numpy as np

    from assay.methods.verify.rates import exact_interval

    if m.column is None or m.column not in samples.columns:
        return f"there is no column {m.column!r}", False
    try:
        column = np.asarray(samples.columns[m.column], dtype=np.float64)
    except (TypeError, ValueError):
        return f"the column {m.column!r} holds no numbers", False
    v = column[~np.isnan(column)]
    if not len(v) or m.value is None or not np.isfinite(v).all():
        return f"the column {m.column!r} has no finite mean", False
    mean = float(v.mean())
    if abs(mean - m.value) > CLOSE * max(1.0, abs(mean)):
        return f"it is said to be {m.value:.6g}, and the column {m.column!r} has the mean {mean:.6g}", False
    if m.n is not None and m.n != len(v):  # None: more inputs would not settle it
        return f"it is said to be of {m.n} inputs, and the column {m.column!r} has {len(v)}", False
    if m.low is None or m.high is None:
        return "", True
    told = (m.low, m.high)
    exact = wilson(int(v.sum()), len(v)) if np.isin(v, (0.0, 1.0)).all() else None
    if exact is not None and np.allclose(told, exact, rtol=0, atol=CLOSE):
        return "", True
    if exact is not None and np.allclose(told, exact_interval(int(v.sum()), len(v)), rtol=0, atol=CLOSE):
        return "", True
    drawn = bootstrap(lambda counts: counts @ v / v.size, v.size, seed=stored.seed)
    if np.allclose(told, drawn, rtol=CLOSE, atol=CLOSE):
        return "", True
    if any(np.allclose(told, ends, rtol=0, atol=CLOSE) for ends in _of_several_looks(v, stored, answer)):
        return "", True
    wider = exact is not None and told[0] <= exact[0] + CLOSE and told[1] >= exact[1] - CLOSE
    # One of several looks has a wider interval than one alone.
    wider |= bool(answer.looks) and told[0] <= drawn[0] + CLOSE and told[1] >= drawn[1] - CLOSE
    # What is certified in part has the undecided in its interval; pairs that share an input, a wider or narrower one.
    if wider or (
        exact is None and (stored.subject.task != "Classification" or answer.probe not in shelf.ours("probes"))
    ):
        return "", False
    low, high = exact or drawn
    return f"its interval is said to be {told[0]:.6g} to {told[1]:.6g}, and is {low:.6g} to {high:.6g}", False


def _of_several_looks(v: NDArray[np.float64], stored: Audit, answer: Answer) -> Iterator[tuple[float, float]]:  # n
    """The intervals that a column has in an audit with a time limit, at its share of the error of all looks.

    That of bets is no wider one than the bootstrap's: where values lie on one side, both its ends lie on the other.
    """
    import numpy as np

    from assay.methods.uncertainty.exact import exact
    from assay.methods.uncertainty.sequences import mean_interval

    if not answer.looks or not ((v >= 0) & (v <= 1)).all():
        return
    first, last, bound = answer.looks[0], answer.looks[-1], stored.budget.get("inputs")
    there = max(1, stored.subject.splits.get("test", 1))
    try:
        most = min(there, bound) if isinstance(bound, int) else there
        error = error_of(answer.probe, searches(first, last.steps), first.inputs, last.inputs, most)
    except AssayError:  # the rungs of another version, or of nobody
        return
    low, high = mean_interval(v, alpha=error)
    yield min(low, float(v.mean())), max(high, float(v.mean()))
    if np.isin(v, (0.0, 1.0)).all():
        least, greatest = exact(int(v.sum()), len(v), error)
        yield float(least), float(greatest)


def _pages(folder: Path, stored: Audit) -> tuple[list[str], list[str]]:
    """What people read, against what the findings say, but for the drawings; and what cannot be told of it."""
    from markupsafe import Markup

    from assay.report.card import card
    from assay.report.junit import junit
    from assay.report.page import Drawing, render

    if stored.environment.get("code") != environment()["code"]:
        names = ", ".join(sorted(chain.DRAWN))
        return [], [
            f"whether {names} say what was found: another version of Assay wrote them; `assay report` does anew"
        ]
    blank = {
        row.answer.probe: [
            Drawing(v.name, v.title, v.says, Markup("<svg></svg>"))
            for v in (row.answer.finding.views if row.answer.finding else ())
            if not isinstance(v, Gallery)
        ]
        for row in stored.rows
    }
    fresh = {"card.md": card(stored), "junit.xml": junit(stored), "report.html": render(stored, blank)}
    broken = []
    for name, text in fresh.items():
        if name in stored.links and chain.holds(folder, name, stored.links[name]):
            pages = (read(folder, name), text.encode("utf-8", "replace"))
            if len({re.sub(rb"<svg\b.*?</svg>", b"<svg/>", page, flags=re.DOTALL) for page in pages}) > 1:
                broken.append(f"{name} does not say what the findings say")
        elif name not in stored.links:
            broken.append(f"audit.json vouches for no {name}")
    return broken, []


def _waiting(questions: list[Checked]) -> Iterator[str]:
    count = sum(q.witnesses for q in questions)
    if count:
        yield f"whether the {count:,} inputs said to break the model do"


# What the subject itself says.


def _another(stored: Audit, subject: Subject) -> str | None:
    """Why there is nothing to compare: what was opened is something else altogether. One fact that differs is told by
    itself: a model may have been changed, its data taken again, or a run touched."""
    here, there = describe(subject, subject.fingerprint()), stored.subject
    facts = ("task", "classes", "shape", "parameters")
    differ = sum(getattr(here, fact) != getattr(there, fact) for fact in facts)
    if differ + (here.data.get("test") != there.data.get("test")) < 2:
        return None
    told = (
        f"{each.name} ({each.task}, inputs of {' x '.join(map(str, each.shape))}, {each.parameters:,} parameters)"
        for each in (there, here)
    )
    return (
        f"the run is of another subject: it was made on {', and --subject opens '.join(told)}; give what was audited. "
        "Nothing of it was compared"
    )


def _same_subject(stored: Audit, subject: Subject, alarms: tuple[Alarm, ...]) -> tuple[list[str], list[str]]:
    """What is broken between the run and this subject, and what cannot be told."""
    here, there = describe(subject, subject.fingerprint()), stored.subject
    broken = []
    for split in sorted({*there.data, *here.data}):
        if there.data.get(split) != here.data.get(split):
            how = "differs from" if split in here.data and split in there.data else "is missing in one of"
            broken.append(f"the data of {split!r} {how} what the run was made on")
    facts = ("task", "classes", "shape", "low", "high", "parameters", "splits", "draws", "differentiable")
    for fact in facts:
        was, now = getattr(there, fact), getattr(here, fact)
        if was != now and not (fact == "splits" and broken):
            broken.append(f"the subject's {fact} is {_short(now)} here, and {_short(was)} in the run")
    unchecked = []
    if here.fingerprint != there.fingerprint and not broken:
        says = f"the subject here has the fingerprint {here.fingerprint}, and the run was made on {there.fingerprint}"
        if subject.fingerprint() == here.fingerprint:
            broken.append(f"{says}: its weights or its code differ; give --subject what was audited")
        else:
            unchecked.append("whether this is the model that was audited: it holds something that cannot be hashed")
    if any(a.doubts == EVERYTHING for a in alarms) and not any(a.doubts == EVERYTHING for a in stored.alarms):
        broken.append("an alarm about this subject doubts every number, and audit.json has none")
    return broken, unchecked


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _labels(probe: str, what: str, split: str, columns: Mapping[str, NDArray[Any]], subject: Subject) -> list[str]:
    """Whether rows are about inputs that there are, with the labels that those have."""
    import numpy as np

    name = answers.samples_of(probe) if what == "samples" else answers.witnesses_of(probe)
    index = columns["index"]
    if split not in subject.data:
        return [f"{name} is about {split!r}, and the subject has no such data"]
    data = subject.data[split]
    if index.dtype.kind not in "iu" or (len(index) and not (index.min() >= 0 and index.max() < len(data))):
        return [f"{name} is about inputs that {split!r} does not have"]
    if "label" not in columns or (what == "samples" and probe not in shelf.ours("probes")):
        return []
    told, true = columns["label"], np.asarray(data.labels)[index]
    if told.shape != true.shape:
        return [f"{name} has targets of shape {told.shape[1:]}, and those of {split!r} have {true.shape[1:]}"]
    differ = np.flatnonzero((told != true).reshape(len(true), -1).any(1))
    if not len(differ):
        return []
    return [f"{name} has another label than {split!r} for {len(differ)} inputs, the first is {index[differ[0]]}"]


def _clean(probe: str, witnesses: Witnesses, subject: Subject) -> list[str]:
    """Whether the clean inputs of witnesses are those of the data, and their labels too."""
    import numpy as np

    columns = {"index": witnesses.index, "label": witnesses.label}
    wrong = _labels(probe, "witnesses", witnesses.split, columns, subject)
    if wrong:
        return wrong
    name, data = answers.witnesses_of(probe), subject.data[witnesses.split]
    if not np.isfinite(witnesses.radius).all():
        return [f"{name} has a witness whose radius is no number"]
    room = CLOSE * subject.inputs.edges()[1].numpy()
    for start in range(0, len(witnesses), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        x = data.take(np.asarray(witnesses.index[rows]))[0].numpy()
        clean, changed = witnesses.clean[rows], witnesses.changed[rows]
        if clean.shape != x.shape:
            return [f"{name} holds inputs of shape {clean.shape[1:]}, and those of the data have {x.shape[1:]}"]
        empty = np.isnan(clean)  # a cell without a value
        same = ((np.abs(clean - x) <= room) | (empty & np.isnan(x))).reshape(len(x), -1).all(1)
        kept = ((clean == changed) | (empty & np.isnan(changed))).reshape(len(x), -1).all(1) | [
            how != AS_IT_IS for how in witnesses.how[rows]
        ]
        for holds, says in ((same, "is not the one of the data"), (kept, "is said to be as it is, and was changed")):
            if not holds.all():
                return [f"{name}: input {witnesses.index[start + int(np.argmin(holds))]} {says}"]
    return []


def _answers(probe: str, samples: Table, subject: Subject, run: Run) -> list[str]:
    """What our own probes wrote down of inputs as they are, against fresh answers; not those of a random model."""
    import numpy as np
    import torch

    told = {k: c for k, c in samples.columns.items() if k in ("right", "clean") and c.dtype == bool}
    if "right" in told and "said" in samples.columns:
        told["said"] = samples.columns["said"]
    if not told or "label" not in samples.columns or subject.draws > 1 or probe not in shelf.ours("probes"):
        return []
    if _labels(probe, "samples", samples.split, samples.columns, subject):
        return []  # told already
    index, data = samples.columns["index"], subject.data[samples.split]
    wrong: NDArray[np.bool_] = np.zeros(len(index), dtype=bool)
    for start in range(0, len(index), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        x, y = data.take(np.asarray(index[rows]))
        chances = subject.predict(x.to(run.device)).float().softmax(-1).cpu()
        two = torch.topk(chances, 2).values
        said = chances.argmax(-1).numpy()
        fresh = {"right": said == y.numpy(), "clean": said == y.numpy(), "said": said}
        sure = (two[:, 0] - two[:, 1] > SURE).numpy()
        for name, column in told.items():
            wrong[rows] |= sure & (column[rows] != fresh[name])
    if not wrong.any():
        return []
    return [
        f"{answers.samples_of(probe)} tells of {int(wrong.sum())} answers that the subject does not give, the first to "
        f"input {index[int(np.argmax(wrong))]}"
    ]
