"""A model file that returns vectors, with a gallery beside its queries, as it is typed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.subjects import Source, open_subject
from assay.tasks import Search

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("searching")
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)).eval()
    torch.jit.trace(model, torch.zeros(2, 1, 4, 4)).save(str(folder / "encoder.pt"))
    for name, n in (("gallery", 12), ("queries", 31), ("night", 30)):
        x = RNG.random((n, 1, 4, 4), dtype=np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(n) % 4)
    return folder


def source(files, **told):
    paths = {name: str(files / f"{name}.npz") for name in ("gallery", "queries", "night")}
    asked = {"data": paths["queries"], "gallery": paths["gallery"], **told}
    return Source(str(files / "encoder.pt"), **{k: v for k, v in asked.items() if v is not None})


@pytest.mark.parametrize("task", [None, "retrieval"])
def test_queries_and_gallery_make_a_search(files, task):
    typed = source(files, task=task, domain=(f"night={files / 'night.npz'}",))
    subject = open_subject(typed)
    assert isinstance(subject.task, Search)
    assert (subject.task.gallery.size, subject.task.gallery.width) == (12, 5)
    assert {split: len(data) for split, data in subject.data.items()} == {"test": 31, "night": 30}
    assert subject.differentiable
    assert "--gallery" in typed.words()


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"data": None}, "is searched for what answers queries; give them as --data"),
        ({"task": "regression"}, "--gallery is for retrieval, and the task is 'regression'"),
        ({"gallery": "nowhere.npz"}, "There is no gallery 'nowhere.npz'"),
        ({"gallery": None, "metric": "cosine"}, "--metric cosine is how a gallery is searched; give one as --gallery"),
        ({"metric": "dot"}, "There is no --metric 'dot'; choose cosine or euclidean"),
    ],
)
def test_what_does_not_fit_is_told(files, told, says):
    with pytest.raises(AssayError, match=says):
        open_subject(source(files, **told))


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"domain": "test=night.npz"}, "A domain cannot be named 'test'"),
        ({"domain": "calibration=night.npz"}, "A domain cannot be named 'calibration'"),
        ({"domain": "few=few.npz"}, "The domain 'few' has 29 inputs; give at least 30"),
        ({"domain": "bare=bare.npz"}, "The domain 'bare' has no labels, by which --gallery knows what answers"),
        ({"domain": "rows=rows.csv"}, "--gallery is for images and arrays, and .*rows.csv is a table"),
        ({"data": "rows.csv", "target": "y"}, "--gallery is for images and arrays, and .*rows.csv is a table"),
    ],
)
def test_domains_of_a_search_are_as_any_others(files, told, says, monkeypatch):
    monkeypatch.chdir(files)
    np.savez("few.npz", x=np.ones((29, 1, 4, 4), np.float32), y=np.arange(29) % 4)
    np.savez("bare.npz", x=np.ones((30, 1, 4, 4), np.float32))
    (files / "rows.csv").write_text("a,y\n" + "1,0\n2,1\n" * 20)
    told = {name: (each,) if name == "domain" else each for name, each in told.items()}
    with pytest.raises(AssayError, match=says) as refused:
        open_subject(source(files, **told))
    assert "\n" not in str(refused.value)


def test_the_metric_is_typed(files):
    typed = source(files, metric="euclidean")
    assert open_subject(typed).task.gallery.metric == "euclidean"
    assert open_subject(source(files)).task.gallery.metric == "cosine"
    words = typed.words()
    assert words[words.index("--metric") + 1] == "euclidean"


def test_a_whole_subject_has_its_gallery(files):
    with pytest.raises(AssayError, match=r"whole subject, so --gallery does not apply.*Subject\.retrieval"):
        open_subject(Source("digits-mlp", data=str(files / "queries.npz"), gallery=str(files / "gallery.npz")))


def test_other_queries_for_a_whole_search_are_told_where_to_be_given(files):
    (files / "mine.py").write_text(
        "import numpy as np\nfrom torch import nn\nfrom assay.subject import Subject\n"
        "def build():\n    x = np.random.default_rng(0).random((8, 3))\n"
        "    return Subject.retrieval(nn.Linear(3, 4), (x, np.arange(8) % 2), (x[:2] / 2, [0, 1]))\n"
    )
    name, queries = f"{files / 'mine.py'}:build", str(files / "queries.npz")
    assert isinstance(open_subject(Source(name)).task, Search)
    with pytest.raises(AssayError, match="so --data does not apply; give others where it is built"):
        open_subject(Source(name, data=queries))
    with pytest.raises(AssayError, match="so --domain does not apply; give a domain where it is built"):
        open_subject(Source(name, domain=(f"night={queries}",)))
