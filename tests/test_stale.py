"""An answer is known from before only where nothing has changed that it hangs on. Each story here was stale once."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import assay as package
from assay import code
from assay.engine.local import ThisProcess
from assay.probes.right.accuracy import Accuracy
from assay.run import Run
from assay.subjects import Source, open_subject

X = np.random.default_rng(0).random((40, 4)).astype(np.float32)
Y = (X.sum(1) > 2).astype(np.int64)

NET = """
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.arange(8.).view(2, 4) / 8 - 0.5)
            self.head.bias.zero_()
    def forward(self, x):
        return self.head(x)

def data():
    x = np.random.default_rng(0).random((40, 4)).astype(np.float32)
    return x, (x.sum(1) > 2).astype(np.int64)
"""
BUILD = "def build(): return Net(), data()\n"


@pytest.fixture
def asked(assay: Callable[..., Any], undrawn: None) -> Callable[..., bool]:
    """Audits by the command line; says whether the one question was asked now, or known from before."""

    def ask(*words: str) -> bool:
        ended = assay("audit", *(words or ("subject.py:build",)), "--probe", "accuracy", "--out", "runs")
        assert ended.status in (0, 1, 3), ended.err
        return "known from before" not in ended.err

    return ask


def key(folder: Path) -> str:
    """By what the answer to one question about subject.py:build is known again."""
    subject = open_subject(Source(f"{folder / 'subject.py'}:build"))
    return Accuracy().key(subject.fingerprint(), Run(engine=ThisProcess()), subject.behaviour())


def in_place(path: Path, content: bytes) -> None:
    """Other content of the same size, with the times set back."""
    before = path.stat()
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_wrapped_model_that_was_fitted_on_random_labels(tmp_path: Path, asked: Callable[..., bool]) -> None:
    fit = """
from sklearn.linear_model import LogisticRegression
class Wrapped(nn.Module):
    def __init__(self, y):
        super().__init__()
        self.fitted = LogisticRegression().fit(data()[0], y)
    def forward(self, x):
        return torch.from_numpy(self.fitted.decision_function(x.numpy())).float()[:, None] * torch.tensor([-1., 1.])
def build(): return Wrapped(np.load("labels.npy")), data()
"""
    (tmp_path / "subject.py").write_text(NET + fit)
    np.save(tmp_path / "labels.npy", Y)
    assert asked()
    assert not asked()
    np.save(tmp_path / "labels.npy", np.random.default_rng(1).permutation(Y))
    assert asked()


def test_a_plain_tensor(tmp_path: Path, asked: Callable[..., bool]) -> None:
    shifted = """
class Shifted(Net):
    def __init__(self):
        super().__init__()
        self.shift = torch.from_numpy(np.load("shift.npy"))
    def forward(self, x):
        return super().forward(x) + self.shift
