"""An audit as text: what `print(audit)` gives, which is what the command line prints."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.audit import open_audit
from assay.finding import Alarm, Finding, Measure
from assay.report import words
from assay.report.terminal import Row, alarms, rows
from assay.standard import Standard, judge

if TYPE_CHECKING:
    from types import SimpleNamespace

    from conftest import Command

    from assay.audit import Audit

RIGHT = Measure(name="accuracy", value=0.9, low=0.85, high=0.94, n=500, better="higher", unit="%")
ERROR = Measure(name="error", value=0.02, low=0.01, high=0.03, n=500, better="lower")


def plain(row: Row) -> Row:
    return Row(*(cell.replace(words.NBSP, " ") for cell in row))


@pytest.fixture
def audit(build: SimpleNamespace) -> Audit:
    found = Finding(says="s", measures=(RIGHT, ERROR), alarms=(Alarm("few inputs"),))
    limited = build.unanswered("pairs", "?", "does not apply", "it is for pairs")
    limit = Standard(at_least=0.5)
    judged = dataclasses.replace(judge(limit, found), verdict="cannot tell", why="it was not asked")
    made: Audit = build.audit(
        dataclasses.replace(limited, judgements=(judged,)),
        build.answered("both", "?", found, Standard(at_least=0.8), Standard(measure="error", at_most=0.005)),
        build.answered("free", "?", Finding(says="s", measures=(ERROR,))),
        build.unanswered("broke", "?", "failed", "it broke"),
        alarms=(Alarm("the answer depends on the batch"),),
    )
    return made


def test_each_limit_has_a_row_and_what_does_not_apply_comes_last(audit: Audit) -> None:
    assert [plain(row) for row in rows(audit)] == [
        Row("pass", "both", "accuracy 90.0 % (85.0 to 94.0 %)", "at least 80 %"),
        Row("fail", "both", "error 0.020 (0.010 to 0.030)", "at most 0.005"),
        Row("no standard", "free", "error 0.020 (0.010 to 0.030)", ""),
        Row("error", "broke", "it broke", ""),
        Row("cannot tell", "pairs", "it is for pairs", "at least 0.5"),
    ]
    assert alarms(audit) == ["alarm: the answer depends on the batch", "alarm: both: few inputs"]


def test_printed_it_is_a_plain_table_with_the_alarms_below(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    lines = str(audit).splitlines()
    assert lines[0].split() == ["verdict", "question", "measured", "limit"]
    assert re.fullmatch(r" *pass +both +accuracy 90.0 % \(85.0 to 94.0 %\) +at least 80 %", lines[2])
    assert len(lines) == 2 + len(rows(audit)) + 2
    assert lines[-2:] == alarms(audit)
    assert "\x1b" not in str(audit)
    assert f"{audit!r}".startswith("Audit(")


def test_it_is_no_wider_than_the_terminal_and_in_a_log_160(
    build: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.get_terminal_size", lambda *of: (_ for _ in ()).throw(OSError("no terminal")))
    long = build.audit(build.unanswered("broke", "?", "failed", "word " * 60))
    for columns, widest in (("60", 60), ("", 160)):
        monkeypatch.setenv("COLUMNS", columns)
        lengths = [len(line) for line in str(long).splitlines()]
        assert widest - 10 < max(lengths) <= widest
    assert str(long).count("word") == 60


def test_no_text_steers_the_terminal_or_is_read_as_markup(build: SimpleNamespace) -> None:
    told = str(
        build.audit(
            build.unanswered("[red]x[/red]", "?", "failed", build.hostile), alarms=(Alarm(f"[/] {build.hostile}"),)
        )
    )
    assert "[red]x[/red]" in told
    assert "alarm: [/] </title>" in told
    assert not re.search("[\x00\x1b\u202e\u2066\u200f]", told)


def test_it_is_what_the_command_line_prints_and_needs_no_torch(assay: Command, undrawn: None) -> None:
    ended = assay("audit", "digits-mlp", "--probe", "accuracy", "--probe", "how-far-to-a-tie")
    folder = Path(ended.last).parent
    told = str(open_audit(folder)).splitlines()
    assert [line for line in (line.rstrip() for line in ended.out.splitlines()) if line] == [*told, ended.last]
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom pathlib import Path\nfrom assay.audit import open_audit\n"
        f"print(open_audit(Path({str(folder)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == told
