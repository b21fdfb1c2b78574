"""Audit: many probes on one subject, judged against standards.

Importing this needs no torch, and a stored audit opens without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay import shelf, store
from assay.errors import AssayError
from assay.finding import Alarm, Finding
from assay.probe import Answer, Probe, configure, put
from assay.run import Engine, Progress, Run, environment, silent
from assay.run import budget as budget_named
from assay.standard import Judgement, Standard, Standards, Verdict, judge, read_standards
from assay.store import chain
from assay.store.answers import finding_of
from assay.store.typed import check_types

if TYPE_CHECKING:
    from assay.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Described:
    """What an audit keeps of its subject."""

    name: str
    about: str
    task: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    low: float
    high: float
    parameters: int
    splits: Mapping[str, int]
    data: Mapping[str, str]
    """Fingerprint of each split: inputs are the same, and comparisons paired, where these are."""
    draws: int
    differentiable: bool
    origin: tuple[str, ...]
    fingerprint: str

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Described:
        lists = {name: tuple(told[name]) for name in ("classes", "shape", "origin")}
        return cls(**{**told, **lists})


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An answer with its judgements; its verdict is the worst of them."""

    answer: Answer
    judgements: tuple[Judgement, ...]

    @property
    def standards(self) -> tuple[Standard, ...]:
        return tuple(j.standard for j in self.judgements if j.standard is not None)

    @property
    def verdict(self) -> Verdict:
        if self.answer.status != "asked" and not self.judgements:
            return "not asked"
        verdicts = {j.verdict for j in self.judgements}
        order: tuple[Verdict, ...] = ("fail", "cannot tell", "pass")
        return next((v for v in order if v in verdicts), "no standard")


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Everything that was asked of one subject, and what came of it."""

    subject: Described
    rows: tuple[Judged, ...]
    budget: Mapping[str, Any]
    seed: int
    device: str
    alarms: tuple[Alarm, ...]
    environment: Mapping[str, str]
    when: str
    source: tuple[str, ...]
    """The words that name this subject on the command line; empty for an audit made in Python."""
    folder: Path | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file of its folder that the audit vouches for, by name: findings, report and figures."""

    @property
    def answered_first(self) -> list[Judged]:
        """The rows as a reader wants them: what does not apply comes last."""
        return sorted(self.rows, key=lambda row: row.answer.status == "does not apply")

    @property
    def made_otherwise(self) -> tuple[Judged, ...]:
        """The rows that were found with other versions or on another machine than the audit was concluded with."""
        here = self.environment

        def otherwise(told: Mapping[str, str]) -> bool:
            return any(here.get(name) != value for name, value in told.items() if name != "sandbox")  # moves no number

        return tuple(row for row in self.rows if otherwise(row.answer.environment))

    @property
    def status(self) -> int:
        """2 a question broke, and the audit is not complete; else 1 any fails, 3 some cannot be told, 0 all pass."""
        verdicts = [row.verdict for row in self.rows]
        if any(row.answer.status == "failed" for row in self.rows):
            return 2
        if "fail" in verdicts:
            return 1
        return 3 if "cannot tell" in verdicts else 0

    def row(self, probe: str) -> Judged:
        for row in self.rows:
            if row.answer.probe == probe:
                return row
        raise AssayError(f"This audit did not ask {probe!r}; it asked {[r.answer.probe for r in self.rows]}.")

    def __str__(self) -> str:
        """The table that the command line prints, and the alarms."""
        from assay.report.terminal import text

        return text(self)

    def _repr_html_(self) -> str:
        """In a notebook an audit shows itself as its report, framed, so that neither's styles reach the other."""
        import html

        from assay.report.page import render

        return (
            f'<iframe title="Assay report" srcdoc="{html.escape(render(self), quote=True)}" '
            f'style="width:100%;height:760px;border:1px solid #8884;border-radius:8px"></iframe>'
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "format": store.FORMAT,
            "subject": dataclasses.asdict(self.subject),
            "budget": dict(self.budget),
            "seed": self.seed,
            "device": self.device,
            "alarms": [dataclasses.asdict(a) for a in self.alarms],
            "environment": dict(self.environment),
            "when": self.when,
            "source": list(self.source),
            "status": self.status,
            "links": dict(self.links),
            "rows": [
                {
                    "probe": row.answer.probe,
                    "question": row.answer.question,
                    "status": row.answer.status,
                    "verdict": row.verdict,
                    "why": row.answer.why,
                    "key": row.answer.key,
                    "settings": dict(row.answer.settings),
                    "seconds": row.answer.seconds,
                    "when": row.answer.when,
                    "environment": dict(row.answer.environment),
                    "answer_source": row.answer.source,
                    "says": row.answer.finding.says if row.answer.finding else "",
                    "judgements": [dataclasses.asdict(j) for j in row.judgements],
                    "measures": [dataclasses.asdict(m) for m in row.answer.finding.measures]
                    if row.answer.finding
                    else [],
                }
                for row in self.rows
            ],
        }

    def as_stored(self, folder: Path) -> Audit:
        """The audit with the answers that stand in its folder: another audit of it may have been there first."""
        rows = []
        for row in self.rows:
            path = folder / finding_of(row.answer.probe)
            stored = store.load_answer(path, whole=False) if row.answer.finding and path.exists() else row.answer
            if stored.key == row.answer.key and (stored.when, stored.seconds) != (row.answer.when, row.answer.seconds):
                row = Judged(answer=stored, judgements=judgements(stored, row.standards, self.alarms))
            rows.append(row)
        return dataclasses.replace(self, rows=tuple(rows), folder=folder)


