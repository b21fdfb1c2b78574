"""A new job: a form made of its kind's fields, files that are dropped into it, and what was understood of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.datastructures import FormData, UploadFile
from starlette.responses import HTMLResponse, RedirectResponse

from assay import shelf
from assay.errors import AssayError
from assay.server import kinds
from assay.server.children import Understood
from assay.server.errors import Full, Refused
from assay.server.kinds import Field, Kind
from assay.server.kinds._opening import KNOBS, SUBJECT, opening_words, option, subject_words
from assay.server.pages.job import wait_for, words
from assay.server.uploads import Upload, Uploads, safe_name, same, seen
from assay.server.views import fragment, render, told
from assay.server.visit import Form, Using, Visit, Visiting, job_seen, text, texts

if TYPE_CHECKING:
    from pathlib import Path

router = APIRouter()
FIRST = ("audit", "translate", "cure", "explain", "rank", "claims", "study")
"""The order of the tabs; kinds that nobody thought of here come after."""
SAMPLES = {
    "fashion-cnn": "pictures of clothes",
    "hiring-mlp": "rows about people",
    "topics-text": "texts by topic",
    "scenes-segmenter": "a mask over each picture",
    "rotated-digits": "digits turned, as domains",
    "seasons-forecaster": "how a series goes on",
}
"""One click each, in a few words."""
CELLS = {"kind": "translate", "title": "cells", "epochs": "10"}
"""Sample pairs for the translator, made by code; a short training, to see what comes out."""
LONGEST_TITLE, LONGEST_REASON = 120, 500
LOOKED_AT = {"budget", *(each.name for each in (*SUBJECT, *KNOBS))}
"""What changes what is understood."""
MOST_STEPS = 500  # of a slider whose steps nobody has named
RADIOS = 5  # choices that are all shown; of more one is picked from a list


@dataclass(frozen=True)
class Shown:
    """A field with what stands in it now."""

    field: Field
    value: Any
    files: tuple[Upload, ...] = ()
    refused: str = ""
    """Why what was dropped there last is not kept: the form is not sent as if nothing had been dropped."""
    wrong: str = ""
    """What is wrong with what is kept."""

    @property
    def options(self) -> tuple[str, ...]:
        return self.field.options()

    @property
    def text(self) -> str:
        return "" if self.value is None else words(self.value)

    @property
    def widget(self) -> str:
        match self.field.type:
            case "choice":
                return "radios" if len(self.options) <= RADIOS else "list"
            case "several":
                return "boxes" if self.options else "lines"
            case "file" | "files":
                return "drop"
            case "whole" | "number":
                return "slider" if self.step else "number"
            case "yes":
                return "box"
            case _:
                return self.field.name if self.field.name in ("subject", "budget") else "text"

    @property
    def step(self) -> float | None:
        """Of a slider; None where there is too much, or no end, to slide over."""
        low, high = self.field.low, self.field.high
        if low is None or high is None:
            return None
        return self.field.step or (1 if self.field.type == "whole" and high - low <= MOST_STEPS else None)

    @property
    def quiet(self) -> bool:
        """Whether nothing is understood otherwise when it changes."""
        return self.field.name not in LOOKED_AT


@router.get("/")
def first(request: Request, here: Visiting) -> Response:
    if not here.user.may("user"):
        return render(request, here, "welcome.html")
    return filled(request, here, "audit", {}, start=True)


@router.get("/new/{kind}")
def new(request: Request, here: Using, kind: str) -> Response:
    _known(kind)
    given = dict(request.query_params)
    if "from" in given:
        old = job_seen(given["from"], here)
        return filled(request, here, kind, old.settings if old.kind == kind else {}, title=old.title, old=old.id)
    settings, _ = kinds.load(kind).read(given)
    return filled(request, here, kind, settings)


def filled(
    request: Request,
    here: Visit,
    name: str,
    settings: Mapping[str, Any],
    *,
    draft: str = "",
    title: str = "",
    wrong: Sequence[str] = (),
    status: int = 200,
    start: bool = False,
    old: str = "",
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """The form with these values in it, and what is wrong with them; with the files of the job `old`, until its own
    are there."""
    kind = kinds.load(name)
    files = here.desk.uploads.files(here.owner, draft) if draft else {}
    if old and not draft:
        files = {path.name: seen(path) for path in _files_of(here, old)}
    shown = [_shown(each, settings, files, refused.get(each.name, "")) for each in kind.fields]
    listed = [name for name in kinds.names() if kinds.load(name).listed]
    tabs = sorted(listed, key=lambda k: (FIRST.index(k) if k in FIRST else len(FIRST), k))
    return render(
        request,
        here,
        "submit.html",
        status,
        kind=kind,
        kind_name=name,
        tabs=[(each, kinds.load(each).title) for each in tabs],
        open=[each for each in shown if not each.field.folded],
        folded=[each for each in shown if each.field.folded],
        changed=any(each.field.folded and each.field.name in settings for each in shown),
        draft=draft or Uploads.new(),
        title=title,
        wrong=wrong,
        start=start,
        old=old,
        samples=samples() if start else [],
        subjects=shelf.names("subjects"),
        hints=hints(here),
        looks=can_look(kind),
    )


def _files_of(here: Visit, old: str) -> list[Path]:
    folder = job_seen(old, here).folder / "files"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _begun(here: Visit, draft: str, posted: FormData) -> None:
    """What was posted begins with the files of an earlier job: from now on they are this form's too."""
    old = text(posted, "from")
    if old and here.desk.uploads.folder(here.owner, draft) is None:
        for path in _files_of(here, old):
            here.desk.uploads.adopt(here.owner, draft, path)


