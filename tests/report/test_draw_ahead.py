"""What is drawn while the next question is asked is not drawn again, and what cannot be drawn waits for the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import assay
from assay.report import Kept, draw_ahead, write
from assay.report import page as pages
from assay.report.figures import draw

if TYPE_CHECKING:
    from pathlib import Path

    from assay.subject import Subject


def test_what_is_drawn_ahead_is_not_drawn_again(
    digits: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = assay.audit(digits, probes=["accuracy", "confidence"], inputs=40, out=tmp_path)
    assert done.folder is not None
    before = (done.folder / "report.html").read_text()
    drawn: list[str] = []

    def counted(view: Any, key: str) -> str:
        drawn.append(view.name)
        return draw(view, key)

    monkeypatch.setattr(pages, "draw", counted)
    kept: Kept = {}
    draw_ahead(done.rows[:1], done.folder, kept)
    first = list(drawn)
    assert first
    write(done, done.folder, kept)
    assert len(drawn) > len(first)
    assert not set(first) & set(drawn[len(first) :])  # of the first question nothing anew
    assert (done.folder / "report.html").read_text() == before


def test_what_cannot_be_drawn_stops_nobody_before_the_end(
    digits: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = assay.audit(digits, probes=["accuracy"], inputs=40, out=tmp_path)
    assert done.folder is not None

    def broken(view: object, key: str) -> str:
        raise ValueError("no ink")

    monkeypatch.setattr(pages, "draw", broken)
    kept: Kept = {}
    draw_ahead(done.rows, done.folder, kept)
    assert not kept
    with pytest.raises(ValueError, match="no ink"):
        write(done, done.folder, kept)
