"""A tuning study with people: take part, fifteen hyper-parameters with reasons, live loss, history, the end, analysis.

Whoever has a participant's address is that participant; no name is asked for. The rules (time, one try at a time, what
may be shown when) are those of `store/studies.py`; here they are shown. Nothing here trains or draws: that are jobs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from starlette.responses import RedirectResponse

from assay.errors import AssayError
from assay.methods.study.hyperparameters import KNOBS, OPTIMISERS, REASONS
from assay.methods.study.people import Participant
from assay.server import joined, results
from assay.server.book import Job
from assay.server.kinds.study import PEOPLE
from assay.server.live import End, News, Part, stream
from assay.server.pages.job import wait_for
from assay.server.views import fragment, render
from assay.server.visit import Form, Visit, Visiting, text
from assay.store.studies import ID, StudyFolder

router = APIRouter(prefix="/studies/{id}")
WIDE, HIGH = 600, 170  # of the drawing of losses


class Study(NamedTuple):
    job: Job
    folder: StudyFolder

    @property
    def address(self) -> str:
        return f"/studies/{self.job.id}"


def study_of(id: str, here: Visiting) -> Study:
    """The study of an address: one that was made for people."""
    job = here.desk.book.job(id) if ID.fullmatch(id) else None
    if job is None or job.kind != "study" or job.settings.get("who") != PEOPLE:
        raise HTTPException(404, "There is no such study.")
    if not (job.folder / "run" / "study.json").exists():
        raise HTTPException(404, "This study is not made yet; come again in a minute.")
    return Study(job, StudyFolder.open(job.folder / "run"))


def participant_of(who: str, study: Study) -> Participant:
    try:
        return study.folder.participant(who)
    except AssayError as e:
        raise HTTPException(404, "Nobody takes part at this address; see that it is whole.") from e


Studied = Annotated[Study, Depends(study_of)]


def _participant(who: str, study: Studied) -> Participant:
    return participant_of(who, study)


Tuning = Annotated[Participant, Depends(_participant)]


# Before: what it is about, and taking part.


@router.get("")
def welcome(request: Request, here: Visiting, study: Studied) -> Response:
    return _welcome(request, here, study)


def _welcome(request: Request, here: Visit, study: Study, wrong: str = "", **typed: str) -> Response:
    mine = here.sees(study.job)
    people = study.folder.people() if mine else []
    return render(
        request,
        here,
        "study.html",
        422 if wrong else 200,
        study=study,
        mine=mine,
        people=people,
        ended=sum(p.ended for p in people),
        tries=sum(len(p.tries) for p in people),
        pages=list(results.pages(study.job)) if mine else [],
        wrong=[wrong] if wrong else [],
        once=secrets.token_urlsafe(16),
        typed={"months": "", "background": ""} | typed,
    )


@router.post("/join")
def join(request: Request, here: Visiting, study: Studied, posted: Form) -> Response:
    wait_for(here, "sign-up", request.client.host if request.client else "")
    months, background = text(posted, "months").strip(), text(posted, "background").strip()
    try:
        who = joined.join(
            here.desk.book, study.job.id, study.folder, _number(months), background, once=text(posted, "once")
        )
    except AssayError as e:
        return _welcome(request, here, study, str(e), months=months, background=background)
    return RedirectResponse(f"{study.address}/people/{who.id}", 303)


def _number(typed: str) -> float:
    try:
        return float(typed)
    except ValueError:
        raise AssayError(f"Months of experience: {typed[:40]!r} is no number; give 0 where you have none.") from None


# Tuning.


@router.get("/people/{who}")
def tune(request: Request, here: Visiting, study: Studied, tuner: Tuning) -> Response:
    return _tune(request, here, study, tuner)


def _tune(
    request: Request,
    here: Visit,
    study: Study,
    tuner: Participant,
    wrong: str = "",
    typed: Mapping[str, str] | None = None,
) -> Response:
    last = dict(tuner.tries[-1].configuration) if tuner.tries else {}
    begin = {k.name: last.get(k.name, "" if k.default is None else k.default) for k in KNOBS}
    return render(
        request,
        here,
        "tuning.html",
        422 if wrong else 200,
        study=study,
        tuner=tuner,
        base=f"{study.address}/people/{tuner.id}",
        knobs=KNOBS,
        everything=OPTIMISERS,
        most_epochs=study.folder.study.most_epochs,
        reasons=REASONS,
        values=begin | dict(typed or {}),
        given=typed or {},
        wrong=[wrong] if wrong else [],
        **state(study, tuner),
    )


def state(study: Study, tuner: Participant) -> dict[str, Any]:
    """What changes while somebody looks. Test accuracies are in it once the end has been reached, and never before."""
    left = study.folder.left(tuner, time.time())
    running = next((t for t in tuner.tries if t.state == "running"), None)
    live = study.folder.read_live(tuner.id, running.number) if running else {}
    best = tuner.best()
    return {
        "left": max(0, int(left)),
        "over": left <= 0,
        "running": running,
        "losses": drawing(live.get("batches"), live.get("epochs")),
        "epochs_done": len(live.get("epochs") or ()),
        "best": best.number if best else None,
        "may_try": running is None and left > 0 and tuner.final is None,
        "may_end": running is None and best is not None and tuner.final is None,
        "seeds": len(study.folder.study.seeds),
        "test": sum(tuner.test) / len(tuner.test) if tuner.ended else None,
    }


@router.get("/people/{who}/events")
def follow(request: Request, here: Visiting, study: Studied, tuner: Tuning) -> Response:
    base = f"{study.address}/people/{tuner.id}"

    def look() -> Iterator[News]:
        now = study.folder.participant(tuner.id)
        told = state(study, now)
        yield Part("state", fragment("tuning_state.html", here=here, study=study, tuner=now, base=base, **told))
        if now.ended:
            yield End()

    return stream(request, look)


@router.post("/people/{who}/try")
def take(request: Request, here: Visiting, study: Studied, tuner: Tuning, posted: Form) -> Response:
    typed = {k.name: text(posted, k.name).strip() for k in KNOBS}
    why = {k.name: text(posted, f"why-{k.name}") for k in KNOBS}
    try:
        one = study.folder.submit(tuner.id, typed, why, now=time.time())
    except AssayError as e:
        return _tune(request, here, study, tuner, str(e), typed | {f"why-{name}": code for name, code in why.items()})
    try:
        _begin(here, study, tuner.id, "try", one.number, f"Try {one.number}")
    except AssayError:  # no room in the queue: what was not taken in is no try that anybody waits for
        study.folder.cancel(tuner.id, one.number)
        study.folder.close(tuner.id, one.number)
        raise
    return RedirectResponse(f"{study.address}/people/{tuner.id}", 303)


@router.post("/people/{who}/cancel")
def cancel(here: Visiting, study: Studied, tuner: Tuning, posted: Form) -> Response:
    running = next((t for t in tuner.tries if t.state == "running"), None)
    if running is not None:
        study.folder.cancel(tuner.id, running.number)
        job = here.desk.book.job(study.folder.job_of(tuner.id, running.number))
        if job is None or job.has_ended:  # nobody trains it any more
            study.folder.close(tuner.id, running.number)
    return RedirectResponse(f"{study.address}/people/{tuner.id}", 303)


@router.post("/people/{who}/finish")
def finish(request: Request, here: Visiting, study: Studied, tuner: Tuning, posted: Form) -> Response:
    number = text(posted, "try")
    try:
        if not number.isascii() or not number.isdigit() or len(number) > 4:
            raise AssayError("Choose the try that is your final one.")
        study.folder.name_final(tuner.id, int(number))
    except AssayError as e:
        return _tune(request, here, study, tuner, str(e))
    job = here.desk.book.job(study.folder.job_of(tuner.id, 0))
    if job is None or (job.has_ended and not tuner.ended):
        _begin(here, study, tuner.id, "finish", int(number), "A final configuration", note=0)
    return RedirectResponse(f"{study.address}/people/{tuner.id}", 303)


@router.post("/analyse")
def analyse(here: Visiting, study: Studied, posted: Form) -> Response:
    if not here.sees(study.job):
        raise HTTPException(404, "There is no such study.")
    wait_for(here, "submit")
    job = here.desk.book.submit(
        study.job.owner, "tuning", f"Analysis of {study.job.title}", {"study": study.job.id, "do": "analyse"}
    )
    return RedirectResponse(f"/jobs/{job.id}", 303)


def _begin(here: Visit, study: Study, who: str, do: str, number: int, title: str, note: int | None = None) -> None:
    """Queue what trains; the job is the study's owner's, whoever takes part."""
    settings = {"study": study.job.id, "do": do, "participant": who, "number": number}
    job = here.desk.book.submit(study.job.owner, "tuning", f"{title}, {study.job.title}", settings)
    study.folder.note_job(who, number if note is None else note, job.id)


def drawing(batches: Any, epochs: Any) -> dict[str, Any] | None:
    """Losses by step as points of a line, and by epoch, for a drawing of WIDE by HIGH; None before there are two."""
    try:
        steps = [(int(step), float(loss)) for step, loss in batches or ()]
        means = [float(loss) for loss in epochs or ()]
    except (TypeError, ValueError):
        return None
    if len(steps) < 2:
        return None
    last, top = steps[-1][0], max(loss for _, loss in steps) or 1.0

    def points(some: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{WIDE * x / last:.1f},{HIGH - HIGH * min(y, top) / top:.1f}" for x, y in some)

    return {
        "wide": WIDE, "high": HIGH, "top": top, "last": last, "now": steps[-1][1], "batches": points(steps),
        "epoch": means[-1] if means else None,
    }  # fmt: skip
