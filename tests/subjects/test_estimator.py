from __future__ import annotations

import sys
import types
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.cluster import KMeans
from sklearn.ensemble import IsolationForest, RandomForestClassifier, RandomForestRegressor, VotingClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from torch.testing import assert_close

from assay.data.relabelled import in_order, places_of
from assay.errors import AssayError, SubjectError
from assay.fingerprint import of_model
from assay.subjects import Source, doors, open_subject
from assay.subjects.doors.estimator import FLOOR


def rows(classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 4)).astype(np.float32)
    return x, (x[:, :classes] + 0.3 * rng.normal(size=(150, classes))).argmax(1)


X, Y = rows()
NAMES = np.array(["rye", "oat", "barley"])  # not in the order that classes_ will have
T = torch.from_numpy(X)

PROBABLE = {
    "forest": lambda: RandomForestClassifier(7, random_state=0),
    "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "network": lambda: MLPClassifier((8,), max_iter=30, random_state=0),
    "bayes": GaussianNB,
}


def fitted(name: str, y: np.ndarray = Y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the network is not trained to the end
        return PROBABLE[name]().fit(X, y)


@pytest.mark.parametrize("name", PROBABLE)
def test_probabilities_are_those_of_the_library(name):
    estimator = fitted(name, NAMES[Y])
    opened = doors.of(estimator)
    out = opened.model(T)
    assert_allclose(out.softmax(1).numpy(), estimator.predict_proba(X), rtol=0, atol=1e-6)
    assert opened.classes == ("barley", "oat", "rye")
    said = np.array(opened.classes)[out.argmax(1)]
    assert (said == estimator.predict(X)).mean() > 0.99  # a tie may be rounded either way
    assert opened.answers == "classes"
    assert opened.gradients is False
    assert "without gradients" in opened.about
    assert opened.shape == (4,)


def test_a_certain_forest_has_the_log_loss_that_scikit_learn_gives_it():
    estimator = RandomForestClassifier(3, random_state=0).fit(X[:60], Y[:60])
    p = estimator.predict_proba(X)
    assert (p == 0).any()
    assert (p[np.arange(len(p)), Y] == 0).any()
    loss = torch.nn.functional.cross_entropy(doors.of(estimator).model(T).double(), torch.from_numpy(Y))
    assert float(loss) == pytest.approx(log_loss(Y, p), rel=1e-5)
    assert float(doors.of(estimator).model(T).min()) == pytest.approx(np.log(FLOOR))


@pytest.mark.parametrize("make", [SVC, LinearSVC, RidgeClassifier])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_decision_function_is_read_as_logits(make, classes):
    x, y = rows(classes)
    estimator = make().fit(x, y)
    opened = doors.of(estimator)
    out = opened.model(torch.from_numpy(x))
    assert out.shape == (150, classes)
    decided = estimator.decision_function(x)
    assert_allclose(
        (out[:, 1] - out[:, 0]).numpy(),
        decided if classes == 2 else decided[:, 1] - decided[:, 0],
        rtol=1e-5,
        atol=1e-5,
    )
    assert (out.argmax(1).numpy() == estimator.predict(x)).all()
    assert "decision function" in opened.notes[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SVC(decision_function_shape="ovo"),  # one column for each two classes, three of them too
        lambda: make_pipeline(StandardScaler(), SVC(decision_function_shape="ovo")),
        lambda: VotingClassifier([("a", GaussianNB()), ("b", LinearSVC())]),
    ],
)
def test_what_only_names_a_class_is_read_as_certain(make):
    estimator = make().fit(X, NAMES[Y])
    opened = doors.of(estimator)
    out = opened.model(T)
    assert (np.array(opened.classes)[out.argmax(1)] == estimator.predict(X)).all()
    assert_allclose(out.softmax(1).amax(1), torch.ones(150))
    assert "no confidence" in opened.notes[0]


def test_a_regressor_gives_numbers():
    for y, k in ((X[:, 0] * 2, 1), (X[:, :2] * 3, 2)):
        estimator = RandomForestRegressor(5, random_state=0).fit(X, y)
        opened = doors.of(estimator)
        assert opened.answers == "numbers"
        assert opened.classes is None
        assert_allclose(opened.model(T).numpy(), estimator.predict(X).reshape(150, k), rtol=1e-6, atol=1e-6)