def build(): return Shifted(), data()
"""
    (tmp_path / "subject.py").write_text(NET + shifted)
    np.save(tmp_path / "shift.npy", np.zeros(2, np.float32))
    assert asked()
    assert not asked()
    np.save(tmp_path / "shift.npy", np.full(2, 1e-5, np.float32))  # less than any few answers would show
    assert asked()


def test_a_helper_edited_in_place(tmp_path: Path, asked: Callable[..., bool]) -> None:
    (tmp_path / "helper_beside.py").write_text("def read(x): return 1 * x\n")
    calling = NET.replace("return self.head(x)", "return helper_beside.read(self.head(x))")
    (tmp_path / "subject.py").write_text("import helper_beside\n" + calling + BUILD)
    assert asked()
    assert not asked()
    py_compile.compile(str(tmp_path / "helper_beside.py"))  # what Python would go by, as size and time agree
    source, x = Source("subject.py:build"), torch.from_numpy(X)
    before = open_subject(source).predict(x)
    in_place(tmp_path / "helper_beside.py", b"def read(x): return 2 * x\n")
    torch.testing.assert_close(open_subject(source).predict(x), 2 * before)
    assert asked()
    assert not asked()


def test_a_relabelled_file_of_the_same_size_and_time(tmp_path: Path, asked: Callable[..., bool]) -> None:
    (tmp_path / "subject.py").write_text(NET + "def build(): return Net()\n")
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    words = ("subject.py:build", "--data", "data.npz")
    assert asked(*words)
    assert not asked(*words)
    np.savez(tmp_path / "other.npz", x=X, y=1 - Y)
    in_place(tmp_path / "data.npz", (tmp_path / "other.npz").read_bytes())
    assert asked(*words)
    os.utime(tmp_path / "data.npz")
    assert not asked(*words)  # touched, and the same


def test_an_image_painted_over(tmp_path: Path) -> None:
    from assay.data.image_folder import ImageFolder

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4), 100).save(tmp_path / name / "0.bmp")
    before = ImageFolder(tmp_path).fingerprint()
    other = tmp_path.parent / f"{tmp_path.name}.bmp"
    Image.new("L", (4, 4), 101).save(other)
    in_place(tmp_path / "a" / "0.bmp", other.read_bytes())
    assert ImageFolder(tmp_path).fingerprint() != before


EDITS = {
    "a helper of a helper": ("package_of_stale/deep.py", "GAIN = 1.0", "GAIN = 1.5"),
    "the package's own file": ("package_of_stale/__init__.py", "SIGN = 1", "SIGN = 2"),
    "what is imported when it is called": ("late_of_stale.py", "return 0", "return 9"),
    "what is imported by a name in a variable": ("plugin_of_stale.py", "USED = 1", "USED = 2"),
}


@pytest.mark.parametrize("edited", EDITS)
def test_helpers_are_followed(tmp_path: Path, edited: str) -> None:
    inner = tmp_path / "package_of_stale"
    inner.mkdir()
    (inner / "__init__.py").write_text("SIGN = 1\n")
    (inner / "wide.py").write_text("from . import deep\nfrom .deep import (\n    GAIN,\n)\n")
    (inner / "deep.py").write_text("GAIN = 1.0\n")
    (tmp_path / "late_of_stale.py").write_text("def never(): return 0\n")
    (tmp_path / "plugin_of_stale.py").write_text("USED = 1\n")
    late = "    def rarely(self):\n        import late_of_stale; return late_of_stale.never()\n"
    named = "import importlib\nNAMES = ['plugin_of_stale']\nPLUGINS = [importlib.import_module(n) for n in NAMES]\n"
    text = "from package_of_stale.wide import GAIN\n" + named + NET.replace("\ndef data", f"{late}\ndef data") + BUILD
    (tmp_path / "subject.py").write_text(text)
    before = key(tmp_path)
    assert key(tmp_path) == before
    file, old, new = EDITS[edited]
    in_place(tmp_path / file, (tmp_path / file).read_text().replace(old, new).encode())
    assert key(tmp_path) != before


def test_a_renamed_script_is_the_same_and_a_renamed_class_is_not(tmp_path: Path) -> None:
    (tmp_path / "subject.py").write_text(NET + BUILD)
    before = key(tmp_path)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (tmp_path / "subject.py").rename(moved / "subject.py")
    assert key(moved) == before
    (moved / "subject.py").write_text((NET + BUILD).replace("Net", "Nut"))
    assert key(moved) != before


EVERYTHING = """
import functools, re
from sklearn.tree import DecisionTreeClassifier

TABLE = {"a": np.arange(3), "b": {"x", "y", "zebra", "q"}}

def scaled(x, by, **more): return by * x

class Everything(Net):
    names = frozenset({"one", "two", "three", "four"})
    def __init__(self):
        super().__init__()
        self.tree = DecisionTreeClassifier(random_state=0, max_depth=2).fit(*data())
        self.parts = [nn.Linear(2, 2, bias=False)]
        nn.init.ones_(self.parts[0].weight)
        self.words = {"x": {"red", "green", "blue"}, "pattern": re.compile("a+")}
        by = torch.ones(2)
        self.outside = lambda x: x * by
        self.partial = functools.partial(scaled, by=2.0, more={"k": 1})
        self.itself = [self]
        self.recurrent = nn.LSTM(2, 2)
        for p in self.recurrent.parameters(): nn.init.zeros_(p)
        self.register_buffer("unsaved", torch.ones(2), persistent=False)
        self.register_forward_hook(lambda module, given, out: out + 0)
    def forward(self, x):
        return self.partial(self.outside(super().forward(x))) + len(TABLE)
def build(): return Everything(), data()
"""
TOLD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_stale import key
print(key(Path(sys.argv[2])))
"""


def test_nothing_changed_and_another_process_knows_it(tmp_path: Path) -> None:
    (tmp_path / "subject.py").write_text(NET + EVERYTHING)
    before = key(tmp_path)
    assert key(tmp_path) == before
    words = (sys.executable, "-c", TOLD, str(Path(__file__).parent), str(tmp_path))
    ended = subprocess.run(words, env={**os.environ, "PYTHONHASHSEED": "12"}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == before


def test_device_kind_version_and_code_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(engine=ThisProcess())
    keys = [Accuracy().key("print", replace(run, device=d)) for d in ("cpu", "cuda", "cuda:1")]
    assert keys[0] != keys[1] == keys[2]
    monkeypatch.setattr(package, "__version__", "9.9")
    assert Accuracy().key("print", run) != keys[0]
    monkeypatch.undo()
    assert Accuracy().key("print", run) == keys[0]
    monkeypatch.setattr(code, "behind", lambda *kinds: "other code")
    assert Accuracy().key("print", run) != keys[0]
