"""The child's side of an audit: opens the subject, puts the questions that its parent (`guarded`) wants asked."""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from typing import Any, NoReturn

from assay.engine.child import Line, left_behind
from assay.errors import AssayError


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
    from assay.engine.local import ThisProcess
    from assay.engine.opening import device_named, opened
    from assay.jobs.audit import Asker
    from assay.run import Run, budget, environment
    from assay.store import save_answer
    from assay.subjects import Source

    planned, device = job.plan(), device_named(job.device)
    told = [dataclasses.asdict(question) for _, question in planned]
    line.send(plan=told, device=device, environment=environment(device))  # before any of the model's code

    def open(source: Source) -> Any:
        line.send(doing=f"opening {source.subject}", total=None)
        return opened(source)

    run = Run(
        engine=ThisProcess(),
        budget=budget(job.budget, job.inputs),
        seed=job.seed,
        device=device,
        progress=line.progress,
        debug=job.debug,
        open=job.further(open),
        in_words=line.in_words,
    )
    asker = Asker(open(job.source), planned, run, job.standards)
    line.send(begun=dataclasses.asdict(asker.begun))
    for place, (_, question) in enumerate(planned):
        line.send(next=place)
        if not line.receive()["ask"]:
            continue
        started, before = time.perf_counter(), set(threading.enumerate())
        try:
            answer = asker.put(place)
        except KeyboardInterrupt as e:  # nobody can press a key here: the model raised it
            answer = question.unanswered(asker.begun.keys[place], line.in_words(e), time.perf_counter() - started)
        if answer.finding is not None and (left := left_behind(before)):
            answer = question.unanswered(asker.begun.keys[place], left, answer.seconds)
        if answer.finding is not None:
            try:
                save_answer(line.folder / str(place), answer)
            except AssayError as e:
                answer = question.unanswered(asker.begun.keys[place], str(e), answer.seconds)
        line.send(answered=place, answer=None if answer.finding is not None else dataclasses.asdict(answer))