def test_several_labels_at_once_have_a_logit_each():
    several = np.stack([X[:, 0] > 0, X[:, 1] > 0.5], 1).astype(int)
    forest = RandomForestClassifier(9, random_state=0).fit(X, several)
    opened = doors.of(forest)
    assert opened.answers == "labels"
    expected = np.stack([p[:, 1] for p in forest.predict_proba(X)], 1)
    assert_allclose(opened.model(T).sigmoid().numpy(), expected, rtol=0, atol=1e-6)
    against = OneVsRestClassifier(LogisticRegression()).fit(X, several)
    assert doors.of(against).answers == "labels"
    assert_allclose(doors.of(against).model(T).sigmoid().numpy(), against.predict_proba(X), rtol=0, atol=1e-6)
    worse = RandomForestClassifier(3).fit(X, np.stack([Y, Y], 1))
    with pytest.raises(AssayError, match="several questions of more than two classes at once"):
        doors.of(worse)


def test_images_are_flattened_and_no_input_is_no_answer():
    model = doors.of(fitted("forest")).model
    assert_allclose(model(T.reshape(150, 1, 2, 2)), model(T))
    assert model(T[:0]).shape == (0, 3)
    with pytest.raises(SubjectError, match="was fitted on 4 columns, and the data has 3; give the columns"):
        model(T[:, :3])


@pytest.mark.parametrize(
    ("brought", "says"),
    [
        (RandomForestClassifier(), "RandomForestClassifier is not fitted yet; call fit first"),
        (make_pipeline(StandardScaler(), LogisticRegression()), "Pipeline is not fitted yet"),
        (KMeans(2, n_init=1).fit(X), "KMeans is a clusterer, which gives neither classes nor numbers"),
        (IsolationForest(n_estimators=2).fit(X), "IsolationForest is an outlier detector"),
        (RandomForestClassifier, "the class RandomForestClassifier, not a model made of it is nothing that opens"),
        (None, "NoneType is nothing that opens; give a torch.nn.Module, a fitted scikit-learn"),
        (3.5, "float is nothing that opens"),
    ],
)
def test_what_is_no_model_is_told_in_one_line(brought, says):
    with pytest.raises(AssayError, match=says) as caught:
        doors.of(brought)
    assert "\n" not in str(caught.value)


def test_two_estimators_of_one_class_are_told_apart():
    def known(estimator) -> str:
        return of_model(doors.of(estimator).model).lasting

    for name in PROBABLE:
        one, same, other = fitted(name), fitted(name), fitted(name, (Y + 1) % 3)
        assert known(one) == known(same)
        assert known(one) != known(other)
        before = known(one)
        one.predict(X)
        assert known(one) == before


def test_a_name_that_is_not_the_highest_is_noted():
    estimator = FixedThresholdClassifier(LogisticRegression(), threshold=0.9).fit(X, Y == 0)
    opened = doors.of(estimator)
    p = estimator.predict_proba(X)[:, 1]
    apart = int(((p > 0.5) & (p < 0.9)).sum())
    assert apart
    assert f"On {apart} of 150 inputs `predict` names another class" in opened.shown(T).notes[-1]
    assert len(doors.of(fitted("pipeline")).shown(T).notes) == 1


