"""Audit: many probes on one subject, judged against standards, as a record. `jobs/audit` makes one.

Importing this needs no torch, and a stored audit opens without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from assay import store
from assay.errors import AssayError
from assay.finding import Alarm, Better, Finding, Measure
from assay.probe import OTHER, Answer, Probe
from assay.remedy import Remedy, Tried
from assay.standard import Judgement, Standard, Verdict, judge
from assay.store import chain
from assay.store.answers import answer_from, differing, finding_of
from assay.store.typed import check_types
from assay.tuning import Tuning

if TYPE_CHECKING:
    from assay.subject import Subject

Direction = Literal["better", "worse", "changed", "no clear change", "cannot tell"]


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
    """Fingerprint of each split and domain: inputs are the same, and comparisons paired, where these are."""
    draws: int
    differentiable: bool
    origin: tuple[str, ...]
    fingerprint: str
    unlabelled: tuple[str, ...] = ()
    """Those of `splits` whose labels nobody knows."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Described:
        lists = {name: tuple(told.get(name, ())) for name in ("classes", "shape", "origin", "unlabelled")}
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
class Offer:
    """A remedy that can be applied to the subject, as far as the report tells of it. Nobody has tried it here."""

    remedy: str
    promise: str
    mends: tuple[str, ...]
    """The probes that it is made for."""
    training: float | None
    inference: float | None
    """Its cost, as multiples of the plain model's; None where there is nothing to compare with."""
    tried: tuple[Tried, ...]

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Offer:
        tried = tuple(Tried(**t) for t in told["tried"])
        return cls(**{**told, "mends": tuple(told["mends"]), "tried": tried})

    @classmethod
    def of(cls, remedy: Remedy) -> Offer:
        cost = remedy.cost()
        return cls(
            remedy=remedy.name(),
            promise=remedy.promise(),
            mends=remedy.mends,
            training=None if cost is None else float(cost.training),
            inference=None if cost is None else float(cost.inference),
            tried=remedy.tried,
        )


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
    offers: tuple[Offer, ...] | None = None
    """The remedies that fit the subject; None in an audit that was made before they were kept."""
    tuned: Tuning | None = None
    """What went into tuning it, where whoever asked has told."""
    limits: Mapping[str, tuple[Standard, ...]] | None = None
    """The user's own limits, by question; None in an audit from before they were kept."""
    framed: ClassVar[Callable[[Audit], str] | None] = None
    printed: ClassVar[Callable[[Audit], str] | None] = None
    """How it is shown in a notebook, and printed: `assay/__init__.py`, above records and pages, says how."""

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
        """2 a question broke, and the audit is not complete; else 1 any fails, 3 some cannot be told, 0 all pass.

        Where the time was over before anything was answered, nothing can be told.
        """
        verdicts = [row.verdict for row in self.rows]
        if any(row.answer.status == "failed" for row in self.rows):
            return 2
        if "fail" in verdicts:
            return 1
        over = bool(self.budget.get("seconds")) and all(row.answer.finding is None for row in self.rows)
        return 3 if "cannot tell" in verdicts or over else 0

    def row(self, probe: str) -> Judged:
        for row in self.rows:
            if row.answer.probe == probe:
                return row
        raise AssayError(f"This audit did not ask {probe!r}; it asked {[r.answer.probe for r in self.rows]}.")

    def __str__(self) -> str:
        """The table that the command line prints, and the alarms, as far as somebody has said how."""
        return repr(self) if Audit.printed is None else Audit.printed(self)

    def _repr_html_(self) -> str | None:
        """In a notebook an audit shows itself as its report, as far as somebody has said how."""
        return None if Audit.framed is None else Audit.framed(self)

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
            "offers": None if self.offers is None else [dataclasses.asdict(o) for o in self.offers],
            **({} if self.tuned is None else {"tuned": dataclasses.asdict(self.tuned)}),
            **({} if self.limits is None else {"limits": {n: _told(each) for n, each in self.limits.items()}}),
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
                    "theme": row.answer.theme,
                    **({"looks": [dataclasses.asdict(k) for k in row.answer.looks]} if row.answer.looks else {}),
                    **({} if row.answer.spent is None else {"spent": dataclasses.asdict(row.answer.spent)}),
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
        """The audit with the answers that stand in its folder: another audit of it may have been there first.

        What is not the file that a link of this audit names was changed since, and is not read.
        """
        findings = [finding_of(row.answer.probe) for row in self.rows]
        rows, changed = [], differing(folder, {n: self.links[n] for n in findings if n in self.links})
        for row in self.rows:
            path = folder / finding_of(row.answer.probe)
            reads = row.answer.finding and path.exists() and finding_of(row.answer.probe) not in changed
            stored = store.load_answer(path, whole=False) if reads else row.answer
            if stored.key == row.answer.key and (stored.when, stored.seconds) != (row.answer.when, row.answer.seconds):
                row = Judged(answer=stored, judgements=judgements(stored, row.standards, self.alarms))
            rows.append(row)
        return dataclasses.replace(self, rows=tuple(rows), folder=folder)


