"""The code behind an answer, found in the text of files and without running any."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from assay import code, shelf
from assay.engine.local import ThisProcess
from assay.probe import Probe
from assay.run import Run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def names(folder: Path, text: str, *others: str) -> set[str]:
    """The modules that count for one with this text; `others` are files that are there to be found."""
    for other in others:
        path = folder / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('this was run')")
    (folder / "root_of_code.py").write_text(text)
    return set(code.of_modules(["root_of_code"]).files) - {"root_of_code"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import one_of_code", {"one_of_code"}),
        ("import os, one_of_code as x, two_of_code", {"one_of_code", "two_of_code"}),
        ("from one_of_code import f", {"one_of_code"}),
        ("from one_of_code import(f)", {"one_of_code"}),
        ("from pack_of_code import (\n    inner,  # why\n    other,\n)", {"pack_of_code", "pack_of_code.inner"}),
        ("from pack_of_code import \\\n    inner", {"pack_of_code", "pack_of_code.inner"}),
        ("import pack_of_code.inner", {"pack_of_code", "pack_of_code.inner"}),
        ("def f():\n    from pack_of_code.inner import x", {"pack_of_code", "pack_of_code.inner"}),
        ("if True: import one_of_code; import two_of_code", {"one_of_code", "two_of_code"}),
        ("try:\n\timport one_of_code\nexcept ImportError: pass", {"one_of_code"}),
        ("from importlib import import_module\nimport_module('one_of_code')", {"one_of_code"}),
        ("important = 1; fromage = 'import one'", set()),
        ("import nothing_of_the_kind.at_all, re", set()),
    ],
)
def test_imports_are_found_wherever_they_stand(folder: Path, text: str, found: set[str]) -> None:
    files = ("one_of_code.py", "two_of_code.py", "pack_of_code/__init__.py", "pack_of_code/inner.py")
    assert names(folder, text, *files) == found


def test_relative_imports_are_followed_through(folder: Path) -> None:
    pack = folder / "deep_of_code"
    (pack / "sub").mkdir(parents=True)
    (pack / "__init__.py").write_text("from .a import x")
    (pack / "a.py").write_text("from . import b")
    (pack / "b.py").write_text("from .sub.c import y")
    (pack / "sub" / "__init__.py").write_text("")
    (pack / "sub" / "c.py").write_text("from ..d import z\nfrom .. import a")
    (pack / "d.py").write_text("")
    found = names(folder, "import deep_of_code")
    assert found == {"deep_of_code", *(f"deep_of_code.{n}" for n in ("a", "b", "d", "sub", "sub.c"))}


def test_installed_packages_count_by_their_version(folder: Path) -> None:
    names(folder, "import torch.nn, numpy as np, sklearn.tree, json")
    found = code.of_modules(["root_of_code"])
    assert set(found.packages) == {"torch", "numpy", "sklearn"}
    assert all(found.packages.values())
    assert set(found.files) == {"root_of_code"}


def test_a_file_counts_by_its_bytes_and_not_by_its_times(folder: Path) -> None:
    names(folder, "import one_of_code", "one_of_code.py")
    before = code.of_modules(["root_of_code"])
    (folder / "root_of_code.py").touch()
    assert code.of_modules(["root_of_code"]) == before
    (folder / "one_of_code.py").write_text("# a comment")
    assert code.of_modules(["root_of_code"]).told(own=False) != before.told(own=False)


def test_each_probe_hangs_on_its_own_methods() -> None:
    def files(name: str) -> set[str]:
        return set(code.of_modules([shelf.load("probes", name).__module__]).files)

    attack, calibration = "assay.methods.attack.apgd", "assay.methods.uncertainty.calibration"
    assert {attack, "assay.probe", "assay.subject", "assay.data.npz"} <= files("worst-case-accuracy")
    assert calibration not in files("worst-case-accuracy")
    assert calibration in files("confidence")
    assert attack not in files("confidence")
    every = set().union(*map(files, shelf.names("probes")))
    above = {"report", "cli", "store", "audit", "jobs", "claims"}
    assert not {n for n in every if above.intersection(n.split(".")[1:2])}


def test_all_probes_are_looked_up_in_no_time() -> None:
    kinds = [shelf.load("probes", name) for name in shelf.names("probes")]
    code._own.cache_clear()
    code._own_code.cache_clear()
    start = time.process_time()
    found = {code.behind(kind, Run, ThisProcess) for kind in kinds}
    assert time.process_time() - start < 2  # a tenth of that where nobody else is at work
    assert len(found) == len(kinds)


def test_an_edited_method_is_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = shelf.load("probes", "accuracy")
    before = code.behind(kind)
    assert code.behind(kind) == before
    own = code._own

    def edited(name: str) -> Any:
        module = own(name)
        return module and module._replace(digest="other") if name == "assay.finding" else module

    monkeypatch.setattr(code, "_own", edited)
    code._own_code.cache_clear()
    assert code.behind(kind) != before
    monkeypatch.undo()
    code._own_code.cache_clear()
    assert code.behind(kind) == before


def test_a_third_partys_probe_hangs_on_its_package(folder: Path) -> None:
    pack = folder / "site-packages" / "theirs_of_code"  # installed, so that its version alone would tell
    pack.mkdir(parents=True)
    sys.path.insert(0, str(pack.parent))
    (pack / "__init__.py").write_text("")
    (pack / "question.py").write_text(
        "from assay.probe import Probe\nfrom theirs_of_code import method\nclass Theirs(Probe):\n    ask = method.f\n"
    )
    (pack / "method.py").write_text("def f(): return 1\n")
    try:
        import theirs_of_code.question  # type: ignore[import-not-found]

        kind = theirs_of_code.question.Theirs
        before = code.behind(kind)
        assert code.behind(kind) == before
        (pack / "method.py").write_text("def f(): return 2\n")
        assert code.behind(kind) != before
    finally:
        sys.path.remove(str(pack.parent))


def test_a_probe_without_a_file_is_never_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("notebook_of_code")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kind = type("Asked", (Probe,), {"__module__": module.__name__})
    assert code.behind(kind) != code.behind(kind)


def test_what_lies_beside(tmp_path: Path) -> None:
    here = str(tmp_path)
    assert code.is_beside(f"{here}/helper.py", here)
    assert code.is_beside(f"{here}/pack/helper.py", here)
    assert not code.is_beside(f"{here}-other/helper.py", here)
    assert not code.is_beside(f"{here}/.venv/lib/python3/site-packages/x.py", here)
    assert not code.is_beside(str(Path(code.__file__).parent / "nn" / "lenet.py"), "/")
    assert not code.is_beside(f"{sys.base_prefix}/lib/json/__init__.py", "/")
