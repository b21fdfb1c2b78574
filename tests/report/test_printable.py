"""Names from strangers' files reach no page, file or terminal with marks that steer, turn or hide text."""

from __future__ import annotations

import unicodedata

import pytest

from assay.jobs.compare import compare, page
from assay.report.card import card
from assay.report.diff import diff_text
from assay.report.junit import junit
from assay.report.page import render
from assay.report.words import printable

MARKS = (
    "\x00\x07\x08\r\x1b\x7f\x9b\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2028\u202a\u202e\u2066\u2069\ufeff\U000e0041"
)


def test_marks_are_shown_and_letters_stay():
    assert printable(MARKS) == "\ufffd" * len(MARKS)
    plain = "naïve Größe Ω 数字 שלום مرحبا 🙂 tab\tline\nend"
    assert printable(plain) == plain


def test_no_format_character_is_left():
    """Cf is Unicode's own list of characters that are not seen themselves; those of some scripts belong to letters."""
    visible = {"Arabic", "Syriac", "Kaithi", "Egyptian", "Shorthand", "Musical"}
    left = [
        name
        for code in range(0x110000)
        if unicodedata.category(chr(code)) == "Cf" and printable(chr(code)) == chr(code)
        for name in [unicodedata.name(chr(code), hex(code))]
        if not any(word.upper() in name for word in visible)
    ]
    assert left == []


@pytest.mark.parametrize("form", ["page", "comparison", "card", "junit", "terminal"])
def test_no_form_of_an_audit_carries_them(hostile, build, form):
    assert any(mark in build.hostile for mark in "\u202e\u2066\u200f")  # the audit's every text has them
    made = {
        "page": lambda: render(hostile),
        "comparison": lambda: page(hostile, hostile),
        "card": lambda: card(hostile),
        "junit": lambda: junit(hostile),
        "terminal": lambda: str(diff_text(compare(hostile, hostile))),
    }[form]()
    assert "\ufffd" in made or form == "terminal"
    assert not set(made) & set(MARKS)
