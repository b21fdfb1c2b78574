"""Ask a subject many questions, keep the answers as they come, judge them, conclude.

An audit has two sides. `Asker` needs the model; `Record` needs neither it nor torch. Here both are in one process; in
`guarded` they are two. Importing this needs no torch.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay import shelf, store
from assay.audit import Audit, Described, Judged, Offer, Question, describe, judgements
from assay.errors import AssayError
from assay.finding import Alarm
from assay.jobs.audit.effort import seconds_of
from assay.jobs.audit.rounds import Rounds, Turn, budget_of, keyed, looked, most_inputs
from assay.probe import Answer, Probe, configure, put
from assay.report import Kept, draw_ahead, vouch, write, write_profile
from assay.run import Budget, Engine, OutOfTime, Progress, Run, environment, silent, until
from assay.standard import Judgement, Standards, read_standards
from assay.store import chain
from assay.store.answers import differing, finding_of, looked_more, set_aside_changed
from assay.store.files import digest
from assay.store.typed import check_types
from assay.trace import Asked, Trace
from assay.tuning import Tuning

if TYPE_CHECKING:
    from assay.remedy import Remedy
    from assay.subject import Subject


SEEDS = 2**32  # as many as scikit-learn takes
PACE = 1e-3  # seconds an input: a guess, on which the order of questions hangs and nothing else
GOES_ON = "it was not asked yet: the audit goes on"
STOPPED = "it was not asked: the audit was stopped before; the same command goes on"


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
    offers: tuple[Offer, ...] = ()
    """The remedies that fit the subject."""
    applies: tuple[bool, ...] = ()
    """Of an audit with a time limit: which questions can be put to the subject."""
    pace: float = 0.0
    """Likewise: the seconds that the model takes for an input."""
    reading: float = 0.0
    """Likewise: the seconds that it takes to read one."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Begun:
        alarms = tuple(Alarm(a["says"], tuple(a["doubts"])) for a in told["alarms"])
        applies, pace, reading = told.get("applies", ()), told.get("pace", 0.0), told.get("reading", 0.0)
        if not isinstance(applies, list | tuple):
            raise AssayError(f"The model's process says of its questions {str(applies)[:40]!r}; audit again.")
        for seconds in (pace, reading):
            if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
                raise AssayError(f"The model's process says that it takes {str(seconds)[:40]} s an input; audit again.")
        draws = told["subject"].get("draws")
        if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
            raise AssayError(f"The model's process says that it answers by {str(draws)[:40]} draws; audit again.")
        try:
            offers = tuple(map(Offer.from_json, told.get("offers", ())))
            for offer in offers:
                check_types(offer)
        except (LookupError, TypeError, ValueError, AttributeError) as e:  # the model's process may say anything
            raise AssayError(f"The remedies that the model's process names do not read: {e}; audit again.") from e
        return cls(
            subject=Described.from_json(told["subject"]),
            alarms=alarms,
            keys=tuple(told["keys"]),
            offers=offers,
            applies=tuple(map(bool, applies)),
            pace=float(pace),
            reading=float(reading),
        )


