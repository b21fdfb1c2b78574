"""An estimator or a pipeline with scikit-learn's methods, LightGBM's and XGBoost's own among them, as a model.

It answers through numpy, so it has no gradients. What it says is read as

    predict_proba      log max(p, FLOOR) for each class; of several labels at once, log p - log(1 - p) for each label
    decision_function  as it is; of two classes the one number z is read as (0, z)
    predict            of a classifier that says no more, log FLOOR for every class but the one it names;
                       of a regressor, the numbers

in the order of `classes_`. FLOOR is what `sklearn.metrics.log_loss` clips at in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError, SubjectError
from assay.subjects.doors.opened import Answers, Opened

FLOOR = float(np.finfo(np.float64).eps)
METHODS = ("predict_proba", "decision_function", "predict")
Method = Literal["predict_proba", "decision_function", "predict"]


class EstimatorModel(nn.Module):
    """The answers of an estimator to rows; images are flattened. Not differentiable.

    `columns` are the names that rows get, where the estimator wants names; `categories` the values that the codes
    0, 1, ... of a column stand for.
    """

    def __init__(
        self,
        estimator: Any,
        method: Method,
        answers: Answers,
        width: int | None,
        columns: tuple[str, ...] | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        super().__init__()
        self.state_digest: str | None = None  # of its file, where it came out of one
        self.estimator, self.method, self.answers, self.width = estimator, method, answers, width
        self.columns, self.categories = columns, dict(categories or {})

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        if not len(x):
            return x.new_zeros(0, self.width or 1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")  # the order is what counts
            rows = self.rows(x)
            try:
                said = getattr(self.estimator, self.method)(rows)
            except TypeError as e:  # as of an encoder of words that is given numbers
                line = (str(e).splitlines() or ["no message"])[0]
                raise SubjectError(
                    f"{type(self.estimator).__name__} does not take rows of numbers ({line}); where it takes "
                    "categories, fit it on a DataFrame, so that columns reach it by name and as words."
                ) from e
            out = self._read(said)
        return torch.from_numpy(np.ascontiguousarray(out)).to(x)

    def rows(self, x: Tensor) -> Any:  # n *d -> n f, an array or a DataFrame
        """What the estimator takes."""
        values = x.detach().cpu().double().flatten(1).numpy()
        wanted = getattr(self.estimator, "n_features_in_", None)
        if wanted is not None and values.shape[1] != wanted:
            raise SubjectError(
                f"{type(self.estimator).__name__} was fitted on {wanted} columns, and the data has {values.shape[1]}; "
                f"give the columns that it was fitted on."
            )
        if self.columns is None:
            return values
        try:
            import pandas  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            if self.categories:
                raise SubjectError(
                    f"{type(self.estimator).__name__} takes columns with categories by name, which needs pandas: "
                    f"pip install pandas"
                ) from None
            return values
        return pandas.DataFrame(
            {name: _decoded(values[:, i], self.categories.get(name)) for i, name in enumerate(self.columns)}
        )

    def _read(self, out: Any) -> NDArray[np.float64]:  # -> n k
        if self.answers == "numbers":
            return np.asarray(out, dtype=np.float64).reshape(len(out), -1)
        if self.method == "predict_proba":
            if self.answers == "labels":
                p = np.stack([np.asarray(p)[:, 1] for p in out], 1) if isinstance(out, list) else np.asarray(out)
                return np.asarray(_log(p) - _log(1 - p))
            return _log(np.asarray(out))
        if self.method == "decision_function":
            z = np.asarray(out, dtype=np.float64)
            return np.stack([np.zeros_like(z), z], 1) if z.ndim == 1 else z
        told = np.asarray(out)[:, None] == np.asarray(self.estimator.classes_)[None]
        return _log(told.astype(np.float64))


def of(
    estimator: Any,
    columns: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
) -> Opened:
    """A fitted estimator as a model; what it is fitted for and which of its methods is read are said."""
    name, kind = type(estimator).__name__, _kind(estimator)
    if kind not in ("classifier", "regressor"):
        article = "an" if kind[0] in "aeiou" else "a"
        raise AssayError(
            f"{name} is {article} {kind.replace('_', ' ')}, which gives neither classes nor numbers that targets can "
            f"be held against; give a fitted classifier or regressor."
        )
    _check_fitted(estimator)
    labels = getattr(estimator, "classes_", None)
    method = _method(estimator, kind)
    several = isinstance(labels, list) or bool(getattr(estimator, "multilabel_", False))
    answers: Answers = "numbers" if kind == "regressor" else "labels" if several else "classes"
    if several and method != "predict_proba":
        raise AssayError(f"{name} gives several labels at once without predict_proba; give one that has it.")
    if several and isinstance(labels, list):
        if any(len(c) != 2 for c in labels):
            raise AssayError(f"{name} answers several questions of more than two classes at once; give one at a time.")
        labels = None
    told = getattr(estimator, "feature_names_in_", None) if columns is None else columns
    named = None if told is None else tuple(map(str, told))
    given = None if labels is None or kind == "regressor" else tuple(np.asarray(labels).tolist())
    model = EstimatorModel(estimator, method, answers, None if given is None else len(given), named, categories)
    read = {
        "predict_proba": "The logarithm of its probabilities was taken, none below 2e-16.",
        "decision_function": "It gives no probabilities: its decision function is read as logits.",
        "predict": "It names a class and no confidence: each answer is read as certain.",
    }[method]
    features = getattr(estimator, "n_features_in_", None)
    opened = Opened(
        model=model,
        name=name,
        about=f"{_told(estimator)}: answers through {method}, without gradients.",
        answers=answers,
        classes=None if given is None else tuple(map(str, given)),
        labels=given,
        shape=None if features is None else (int(features),),
        columns=named,
        gradients=False,
        notes=(read,) if answers == "classes" else (),
    )
    return replace(opened, look=_looked) if answers == "classes" else opened


def _looked(opened: Opened, x: Tensor) -> Opened:
    """What is known once it has seen inputs: whether the class that it names is the one with the highest logit."""
    model = opened.model
    assert isinstance(model, EstimatorModel)
    out = model(x).argmax(1).numpy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        said = np.asarray(model.estimator.predict(model.rows(x))).reshape(-1)
    apart = int((np.asarray(model.estimator.classes_)[out] != said).sum())
    if not apart:
        return opened
    note = f"On {apart} of {len(x)} inputs `predict` names another class than `{model.method}` puts highest, which is "
    return replace(opened, notes=(*opened.notes, note + "the one that is asked about."))


def _kind(estimator: Any) -> str:
    """As scikit-learn's tags say; where there are none, as the methods do."""
    try:
        kind = estimator.__sklearn_tags__().estimator_type
    except AttributeError:
        kind = getattr(estimator, "_estimator_type", None)
    if kind is None:
        return "classifier" if hasattr(estimator, "predict_proba") or hasattr(estimator, "classes_") else "regressor"
    return str(kind)


