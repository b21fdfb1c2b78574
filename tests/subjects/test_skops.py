from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.datasets import load_files
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from assay.errors import AssayError
from assay.subjects import Source, open_subject

sio: Any = None


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Here and not above: it takes a second in every process that collects tests."""
    global sio
    sio = pytest.importorskip("skops.io")


X = np.random.default_rng(0).random((60, 4)).astype(np.float32)
Y = X[:, :3].argmax(1)


class Doubled(LogisticRegression):
    """A type that skops does not know."""

    def predict_proba(self, X):
        return super().predict_proba(2 * np.asarray(X))


@pytest.fixture
def rows(tmp_path) -> Path:
    np.savez(tmp_path / "rows.npz", x=X, y=Y)
    return tmp_path / "rows.npz"


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomForestClassifier(5, random_state=0),
        lambda: make_pipeline(StandardScaler(), LogisticRegression()),
        lambda: HistGradientBoostingClassifier(max_iter=3, random_state=0),
        lambda: MLPClassifier((4,), max_iter=300, tol=1e-2, random_state=0),
    ],
)
def test_an_estimator_opens_as_it_was_dumped(tmp_path, rows, make):
    estimator = make().fit(X, np.array(["rye", "oat", "bran"])[Y])
    sio.dump(estimator, tmp_path / "model.skops")
    np.savez(rows, x=X, y=np.array([2, 1, 0])[Y])  # as classes_ has them
    subject = open_subject(Source(str(tmp_path / "model.skops"), str(rows)))
    assert_allclose(subject.predict(torch.from_numpy(X)).softmax(1), estimator.predict_proba(X), rtol=0, atol=1e-6)
    assert subject.task.classes == ("bran", "oat", "rye")
    assert subject.name == "model.skops"
    assert not subject.differentiable
    again = open_subject(Source(str(tmp_path / "model.skops"), str(rows)))
    assert subject.fingerprint() == again.fingerprint()
    sio.dump(make().fit(X[:30], np.array(["rye", "oat", "bran"])[Y[:30]]), tmp_path / "model.skops")
    assert subject.fingerprint() != open_subject(Source(str(tmp_path / "model.skops"), str(rows))).fingerprint()


def test_a_type_that_nobody_vouched_for_is_named(tmp_path, rows):
    estimator = Doubled().fit(X, Y)
    sio.dump(estimator, tmp_path / "model.skops")
    name = f"{Doubled.__module__}.Doubled"
    with pytest.raises(AssayError, match=rf"holds types that nobody vouched for: '{name}'; .* add --trust {name} for"):
        open_subject(Source(str(tmp_path / "model.skops"), str(rows)))
    subject = open_subject(Source(str(tmp_path / "model.skops"), str(rows), trust=(name,)))
    assert_allclose(subject.predict(torch.from_numpy(X)).softmax(1), estimator.predict_proba(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("function", [os.system, load_files])
def test_a_function_is_not_made_whoever_wrote_it(tmp_path, rows, function):
    evil = make_pipeline(FunctionTransformer(function), LogisticRegression())
    evil.steps[1][1].fit(X, Y)
    sio.dump(evil, tmp_path / "model.skops")
    with pytest.raises(
        AssayError,
        match="holds types that nobody vouched for: '((posix|nt|os).system|sklearn.datasets._base.load_files)'",
    ):
        open_subject(Source(str(tmp_path / "model.skops"), str(rows)))


def test_what_is_no_estimator_no_archive_or_a_bomb(tmp_path, rows):
    path = tmp_path / "model.skops"

    def refused() -> str:
        with pytest.raises(AssayError) as caught:
            open_subject(Source(str(path), str(rows)))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    sio.dump({"a": [1, 2]}, path)
    assert "holds dict, no estimator" in refused()
    sio.dump("net.py", path)
    assert "holds str, no estimator" in refused()
    sio.dump(LogisticRegression().fit(X, Y), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read by skops (no archive" in refused()
    path.write_bytes(b"hello")
    assert "cannot be read by skops (no archive" in refused()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("schema.json", "{}")
    assert "cannot be read by skops" in refused()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("schema.json", "w") as member:
        for _ in range(520):
            member.write(bytes(2**20))
    assert "unpacks to 545,259,520 bytes" in refused()
    sio.dump(LogisticRegression(), path)
    assert "LogisticRegression is not fitted yet" in refused()


def test_trust_is_for_skops(forms):
    with pytest.raises(AssayError, match=r"--trust does not apply to 'any.onnx'; leave it out. It is for model.skops"):
        open_subject(Source(str(forms.onnx), str(forms.npz), trust=("a.B",)))


def test_trees_that_point_outside_are_not_asked(tmp_path, rows):
    forest = RandomForestClassifier(2, random_state=0).fit(X, Y)
    boosted = HistGradientBoostingClassifier(max_iter=2).fit(X, Y)
    nodes = forest.estimators_[1].tree_.__getstate__()["nodes"]
    for estimator, name, value in (
        (forest, "left_child", 0),  # to itself: a walk without end
        (forest, "right_child", 10**6),
        (forest, "feature", 10**6),
        (boosted, "left", 10**6),
        (boosted, "right", 0),
    ):
        held = forest.estimators_[1].tree_ if estimator is forest else boosted._predictors[1][0]
        state = held.__getstate__() if estimator is forest else None
        part = state["nodes"] if state else held.nodes
        kept = part.copy()
        part[name][0] = value
        if state:
            held.__setstate__(state)
        sio.dump(estimator, tmp_path / "model.skops")
        with pytest.raises(AssayError, match="a branch of a tree leads nowhere|a column that there is not"):
            open_subject(Source(str(tmp_path / "model.skops"), str(rows)))
        part[:] = kept
        if state:
            held.__setstate__(state)
    assert len(nodes) > 3
    sio.dump(forest, tmp_path / "model.skops")
    open_subject(Source(str(tmp_path / "model.skops"), str(rows)))


def test_an_index_of_neighbours_has_to_be_trusted(tmp_path, rows):
    near = KNeighborsClassifier(3).fit(X, Y)
    sio.dump(near, tmp_path / "model.skops")
    with pytest.raises(AssayError, match="nobody vouched for: 'sklearn.neighbors._kd_tree.KDTree'; "):
        open_subject(Source(str(tmp_path / "model.skops"), str(rows)))
    trusted = Source(str(tmp_path / "model.skops"), str(rows), trust=("sklearn.neighbors._kd_tree.KDTree",))
    assert_allclose(open_subject(trusted).predict(torch.from_numpy(X)).exp(), near.predict_proba(X), rtol=0, atol=1e-6)
