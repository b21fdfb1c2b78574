"""Subject.of: whatever is brought in Python opens, with the task that its answers and targets tell of."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import assay
from assay import AssayError, Classification, Labels, Regression, Subject

WINE = load_wine()
X, Y = WINE.data.astype(np.float32), WINE.target
NAMES = np.asarray(WINE.target_names)[Y]
SICK = load_diabetes()
BODY, WORSE = SICK.data.astype(np.float32), SICK.target


@pytest.mark.parametrize(
    "model",
    [RandomForestClassifier(20, random_state=0), make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))],
    ids=["forest", "pipeline"],
)
@pytest.mark.parametrize("labels", [Y, NAMES], ids=["numbers", "strings"])
def test_an_estimator_is_a_classifier_with_its_own_classes(model, labels):
    model.fit(X[::2], labels[::2])
    subject = Subject.of(model, {"test": (X[1::2], labels[1::2]), "train": (X[::2], labels[::2])})
    assert isinstance(subject.task, Classification)
    assert subject.task.classes == tuple(map(str, model.classes_))
    assert not subject.differentiable
    found = assay.audit(subject, probes=["accuracy"]).row("accuracy").answer.finding
    assert found is not None
    assert found.measure("accuracy").value == pytest.approx(model.score(X[1::2], labels[1::2]))


def test_a_regressor_is_a_regression():
    model = make_pipeline(StandardScaler(), Ridge()).fit(BODY[::2], WORSE[::2])
    subject = Subject.of(model, {"test": (BODY[1::2], WORSE[1::2]), "train": (BODY[::2], WORSE[::2])})
    assert isinstance(subject.task, Regression)
    assert subject.task.tolerance == (pytest.approx(WORSE[::2].std() / 2),)
    found = assay.audit(subject, probes=["accuracy"], budget="full").row("accuracy").answer.finding
    assert found is not None
    near = np.abs(model.predict(BODY[1::2]) - WORSE[1::2]) < subject.task.tolerance[0]
    assert found.measure("accuracy").value == pytest.approx(near.mean(), abs=0.01)
    trees = RandomForestRegressor(10, random_state=0).fit(BODY[::2], WORSE[::2])
    assert isinstance(Subject.of(trees, (BODY[1::2], WORSE[1::2])).task, Regression)


def test_several_labels_at_once():
    both = np.stack([Y == 0, X[:, 0] > 13], 1).astype(int)
    model = MultiOutputClassifier(RandomForestClassifier(10, random_state=0)).fit(X[::2], both[::2])
    subject = Subject.of(model, (X[1::2], both[1::2]), Labels(("first", "strong")))
    found = assay.audit(subject, probes=["accuracy"]).row("accuracy").answer.finding
    assert found is not None
    assert found.measure("accuracy").value == pytest.approx(
        (model.predict(X[1::2]) == both[1::2]).all(1).mean(), abs=0.02
    )


def test_what_is_about_torch_modules_is_not_dropped_in_silence():
    with pytest.raises(AssayError, match="mean, classes are about torch modules, and the model is Ridge; leave them"):
        Subject.of(Ridge().fit(BODY, WORSE), (BODY, WORSE), mean=(0.5,), classes=("a", "b"))


def test_a_function_of_arrays():
    def by_alcohol(x: np.ndarray) -> np.ndarray:
        return np.stack([x[:, 0], np.full(len(x), 13.0)], 1)

    subject = Subject.of(by_alcohol, (X, (X[:, 0] < 13).astype(int)))
    assert assay.audit(subject, probes=["accuracy"]).status == 0


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (RandomForestClassifier, "the class RandomForestClassifier, not a model made of it"),
        (7, "int is nothing that opens; give a torch.nn.Module"),
        (RandomForestClassifier(), "fit"),
    ],
    ids=["a class", "a number", "not fitted"],
)
def test_what_is_no_model_is_told_in_one_line(model, says):
    with pytest.raises(AssayError, match=says) as told:
        Subject.of(model, (X, Y))
    assert "\n" not in str(told.value)