def open_audit(folder: Path, whole: bool = False) -> Audit:
    """A stored audit; with `whole`, its samples and witnesses too. Needs no torch."""
    stored = chain.head(folder)
    try:
        subject = Described.from_json(stored["subject"])
        rows = []
        for row in stored["rows"]:
            if row["status"] == "asked":
                answer = store.load_answer(folder / finding_of(row["probe"]), whole)
            else:
                answer = Answer(
                    probe=row["probe"],
                    question=row["question"],
                    source=row["answer_source"],
                    settings=row["settings"],
                    key=row["key"],
                    status=row["status"],
                    why=row["why"],
                    seconds=row["seconds"],
                    when=row["when"],
                    environment=row["environment"],
                )
            found = tuple(
                Judgement(**{**j, "standard": Standard(**j["standard"]) if j["standard"] else None})
                for j in row["judgements"]
            )
            rows.append(Judged(answer=answer, judgements=found))
        audit = Audit(
            subject=subject,
            rows=tuple(rows),
            budget=stored["budget"],
            seed=stored["seed"],
            device=stored["device"],
            alarms=tuple(Alarm(a["says"], tuple(a["doubts"])) for a in stored["alarms"]),
            environment=stored["environment"],
            when=stored["when"],
            source=tuple(stored["source"]),
            folder=folder,
            links=stored["links"],
        )
        check_types(audit, leave=(Finding,))  # findings were looked at as they were read
        return audit
    except AssayError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        path = folder / chain.HEAD
        raise AssayError(f"Cannot read the audit {str(path)!r}: {type(e).__name__} {e}; audit again.") from e


def questions(wanted: Sequence[str | Probe] | None, standards: Standards) -> list[Probe]:
    """The probes to ask, with the settings that the standards give; every name in them must be on the shelf."""
    on_shelf = shelf.names("probes")
    for name in (*standards.settings, *standards.limits):
        shelf.load("probes", name)  # an unknown name is an error that says what is near
    asked: list[Probe] = []
    for probe in wanted if wanted is not None else on_shelf:
        asked.append(
            probe
            if isinstance(probe, Probe)
            else configure(shelf.load("probes", probe), standards.settings.get(probe, {}))
        )
    if not asked:
        raise AssayError("An audit of no probes answers nothing; name at least one, or leave the list out for all.")
    return asked


