"""Who joined a study, and by which form: a form is one participant, however often it is sent."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import sqlalchemy as sa

from assay.errors import AssayError
from assay.server.tables import ID, JOINED

if TYPE_CHECKING:
    from assay.methods.study.people import Participant
    from assay.server.book import Book
    from assay.store.studies import StudyFolder

MOST_PEOPLE = 1000


def join(book: Book, study: str, folder: StudyFolder, months: float, background: str, *, once: str = "") -> Participant:
    """A new participant of the study that this job made, or the one that this form was before, if it said the same.

    `once` is the word of the form. One sign-up of a study is written at a time, whichever process has it.
    """
    made = None
    try:
        with book.writing() as c:
            book.alone_of(c, study)
            known = _known(c, study, folder, once)
            if known is not None and (known.months, known.background) == (months, background):
                return known
            if len(list((folder.path / "people").glob("*"))) >= MOST_PEOPLE:
                raise AssayError(f"{MOST_PEOPLE} people take part already; this study is full.")
            made = folder.join(months, background, now=time.time())
            if ID.fullmatch(once):
                c.execute(sa.delete(JOINED).where(JOINED.c.study == study, JOINED.c.once == once))
                c.execute(sa.insert(JOINED).values(study=study, once=once, participant=made.id))
    except BaseException:
        if made is not None:  # whoever is told that it failed sends it again
            shutil.rmtree(folder.path / "people" / made.id, ignore_errors=True)
        raise
    return made


def _known(c: sa.Connection, study: str, folder: StudyFolder, once: str) -> Participant | None:
    """Whom this form made before."""
    if not ID.fullmatch(once):
        return None
    id = c.scalar(sa.select(JOINED.c.participant).where(JOINED.c.study == study, JOINED.c.once == once))
    return folder.participant(id) if id is not None and (folder.path / "people" / id).is_dir() else None
