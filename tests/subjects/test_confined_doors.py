"""Every door opens, and its model answers, in a process that reads nothing but the files and writes nowhere."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier

from assay.engine.sandbox import scrubbed

OPENING = """
import sys
from pathlib import Path
from assay.engine.sandbox import confine
folder = Path(sys.argv[1])
held = confine(read=[folder], write=[Path(sys.argv[2])])
from assay.subjects import Source, open_subject
for name in sys.argv[3:]:
    subject = open_subject(Source(str(folder / name), str(folder / "rows.npz")))
    print(name, len(subject.task.classes), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_doors_need_nothing_that_the_sandbox_refuses(tmp_path):
    folder, home = tmp_path / "files", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    x = np.random.default_rng(0).random((60, 4)).astype(np.float32)
    y = x[:, :3].argmax(1)
    np.savez(folder / "rows.npz", x=x, y=y)
    torch.jit.save(torch.jit.script(torch.nn.Linear(4, 3)), folder / "net.pt")
    names = ["net.pt"]
    skops = pytest.importorskip("skops.io")
    skops.dump(RandomForestClassifier(8, n_jobs=2).fit(x, y), folder / "forest.skops")
    lightgbm = pytest.importorskip("lightgbm")
    many = {"objective": "multiclass", "num_class": 3, "verbose": -1}
    lightgbm.train(many, lightgbm.Dataset(x, y), 3).save_model(str(folder / "trees.txt"))
    xgboost = pytest.importorskip("xgboost")
    many = {"objective": "multi:softprob", "num_class": 3}
    xgboost.train(many, xgboost.DMatrix(x, y), 3).save_model(str(folder / "trees.ubj"))
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(folder / "net.keras")
    names += ["forest.skops", "trees.txt", "trees.ubj", "net.keras"]
    done = subprocess.run(
        [sys.executable, "-c", OPENING, str(folder), str(home), *names],
        env=scrubbed(os.environ, home=home),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [word for name in names for word in (name, "3")]
