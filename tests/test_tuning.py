"""Tuning effort: told on the command line, kept with the audit, read beside the numbers, and no number hangs on it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.audit import open_audit
from assay.errors import AssayError
from assay.jobs.audit import audit
from assay.jobs.audit.job import Job
from assay.jobs.cure import cure
from assay.report.card import card
from assay.report.diff import cautions
from assay.report.page import render
from assay.server.kinds import load
from assay.subjects import Source
from assay.tuning import Tuning, unequal

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Command

    from assay.subject import Subject

TOLD = "tries=40,budget=2h,by=<b>optuna</b>,baseline=less"
WORDS = st.text(st.characters(exclude_characters=",", categories=("L", "N", "P", "S")), max_size=20)


@given(
    st.builds(
        lambda tries, budget, by, baseline: {"tries": tries, "budget": budget, "by": by, "baseline": baseline},
        st.none() | st.integers(1, 10**9), WORDS, WORDS, st.sampled_from(["", "equal", "less", "none"]),
    )
)  # fmt: skip
def test_what_is_typed_is_what_is_read(told: dict[str, object]) -> None:
    if not any(told.values()):
        with pytest.raises(AssayError, match="--tuned tells nothing"):
            Tuning(**told)  # type: ignore[arg-type]
        return
    tuning = Tuning(**told)  # type: ignore[arg-type]
    assert Tuning.read(tuning.typed) == tuning
    assert len(tuning.lines) == 4


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("", "--tuned '' is not one of tries=N"),
        ("tries=0", "tries=0 is no number of tries; give a whole number from 1"),
        ("tries=-1", "tries='-1' is no number"),
        ("tries=²", "tries='²' is no number"),
        ("tries=many", "tries='many' is no number"),
        ("tries=1,tries=2", "each once"),
        ("budget=", "'budget=' is not one of"),
        ("colour=red", "'colour=red' is not one of"),
        ("baseline=fair", "baseline='fair' is none; choose equal, less or none"),
        (f"by={'x' * 201}", "is not up to 200 letters"),
    ],
)
def test_what_cannot_be_read_is_one_line(typed: str, says: str) -> None:
    with pytest.raises(AssayError) as e:
        Tuning.read(typed)
    assert says in str(e.value)


def test_report_and_card_carry_it_and_the_numbers_do_not(digits: Subject, tmp_path: Path, undrawn: None) -> None:
    told = Tuning.read(TOLD)
    first = audit(digits, probes=["accuracy"], inputs=50, out=tmp_path, tuned=told)
    assert first.folder is not None
    stored = open_audit(first.folder)
    assert stored.tuned == told
    assert Tuning(**json.loads((first.folder / "audit.json").read_text())["tuned"]) == told
    page, text = (first.folder / "report.html").read_text(), (first.folder / "card.md").read_text()
    assert (page, text) == (render(stored), card(stored))  # what `assay verify` holds them against
    for part in ("Tuning effort", "The best of 40 tries looks better than it is", "tuned with less effort"):
        assert part in page
        assert part in text
    assert "40 tries, 2h, chosen by &lt;b&gt;optuna&lt;/b&gt;" in page  # beside the headline
    assert "<b>optuna" not in page + text
    again = audit(digits, probes=["accuracy"], inputs=50, out=tmp_path)  # nothing told: the same run, the same answer
    assert again.folder == first.folder
    assert again.rows[0].answer.when == first.rows[0].answer.when
    assert again.rows[0].answer.seconds == first.rows[0].answer.seconds  # not asked twice
    assert again.tuned is None
    assert "Tuning effort" not in render(again) + card(again)


def test_one_try_was_not_chosen_from_and_what_is_not_told_is_said() -> None:
    one = Tuning(tries=1)
    assert (one.says, "best of" in one.caution) == ("1 try", False)
    assert dict(one.lines)["Chosen by"] == "nobody has told"


def test_two_that_were_not_tuned_alike_are_compared_with_a_caution(digits: Subject) -> None:
    much, less = Tuning(tries=40), Tuning(tries=2)
    assert unequal(much, much) == unequal(None, None) == ""
    assert "after 40 tries; of the other nobody has told" in unequal(None, much)
    assert "before 2 tries; after 40 tries" in unequal(less, much)
    assert unequal(None, Tuning(tries=40, baseline="equal")) == ""
    plain = audit(digits, probes=["accuracy"], inputs=50)
    assert cautions(plain, dataclasses.replace(plain, tuned=much)) == (unequal(None, much),)


def test_a_cure_tells_it_of_what_came_after(digits: Subject, tmp_path: Path, undrawn: None) -> None:
    done = cure(
        "temperature",
        digits,
        probes=["accuracy"],
        inputs=50,
        out=tmp_path,
        tuned=Tuning(tries=9),
        control=False,
    )
    assert (done.before.tuned, done.after.tuned) == (None, Tuning(tries=9))
    page = done.page.read_text()
    assert "After: tuning effort" in page
    assert "The two were not tuned alike (after 9 tries; of the other nobody has told)" in page


def test_the_command_line_hands_it_to_the_child_and_back(assay: Command, tmp_path: Path) -> None:
    job = Job(source=Source("digits-mlp"), tuned=Tuning.read(TOLD))
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
    ended = assay(
        "audit", "digits-mlp", "--probe", "accuracy", "--inputs", "20", "--tuned", TOLD, "--out", str(tmp_path)
    )
    assert ended.status in (0, 1, 3), ended.err
    (run,) = tmp_path.iterdir()
    assert open_audit(run).tuned == Tuning.read(TOLD)
    wrong = assay("audit", "digits-mlp", "--tuned", "tries=none", "--out", str(tmp_path / "x"))
    assert "tries='none' is no number of tries" in wrong.err


def test_the_form_says_it_in_fields_of_its_own(tmp_path: Path) -> None:
    for name, least in (("audit", {}), ("cure", {"remedy": "arml"})):
        kind = load(name)
        words = kind.argv({**least, "tries": 40, "effort": "2h", "chosen_by": "optuna", "baseline": "equal"}, tmp_path)
        assert words[words.index("--tuned") + 1] == "tries=40,budget=2h,by=optuna,baseline=equal"
        assert "--tuned" not in kind.argv(least, tmp_path)
        assert all(field.folded for field in kind.fields if field.name in ("tries", "effort", "chosen_by", "baseline"))
        assert kind.check({**least, "chosen_by": "me, and you"}) == [
            "--tuned by='me, and you' is not up to 200 letters without a comma."
        ]
