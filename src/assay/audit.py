"""Audit: many probes on one subject, judged against standards.

Importing this needs no torch, and a stored audit opens without it.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay import shelf, store
from assay.errors import AssayError
from assay.finding import Alarm
from assay.probe import Answer, Probe, configure, put
from assay.run import Engine, Progress, Run, silent
from assay.run import budget as budget_named
from assay.standard import Judgement, Standard, Standards, Verdict, judge, read_standards

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


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An answer with its judgements; its verdict is the worst of them."""

    answer: Answer
    judgements: tuple[Judgement, ...]

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

    @property
    def answered_first(self) -> list[Judged]:
        """The rows as a reader wants them: what does not apply comes last."""
        return sorted(self.rows, key=lambda row: row.answer.status == "does not apply")

    @property
    def status(self) -> int:
        """0 all pass, 1 any fails, 3 none fails but some cannot be told, 2 something broke and nothing failed."""
        verdicts = [row.verdict for row in self.rows]
        if "fail" in verdicts:
            return 1
        if any(row.answer.status == "failed" for row in self.rows):
            return 2
        return 3 if "cannot tell" in verdicts else 0

    def row(self, probe: str) -> Judged:
        for row in self.rows:
            if row.answer.probe == probe:
                return row
        raise AssayError(f"This audit did not ask {probe!r}; it asked {[r.answer.probe for r in self.rows]}.")

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


def open_audit(folder: Path, whole: bool = False) -> Audit:
    """A stored audit; with `whole`, its samples and witnesses too. Needs no torch."""
    path = folder / "audit.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        told = stored["subject"]
        subject = Described(
            **{
                **told,
                "classes": tuple(told["classes"]),
                "shape": tuple(told["shape"]),
                "origin": tuple(told["origin"]),
            }
        )
        rows = []
        for row in stored["rows"]:
            if row["status"] == "asked":
                answer = store.load_answer(folder / "findings" / f"{row['probe']}.json", whole)
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
                )
            judgements = tuple(
                Judgement(**{**j, "standard": Standard(**j["standard"]) if j["standard"] else None})
                for j in row["judgements"]
            )
            rows.append(Judged(answer=answer, judgements=judgements))
        return Audit(
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
        )
    except FileNotFoundError as e:
        raise AssayError(
            f"{str(folder)!r} holds no finished audit ({e.filename!r} is missing); give the folder that `assay audit` "
            f"named, or run the audit again to finish it."
        ) from e
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as e:
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
    """Ask a subject many questions and judge the answers.

    With `out`, the run is written below that folder as it goes, and an audit that was begun there goes on where it
    was: a question whose subject, settings, seed, budget and method are unchanged is not asked twice. `told` hears of
    each answer, and whether it was asked now.

    A limit of the user's that was not put to the test cannot be told: where its question was left out, by `probes` or
    by the budget, the audit ends with 3 and has a row that says so. Where it can never apply to this subject, the
    standards are wrong, and that is an error. A probe's own limit counts only where the probe is asked.

    `open` gives the further subjects that settings name, such as `others` of does-it-transfer.
    """
    from assay.data.digest import reading
    from assay.door import admit
    from assay.engine.local import ThisProcess
    from assay.subject import check

    if not isinstance(standards, Standards):
        standards = read_standards(Path(standards)) if standards is not None else Standards()
    asked = questions(probes, standards)
    run = Run(
        engine=engine or ThisProcess(),
        budget=budget_named(budget),
        seed=seed,
        device=device,
        progress=progress,
        debug=debug,
        open=open,
    )
    check(subject)
    subject, alarms = admit(subject)
    named = {probe.name() for probe in asked}
    unnamed = [
        configure(shelf.load("probes", name), standards.settings.get(name, {}))
        for name, limits in standards.limits.items()
        if limits and name not in named
    ]
    for probe in (*asked, *unnamed):
        reason = probe.why_not(subject) if standards.limits.get(probe.name()) else None
        if reason is not None:
            raise AssayError(
                f"The limit on {probe.name()!r} can never apply to {subject.name!r}: {reason}; take it out of the "
                f"standards."
            )
    with reading(progress):
        fingerprint, behaviour = subject.fingerprint(), subject.behaviour()
        described = describe(subject, fingerprint)
    keys = [probe.key(fingerprint, run, behaviour) for probe in asked]
    folder = None
    if out is not None:
        key = blake2b(" ".join(keys).encode(), digest_size=16).hexdigest()
        manifest = {
            "subject": subject.name,
            "source": list(source),
            "budget": budget,
            "seed": seed,
            "probes": [p.name() for p in asked],
        }
        folder = store.open_run(Path(out), subject.name, key, manifest)
    rows = []
    for probe, key in zip(asked, keys, strict=True):
        answer = store.find_answer(folder.parent, folder, probe.name(), key) if folder else None
        known = answer is not None
        if answer is None:
            left_out = None
            if probes is None and budget == "quick" and not probe.in_quick:
                left_out = f"it takes long: --budget standard asks it, and so does --probe {probe.name()}"
            answer = put(probe, subject, run, key, left_out=left_out)
            if folder and left_out is None:
                store.save_answer(folder, answer)
        row = Judged(answer=answer, judgements=_judgements(probe, answer, standards, alarms))
        told(row, not known)
        rows.append(row)
    for probe in unnamed:
        left_out = f"it has a limit, but is not among the questions named: --probe {probe.name()} asks it too"
        answer = put(probe, subject, run, probe.key(fingerprint, run, behaviour), left_out=left_out)
        rows.append(Judged(answer=answer, judgements=_judgements(probe, answer, standards, alarms)))
    done = Audit(
        subject=described,
        rows=tuple(rows),
        budget=dataclasses.asdict(run.budget),
        seed=seed,
        device=device,
        alarms=alarms,
        environment=environment(),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        source=source,
        folder=folder,
    )
    if folder:
        from assay.report import write

        write(done, folder)
    return done


def _judgements(probe: Probe, answer: Answer, standards: Standards, alarms: tuple[Alarm, ...]) -> tuple[Judgement, ...]:
    if answer.finding is None:
        limits = standards.limits.get(probe.name(), ()) if answer.status == "does not apply" else ()
        return tuple(
            Judgement(
                standard=limit,
                measure=limit.measure or "its headline measure",
                verdict="cannot tell",
                why=f"it was not asked: {answer.why}",
            )
            for limit in limits
        )
    judgements = []
    for standard in standards.limits.get(probe.name(), probe.standards):
        try:
            judgements.append(judge(standard, answer.finding, alarms))
        except AssayError as e:  # a limit on a measure that this probe does not have must not look like a pass
            judgements.append(
                Judgement(standard=standard, measure=str(standard.measure), verdict="cannot tell", why=str(e))
            )
    return tuple(judgements)


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


def environment() -> dict[str, str]:
    """The versions and the kind of machine behind the numbers."""
    import os

    told = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
    }
    for package in ("assay", "torch", "numpy"):
        try:
            told[package] = version(package)
        except PackageNotFoundError:
            told[package] = "not installed"
    return told