def _method(estimator: Any, kind: str) -> Method:
    if kind == "regressor":
        return "predict"
    if hasattr(estimator, "predict_proba"):
        return "predict_proba"
    # One number for each two classes: no logits.
    pairs: Any = getattr(estimator, "get_params", dict)().items()
    one_to_one = any(k.endswith("decision_function_shape") and v == "ovo" for k, v in pairs)
    several = len(getattr(estimator, "classes_", ())) > 2
    return "predict" if not hasattr(estimator, "decision_function") or (one_to_one and several) else "decision_function"


def _check_fitted(estimator: Any) -> None:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except NotFittedError as e:
        raise AssayError(f"{type(estimator).__name__} is not fitted yet; call fit first.") from e
    except (TypeError, AttributeError):
        return  # not one of scikit-learn's; what it cannot answer it says itself


def _told(estimator: Any) -> str:
    steps = getattr(estimator, "steps", None)
    if isinstance(steps, list):
        return "A pipeline of " + ", ".join(type(step).__name__ for _, step in steps)
    return f"{type(estimator).__name__} of {type(estimator).__module__.partition('.')[0]}"


def _decoded(values: NDArray[np.float64], categories: Sequence[Any] | None) -> NDArray[Any]:  # n -> n
    """The values of a column; of codes, the categories that they stand for, the nearest for what is none."""
    if categories is None:
        return values
    codes = np.nan_to_num(values).round().clip(0, len(categories) - 1).astype(np.int64)
    decoded = np.asarray(categories, dtype=object)[codes]
    decoded[np.isnan(values)] = None
    return decoded


def _log(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(np.maximum(p, FLOOR)))
