"""The tutorial is run, block by block, in one folder; generated pages are what the registries would write today."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

from assay import shelf
from assay.claims import fuhl2021
from assay.cli import app
from assay.cli.guard import InChild
from assay.report.figures import draw
from assay.run import BUDGETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Command

    from assay.finding import View

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```", re.M | re.S)


def test_the_first_page_names_every_question() -> None:
    told = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in shelf.ours("probes") if f"`{name}`" not in told] == []


def _run(command: list[str], folder: Path, env: dict[str, str], good: set[int]) -> None:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode in good, f"{command[-1]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


def test_every_block_of_the_tutorial_runs(
    tmp_path: Path, assay: Command, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """One test, because it takes minutes and what it leaves behind is looked at once.

    Each kind of line and of block has a process of its own once; the others run in this one, which has loaded torch,
    at a fraction of the quick budget and of the claim's steps. Figures are drawn for the first line, the audit that
    asks all, one of each kind to a question, and in the process of its own.
    """
    monkeypatch.setattr("assay.report.page.draw", _first_of_its_kind())
    monkeypatch.setitem(BUDGETS, "quick", replace(BUDGETS["quick"], samples=60, steps=3, dear=20))
    monkeypatch.setattr(fuhl2021, "STEPS", 30)
    monkeypatch.syspath_prepend(str(tmp_path))
    shims = tmp_path / "bin"
    shims.mkdir()
    code = "from assay.cli import main; main()"
    (shims / "assay").write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '{code}' \"$@\"\n")
    (shims / "assay").chmod(0o755)
    path = os.pathsep.join([str(shims), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    typed = tested = pasted = 0
    for kind, file, body in BLOCK.findall((ROOT / "docs/tutorial.md").read_text()):
        if file:
            (tmp_path / file).write_text(body)
        elif kind == "python" and "calibration_error" not in body:
            exec(compile(body, "docs/tutorial.md", "exec"), {"__name__": "__main__"})
            sys.modules.pop("subject", None)  # each block imports it afresh, and no other test finds it
        elif kind == "python":
            pasted += 1
            _run([sys.executable, "-c", body], tmp_path, env, {0})
        elif kind == "console":
            for line in body.splitlines():
                assert line.startswith("$ "), line
                if line.startswith("$ assay ") and ".pt2" not in line:
                    words = shlex.split(line[2:])[1:]
                    ended = assay(*(at for word in words for at in sorted(glob(word, root_dir=tmp_path)) or [word]))
                    assert ended.status in {0, 1, 3}, f"{line} ended with {ended.status}\n{ended.out}\n{ended.err}"
                    assert "Traceback" not in ended.err
                    request.getfixturevalue("undrawn")
                elif line.startswith("$ python -m pytest "):
                    tested += 1
                    assert pytest.main(shlex.split(line)[4:]) == 0
                    sys.modules.pop("subject", None)
                else:
                    typed += 1
                    _run(["sh", "-c", line[2:]], tmp_path, env, {0, 1, 3})
    assert (typed, tested, pasted) == (1, 1, 1)
    assert (tmp_path / "model.pt2").exists()
    assert len(list(tmp_path.glob("runs/*/report.html"))) >= 3
    assert list(tmp_path.glob("runs/**/cure.html"))
    assert list(tmp_path.glob("runs/ship-*/*.onnx"))
    assert list(tmp_path.glob("runs/**/explanation.html"))
    assert list(tmp_path.glob("claims/ledger/*.json"))
    run, asked = _the_bundled_report_is_whole_and_small(tmp_path)
    before = {name: (run / "findings" / f"{name}.json").stat().st_mtime_ns for name in asked}
    assert assay("audit", "digits-mlp", "--budget", "quick").status in {0, 1, 3}  # nothing is asked again
    assert {name: (run / "findings" / f"{name}.json").stat().st_mtime_ns for name in asked} == before


def _first_of_its_kind() -> Callable[[View, str], str]:
    """Draws a figure; another of the same question and kind is as large as the largest was that an audit drew."""
    seen: set[tuple[str, type]] = set()

    def once(view: View, key: str) -> str:
        like = key.rpartition("/")[0], type(view)
        if like in seen:
            return f"<svg><!-- {view.name:<33000} --></svg>"
        seen.add(like)
        return draw(view, key)

    return once


def _the_bundled_report_is_whole_and_small(folder: Path) -> tuple[Path, set[str]]:
    stored = {p: json.loads((p / "audit.json").read_text()) for p in folder.glob("runs/*-digits-mlp")}
    run = max(stored, key=lambda p: len(stored[p]["rows"]))
    rows = {row["probe"]: row for row in stored[run]["rows"]}
    asked = {name for name, row in rows.items() if row["status"] == "asked"}
    assert asked >= {"accuracy", "confidence", "worst-case-accuracy", "everyday-change", "certified-radius"}
    others = (
        "it takes long", "of two inputs", "convolution", "numbers", "needs texts", "an environment",
        "search of a gallery", "a domain beside train and test", "the cue of each input",
        "the people behind the test inputs", "which class is let in", "was made from", "answer an image with an image",
    )  # fmt: skip
    assert all(any(why in rows[name]["why"] for why in others) for name in set(rows) - asked)
    assert rows["accuracy"]["measures"][0]["value"] > 0.9
    assert (run / "report.html").stat().st_size < 3_000_000
    assert {p.stem for p in (run / "witnesses").iterdir()} >= {"accuracy", "worst-case-accuracy", "everyday-change"}
    return run, asked


def test_generated_pages_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_docs.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "tools/make_docs.py"), run_name="__main__")
    assert ended.value.code == 0


def test_security_names_each_command_that_opens_models_in_the_child() -> None:
    told = (ROOT / "SECURITY.md").read_text().partition("**The verdict.**")[2].partition("Tests:")[0]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    whole = {name for name, command in commands.items() if isinstance(command, InChild)}
    assert {"ship", "diff"} < whole
    assert not {name for name in whole if f"`{name}`" not in told}


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"
