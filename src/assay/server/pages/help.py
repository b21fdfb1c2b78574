"""Help: what can be sent, what comes back, and what the words mean."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from assay.server import kinds
from assay.server.uploads import DATA, MODELS, PICTURES, in_bytes
from assay.server.views import render
from assay.server.visit import Visiting

router = APIRouter()


@router.get("/help")
def help(request: Request, here: Visiting) -> Response:
    return render(
        request,
        here,
        "help.html",
        kinds=[(name, kinds.load(name)) for name in kinds.names() if kinds.load(name).listed],
        models=MODELS,
        data=DATA,
        pictures=PICTURES,
        most=in_bytes(here.desk.uploads.most),
    )
