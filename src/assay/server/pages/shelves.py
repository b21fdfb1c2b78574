"""What comes with Assay: models to try it on, questions, remedies."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.responses import HTMLResponse

from assay import shelf
from assay.server.views import fragment, render
from assay.server.visit import Visiting

router = APIRouter()
SHELVES = {
    "subjects": ("Subjects", "Models with their data that come with Assay, to try it out on, and their domains."),
    "questions": ("Questions", "What is asked of a model, by theme."),
    "remedies": ("Remedies", "What can be done about a model that fails."),
}


@router.get("/subjects")
@router.get("/questions")
@router.get("/remedies")
def shelves(request: Request, here: Visiting) -> Response:
    name = request.url.path.strip("/")
    title, about = SHELVES[name]
    ready = here.desk.children.ready("shelves", ".json")
    listed = _listed(here, name) if ready else ""
    return render(request, here, "shelf.html", name=name, title=title, about=about, listed=listed, shelves=SHELVES)


@router.get("/shelf/{name}")
def listed(here: Visiting, name: str) -> Response:
    """The list, once it is read: the first time that takes some seconds."""
    if name not in SHELVES:
        raise HTTPException(404, "There is no such shelf.")
    return HTMLResponse(_listed(here, name))


def _listed(here: Visiting, name: str) -> str:
    found = here.desk.children.shelves()
    return fragment("shelf_list.html", here=here, name=name, found=found)


@router.get("/subjects/{name}")
def subject(request: Request, here: Visiting, name: str) -> Response:
    if name not in shelf.names("subjects"):
        raise HTTPException(404, "No subject of that name comes with Assay.")
    known = here.desk.children.shelves() if here.desk.children.ready("shelves", ".json") else {"subjects": []}
    told = next((each for each in known["subjects"] if each["name"] == name), {"says": "", "source": ""})
    return render(request, here, "subject.html", name=name, told=told)