@dataclass(frozen=True, kw_only=True)
class Question:
    """A probe as its judge sees it, who needs neither its code nor torch."""

    probe: str
    question: str
    source: str
    settings: Mapping[str, Any]
    own: tuple[Standard, ...]
    """Its own limits: they hold where the user's standards are silent."""
    left_out: str | None = None
    """Why it is not asked now; an answer from before is taken all the same."""
    named: bool = True
    """Else it is here only because the standards limit it."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Question:
        return cls(**{**told, "own": tuple(Standard(**s) for s in told["own"])})

    @classmethod
    def of(cls, probe: Probe, left_out: str | None = None, named: bool = True) -> Question:
        return cls(
            probe=probe.name(),
            question=probe.question(),
            source=probe.source,
            settings=probe.settings(),
            own=probe.standards,
            left_out=left_out,
            named=named,
        )

    def unanswered(self, key: str, why: str, seconds: float) -> Answer:
        """The answer where the question broke."""
        return Answer(
            probe=self.probe,
            question=self.question,
            source=self.source,
            settings=self.settings,
            key=key,
            status="failed",
            why=why,
            seconds=seconds,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )


class Planned(NamedTuple):
    probe: Probe
    question: Question


def plan(wanted: Sequence[str | Probe] | None, standards: Standards, budget: str) -> list[Planned]:
    """What an audit asks, in order, and at the end what it should have asked by the standards and does not."""
    asked = questions(wanted, standards)
    planned = []
    for probe in asked:
        long = wanted is None and budget == "quick" and not probe.in_quick
        left_out = f"it takes long: --budget standard asks it, and so does --probe {probe.name()}" if long else None
        planned.append(Planned(probe, Question.of(probe, left_out)))
    named = {probe.name() for probe in asked}
    for name, limits in standards.limits.items():
        if limits and name not in named:
            left_out = f"it has a limit, but is not among the questions named: --probe {name} asks it too"
            probe = configure(shelf.load("probes", name), standards.settings.get(name, {}))
            planned.append(Planned(probe, Question.of(probe, left_out, named=False)))
    return planned


@dataclass(frozen=True, kw_only=True)
class Begun:
    """What is known once the subject is open and before anything was asked."""

    subject: Described
    alarms: tuple[Alarm, ...]
    keys: tuple[str, ...]
    """Of each question, in the order of the plan."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Begun:
        alarms = tuple(Alarm(a["says"], tuple(a["doubts"])) for a in told["alarms"])
        return cls(subject=Described.from_json(told["subject"]), alarms=alarms, keys=tuple(told["keys"]))


class Asker:
    """The side of an audit that needs the model: it lets the subject in, makes the keys, and puts one question a time.

    A limit on a question that can never apply to this subject is an error: the standards are wrong.
    """

    def __init__(self, subject: Subject, planned: Sequence[Planned], run: Run, standards: Standards) -> None:
        from assay.data.digest import reading
        from assay.door import admit
        from assay.subject import check

        check(subject)
        self.subject, alarms = admit(subject)
        self.planned, self.run = planned, run
        for probe, _ in planned:
            reason = probe.why_not(self.subject) if standards.limits.get(probe.name()) else None
            if reason is not None:
                raise AssayError(
                    f"The limit on {probe.name()!r} can never apply to {self.subject.name!r}: {reason}; take it out "
                    f"of the standards."
                )
        with reading(run.progress):
            fingerprint, behaviour = self.subject.fingerprint(), self.subject.behaviour()
            described = describe(self.subject, fingerprint)
        self.begun = Begun(
            subject=described,
            alarms=alarms,
            keys=tuple(probe.key(fingerprint, run, behaviour) for probe, _ in planned),
        )

    def put(self, place: int) -> Answer:
        probe, question = self.planned[place]
        return put(probe, self.subject, self.run, self.begun.keys[place], left_out=question.left_out)


class Record:
    """The side of an audit that needs no model and no torch: it keeps the answers as they come, judges them, concludes.

    With `out`, the run is written below that folder as it goes. `told` hears of each answer, and whether it was asked
    now.
    """

    def __init__(
        self,
        asked: Sequence[Question],
        begun: Begun,
        *,
        standards: Standards,
        budget: str,
        seed: int,
        device: str,
        out: Path | None,
        told: Callable[[Judged, bool], None] = lambda row, asked: None,
        source: tuple[str, ...] = (),
    ) -> None:
        self.asked, self.begun, self.standards, self.told = asked, begun, standards, told
        self.budget, self.seed, self.device, self.source = budget_named(budget), seed, device, source
        self.rows: dict[int, Judged] = {}
        self.folder: Path | None = None
        if out is not None:
            named = [(q.probe, k) for q, k in zip(asked, begun.keys, strict=True) if q.named]
            key = blake2b(" ".join(k for _, k in named).encode(), digest_size=16).hexdigest()
            manifest = {
                "subject": begun.subject.name,
                "source": list(source),
                "budget": budget,
                "seed": seed,
                "probes": [probe for probe, _ in named],
            }
            self.folder = store.open_run(out, begun.subject.name, key, manifest)

    def knows(self, place: int) -> bool:
        """Whether this question has its answer, here or from before."""
        question = self.asked[place]
        if place not in self.rows and self.folder is not None and question.named:
            key = self.begun.keys[place]
            answer = store.find_answer(self.folder.parent, self.folder, question.probe, key)
            if answer is not None:
                self._enter(place, answer, asked=False)
        return place in self.rows

    def take(self, place: int, answer: Answer) -> None:
        """Keep and judge an answer that was given now."""
        if self.folder is not None and self.asked[place].left_out is None:
            store.save_answer(self.folder, answer)
        self._enter(place, answer, asked=True)

    def _enter(self, place: int, answer: Answer, asked: bool) -> None:
        question = self.asked[place]
        row = Judged(answer=answer, judgements=_judgements(question, answer, self.standards, self.begun.alarms))
        self.rows[place] = row
        if question.named:
            self.told(row, asked)

    def conclude(self, surroundings: Mapping[str, str] | None = None) -> Audit:
        """The audit, written to its folder, of a record in which every question has its answer.

        `surroundings` are those in which it was asked, where that was not this process.
        """
        done = Audit(
            subject=self.begun.subject,
            rows=tuple(self.rows[place] for place in range(len(self.asked))),
            budget=dataclasses.asdict(self.budget),
            seed=self.seed,
            device=self.device,
            alarms=self.begun.alarms,
            environment=surroundings or environment(self.device),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            source=self.source,
            folder=self.folder,
        )
        if self.folder is not None:
            from assay.report import write

            write(done, self.folder)
        return done