def samples() -> list[tuple[str, str, dict[str, str]]]:
    """Name, a few words, and what the form posts."""
    audits = {name: {"kind": "audit", "subject": name, "budget": "quick"} for name in SAMPLES}
    found = [(name, says, audits[name]) for name, says in SAMPLES.items() if name in shelf.ours("subjects")]
    cells = [("cells", "pairs to train a translator on", CELLS)] if CELLS["kind"] in kinds.names() else []
    return found + cells


def hints(here: Visit) -> dict[str, str]:
    """What questions and remedies say of themselves, where the shelves were read already."""
    if not here.desk.children.ready("shelves", ".json"):
        return {}
    found = here.desk.children.shelves()
    return {each["name"]: each["says"] for each in (*found["probes"], *found["remedies"])}


def _shown(field: Field, settings: Mapping[str, Any], files: Mapping[str, Upload], refused: str) -> Shown:
    value = settings.get(field.name, field.default)
    there = value if isinstance(value, list) else [value]
    held = tuple(files[name] for name in there if isinstance(name, str) and name in files)
    return Shown(field, value, held, refused)


def _known(kind: str) -> None:
    if kind not in kinds.names() or not kinds.load(kind).listed:
        raise HTTPException(404, f"There is no kind of job {kind[:40]!r}.")


@router.post("/jobs")
def submit(request: Request, here: Using, posted: Form) -> Response:
    name, draft = text(posted, "kind"), text(posted, "draft") or Uploads.new()
    _known(name)
    wait_for(here, "submit")
    kind = kinds.load(name)
    try:
        _begun(here, draft, posted)
        values = taken(here, kind, draft, posted)
        settings, wrong = kind.read(values)
    except AssayError as e:
        settings, wrong = kind.read(_typed(kind, posted))[0], [str(e)]
    refused = _refused(kind, posted)
    wrong = wrong or list(refused.values())
    title = " ".join(text(posted, "title").split())[:LONGEST_TITLE]
    files = _wanted(kind, settings, here.desk.uploads.files(here.owner, draft))
    known = here.desk.book.sent(here.owner, draft, name, settings)
    if known is not None and all(same(path, known.folder / "files" / each) for each, path in files.items()):
        here.desk.uploads.forget(here.owner, draft)
        return RedirectResponse(f"/jobs/{known.id}", 303)  # it was sent twice
    once = draft if known is None else ""
    wrong = wrong or kind.check(settings, files)
    status = 422
    if not wrong:
        try:
            job = here.desk.book.submit(here.owner, name, title or called(name, settings), settings, files, once=once)
        except Full as e:
            wrong, status = [str(e)], 507
        except Refused as e:
            wrong = [str(e)]
        else:
            here.desk.uploads.forget(here.owner, draft)
            return RedirectResponse(f"/jobs/{job.id}", 303)
    return filled(
        request, here, name, settings, draft=draft, title=title, wrong=wrong, status=status, old=text(posted, "from"),
        refused=refused,
    )  # fmt: skip


def _refused(kind: Kind, posted: FormData) -> dict[str, str]:
    """Why the last file of a field is not kept, where nothing came in its place."""
    asked = [each.name for each in kind.fields if each.type in ("file", "files") and not sent_files(posted, each.name)]
    return {name: why for name in asked if (why := text(posted, f"refused-{name}")[:LONGEST_REASON])}


def called(kind: str, settings: Mapping[str, Any]) -> str:
    """A name for a job that was given none: what it is about."""
    about = next((settings[name] for name in ("model", "subject", "data", "claim") if settings.get(name)), "")
    return f"{words(about)}" if about else kind


def _typed(kind: Kind, posted: FormData) -> dict[str, list[str]]:
    """What is text in the form, by field; what is empty counts as nothing, and a list without choices has lines."""
    found: dict[str, list[str]] = {}
    for each in kind.fields:
        if each.name in posted:
            values = texts(posted, each.name)
            if each.type == "several" and not each.choices:
                values = [line.strip() for value in values for line in value.splitlines()]
            found[each.name] = [value for value in values if value.strip()]
    return found


