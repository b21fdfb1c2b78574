"""The child's side of an audit: opens the subject, puts the questions that its parent (`guarded`) wants asked."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from assay.engine.child import Line, left_behind
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.jobs.audit import Asker
    from assay.jobs.audit.job import Job
    from assay.probe import Answer
    from assay.trace import Asked


def ask() -> NoReturn:
    """Open the subject of the job and put the questions that the parent wants asked, one after the other."""
    line = Line()
    from assay.jobs.audit.job import Job

    job = Job.from_json(line.job)
    try:
        if line.sandbox:
            line.confine(job.reads(), [])
        _ask_all(job, line)
    except BaseException as e:
        if job.debug:
            traceback.print_exc()
        line.send(error=line.in_words(e))
        line.leave(2)
    line.send(done=True)
    line.leave(0)


def _ask_all(job: Any, line: Line) -> None:
    from assay.engine.opening import device_named, engine_named, opened
    from assay.jobs.audit import Asker
    from assay.jobs.audit.rounds import budget_of
    from assay.run import Run, environment
    from assay.subjects import Source

    planned, device = job.plan(), device_named(job.device)
    told = [dataclasses.asdict(question) for _, question in planned]
    line.send(plan=told, device=device, environment=environment(device))  # before any of the model's code

    def open(source: Source) -> Any:
        line.send(doing=f"opening {source.subject}", total=None)
        return opened(source)

    run = Run(
        engine=engine_named(job.engine, device),
        budget=budget_of(job.budget, job.inputs),
        seed=job.seed,
        device=device,
        progress=line.progress,
        debug=job.debug,
        open=job.further(open) if job.engine == "here" else partial(_further, job),
        in_words=line.in_words,
    )

    def heard(asked: Asked) -> None:
        line.send(trace=asked.to_json(), pace=asker.pace)

    asker = Asker(open(job.source), planned, run, job.standards, heard if job.profile else None)
    line.send(begun=dataclasses.asdict(asker.begun))
    if run.budget.seconds is not None:
        _ask_in_rounds(asker, line)
        return
    if job.engine != "here":
        _ask_side_by_side(asker, line)
        return
    for place in range(len(planned)):
        line.send(next=place)
        if line.receive()["ask"]:
            _ask_one(asker, line, place, partial(_plainly, asker, place))


def _further(job: Job, name: str) -> Any:
    """A further subject, opened where the question is asked."""
    from assay.engine.opening import opened

    return job.further(opened)(name)


def _ask_side_by_side(asker: Asker, line: Line) -> None:
    """Have them asked by many, and tell of each as if it had been asked when its answer came."""
    wanted = []
    for place in (*range(len(asker.planned)), -1):  # the last is none: nobody is to blame for what happens meanwhile
        line.send(next=place)
        if line.receive()["ask"]:
            wanted.append(place)
    with line.progress(f"asking {len(wanted)} questions side by side", len(wanted)) as tick:
        for place, answer in asker.put_all(wanted):
            tick(1)
            line.send(next=place)
            if line.receive()["ask"]:
                _ask_one(asker, line, place, lambda: (answer, None))  # noqa: B023  # it is called at once


def _plainly(asker: Asker, place: int) -> tuple[Answer, None]:
    return asker.put(place), None


def _ask_in_rounds(asker: Asker, line: Line) -> None:
    """Put what the parent chooses, as it says, until it says that this was all."""
    from assay.run import Budget

    while True:
        line.send(ready=True)
        told = line.receive()
        if told["ask"] is None:
            return
        place, budget, most = told["ask"], Budget(**told["budget"]), told["most"]
        _ask_one(asker, line, place, partial(asker.look, place, budget, most))


def _ask_one(asker: Asker, line: Line, place: int, ask: Callable[[], tuple[Answer, str | None] | None]) -> None:
    """Ask, and tell what came of it: the answer in the folder or, where there is no finding, on the line."""
    from assay.store import save_answer

    question, key = asker.planned[place].question, asker.begun.keys[place]
    started, before = time.perf_counter(), set(threading.enumerate())
    try:
        found = ask()
    except KeyboardInterrupt as e:  # nobody can press a key here: the model raised it
        found = question.unanswered(key, line.in_words(e), time.perf_counter() - started), None
    if found is None:
        line.send(late=place)
        return
    answer, drawn = found
    if answer.finding is not None and (left := left_behind(before)):
        answer = question.unanswered(key, left, answer.seconds)
    if answer.finding is not None:
        try:
            shutil.rmtree(line.folder / str(place), ignore_errors=True)  # of a look before
            save_answer(line.folder / str(place), answer)
        except AssayError as e:
            answer = question.unanswered(key, str(e), answer.seconds)
    told = None if answer.finding is not None else dataclasses.asdict(answer)
    line.send(answered=place, answer=told, drawn=drawn)
