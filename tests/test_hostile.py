"""Files that were made to do harm are refused in one line, in no time and without memory.

Those that are cheap to write, in one process of their own with a bound on its memory; `python tests/hostile.py` tries
all of them, each in its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import hostile
import pytest

SLOW = {  # to write: hundreds of megabytes are packed first
    "npz that unpacks to a gigabyte and a half",
    "npz with a header of a gigabyte",
    "parquet whose dictionary is copied",
    "parquet with an entry of 600 megabytes",
    "parquet of lists that unpack to a gigabyte",
    "parquet of too many rows",
    "pt2 with a program of a hundred megabytes",
    "png with a text that unpacks to a gigabyte",
    "png of eight by two million",
}
SOCKETS = {"socket named png"}  # some file systems have none
QUICK = [name for name in (*hostile.DATA, *hostile.MODELS, *hostile.STANDARDS) if name not in SLOW | SOCKETS]

TRY = """
import json, signal, sys, tempfile, time
from pathlib import Path

import hostile
import torch

torch.set_num_interop_threads(1)
hostile.prepare()
with tempfile.TemporaryDirectory() as folder:
    hostile.warm(Path(folder))
hostile.bounded(2**30)
for name in json.loads(sys.argv[1]):
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        signal.alarm(30)
        ended, line = hostile.opened(name, hostile.written(name, Path(folder)), Path(folder))
        print(json.dumps([name, ended, line, time.process_time() - begun]), flush=True)
"""


def test_each_is_refused_in_one_line() -> None:
    """In one process for all of them, which is what takes its time."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("without /proc the memory of a process is not known")
    pytest.importorskip("onnxruntime")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", TRY, json.dumps(QUICK)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in found] == list(QUICK), done.stderr[-2000:] + str(found[-1:])
    known = {**hostile.DATA, **hostile.MODELS, **hostile.STANDARDS}
    for name, ended, line, seconds in found:
        bad = known[name]
        assert ended in (("refused", "opened") if bad.opens else ("refused",)), f"{name}: {line}"
        if ended == "refused":
            assert "\n" not in line, name
            assert re.search(bad.says, line), f"{name}: {line}"
        assert seconds < 20, name


def test_names_of_classes_do_not_steer_the_terminal_or_the_reports(assay, tmp_path):
    data = hostile.DATA["classes that write on the terminal"].write(tmp_path)
    model = hostile.good_model(tmp_path)
    ended = assay(
        "audit", f"{model}:build", "--data", str(data), "--probe", "accuracy", "--out", str(tmp_path / "runs")
    )
    assert ended.status in (0, 1, 3), ended.err
    written = [
        p.read_text(encoding="utf-8") for p in (tmp_path / "runs").rglob("*") if p.suffix in (".html", ".md", ".xml")
    ]
    assert len(written) >= 3
    for text in (ended.out, ended.err, *written):
        assert not set(text) & set("\x1b\x07\u202e")
    assert any("owned" in text for text in written)  # the names are there, without their marks