def taken(here: Visit, kind: Kind, draft: str, posted: FormData) -> dict[str, list[str]]:
    """What the form holds, with the names of files that came along with it, as they are kept."""
    values = _typed(kind, posted)
    for each in kind.fields:
        if each.type in ("file", "files"):
            came = [_keep(here, draft, each, sent) for sent in sent_files(posted, each.name)]
            values[each.name] = [*values.get(each.name, []), *(upload.name for upload in came)]
    return values


def sent_files(posted: FormData, name: str) -> list[UploadFile]:
    """Of a field that was left empty a browser sends a file without a name."""
    return [one for one in posted.getlist(name) if isinstance(one, UploadFile) and one.filename]


def _keep(here: Visit, draft: str, field: Field, sent: UploadFile) -> Upload:
    code = here.desk.accounts is None or here.user.may("operator")
    book, uploads = here.desk.book, here.desk.uploads
    room = book.quota.disk - book.bytes_of(here.owner) - uploads.waiting(here.owner)
    kept = uploads.take(here.owner, draft, sent.filename or "", sent.file, code=code, room=room)
    try:
        field.refuse(kept.path, safe_name(sent.filename or ""))
    except AssayError:
        uploads.drop(here.owner, draft, kept.name)
        raise
    return kept


def _wanted(kind: Kind, settings: Mapping[str, Any], files: Mapping[str, Upload]) -> dict[str, Path]:
    """Of the files that wait, those that a setting names."""
    named: list[Any] = []
    for each in kind.fields:
        if each.type in ("file", "files"):
            value = settings.get(each.name)
            named += value if isinstance(value, list) else [value]
    return {name: files[name].path for name in named if name in files}


# Files, as they are dropped.


@router.post("/drafts/{draft}/{kind}/{name}")
def drop(here: Using, draft: str, kind: str, name: str, posted: Form) -> Response:
    """Keep what was dropped on a field, or take it away again; answers with the field's list of files."""
    _known(kind)
    field = next((each for each in kinds.load(kind).fields if each.name == name), None)
    if field is None or field.type not in ("file", "files"):
        raise HTTPException(404, "This form takes no files there.")
    wrong = refused = ""
    _begun(here, draft, posted)
    kept = texts(posted, name)
    gone = text(posted, "drop")
    if gone:
        here.desk.uploads.drop(here.owner, draft, gone)
    sent = sent_files(posted, name)
    try:
        if sent and field.type == "file":  # another in its place
            for old in kept:
                here.desk.uploads.drop(here.owner, draft, old)
            kept, sent = [], sent[-1:]
        kept += [_keep(here, draft, field, one).name for one in sent]
        fits = field.wrong(kept if field.type == "files" else (kept[-1] if kept else None), kept)
        wrong = f"{field.label}: {fits}." if kept and fits else ""
    except AssayError as e:
        refused = str(e)
    there = here.desk.uploads.files(here.owner, draft)
    files = tuple(there[each] for each in dict.fromkeys(kept) if each in there)
    page = fragment(
        "field_files.html", shown=Shown(field, None, files, refused, wrong), draft=draft, kind_name=kind
    )  # fmt: skip
    return HTMLResponse(page, headers={} if wrong else {"hx-trigger-after-settle": "files"})


# What was understood.


@router.post("/understood/{kind}")
def understood(here: Using, kind: str, posted: Form) -> Response:
    """As `assay check` says it."""
    _known(kind)
    wait_for(here, "check")
    chosen, draft = kinds.load(kind), text(posted, "draft")
    _begun(here, draft, posted)
    settings, wrong = chosen.read(_typed(chosen, posted))
    files = here.desk.uploads.files(here.owner, draft)
    wrong = wrong or list(_refused(chosen, posted).values())
    wrong = wrong or chosen.check(settings, _wanted(chosen, settings, files))
    if wrong:
        return HTMLResponse(told(wrong[0]))
    folder = here.desk.uploads.folder(here.owner, draft) or here.desk.uploads.root
    found = look(here, chosen, settings, folder, kept=not files)
    return HTMLResponse(fragment("understood.html", found=found))


def can_look(kind: Kind) -> bool:
    return {"model", "subject"} <= {each.name for each in kind.fields}


def look(here: Visit, kind: Kind, settings: Mapping[str, Any], folder: Path, *, kept: bool) -> Understood:
    """What is understood; of what comes with Assay it is asked once, as it stays the same."""
    whole = kind.whole(settings)
    words = (subject_words(whole, folder), *opening_words(whole, folder), *option("budget", whole.get("budget")))
    if kept and words in _UNDERSTOOD:
        return _UNDERSTOOD[words]
    found = here.desk.children.understood(words, folder)
    if kept and not found.wrong:
        _UNDERSTOOD[words] = found
    return found


_UNDERSTOOD: dict[tuple[str, ...], Understood] = {}