class Asker:
    """The side of an audit that needs the model: it lets the subject in, makes the keys, and puts one question a time.

    A limit on a question that can never apply to this subject is an error: the standards are wrong. `heard` is told
    where the time of each question went.
    """

    def __init__(
        self,
        subject: Subject,
        planned: Sequence[Planned],
        run: Run,
        standards: Standards,
        heard: Callable[[Asked], None] | None = None,
    ) -> None:
        from assay.data.digest import reading
        from assay.door import admit
        from assay.subject import check

        if isinstance(run.seed, bool) or not isinstance(run.seed, int) or not 0 <= run.seed < SEEDS:
            raise AssayError(f"The seed {run.seed!r} is none; give a whole number from 0 to {SEEDS - 1}.")
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
        known = dataclasses.replace(run, budget=keyed(run.budget))
        with reading(run.progress):
            fingerprint, behaviour = self.subject.fingerprint(), self.subject.behaviour()
            described = describe(self.subject, fingerprint)
        self.begun = Begun(
            subject=described,
            alarms=alarms,
            keys=tuple(probe.key(fingerprint, known, behaviour) for probe, _ in planned),
            offers=tuple(offers(self.subject)),
        )
        if run.budget.seconds is not None:
            applies = tuple(probe.why_not(self.subject) is None for probe, _ in planned)
            self.begun = dataclasses.replace(self.begun, applies=applies, pace=self.pace, reading=self.reading)
        self.heard, self.trace = heard, Trace()
        if heard is not None:
            from assay.engine.traced import Traced, in_parts

            progress = in_parts(run.progress, self.trace)
            self.run = dataclasses.replace(run, engine=Traced(run.engine, self.trace), progress=progress)

    @cached_property
    def pace(self) -> float:
        """The seconds that the model takes for an input, measured when somebody first asks."""
        from assay.jobs.audit.pace import pace

        with self._asked():
            return pace(self.subject.in_classes(), self.run.device)

    @cached_property
    def reading(self) -> float:
        """The seconds that it takes to read an input."""
        from assay.jobs.audit.pace import reading

        return reading(self.subject)

    @cached_property
    def wants_rows(self) -> bool:
        """Whether the model wants the answers of its convolutions in rows."""
        from assay.engine.in_rows import wants_rows

        return wants_rows(self.subject)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Inside, the model is asked as fast as this machine can, and trained as it can be trained."""
        from assay.engine.in_rows import in_rows
        from assay.engine.laid import laid, pays
        from assay.engine.turned import fastest, turned

        rows, device = self.wants_rows, self.run.device
        lays = pays(device) and not rows
        with in_rows(rows), laid(self.subject.model, lays), turned(fastest(device, rows=rows)):
            yield

    def put(self, place: int) -> Answer:
        return self._put(place, self.run)

    def _put(self, place: int, run: Run) -> Answer:
        probe, question = self.planned[place]
        answer = None
        try:
            with self.trace.question(probe.name(), run.budget.inputs or 0), self._asked():
                answer = put(probe, self.subject, run, self.begun.keys[place], left_out=question.left_out)
        finally:  # a question that was ended took its time too
            if self.heard is not None and (answer is None or answer.status != "does not apply"):
                spent = None if answer is None else answer.spent
                self.heard(self.trace.asked() if spent is None else self.trace.asked(spent.answers, spent.slopes))
        if answer.spent is None or not answer.spent.passes:
            return answer
        return dataclasses.replace(answer, spent=dataclasses.replace(answer.spent, pace=self.pace))

    def put_all(self, places: Iterable[int]) -> Iterator[tuple[int, Answer]]:
        """The answers as they come: where the engine has several workers, the questions are put side by side.

        The longest come first then, so that no worker is left alone with one in the end.
        """
        if self.run.engine.apart:
            places = sorted(places, key=self._about, reverse=True)
        for place, answer in self.run.engine.each(self.put, places):
            try:
                yield place, answer()
            except AssayError as e:  # its process ended, and so did those that tried again
                if self.run.debug:
                    raise
                yield place, self.planned[place].question.unanswered(self.begun.keys[place], str(e), 0.0)

    def _about(self, place: int) -> float:
        """About how long a question takes. The pace is not measured: the machines that ask are not this one."""
        there, draws = self.begun.subject.splits.get("test", 1), self.begun.subject.draws
        return seconds_of(self.planned[place][0].name(), self.run.budget, PACE, there, draws)

    def look(self, place: int, budget: Budget, most: float) -> tuple[Answer, str | None] | None:
        """Put a question with this budget, and say what would have given more inputs; None where it takes longer."""
        progress = until(most, self.run.progress)
        run = dataclasses.replace(self.run, budget=budget, whole=self.run.budget, progress=progress, drawn=[])
        try:
            answer = self._put(place, run)
        except OutOfTime:
            return None
        return answer, run.drawn[0].grows if run.drawn else None


def offers(subject: Subject) -> Iterator[Offer]:
    """The remedies that can be applied to this subject and were not yet, each with its own settings."""
    for name in shelf.names("remedies"):
        try:
            remedy: Remedy = shelf.load("remedies", name)()
            learns = subject.differentiable or not remedy.needs_train  # a model that gives answers only does not
            if remedy.mends and learns and name not in subject.origin and remedy.why_not(subject) is None:
                yield Offer.of(remedy)
        except Exception as e:  # an audit does not fail for a remedy that nobody asked for
            warnings.warn(f"The remedy {name!r} cannot be offered: {type(e).__name__} {e}.", stacklevel=2)


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
        budget: Budget,
        seed: int,
        device: str,
        out: Path | None,
        told: Callable[[Judged, bool], None] = lambda row, asked: None,
        source: tuple[str, ...] = (),
        tuned: Tuning | None = None,
    ) -> None:
        self.asked, self.begun, self.standards, self.told = asked, begun, standards, told
        self.budget, self.seed, self.device, self.source, self.tuned = budget, seed, device, source, tuned
        self.rows: dict[int, Judged] = {}
        self.spent, self.due = 0.0, 0.0
        """Seconds of looks from before; when the next report of what is known is written."""
        self.kept: Kept = {}
        self.links: dict[str, str] = {}
        """The findings that were written or read here, with the digest of each; the audit vouches for these."""
        self.changed: set[str] = set()
        """Those of them that were found to be others since."""
        self.folder: Path | None = None
        if out is not None:
            named = [(q.probe, k) for q, k in zip(asked, begun.keys, strict=True) if q.named]
            key = blake2b(" ".join(k for _, k in named).encode(), digest_size=16).hexdigest()
            manifest = {
                "subject": begun.subject.name,
                "source": list(source),
                "budget": budget.name,
                **({} if budget.inputs is None else {"inputs": budget.inputs}),
                "seed": seed,
                "probes": [probe for probe, _ in named],
            }
            self.folder = store.open_run(out, begun.subject.name, key, manifest)
            set_aside_changed(self.folder, [question.probe for question in asked])

    def knows(self, place: int) -> bool:
        """Whether this question has its answer, here or from before."""
        question = self.asked[place]
        if place not in self.rows and self.folder is not None and question.named:
            key = self.begun.keys[place]
            answer = store.find_answer(self.folder.parent, self.folder, question.probe, key)
            if answer is not None:
                name = finding_of(question.probe)
                self.links[name] = digest(self.folder, name)
                self._enter(place, answer, asked=False)
        return place in self.rows

    def take(self, place: int, answer: Answer) -> bool:
        """Keep and judge an answer that was given now; False where it cannot be kept and an earlier one stands."""
        if self.folder is not None and self.asked[place].left_out is None:
            if (self.folder / finding_of(answer.probe)).exists():  # what was vouched for is about to be another
                (self.folder / chain.HEAD).unlink(missing_ok=True)
            try:
                written = store.save_answer(self.folder, answer)
            except store.NotKept as e:
                if place in self.rows:
                    return False
                broken = self.asked[place].unanswered(answer.key, str(e), answer.seconds)
                answer = dataclasses.replace(broken, environment=answer.environment)
                written = store.save_answer(self.folder, answer)
            self.links[finding_of(answer.probe)] = written
        self._enter(place, answer, asked=True)
        return True

    def look(
        self, turn: Turn, answer: Answer, drawn: str | None, at: float, surroundings: Mapping[str, str] | None = None
    ) -> bool:
        """Keep and judge one look of several; False where it broke and an earlier one stands.

        Whoever is killed after it has an `audit.json` that knows it; in the moment between, the run is unfinished, and
        not one that somebody changed.
        """
        row = self.rows.get(turn.place)
        if row is not None and answer.finding is None:
            return False
        before = () if row is None else row.answer.looks
        if self.folder is not None:
            (self.folder / chain.HEAD).unlink(missing_ok=True)
        most = most_inputs(self.budget, max(1, self.begun.subject.splits.get("test", 1)))
        taken = self.take(turn.place, looked(answer, before, turn.budget, drawn, self.spent + at, most))
        if self.folder is not None:
            self._look_for_changes()
            vouch(self._done(surroundings, lambda place: GOES_ON), self.folder)
        return taken

    def recall(self) -> None:
        """Enter every answer that is known from before, and how long the looks at them have taken."""
        for place in range(len(self.asked)):
            self.knows(place)
        self.spent = max((look.at for row in self.rows.values() for look in row.answer.looks), default=0.0)

    def _enter(self, place: int, answer: Answer, asked: bool) -> None:
        question = self.asked[place]
        row = Judged(answer=answer, judgements=_judgements(question, answer, self.standards, self.begun.alarms))
        self.rows[place] = row
        if question.named:
            self.told(row, asked)

    def conclude(
        self, surroundings: Mapping[str, str] | None = None, missing: Callable[[int], str] | None = None
    ) -> Audit:
        """The audit, written to its folder, of a record in which every question has its answer.

        `surroundings` are those in which it was asked, where that was not this process; `missing` says of a question
        that has no answer why that is so.
        """
        self._look_for_changes()
        done = self._done(surroundings, missing)
        if self.folder is not None:
            write(done, self.folder, self.kept)
        return done

    def _look_for_changes(self) -> None:
        """Say which findings somebody changed since they were written or read here; they are not vouched for.

        Of another audit of this folder that looked more often, the answer stands.
        """
        if self.folder is None:
            return
        ours = {finding_of(row.answer.probe): row.answer for row in self.rows.values()}
        for name in differing(self.folder, self.links):
            if looked_more(self.folder, name, ours[name]):
                self.links[name] = digest(self.folder, name)
            elif name not in self.changed:
                self.changed.add(name)
                logging.getLogger("assay").warning(
                    "%r was changed while this audit ran: what was found before stands in the report and is what %s "
                    "vouches for; audit again, and that question is asked anew",
                    str(self.folder / name),
                    chain.HEAD,
                )

    def _done(self, surroundings: Mapping[str, str] | None, missing: Callable[[int], str] | None) -> Audit:
        rows = []
        for place, question in enumerate(self.asked):
            row = self.rows.get(place)
            if row is None and missing is not None:
                answer = question.unanswered(self.begun.keys[place], missing(place), 0.0)
                answer = dataclasses.replace(answer, status="does not apply", environment=surroundings or {})
                # it fits the subject and should have been asked: its own limit was not put to the test either
                wanted = question.left_out is None and any(self.begun.applies[place : place + 1])
                limits = self.standards.limits.get(question.probe, question.own if wanted else ())
                row = Judged(answer=answer, judgements=judgements(answer, limits, self.begun.alarms))
            rows.append(self.rows[place] if row is None else row)
        return Audit(
            subject=self.begun.subject,
            rows=tuple(rows),
            budget=dataclasses.asdict(self.budget),
            seed=self.seed,
            device=self.device,
            alarms=self.begun.alarms,
            environment=surroundings or environment(self.device),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            source=self.source,
            folder=self.folder,
            offers=tuple(offer for offer in self.begun.offers if offer.remedy in shelf.names("remedies")),
            tuned=self.tuned,
            limits=self.standards.limits,
            links=self.links,
        )

    def draw(self) -> None:
        """What is known by now, while somebody else is asked the next."""
        if self.folder is not None:
            draw_ahead(self.rows.values(), self.folder, self.kept)

    def write_now_and_then(self, rounds: Rounds, surroundings: Mapping[str, str] | None = None) -> None:
        """The report of what is known, for whoever is killed; a twentieth of the time goes into it."""
        if self.folder is None or not rounds.unwritten or rounds.clock() < self.due or rounds.left < rounds.ending:
            return
        before = rounds.clock()
        self.conclude(surroundings, lambda place: GOES_ON)
        took = rounds.clock() - before
        rounds.wrote(took)
        self.due = rounds.clock() + 20 * took


def audit(
    subject: Subject,
    *,
    probes: Sequence[str | Probe] | None = None,
    budget: str = "quick",
    inputs: int | None = None,
    standards: str | Path | Standards | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: str | Path | None = None,
    engine: Engine | str | None = None,
    progress: Progress = silent,
    told: Callable[[Judged, bool], None] = lambda row, asked: None,
    source: tuple[str, ...] = (),
    debug: bool = False,
    open: Callable[[str], Subject] | None = None,
    profile: bool = False,
    tuned: Tuning | None = None,
) -> Audit:
    """Ask a subject many questions and judge the answers, all in this process.

    With `out`, the run is written below that folder as it goes, and an audit that was begun there goes on where it
    was: a question whose subject, settings, seed, budget and method are unchanged is not asked twice. `told` hears of
    each answer, and whether it was asked now.

    `inputs` is the most that any question looks at, fewer than the budget's own where it is less. A `budget` of
    "90s", "10m" or "2h" asks in rounds until every verdict is settled or that time is over (see `rounds`); here the
    time is looked at between two batches of inputs.

    A limit of the user's that was not put to the test cannot be told: where its question was left out, by `probes` or
    by the budget, the audit ends with 3 and has a row that says so. Where it can never apply to this subject, the
    standards are wrong, and that is an error. A probe's own limit counts only where the probe is asked.

    `device` is cpu, cuda, cuda:N or auto; `engine` may be named as --engine names it: here, ray or a cluster's address.
    `open` gives the further subjects that settings name, such as `others` of does-it-transfer. `profile` writes a page
    beside the report that shows where the time went. `tuned` is told in report and card: what went into tuning it.
    """
    from assay.engine.opening import engine_named

    if profile and out is None:
        raise AssayError("profile=True writes a page beside the report; give a folder with out=.")
    if not isinstance(budget, str):
        raise AssayError(f"budget={budget!r} is no text; give quick, standard, full or a time, such as budget='10m'.")
    device = _placed(device)
    if not isinstance(standards, Standards):
        standards = read_standards(Path(standards)) if standards is not None else Standards()
    began = time.monotonic()
    chosen = budget_of(budget, standards.inputs if inputs is None else inputs)
    planned = plan(probes, standards, budget)
    planned_questions = [question for _, question in planned]
    run = Run(
        engine=engine_named(engine or "here", device) if isinstance(engine, str | None) else engine,
        budget=chosen,
        seed=seed,
        device=device,
        progress=progress,
        debug=debug,
        open=open,
    )
    heard: list[Asked] = []
    asker = Asker(subject, planned, run, standards, heard.append if profile else None)
    rounds = None
    if chosen.seconds is not None:
        rounds = rounds_of(chosen, planned_questions, asker.begun, standards, lambda: time.monotonic() - began)
    record = Record(
        planned_questions,
        asker.begun,
        standards=standards,
        budget=chosen,
        seed=seed,
        device=device,
        out=None if out is None else Path(out),
        told=told,
        source=source,
        tuned=tuned,
    )
    if rounds is not None:
        done = _in_rounds(rounds, record, asker)
    else:
        unknown = (place for place in range(len(planned)) if not record.knows(place))
        for place, answer in asker.put_all(unknown):
            record.take(place, answer)
        done = record.conclude()
    if profile:
        write_profile(done, heard, asker.pace)
    return done


def _placed(device: str) -> str:
    """The device of this name, where there is one: as the command line names it, or one of several GPUs."""
    import torch

    from assay.engine.opening import device_named

    kind, colon, number = device.partition(":") if isinstance(device, str) else (device, "", "")
    if kind != "cuda" or not colon:
        return device_named(device)
    device_named(kind)
    there = torch.cuda.device_count()
    if not number.isdecimal() or int(number) >= there:
        raise AssayError(f"There is no device {device!r}; choose from cuda:0 to cuda:{there - 1}.")
    return device


def rounds_of(
    budget: Budget, asked: Sequence[Question], begun: Begun, standards: Standards, clock: Callable[[], float]
) -> Rounds:
    """What chooses the questions of an audit with a time limit; an error where not even the first of them fits."""
    there = begun.subject.splits.get("test", 1)
    if len(begun.applies) != len(asked):
        raise AssayError(f"The model's process tells of {len(begun.applies)} questions of {len(asked)}; audit again.")
    rounds = Rounds(
        budget, asked, begun.applies, standards, pace=begun.pace, reading=begun.reading, there=there, clock=clock,
        draws=begun.subject.draws,
    )  # fmt: skip
    rounds.refuse_what_is_too_short()
    return rounds


def _in_rounds(rounds: Rounds, record: Record, asker: Asker) -> Audit:
    """Ask until all is settled or the time is over; who stops it before has the report of what is known."""
    record.recall()
    try:
        while (turn := rounds.next(record.rows)) is not None:
            found = asker.look(turn.place, turn.budget, turn.most)
            if found is None or not record.look(turn, *found, rounds.clock()):
                rounds.leave(turn.place)
            record.write_now_and_then(rounds)
        return record.conclude(missing=partial(not_asked, rounds))
    except KeyboardInterrupt:
        if record.folder is not None:
            record.conclude(missing=lambda place: STOPPED)
        raise


def not_asked(rounds: Rounds, place: int) -> str:
    """Why a question of an audit with a time limit has no answer, and what gives it one."""
    return f"{rounds.why_not(place)}; assay audit RUN --more 30m asks it"


def _judgements(
    question: Question, answer: Answer, standards: Standards, alarms: tuple[Alarm, ...]
) -> tuple[Judgement, ...]:
    own = () if answer.finding is None else question.own
    return judgements(answer, standards.limits.get(question.probe, own), alarms)