class Frame:
    """What pandas.DataFrame is asked for here."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.made = columns


def test_an_estimator_of_named_columns_gets_them(monkeypatch):
    class OfFrames:
        classes_ = np.array(["no", "yes"])

        def fit(self):
            return self

        def predict_proba(self, frame):
            assert isinstance(frame, Frame)
            yes = 0.25 + 0.5 * (frame.made["colour"] == "red") + 0.1 * (frame.made["age"] > 30)
            return np.stack([1 - yes, yes], 1)

    stand_in = types.ModuleType("pandas")
    stand_in.DataFrame = Frame
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    opened = doors.of(OfFrames(), columns=("age", "colour"), categories={"colour": ("blue", "red")})
    out = opened.model(torch.tensor([[40.0, 0.0], [20.0, 1.0], [31.0, 0.9], [20.0, 7.0], [20.0, torch.nan]]))
    assert_close(out.exp()[:, 1], torch.tensor([0.35, 0.75, 0.85, 0.75, 0.25]))
    assert opened.columns == ("age", "colour")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SubjectError, match="takes columns with categories by name, which needs pandas"):
        opened.model(torch.zeros(1, 2))


def test_a_pipeline_fitted_on_a_frame_gives_the_same_answers():
    pandas = pytest.importorskip("pandas")
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder

    codes = (X[:, 3] > 0).astype(int)
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "colour": np.array(["blue", "red"])[codes]})
    estimator = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough"), LogisticRegression()
    ).fit(frame, Y)
    opened = doors.of(estimator, columns=tuple(frame), categories={"colour": ("blue", "red")})
    x = torch.from_numpy(np.stack([X[:, 0], X[:, 1], codes], 1).astype(np.float32))
    assert_allclose(opened.model(x).softmax(1).numpy(), estimator.predict_proba(frame), rtol=0, atol=1e-5)


# The order of classes: the data's and the model's.


def test_labels_find_their_places():
    assert places_of(("b", "a"), np.array(["a", "b", "b"])).tolist() == [1, 0, 0]
    assert places_of((1, 2, 5), np.array([5, 1, 2])).tolist() == [2, 0, 1]
    with pytest.raises(AssayError, match="Label 'c' of input 1 is none of the model's classes 'b', 'a'"):
        places_of(("b", "a"), np.array(["a", "c"]))


def test_data_with_names_are_told_in_the_models_order():
    from assay.data.arrays import Arrays

    data = Arrays(X[:4], np.array([0, 1, 1, 0]), ("cat", "dog"))
    told = in_order(data, ("dog", "fox", "cat"))
    assert told.labels.tolist() == [2, 0, 0, 2]
    assert told.classes == ("dog", "fox", "cat")
    x, y = told.take(np.array([1, 3]))
    assert_allclose(x, T[[1, 3]])
    assert y.tolist() == [0, 2]
    assert told.fingerprint() != data.fingerprint()
    assert told.fingerprint() != in_order(data, ("dog", "cat")).fingerprint()
    assert in_order(data, ("cat", "dog")) is data
    assert in_order(data, ("0", "1")) is data
    with pytest.raises(AssayError, match="Label 'cat' of input 0 is none of the model's classes"):
        in_order(data, ("dog", "fox"))


SCRIPT = """
import numpy as np
from sklearn.ensemble import RandomForestClassifier

def build():
    rng = np.random.default_rng(0)
    x = rng.random((80, 4)).astype(np.float32)
    y = np.array(["rye", "oat"])[(x[:, 0] > 0.5).astype(int)]
    return RandomForestClassifier(9, random_state=0).fit(x, y), (x, y)

def numbered():
    model, (x, y) = build()
    model.fit(x, np.where(y == "oat", 3, 8))
    return model
"""


def test_a_script_may_return_an_estimator_and_its_words_for_classes(tmp_path):
    (tmp_path / "subject.py").write_text(SCRIPT)
    subject = open_subject(Source(f"{tmp_path}/subject.py:build"))
    assert subject.task.classes == ("oat", "rye")
    assert not subject.differentiable
    x, y = subject.data["test"].take(np.arange(80))
    assert (subject.predict(x).argmax(1) == y).float().mean() > 0.95
    assert subject.notes[0].startswith("The logarithm of its probabilities")
    assert subject.fingerprint() == open_subject(Source(f"{tmp_path}/subject.py:build")).fingerprint()
    oats = (x[:, 0] <= 0.5).numpy()
    np.savez(tmp_path / "numbers.npz", x=x.numpy(), y=np.where(oats, 3, 8))
    subject = open_subject(Source(f"{tmp_path}/subject.py:numbered", str(tmp_path / "numbers.npz")))
    assert subject.task.classes == ("3", "8")
    assert (subject.data["test"].labels == ~oats).all()


def test_neighbours_open_though_a_search_changes_what_they_hold():
    estimator = KNeighborsClassifier(3).fit(X, Y)
    assert_allclose(doors.of(estimator).model(T).exp().numpy(), estimator.predict_proba(X), rtol=0, atol=1e-6)


def test_words_that_have_no_column_name_are_told_and_not_a_crash():
    x = np.array([["a"], ["b"]] * 10, dtype=object)
    model = doors.of(
        make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(x, [0, 1] * 10)
    ).model
    with pytest.raises(SubjectError, match=r"Pipeline does not take rows of numbers \(.*\); where it takes categories"):
        model(torch.zeros(2, 1))
