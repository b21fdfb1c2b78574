"""An audit whose questions are put in a child process; this side keeps what was found and gives the verdict.

It loads no torch and none of the model's code: it hands over the job, hears which question is being asked and takes
each answer. A question during which the child ends is unanswered, with the reason; another child goes on with the next.
Only an audit in which every question has its answer gets a verdict.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from assay import store
from assay.audit import Audit, Judged, Question
from assay.engine.guarded import Child, Died, Left, Limits, Refused, handed_over, started, stopped_by_signals
from assay.errors import AssayError
from assay.jobs.audit import STOPPED, Begun, Record, not_asked, rounds_of
from assay.jobs.audit.job import Job
from assay.jobs.audit.rounds import Rounds, Turn, budget_of
from assay.probe import Answer
from assay.report import write_profile
from assay.run import Progress, Tick
from assay.subjects import located
from assay.trace import Asked

ASK = "assay.jobs.audit.child:ask"
MOST_TRACED = 2000  # questions of which it is kept where their time went
LATE = 1.0  # seconds after which a question that does not look at the time is ended


class Meter(Protocol):
    """Where it is told what goes on."""

    @property
    def progress(self) -> Progress: ...

    def expect(self, questions: int) -> None: ...

    def doing(self, what: str, total: int | None = None) -> None: ...

    def told(self, row: Judged, asked: bool) -> None: ...

    def alive(self, seconds: float) -> None: ...

    def line(self, text: str) -> None: ...


def audit_guarded(job: Job, limits: Limits, out: Path, meter: Meter, began: float | None = None) -> Audit:
    """Ask what the job wants of its subject in a child process, and more of them where they end; judge and conclude.

    `began` is when the time that the job may have began, by the monotonic clock; now, where it is not given.
    """
    located(job.source)  # a slip of the pen is told at once
    with stopped_by_signals(), handed_over() as folder:
        asking = _Asking(job, limits, out, meter, folder, time.monotonic() if began is None else began)
        try:
            while not asking.complete:
                asking.go_on()
            assert asking.record is not None  # complete
            done = asking.record.conclude(asking.surroundings, asking.missing)
        except KeyboardInterrupt:
            asking.leave_what_is_known()
            raise
        if job.profile:
            write_profile(done, asking.traced, asking.pace)
        return done


def how_it_died(died: Died, engine: str) -> str:
    """Whoever asks a cluster is ended by Ray where the cluster's part of this machine is: that is not the model's."""
    if isinstance(died, Refused):
        return str(died)
    if engine != "here" and isinstance(died, Left):
        how, _, _ = str(died).partition(";")
        return f"the process that asks the cluster {how}; Ray ends it when the cluster is gone: start it, and ask again"
    return f"the model's process {died}"


class _Asking:
    """An audit while it is made: what is known of it does not depend on the child that is asked just now."""

    def __init__(self, job: Job, limits: Limits, out: Path, meter: Meter, folder: Path, began: float) -> None:
        self.job, self.limits, self.out, self.meter, self.folder = job, limits, out, meter, folder
        self.asked: list[Question] = []
        self.record: Record | None = None
        self.surroundings: dict[str, str] = {}
        self.device = job.device
        self.place: int | None = None
        self.tick: Tick = lambda n: None
        self.budget, self.began = budget_of(job.budget, job.inputs), began
        self.rounds: Rounds | None = None
        self.turn: Turn | None = None
        self.settled, self.opened = 0, 0.0
        """How often a question came to an end; how long it took to open the subject."""
        self.over = False
        self.traced: list[Asked] = []
        self.pace = 0.0

    @property
    def missing(self) -> Callable[[int], str] | None:
        """Why questions have no answer, of an audit with a time limit."""
        if self.rounds is None:
            return None
        return partial(not_asked, self.rounds)

    @property
    def _come_of(self) -> int:
        """How much has come of it all; a child after which it is the same was of no use."""
        return self.settled + (0 if self.record is None else len(self.record.rows))

    def clock(self) -> float:
        return time.monotonic() - self.began

    @property
    def complete(self) -> bool:
        if self.rounds is not None:
            return self.over
        return self.record is not None and len(self.record.rows) == len(self.asked)

    def go_on(self) -> None:
        """Start a child and hear it out. One that settles nothing is the last: another would not get further."""
        settled, late = self._come_of, False
        self.meter.doing("loading torch and the questions" if self.record is None else "starting the model anew")
        self.place, why = None, "the model's process said that it was done before it was"
        with ExitStack() as stack:
            child = stack.enter_context(started(ASK, self.job.to_json(), self.limits, self.folder))
            bars = stack.enter_context(ExitStack())
            try:
                self._listen(child, bars)
            except Died as e:
                why = how_it_died(e, self.job.engine)
                if self.record is None:
                    what = f"{self.job.source.subject!r} could not be opened: "
                    raise AssayError(why if isinstance(e, Refused) else what + why) from e
                late = self._late(child.seconds)
                if self.place is not None:
                    self._broke(self.place, why, child.seconds)
        if self.rounds is not None and self.over:
            return
        if self.record is None or self._come_of == settled:
            self._give_up(why)
        if self.rounds is not None and self.rounds.left < self.opened:
            self.over, self.rounds.reopening, self.rounds.late = True, self.opened, late

    def _listen(self, child: Child, bars: ExitStack) -> None:
        while True:
            message = child.hear()
            self._mind_the_time()
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
                    if self.budget.seconds is None:
                        self.meter.expect(sum(question.named for question in self.asked))
                child.set_clock_back()
            elif "held" in message:
                self._confined(message)
            elif "trace" in message and self.job.profile and len(self.traced) < MOST_TRACED:
                self.traced.append(Asked.from_json(message["trace"]))
                self.pace = _seconds(message.get("pace"))
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
            elif "ready" in message:
                self._choose(child)
            elif "late" in message and message["late"] == self.place and self.rounds is not None:
                self._broke(message["late"], "", child.seconds)
            elif "answered" in message and message["answered"] == self.place:
                self._take(message["answer"], child.seconds, message.get("drawn"))

    def _confined(self, message: Mapping[str, Any]) -> None:
        held, missing = ("; ".join(map(str, message[name])) for name in ("held", "missing"))
        if missing and "sandbox" not in self.surroundings:
            self.meter.line(f"sandbox: {held or 'nothing held'}; what did not hold: {missing}")
        self.surroundings["sandbox"] = f"{held or 'nothing'}; not held: {missing}" if missing else held

    def _begin(self, begun: Begun) -> None:
        if self.record is None and self.budget.seconds is not None:
            self.opened = self.clock()
            self.rounds = rounds_of(self.budget, self.asked, begun, self.job.standards, self.clock)
        if self.record is None:
            self.record = Record(
                self.asked,
                begun,
                standards=self.job.standards,
                budget=self.budget,
                seed=self.job.seed,
                device=self.device,
                out=self.out,
                told=self.meter.told,
                source=self.job.source.words(),
                tuned=self.job.tuned,
            )
            if self.rounds is not None:
                self.record.recall()
        elif begun.keys != self.record.begun.keys:
            self._give_up(
                "the model's process was ended with a question before, and opened again it is another model: its "
                "weights, data or answers differ; fix its seeds"
            )

    def _next(self, place: int, child: Child) -> None:
        """Say whether this question is to be asked, and draw what is known while it is."""
        if self.record is None:
            return
        wanted = 0 <= place < len(self.asked) and not self.record.knows(place)
        self.place = place if wanted else None
        child.set_clock_back()
        child.say(ask=wanted)
        if wanted:
            self.record.draw()

    def _choose(self, child: Child) -> None:
        """Have the next question asked, with the inputs and steps that fit; meanwhile write what is known."""
        if self.record is None or self.rounds is None:
            return
        self.turn = turn = None if self.over else self.rounds.next(self.record.rows)
        if turn is None:
            self.over, self.place = True, None
            child.say(ask=None)
            return
        self.place = turn.place
        # to start anew costs what opening took: a question that is late may have that long to see it, if time is left
        child.set_clock_back(min(turn.most + max(LATE, self.opened), max(turn.most, self.rounds.left) + LATE))
        child.say(ask=turn.place, budget=dataclasses.asdict(turn.budget), most=turn.most)
        if self.rounds.answered:
            self.record.write_now_and_then(self.rounds, self.surroundings)

    def _mind_the_time(self) -> None:
        if self.budget.seconds is None or self.clock() <= self.budget.seconds:
            return
        if self.record is None:
            raise AssayError(
                f"A time of {self.budget.name} is too short: the model was not open when it was over; give it longer."
            )
        if self.place is None and not self.over:
            raise Died("wants no question, and the time is over")

    def _broke(self, place: int, why: str, seconds: float) -> None:
        """Nothing came of this question: in the time there was, or at all. What came of it before stands."""
        assert self.record is not None
        late = not why or self._late(seconds)
        if self.rounds is None or not (late or place in self.record.rows):
            self._enter(place, why, seconds)
            return
        self.place = None
        self.settled += 1
        self.rounds.leave(place)

    def _late(self, seconds: float) -> bool:
        """Whether what was asked has taken more time than it may, or than is left, of an audit with a time limit."""
        if self.turn is None or self.rounds is None:
            return False
        return seconds >= self.turn.most or self.clock() >= self.rounds.seconds

    def leave_what_is_known(self) -> None:
        """Of an audit with a time limit that is stopped, the report, and how to go on from there."""
        if self.rounds is None or self.record is None or not self.record.rows:
            return
        self.record.conclude(self.surroundings, lambda place: STOPPED)
        if self.record.folder is not None:
            known, again = self.record.folder / "report.html", shlex.quote(str(self.record.folder))
            self.meter.line(
                f"{known} tells what is known; assay audit {again} --more {self.budget.name} goes on from there"
            )

    def _take(self, told: Mapping[str, Any] | None, seconds: float, drawn: object) -> None:
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
                looks=(),
            )
        except (AssayError, TypeError) as e:
            self._broke(place, str(e), seconds)
            return
        self.settled += 1
        if self.turn is None or self.rounds is None:
            self.record.take(place, answer)
            return
        grows = drawn if isinstance(drawn, str) else None
        if not self.record.look(self.turn, answer, grows, self.clock(), self.surroundings):
            self.rounds.leave(place)

    def _enter(self, place: int, why: str, seconds: float) -> None:
        """This question broke."""
        assert self.record is not None
        self.settled += 1
        answer = self.asked[place].unanswered(self.record.begun.keys[place], why, seconds)
        self.record.take(place, dataclasses.replace(answer, environment=self.surroundings))

    def _give_up(self, why: str) -> None:
        """Nothing more can be asked: what is left is unanswered, and what was found stands."""
        if self.record is None:
            raise AssayError(why)
        self.over = True
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


def _seconds(told: object) -> float:
    """What a child says of its model's pace; 0, which is not known, where that is no number."""
    return float(told) if isinstance(told, int | float) and 0 <= told < math.inf else 0.0


def _plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
