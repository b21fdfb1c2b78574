"""An audit whose questions are put in a child process; this side keeps what was found and gives the verdict.

It loads no torch and none of the model's code: it hands over the job, hears which question is being asked and takes
each answer. A question during which the child ends is unanswered, with the reason; another child goes on with the next.
Only an audit in which every question has its answer gets a verdict.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from assay import store
from assay.audit import Audit, Judged, Question
from assay.engine.guarded import Child, Died, Limits, Refused, handed_over, started, stopped_by_signals
from assay.errors import AssayError
from assay.jobs.audit import Begun, Record
from assay.jobs.audit.job import Job
from assay.probe import Answer
from assay.run import Progress, Tick, budget
from assay.subjects import located

ASK = "assay.jobs.audit.child:ask"


class Meter(Protocol):
    """Where it is told what goes on."""

    @property
    def progress(self) -> Progress: ...

    def expect(self, questions: int) -> None: ...

    def doing(self, what: str, total: int | None = None) -> None: ...

    def told(self, row: Judged, asked: bool) -> None: ...

    def alive(self, seconds: float) -> None: ...

    def line(self, text: str) -> None: ...


def audit_guarded(job: Job, limits: Limits, out: Path, meter: Meter) -> Audit:
    """Ask what the job wants of its subject in a child process, and more of them where they end; judge and conclude."""
    located(job.source)  # a slip of the pen is told at once
    with stopped_by_signals(), handed_over() as folder:
        asking = _Asking(job, limits, out, meter, folder)
        while not asking.complete:
            asking.go_on()
        assert asking.record is not None  # complete
        return asking.record.conclude(asking.surroundings)


class _Asking:
    """An audit while it is made: what is known of it does not depend on the child that is asked just now."""

    def __init__(self, job: Job, limits: Limits, out: Path, meter: Meter, folder: Path) -> None:
        self.job, self.limits, self.out, self.meter, self.folder = job, limits, out, meter, folder
        self.asked: list[Question] = []
        self.record: Record | None = None
        self.surroundings: dict[str, str] = {}
        self.device = job.device
        self.place: int | None = None
        self.tick: Tick = lambda n: None

    @property
    def complete(self) -> bool:
        return self.record is not None and len(self.record.rows) == len(self.asked)

    def go_on(self) -> None:
        """Start a child and hear it out. One that settles nothing is the last: another would not get further."""
        settled = 0 if self.record is None else len(self.record.rows)
        self.meter.doing("loading torch and the questions" if self.record is None else "starting the model anew")
        self.place, why = None, "the model's process said that it was done before it was"
        with ExitStack() as stack:
            child = stack.enter_context(started(ASK, self.job.to_json(), self.limits, self.folder))
            bars = stack.enter_context(ExitStack())
            try:
                self._listen(child, bars)
            except Died as e:
                why = str(e) if isinstance(e, Refused) else f"the model's process {e}"
                if self.record is None:
                    what = f"{self.job.source.subject!r} could not be opened: "
                    raise AssayError(why if isinstance(e, Refused) else what + why) from e
                if self.place is not None:
                    self._enter(self.place, why, child.seconds)
        if self.record is None or len(self.record.rows) == settled:
            self._give_up(why)

    def _listen(self, child: Child, bars: ExitStack) -> None:
        while True:
            message = child.hear()
            if message is None:
                if self.asked or child.seconds > 10:
                    self.meter.alive(child.seconds)
            elif "done" in message:
                return
            elif "error" in message:
                raise Refused(message["error"])
            elif "plan" in message:
                if not self.asked:
                    self.asked, self.device = [Question.from_json(q) for q in message["plan"]], message["device"]
                    self.surroundings |= message["environment"]
                    self.meter.expect(sum(question.named for question in self.asked))
                child.set_clock_back()
            elif "held" in message:
                self._confined(message)
            elif "doing" in message:
                bars.close()
                if message["total"] is None:
                    self.meter.doing(message["doing"])
                else:
                    self.tick = bars.enter_context(self.meter.progress(message["doing"], message["total"]))
            elif "tick" in message:
                self.tick(message["tick"])
            elif "begun" in message:
                self._begin(Begun.from_json(message["begun"]))
            elif "next" in message:
                self._next(message["next"], child)
            elif "answered" in message and message["answered"] == self.place:
                self._take(message["answer"], child.seconds)

    def _confined(self, message: Mapping[str, Any]) -> None:
        held, missing = ("; ".join(map(str, message[name])) for name in ("held", "missing"))
        if missing and "sandbox" not in self.surroundings:
            self.meter.line(f"sandbox: {held or 'nothing held'}; what did not hold: {missing}")
        self.surroundings["sandbox"] = f"{held or 'nothing'}; not held: {missing}" if missing else held

    def _begin(self, begun: Begun) -> None:
        if self.record is None:
            self.record = Record(
                self.asked,
                begun,
                standards=self.job.standards,
                budget=budget(self.job.budget, self.job.inputs),
                seed=self.job.seed,
                device=self.device,
                out=self.out,
                told=self.meter.told,
                source=self.job.source.words(),
            )
        elif begun.keys != self.record.begun.keys:
            self._give_up(
                "a question before ended the model's process, and opened again it is another model: its weights, data "
                "or answers differ; fix its seeds"
            )

    def _next(self, place: int, child: Child) -> None:
        if self.record is None:
            return
        wanted = 0 <= place < len(self.asked) and not self.record.knows(place)
        self.place = place if wanted else None
        child.set_clock_back()
        child.say(ask=wanted)

    def _take(self, told: Mapping[str, Any] | None, seconds: float) -> None:
        """Keep an answer if it is one to the question that was asked."""
        assert self.record is not None
        assert self.place is not None
        place, self.place = self.place, None
        question, key = self.asked[place], self.record.begun.keys[place]
        try:
            if told is None:
                answer = _fetched(self.folder / str(place), self.folder / "taken", question.probe)
            else:
                answer = Answer(**told)
            if (answer.probe, answer.key) != (question.probe, key) or (answer.finding is None) != (told is not None):
                raise AssayError("the answer that came is not to this question; ask it again")
            answer = dataclasses.replace(
                answer,
                question=question.question,
                source=question.source,
                settings=question.settings,
                theme=question.theme,
                environment=self.surroundings,
            )
        except (AssayError, TypeError) as e:
            self._enter(place, str(e), seconds)
            return
        self.record.take(place, answer)

    def _enter(self, place: int, why: str, seconds: float) -> None:
        """This question broke."""
        assert self.record is not None
        answer = self.asked[place].unanswered(self.record.begun.keys[place], why, seconds)
        self.record.take(place, dataclasses.replace(answer, environment=self.surroundings))

    def _give_up(self, why: str) -> None:
        """Nothing more can be asked: what is left is unanswered, and what was found stands."""
        if self.record is None:
            raise AssayError(why)
        for place in range(len(self.asked)):
            if not self.record.knows(place):
                self._enter(place, why, 0.0)


def _fetched(handed: Path, taken: Path, probe: str) -> Answer:
    """The answer that a child left in a folder: moved out of its reach, and only plain files of the names we know."""
    shutil.rmtree(taken, ignore_errors=True)
    try:
        os.rename(handed, taken)
        known = {f"findings/{probe}.json", f"samples/{probe}.parquet", f"witnesses/{probe}.safetensors"}
        there = {str(p.relative_to(taken)) for p in taken.rglob("*") if p.is_symlink() or not p.is_dir()}
        if not there <= known or any(not _plain_file(taken / name) for name in there):
            raise AssayError("the files of its answer are not those of an answer; ask it again")
        return store.load_answer(taken / "findings" / f"{probe}.json")
    except OSError as e:
        raise AssayError(f"its answer could not be fetched: {e.strerror or e}; ask it again") from e
    finally:
        shutil.rmtree(taken, ignore_errors=True)


def _plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
