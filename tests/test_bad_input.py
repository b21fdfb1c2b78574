"""Bad input: one line that names the value and the mend, status 2, no traceback, and what was found before is kept."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

if TYPE_CHECKING:
    from conftest import Command, Ended

GOOD = """
import torch
from torch import nn
from assay import Subject

torch.manual_seed(0)
x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
classes = ["a", "b", "c"]

class Does(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.inner, self.what = model, what

    def forward(self, x):
        return self.what(self.inner, x)
"""


def script(body: str) -> str:
    """A subject.py: the good parts above, and what is bad about it."""
    return (
        GOOD
        + body
        + """
def build():
    return Subject.classifier(model, (x, y), name='it', classes=classes)
"""
    )


@pytest.fixture
def assay(assay: Command, undrawn: None) -> Command:
    Path("lenient.toml").write_text(LENIENT)
    return assay


def refused(ended: Ended, says: str) -> None:
    """It ended as bad input must: nothing on stdout, and one line on stderr that says this."""
    assert ended.status == 2, ended
    assert ended.out == ""
    assert ended.err.count("\n") == 1, ended.err
    assert re.match(f"assay: {says}", ended.err), ended.err
    assert not list(Path().glob("runs/*/findings/*"))


SCRIPTS = {
    "a function that returns the wrong thing": (
        GOOD + "\ndef build():\n    return {'model': model}\n",
        r"subject\.py:build returned dict; return an assay\.Subject",
    ),
    "a function that returns two wrong things": (
        GOOD + "\ndef build():\n    return 1, 2\n",
        r"subject\.py:build returned a tuple of int, int; return an",
    ),
    "a function that raises": (
        GOOD + "\ndef build():\n    return 1 / 0\n",
        r"subject\.py:build raised ZeroDivisionError on line 20: division by zero; mend it",
    ),
    "no such function": (GOOD, r"There is no function 'build' in subject\.py"),
    "no Python": ("def build(:\n", r"subject\.py raised SyntaxError on line 1: .*; mend it there"),
    "a model that raises": (
        script("def fails(inner, x): raise KeyError('no\\nweights')\nmodel = Does(fails)"),
        r"The model raised KeyError on an input of shape \(\d, 1, 8, 8\): .*no.*weights.*; check that it",
    ),
    "a model that returns NaN": (
        script("model = Does(lambda inner, x: inner(x) * float('nan'))"),
        r"The model returned NaN or infinity for input 0; check its weights",
    ),
    "a model that returns infinity": (
        script("model = Does(lambda inner, x: inner(x) / 0)"),
        r"The model returned NaN or infinity for input 0",
    ),
    "a model that returns the wrong shape": (
        script("model = Does(lambda inner, x: inner(x).sum(1))"),
        r"The model's task is taken to be Classification.*but it returned shape \(4,\) for 4 inputs",
    ),
    "a model that returns a tuple": (
        script("model = Does(lambda inner, x: (inner(x), x))"),
        r"The model returned tuple, not a tensor; return the logits",
    ),
    "the wrong number of classes": (
        script("classes = ['a', 'b']; y = y % 2"),
        r"The model's task is .* but it has 3 outputs for 2 classes .name them in",
    ),
    "values outside the bounds": (
        script("x = x * 255"),
        r"Input 0 of 'test' has the value 25\d\.?\d* outside the bounds \[0, 1\]; scale the data",
    ),
    "values that are NaN": (
        script("x[0, 0, 0, 0] = float('nan')"),
        r"Input 0 of 'test' has the value nan in feature 0; mend that input or leave it out",
    ),
    "labels out of range": (
        script("y[7] = 3"),
        r"In 'test' label 3 of input 7 is outside 0\.\.2 for 3 classes; mend the targets",
    ),
    "negative labels": (script("y[7] = -1"), r".*'test'.* Label -1 .*7 .*;"),
    "an empty split": (script("x, y = x[:0], y[:0]"), r"The split 'test' is empty; give it at least one labelled"),
    "fewer labels than inputs": (script("y = y[:5]"), r".*60.*5|.*5.*60"),
    "no module": (script("model = 3"), r"Subject\.classifier wants a torch\.nn\.Module, got int; wrap it"),
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_a_subject_that_cannot_be_audited(what: str, assay: Command) -> None:
    text, says = SCRIPTS[what]
    Path("subject.py").write_text(text)
    refused(assay("audit", "subject.py:build", "--probe", "accuracy"), says)


def folder_of_images() -> None:
    for name in ("cats", "dogs"):
        Path("images", name).mkdir(parents=True)
        for i in range(4):
            pixels = np.random.default_rng(i).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"images/{name}/{i}.png")
    Path("net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))\n"
    )


def empty_folder() -> None:
    folder_of_images()
    Path("images").rename("full")
    Path("images").mkdir()


def broken_npz() -> None:
    folder_of_images()
    Path("data.npz").write_bytes(b"PK\x03\x04 not really")


def broken_onnx() -> None:
    folder_of_images()
    Path("model.onnx").write_bytes(b"\x08\x07 this is no model")


def broken_pt2() -> None:
    folder_of_images()
    Path("model.pt2").write_bytes(b"this is no archive")


def pickled() -> None:
    folder_of_images()
    torch.save(nn.Linear(3, 3), "model.pt")


FILES: dict[str, tuple[Callable[[], None], str, str]] = {
    "a subject that is not on the shelf": (
        folder_of_images,
        "audit fashion-cnm",
        r"There is no subject 'fashion-cnm'; did you mean 'fashion-cnn'?",
    ),
    "a missing script": (folder_of_images, "audit nowhere.py:build", r"There is no file 'nowhere\.py'; check the path"),
    "a missing model": (
        folder_of_images,
        "audit nowhere.onnx --data images",
        r"There is no file 'nowhere\.onnx'; check the path",
    ),
    "missing data": (
        folder_of_images,
        "audit net.py:build --data nowhere",
        r"There is nothing at nowhere; give the path",
    ),
    "no data": (folder_of_images, "audit net.py:build", r"net\.py:build is a model without data; give --data"),
    "a missing file of standards": (
        folder_of_images,
        "audit --standards nowhere.toml",
        r"Cannot read standards from 'nowhere\.toml': No such",
    ),
    "a missing run": (folder_of_images, "report nowhere", r"'nowhere' holds no finished audit .*; give the folder"),
    "an empty folder of images": (empty_folder, "audit net.py:build --data images", r".*images.*[;,]"),
    "a broken .npz": (broken_npz, "audit net.py:build --data data.npz", r".*data\.npz.*;"),
    "a broken ONNX file": (broken_onnx, "audit model.onnx --data images", r".*model\.onnx.*;"),
    "a broken .pt2": (
        broken_pt2,
        "audit model.pt2 --data images",
        r"'model\.pt2' is not a \.pt2 file .*; write it with",
    ),
    "a pickled checkpoint": (
        pickled,
        "audit model.pt --data images",
        r"'model\.pt' is a pickle, which can run any code .*; convert it .* or insist with --allow-pickle",
    ),
    "wrong bounds": (
        folder_of_images,
        "audit net.py:build --data images --bounds 1 0",
        r"Bounds must have low < high, got 1\.0 and 0\.0;",
    ),
    "too few means": (
        folder_of_images,
        "audit net.py:build --data images --mean 0.5,0.5",
        r"--mean has 2 values for 3 channels; give 1 or 3",
    ),
    "a std of zero": (
        folder_of_images,
        "audit net.py:build --data images --mean 0.5 --std 0",
        r"--std must be positive, got \(0\.0,\);",
    ),
    "an unknown remedy": (
        folder_of_images,
        "cure homeopathy net.py:build --data images",
        r"There is no remedy 'homeopathy';",
    ),
    "an unknown probe": (
        folder_of_images,
        "audit --probe acuracy",
        r"There is no probe 'acuracy'; did you mean 'accuracy'\?",
    ),
    "an unknown setting": (
        folder_of_images,
        "ask worst-case-accuracy --set radios=1",
        r"'worst-case-accuracy' has no setting 'radios'; its settings: radius",
    ),
    "a setting that is no number": (
        folder_of_images,
        "ask worst-case-accuracy --set radius=wide",
        r"The setting radius='wide' of 'worst-case-accuracy' is not float;",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_files_and_words_that_cannot_be_used(what: str, assay: Command) -> None:
    prepare, words, says = FILES[what]
    prepare()
    refused(assay(*words.split()), says)


TOML = {
    "[standards.acuracy]\nat_least = 0.5": r"There is no probe 'acuracy'; did you mean 'accuracy'\?",
    "[probes.acuracy]\nradius = 1": r"There is no probe 'acuracy'; did you mean 'accuracy'\?",
    "[probes.worst-case-accuracy]\nradios = 1": r"'worst-case-accuracy' has no setting 'radios'; its settings: radius",
    "[probes.worst-case-accuracy]\nradius = 'wide'": r"The setting radius='wide' of 'worst-case-accuracy' is not float",
    "[standards.accuracy]\nat_last = 0.5": r"'assay\.toml' has unknown key 'at_last' in \[standards\.accuracy\]; known",
    "[standards.accuracy]\nat_least = 'high'": r"'assay\.toml' has at_least = 'high' in .*; a limit is a number",
    "[standards.accuracy]\nat_least = nan": r"A standard's limit must be a finite number, got nan",
    "[standards.accuracy]\nat_least = 0.1\nat_most = 0.2": r"A standard wants exactly one of at_least and at_most; got",
    "[standard.accuracy]\nat_least = 0.5": r"'assay\.toml' has unknown section 'standard'; known are \[probes",
    "[standards.accuracy": r"'assay\.toml' is not TOML: .*; mend that line",
}


@pytest.mark.parametrize("text", TOML)
def test_standards_that_say_what_nobody_knows(text: str, assay: Command) -> None:
    Path("subject.py").write_text(script(""))
    Path("assay.toml").write_text(text)
    refused(assay("audit", "subject.py:build", "--standards", "assay.toml"), TOML[text])


def test_a_limit_on_a_measure_that_is_not_there_is_no_pass(assay: Command) -> None:
    Path("subject.py").write_text(script(""))
    Path("assay.toml").write_text('[standards.accuracy."speed"]\nat_least = 0.5')
    ended = assay("audit", "subject.py:build", "--standards", "assay.toml", "--probe", "accuracy")
    assert ended.status == 3
    assert "no measure 'speed'" in ended.out


def test_a_corrupt_image_is_told_once_however_many_questions_meet_it(assay: Command) -> None:
    folder_of_images()
    whole = Path("images/dogs/2.png").read_bytes()
    Path("images/dogs/2.png").write_bytes(whole[: len(whole) // 2])
    ended = assay("audit", "net.py:build", "--data", "images", "--probe", "accuracy", "--probe", "confidence")
    assert ended.status == 2
    assert len(ended.complaints) == 1
    assert re.match(
        r"assay: accuracy and confidence were not answered: .*dogs/2\.png .*; mend or remove it", ended.complaints[0]
    )
    assert "Traceback" not in ended.err
    assert Path(ended.out.splitlines()[-1]).exists()


def test_debug_shows_where(assay: Command) -> None:
    Path("subject.py").write_text(GOOD + "\ndef build():\n    return 1 / 0\n")
    ended = assay("audit", "subject.py:build", "--debug")
    assert ended.status == 2
    assert "Traceback" in ended.err
    assert "return 1 / 0" in ended.err
    assert len(ended.complaints) == 1


# What goes wrong after something was found.

TWO = ("audit", "subject.py:build", "--probe", "accuracy", "--probe", "confidence", "--standards", "lenient.toml")
LENIENT = "[standards.accuracy]\nat_least = 0\n[standards.confidence]\nat_most = 1\n"
"""So that nothing fails, and the status is that of what broke."""

LATER = {
    "a model that raises": (
        "def later(inner, x):\n    if asked and len(x) > 4: raise OSError('no\\nweights')\n    return inner(x)",
        "OSError while working on inputs 0 to 59: no; if it is the model that raises",
    ),
    "a model that returns NaN": (
        "def later(inner, x):\n    return inner(x) * (float('nan') if asked and len(x) > 4 else 1)",
        "The model returned NaN or infinity for input 0 of 'test'; check its weights",
    ),
    "a model that returns the wrong shape": (
        "def later(inner, x):\n    return inner(x)[:-1] if asked and len(x) > 4 else inner(x)",
        r".*59.*rows",
    ),
    "a model that exits": (
        "import sys\ndef later(inner, x):\n    if asked and len(x) > 4: sys.exit(0)\n    return inner(x)",
        r".*exit",
    ),
}


@pytest.mark.parametrize("what", LATER)
def test_what_was_found_before_is_kept(what: str, assay: Command) -> None:
    """The model turns bad once the first question has its answer."""
    how, says = LATER[what]
    Path("subject.py").write_text(
        script(f"""
from pathlib import Path
class Asked:
    def __bool__(self):
        return bool(list(Path().glob('runs/*/findings/*')))
asked = Asked()
{how}
model = Does(later)""")
    )
    ended = assay(*TWO)
    assert ended.status == 2, ended
    assert len(ended.complaints) == 1, ended.err
    assert re.search(says, ended.complaints[0]), ended.err
    assert "Traceback" not in ended.err
    (kept,) = Path().glob("runs/*/findings/accuracy.json")
    assert json.loads(kept.read_text())["status"] == "asked"
    if what != "a model that exits":  # the audit goes on after a question that broke, and its report shows both
        assert "confidence was not answered" in ended.complaints[0]
        report = Path(ended.out.splitlines()[-1]).read_text()
        found = json.loads(kept.read_text())["finding"]["measures"][0]["value"]
        assert f"{100 * found:.1f}" in report
        assert "could not be answered" in report


def test_a_question_that_broke_is_asked_again(assay: Command) -> None:
    Path("subject.py").write_text(
        script("""
from pathlib import Path
def later(inner, x):
    if Path('broken').exists() and len(x.flatten(1).unique(dim=0)) > 4:  # more than the door looks at
        raise OSError('gone')
    return inner(x)
model = Does(later)""")
    )
    Path("broken").touch()
    assert assay(*TWO).status == 2
    Path("broken").unlink()
    ended = assay(*TWO)
    assert ended.status in (0, 1, 3), ended.err
    assert "known from before" not in ended.err


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """`after` files are written; then the disk is full."""
    real, files = os.fsync, iter(range(10_000))

    def fsync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and next(files) >= after:  # folders are synced too
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.mark.parametrize("after", [0, 1, 4, 6, 8])
def test_a_full_disk(after: int, assay: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("subject.py").write_text(script(""))
    with full_disk(monkeypatch, after):
        ended = assay(*TWO)
    assert ended.status == 2
    assert len(ended.complaints) == 1
    assert re.match(
        r"assay: Cannot write '.*': No space left on device; free some space or choose another folder",
        ended.complaints[0],
    )
    assert "Traceback" not in ended.err
    assert not list(Path().glob("runs/**/.*")), "a half-written file was left behind"
    kept = len(list(Path().glob("runs/*/findings/*.json")))
    assert (kept > 0) == (after >= 4)
    ended = assay(*TWO)
    assert ended.status in (0, 1, 3)
    assert ended.err.count("known from before") == kept


def test_a_file_that_grows_too_large(assay: Command) -> None:
    """The kernel's own refusal in the middle of a write, in a process of its own."""
    Path("subject.py").write_text(script(""))
    code = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "sys.argv = ['assay', 'audit', 'subject.py:build', '--probe', 'accuracy']\n"
        "sys.dont_write_bytecode = True\nfrom assay.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert re.match(r"assay: Cannot write '.*': File too large; free some space", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made(assay: Command) -> None:
    Path("subject.py").write_text(script(""))
    Path("file").touch()
    refused(assay(*TWO, "--out", "file/below"), r"Cannot write 'file/below/.*': Not a directory; .* another folder")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_that_is_read_only(code: int, assay: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the refusal is put in by hand."""
    Path("subject.py").write_text(script(""))

    def mkdir(self: Path, *how: object, **more: object) -> None:
        raise OSError(code, os.strerror(code), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    refused(assay(*TWO), rf"Cannot write 'runs/.*': {os.strerror(code)}; .* another folder with --out")


def test_the_console_script_itself_ends_with_2(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("assay")
    if not script.exists():
        pytest.skip("the console script is not installed beside this Python")
    done = subprocess.run(
        [script, "audit", "nowhere.py:build"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("assay: There is no file 'nowhere.py'")
    assert done.stderr.count("\n") == 1