def audit(
    subject: Subject,
    *,
    probes: Sequence[str | Probe] | None = None,
    budget: str = "quick",
    standards: str | Path | Standards | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: str | Path | None = None,
    engine: Engine | None = None,
    progress: Progress = silent,
    told: Callable[[Judged, bool], None] = lambda row, asked: None,
    source: tuple[str, ...] = (),
    debug: bool = False,
    open: Callable[[str], Subject] | None = None,
) -> Audit:
    """Ask a subject many questions and judge the answers, all in this process.

    With `out`, the run is written below that folder as it goes, and an audit that was begun there goes on where it
    was: a question whose subject, settings, seed, budget and method are unchanged is not asked twice. `told` hears of
    each answer, and whether it was asked now.

    A limit of the user's that was not put to the test cannot be told: where its question was left out, by `probes` or
    by the budget, the audit ends with 3 and has a row that says so. Where it can never apply to this subject, the
    standards are wrong, and that is an error. A probe's own limit counts only where the probe is asked.

    `open` gives the further subjects that settings name, such as `others` of does-it-transfer.
    """
    from assay.engine.local import ThisProcess

    if not isinstance(standards, Standards):
        standards = read_standards(Path(standards)) if standards is not None else Standards()
    planned = plan(probes, standards, budget)
    run = Run(
        engine=engine or ThisProcess(),
        budget=budget_named(budget),
        seed=seed,
        device=device,
        progress=progress,
        debug=debug,
        open=open,
    )
    asker = Asker(subject, planned, run, standards)
    record = Record(
        [question for _, question in planned],
        asker.begun,
        standards=standards,
        budget=budget,
        seed=seed,
        device=device,
        out=None if out is None else Path(out),
        told=told,
        source=source,
    )
    for place in range(len(planned)):
        if not record.knows(place):
            record.take(place, asker.put(place))
    return record.conclude()


def _judgements(
    question: Question, answer: Answer, standards: Standards, alarms: tuple[Alarm, ...]
) -> tuple[Judgement, ...]:
    own = () if answer.finding is None else question.own
    return judgements(answer, standards.limits.get(question.probe, own), alarms)


def judgements(answer: Answer, limits: Sequence[Standard], alarms: tuple[Alarm, ...]) -> tuple[Judgement, ...]:
    """An answer held against its limits; `alarms` are those about the subject as a whole."""
    if answer.finding is None:
        return tuple(
            Judgement(
                standard=limit,
                measure=limit.measure or "its headline measure",
                verdict="cannot tell",
                why=f"it was not asked: {answer.why}",
            )
            for limit in (limits if answer.status == "does not apply" else ())
        )
    found = []
    for standard in limits:
        try:
            found.append(judge(standard, answer.finding, alarms))
        except AssayError as e:  # a limit on a measure that this probe does not have must not look like a pass
            found.append(Judgement(standard=standard, measure=str(standard.measure), verdict="cannot tell", why=str(e)))
    return tuple(found)


def describe(subject: Subject, fingerprint: str) -> Described:
    return Described(
        name=subject.name,
        about=subject.about,
        task=type(subject.task).__name__,
        classes=subject.task.classes,
        shape=subject.inputs.shape,
        low=subject.inputs.low,
        high=subject.inputs.high,
        parameters=sum(p.numel() for p in subject.model.parameters()),
        splits={name: len(data) for name, data in subject.data.items()},
        data={name: data.fingerprint() for name, data in subject.data.items()},
        draws=subject.draws,
        differentiable=subject.differentiable,
        origin=subject.origin,
        fingerprint=fingerprint,
    )
