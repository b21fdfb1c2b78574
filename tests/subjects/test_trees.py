"""LightGBM's and XGBoost's trees: as estimators, as Boosters, and in the files that the libraries write."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from assay.errors import AssayError, SubjectError
from assay.fingerprint import of_model
from assay.subjects import Source, doors, open_subject
from assay.subjects.doors import lightgbm_file, xgboost_file
from assay.tasks import Regression

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 4)).astype(np.float32)
TWO = (X[:, 0] + 0.3 * RNG.normal(size=150) > 0).astype(int)
THREE = (X[:, :3] + 0.3 * RNG.normal(size=(150, 3))).argmax(1)
T = torch.from_numpy(X)


def grown(objective: str, y: np.ndarray, **more):
    many = {"num_class": 3} if objective.startswith("multi") else {}
    settings = {"objective": objective, "verbose": -1, "num_threads": 1, **many, **more}
    return lightgbm.train(settings, lightgbm.Dataset(X, y), 8)


def boosted(objective: str, y: np.ndarray):
    many = {"num_class": 3} if objective.startswith("multi") else {}
    return xgboost.train({"objective": objective, "nthread": 1, **many}, xgboost.DMatrix(X, y), 8)


@pytest.mark.parametrize("make", [lightgbm.LGBMClassifier, xgboost.XGBClassifier])
def test_estimators_are_read_as_scikit_learns(make):
    quiet = {"verbose": -1} if make is lightgbm.LGBMClassifier else {}
    estimator = make(n_estimators=8, n_jobs=1, **quiet).fit(X, THREE)
    opened = doors.of(estimator)
    assert_allclose(opened.model(T).softmax(1), estimator.predict_proba(X), rtol=0, atol=1e-6)
    assert opened.classes == ("0", "1", "2")
    other = make(n_estimators=9, n_jobs=1, **quiet).fit(X, THREE)
    assert of_model(opened.model).lasting == of_model(doors.of(estimator).model).lasting
    assert of_model(opened.model).lasting != of_model(doors.of(other).model).lasting


@pytest.mark.parametrize(
    ("objective", "y", "more"),
    [("binary", TWO, {}), ("binary", TWO, {"sigmoid": 2.5}), ("cross_entropy", TWO, {}), ("multiclass", THREE, {})],
)
def test_lightgbm_margins_give_its_probabilities(objective, y, more):
    booster = grown(objective, y, **more)
    opened = doors.of(booster)
    p = booster.predict(X)
    p = np.stack([1 - p, p], 1) if p.ndim == 1 else p
    assert_allclose(opened.model(T).softmax(1), p, rtol=0, atol=1e-6)
    assert opened.answers == "classes"
    assert not opened.gradients
    assert opened.columns is None


def test_one_against_the_rest_keeps_the_order_and_the_scores():
    booster = grown("multiclassova", THREE)
    assert_allclose(doors.of(booster).model(T).exp(), booster.predict(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("objective", "y"), [("binary:logistic", TWO), ("multi:softprob", THREE)])
def test_xgboost_margins_give_its_probabilities(objective, y):
    booster = boosted(objective, y)
    p = booster.predict(xgboost.DMatrix(X))
    p = np.stack([1 - p, p], 1) if p.ndim == 1 else p
    assert_allclose(doors.of(booster).model(T).softmax(1), p, rtol=0, atol=1e-6)


def test_what_names_a_class_alone_still_has_margins():
    booster = boosted("multi:softmax", THREE)  # its own answers are 0, 1 and 2
    opened = doors.of(booster)
    assert opened.model(T).shape == (150, 3)
    assert (opened.model(T).argmax(1).numpy() == booster.predict(xgboost.DMatrix(X))).all()


@pytest.mark.parametrize(
    "make", [lambda: grown("regression", X[:, 0].copy()), lambda: boosted("reg:squarederror", X[:, 0].copy())]
)
def test_trees_for_numbers_give_numbers(make):
    booster = make()
    opened = doors.of(booster)
    expected = booster.predict(X if isinstance(booster, lightgbm.Booster) else xgboost.DMatrix(X))
    assert opened.answers == "numbers"
    assert_allclose(opened.model(T)[:, 0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("suffix", ["txt", "lgb", "json", "ubj"])
def test_files_open_as_the_trees_that_were_saved(tmp_path, suffix):
    booster = grown("multiclass", THREE) if suffix in ("txt", "lgb") else boosted("multi:softprob", THREE)
    path = tmp_path / f"trees.{suffix}"
    booster.save_model(str(path))
    np.savez(tmp_path / "rows.npz", x=X, y=THREE)
    subject = open_subject(Source(str(path), str(tmp_path / "rows.npz")))
    assert not subject.differentiable
    assert "answers without gradients" in subject.about
    assert_allclose(subject.predict(T), doors.of(booster).model(T), rtol=1e-6, atol=1e-6)
    assert subject.predict(T[:0]).shape == (0, 3)
    assert subject.fingerprint() == open_subject(Source(str(path), str(tmp_path / "rows.npz"))).fingerprint()
    other = grown("multiclass", TWO) if suffix in ("txt", "lgb") else boosted("multi:softprob", TWO)
    other.save_model(str(path))
    assert subject.fingerprint() != open_subject(Source(str(path), str(tmp_path / "rows.npz"))).fingerprint()
    with pytest.raises(SubjectError, match="grown on 4 columns, and the data has 3"):
        subject.model(T[:, :3])


def test_columns_keep_their_names(tmp_path):
    data = lightgbm.Dataset(X, TWO, feature_name=["a", "b", "c", "d"])
    assert doors.of(lightgbm.train({"objective": "binary", "verbose": -1}, data, 2)).columns == ("a", "b", "c", "d")
    named = xgboost.DMatrix(X, TWO, feature_names=["a", "b", "c", "d"])
    booster = xgboost.train({"objective": "binary:logistic"}, named, 2)
    opened = doors.of(booster)
    assert opened.columns == ("a", "b", "c", "d")
    assert_allclose(opened.model(T).softmax(1)[:, 1], booster.predict(named), rtol=0, atol=1e-6)


def test_trees_that_say_numbers_are_a_regression(tmp_path):
    grown("regression", X[:, 0].copy()).save_model(str(tmp_path / "trees.txt"))
    np.savez(tmp_path / "rows.npz", x=X, y=TWO)
    subject = open_subject(Source(str(tmp_path / "trees.txt"), str(tmp_path / "rows.npz")))
    assert isinstance(subject.task, Regression)
    assert subject.task.tolerance == (pytest.approx(TWO.std() / 2),)


@pytest.mark.parametrize("suffix", ["txt", "json", "ubj"])
def test_other_files_and_halves_are_one_line(tmp_path, suffix):
    booster = grown("multiclass", THREE) if suffix == "txt" else boosted("multi:softprob", THREE)
    path = tmp_path / f"trees.{suffix}"
    booster.save_model(str(path))
    whole = path.read_bytes()
    door = lightgbm_file if suffix == "txt" else xgboost_file
    for content, says in (
        (b"hello " * 30, "holds no trees of (LightGBM|XGBoost); write them"),
        (b"", "holds no trees of (LightGBM|XGBoost); write them"),
        (
            whole[: len(whole) // 2],
            r"(is no whole text of LightGBM's trees|cannot be read by XGBoost) \(.+\); save the model again",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(AssayError, match=says) as caught:
            door.open(path, Source(str(path)))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("named", [False, True])
def test_trees_with_categories_open(tmp_path, named):
    x = np.column_stack([X[:, :3], np.arange(150) % 6])
    y = ((x[:, 3] % 2 == 0) ^ (x[:, 0] > 1)).astype(int)
    by_category = {"min_data_per_group": 5, "cat_smooth": 1, "max_cat_to_onehot": 1}
    names = ["größe", "b", "c", "d"] if named else "auto"
    data = lightgbm.Dataset(x, y, categorical_feature=[3], feature_name=names)
    booster = lightgbm.train({"objective": "binary", "verbose": -1, "min_data_in_leaf": 3, **by_category}, data, 5)
    assert "cat_boundaries" in booster.model_to_string()
    booster.save_model(str(tmp_path / "trees.txt"))
    opened = lightgbm_file.open(tmp_path / "trees.txt", Source("trees.txt"))
    p = opened.model(torch.from_numpy(x)).softmax(1)[:, 1]
    assert_allclose(p, booster.predict(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("line", "to", "says"),
    [
        (r"left_child=", "left_child=0 ", "left_child has|leads nowhere"),
        (r"left_child=\S+", "left_child=0", "a branch leads nowhere"),  # back to itself: a walk without end
        (r"right_child=\S+", "right_child=-900", "a branch leads nowhere"),
        (r"split_feature=\S+", "split_feature=4000000", "a column that there is not"),
        (r"split_feature=\S+", "split_feature=x", "invalid literal"),
        (r"num_leaves=\S+", "num_leaves=100000", "leaf_value has"),
        (r"num_cat=0", "num_cat=0\nnum_cat=5", "a line 'num_cat' is not what it should be"),
        (r"num_cat=0\n", "", "'num_cat' is missing|trees do not end|cut short"),
        (r"is_linear=0", "is_linear=1", "trees are linear"),
        (r"max_feature_idx=\S+", "max_feature_idx=9", "not those that it counts"),
        (r"decision_type=\S+", "decision_type=1", "'cat_boundaries' is missing"),
    ],
)
def test_trees_that_point_outside_are_not_handed_on(tmp_path, line, to, says):
    head, _, body = grown("binary", TWO).model_to_string().partition("\n\n")
    where = "head" if "max_feature" in line else "body"
    changed = re.sub(line, to, head if where == "head" else body, count=1)
    assert changed != (head if where == "head" else body)
    if where == "body":
        grew = len(changed) - len(body)  # so that the sizes still add up
        head = re.sub(r"tree_sizes=(\d+)", lambda m: f"tree_sizes={int(m[1]) + grew}", head)
    text = f"{changed}\n\n{body}" if where == "head" else f"{head}\n\n{changed}"
    (tmp_path / "trees.txt").write_text(text)
    with pytest.raises(AssayError, match=says) as caught:
        lightgbm_file.open(tmp_path / "trees.txt", Source("trees.txt"))
    assert "save the model again" in str(caught.value)


@pytest.mark.parametrize("suffix", ["json", "ubj"])
@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("left_children", 10**6, "a branch of a tree leads nowhere"),
        ("right_children", 0, "a branch of a tree leads nowhere"),  # back to the root: a walk without end
        ("left_children", -5, "a branch of a tree leads nowhere"),
        ("split_indices", 10**6, "a tree asks for a column that there is not"),
    ],
)
def test_a_walk_out_of_xgboosts_trees_is_not_begun(tmp_path, suffix, field, value, says):
    booster = boosted("multi:softprob", THREE)
    told = json.loads(booster.save_raw("json"))
    tree = told["learner"]["gradient_booster"]["model"]["trees"][1]
    assert tree["left_children"][:3] == [1, 3, 5]  # that the change is one
    tree[field][0] = value
    changed = xgboost.Booster(model_file=bytearray(json.dumps(told).encode()))
    changed.save_model(str(tmp_path / f"trees.{suffix}"))
    with pytest.raises(AssayError, match=rf"cannot be read by XGBoost \({says}\); save the model again"):
        xgboost_file.open(tmp_path / f"trees.{suffix}", Source("trees"))


def test_a_tree_for_a_class_that_there_is_not(tmp_path):
    told = json.loads(boosted("multi:softprob", THREE).save_raw("json"))
    told["learner"]["gradient_booster"]["model"]["tree_info"][0] = 7
    (tmp_path / "trees.json").write_text(json.dumps(told))
    with pytest.raises(AssayError, match="a tree is for a class that there is not|cannot be read by XGBoost"):
        xgboost_file.open(tmp_path / "trees.json", Source("trees"))


def test_dart_opens_and_lines_do_not(tmp_path):
    data = xgboost.DMatrix(X, TWO)
    for kind in ("dart", "gblinear"):
        booster = xgboost.train({"objective": "binary:logistic", "booster": kind, "verbosity": 0}, data, 4)
        booster.save_model(str(tmp_path / f"{kind}.json"))
    opened = xgboost_file.open(tmp_path / "dart.json", Source("dart"))
    dart = xgboost.Booster(model_file=str(tmp_path / "dart.json"))
    assert_allclose(opened.model(T).softmax(1)[:, 1], dart.predict(data), rtol=0, atol=1e-6)
    with pytest.raises(AssayError, match="it holds 'gblinear', and trees are wanted"):
        xgboost_file.open(tmp_path / "gblinear.json", Source("gblinear"))