def _told(limits: Sequence[Standard]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(limit) for limit in limits]


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
                answer = answer_from({**row, "source": row["answer_source"]})
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
            offers=None if (offers := stored.get("offers")) is None else tuple(map(Offer.from_json, offers)),
            tuned=None if (tuned := stored.get("tuned")) is None else Tuning(**tuned),
            limits=None
            if (limits := stored.get("limits")) is None
            else {name: tuple(Standard(**s) for s in each) for name, each in limits.items()},
        )
        check_types(audit, leave=(Finding,))  # findings were looked at as they were read
        return audit
    except AssayError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        path = folder / chain.HEAD
        raise AssayError(f"Cannot read the audit {str(path)!r}: {type(e).__name__} {e}; audit again.") from e


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
    theme: str = OTHER

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
            theme=probe.theme(),
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
            theme=self.theme,
        )


@dataclass(frozen=True, kw_only=True)
class Change:
    """One measure in two audits. `difference` is after minus before; `n` counts the pairs, where there are any."""

    probe: str
    question: str
    measure: str
    unit: str
    better: Better
    before: Measure
    after: Measure
    difference: float | None
    low: float | None
    high: float | None
    paired: bool
    n: int | None
    verdict: Direction
    why: str


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
            found.append(_kept_open(judge(standard, answer.finding, alarms), answer))
        except AssayError as e:  # a limit on a measure that this probe does not have must not look like a pass
            found.append(Judgement(standard=standard, measure=str(standard.measure), verdict="cannot tell", why=str(e)))
    return tuple(found)


def _kept_open(judgement: Judgement, answer: Answer) -> Judgement:
    """What more inputs may turn over stays open where those that were seen tell nothing of how far others may lie."""
    if answer.finding is None or judgement.verdict not in ("pass", "fail") or judgement.standard is None:
        return judgement
    m = answer.finding.measure(judgement.standard.measure)
    several = bool(answer.looks) and answer.looks[-1].grows == "inputs"
    if m.n == 1 or (several and says_nothing_of_others(m)):
        one = "one input was seen" if m.n == 1 else f"all {m.n:,} values that were seen are {m.value:.3g}"
        return dataclasses.replace(judgement, verdict="cannot tell", why=f"{one}: nobody knows how far another may lie")
    return judgement


def says_nothing_of_others(m: Measure) -> bool:
    """Whether all that was seen had one value, and nobody knows how far another may lie: an interval of no width."""
    bounded = m.unit == "%" and m.value is not None and 0 <= m.value <= 1
    if m.n is None or m.value is None or m.low is None or m.high is None or bounded:
        return False
    return m.high - m.low <= 1e-9 * max(1.0, abs(m.value))


def describe(subject: Subject, fingerprint: str) -> Described:
    everything = subject.everywhere().data
    return Described(
        name=subject.name,
        about=subject.about,
        task=type(subject.task).__name__,
        classes=subject.task.classes,
        shape=subject.inputs.shape,
        low=subject.inputs.low,
        high=subject.inputs.high,
        parameters=sum(p.numel() for p in subject.model.parameters()),
        splits={name: len(data) for name, data in everything.items()},
        data={name: data.fingerprint() for name, data in everything.items()},
        draws=subject.draws,
        differentiable=subject.leads(),
        origin=subject.origin,
        fingerprint=fingerprint,
        unlabelled=tuple(subject.unlabelled),
    )
