"""The doors through which a user's own model comes in, one file each. A model passes one of them, once.

A door of files is a module with `open(path, source)`: it gives the model (`Opened`), or a whole subject where that is
what was in the file. Which one is told by the suffix, and where a suffix stands for several things, by what is inside.
A door of objects is a module with `of(model)`. Importing this needs no torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.subjects import Source
    from assay.subjects.doors.opened import Opened

TORCH = (".pt", ".pth", ".ckpt", ".bin", ".jit", ".ts")


class Unopened(AssayError):
    """An object that no door fits."""


class Door(NamedTuple):
    """The module, what it opens in a few words, and the options that are about its models alone."""

    module: str
    opens: str
    takes: tuple[str, ...] = ()


PICKLED = Door("pickled", "state.pt", ("output", "builder"))
TORCHSCRIPT = Door("torchscript", "a TorchScript .pt", ("output", "feed"))
DOORS = {
    ".py": Door("script", "subject.py:build", ("output",)),
    ".pt2": Door("exported", "model.pt2"),
    ".onnx": Door("onnx_file", "model.onnx", ("output", "layout", "feed")),
    ".safetensors": Door("safetensors_file", "weights.safetensors", ("output", "builder")),
    ".skops": Door("skops_file", "model.skops", ("trust",)),
    ".keras": Door("keras_file", "model.keras", ("output", "layout")),
    **dict.fromkeys((".txt", ".lgb"), Door("lightgbm_file", "trees.txt")),
    **dict.fromkeys((".json", ".ubj"), Door("xgboost_file", "trees.json")),
    **dict.fromkeys((*TORCH, ".pkl", ".pickle", ".joblib"), PICKLED),
}
FOLDER = Door("hugging_face", "a Hugging Face folder")
OPTIONS = ("output", "layout", "feed", "builder", "trust")
"""Options that only some doors take."""


def door_of(path: Path, source: Source) -> Door | None:
    """The door for this file or folder, or None; an option that this door does not take is refused."""
    door = FOLDER if path.is_dir() else DOORS.get(path.suffix.lower())
    if door is PICKLED and path.suffix.lower() in TORCH:
        from assay.subjects.doors.torchscript import is_torchscript

        door = TORCHSCRIPT if is_torchscript(path) else PICKLED
    if door is None:
        return None
    for option in OPTIONS:
        if getattr(source, option) not in (None, ()) and option not in door.takes:
            fitting = [d.opens for d in dict.fromkeys([*DOORS.values(), TORCHSCRIPT]) if option in d.takes]
            raise AssayError(
                f"--{option} does not apply to {path.name!r}; leave it out. It is for {', '.join(fitting)}."
            )
    return door


def open_file(path: Path, source: Source) -> Any:
    """The model in a file (`Opened`), or the subject; None where no door fits."""
    door = door_of(path, source)
    return None if door is None else importlib.import_module(f"{__name__}.{door.module}").open(path, source)


OBJECTS = (
    "a torch.nn.Module, a fitted scikit-learn, LightGBM or XGBoost estimator or pipeline, a Booster, a Keras model on "
    "the torch backend, a model of MAITE's protocol, a function of arrays, or the path of a model"
)


def of(
    model: Any,
    *,
    columns: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
) -> Opened:
    """Whatever was brought, as a model that takes tensors.

    `columns` are the names of a row's columns, `categories` the values behind the codes 0, 1, ... of some of them: an
    estimator that was fitted on a DataFrame gets one. Nothing is imported that the user has not imported.
    """
    if not isinstance(model, str | Path):
        return of_object(model, columns=columns, categories=categories)
    from assay.subjects import Source, located
    from assay.subjects.doors.opened import Opened

    source = Source(str(model))
    path = located(source)
    made = None if path is None else open_file(path, source)
    if not isinstance(made, Opened):
        raise Unopened(f"{str(model)!r} is a whole subject, or no model; give {OBJECTS}.")
    return made


def of_object(
    model: Any,
    *,
    columns: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
) -> Opened:
    """The same for what is no path: what a file held must not name another."""
    from torch import nn

    from assay.subjects.doors import estimator, function
    from assay.subjects.doors.opened import Opened

    if _is(model, "keras", "Model"):
        from assay.subjects.doors import keras_file

        return keras_file.of(model)
    if isinstance(model, nn.Module):
        return Opened(model=model, name=type(model).__name__)
    if _is(model, "lightgbm", "Booster"):
        from assay.subjects.doors import lightgbm_file

        return lightgbm_file.of(model)
    if _is(model, "xgboost", "Booster"):
        from assay.subjects.doors import xgboost_file

        return xgboost_file.of(model)
    if not isinstance(model, type) and any(hasattr(model, method) for method in estimator.METHODS):
        return estimator.of(model, columns, categories)
    if function.is_maite(model):
        return function.of_maite(model)
    if callable(model) and not isinstance(model, type):
        return function.of_function(model)
    what = f"the class {model.__name__}, not a model made of it" if isinstance(model, type) else type(model).__name__
    raise Unopened(f"{what} is nothing that opens; give {OBJECTS}.")


def _is(model: Any, package: str, kind: str) -> bool:
    """Whether it is such an object of a package, which then was imported."""
    known = getattr(sys.modules.get(package), kind, None)
    return isinstance(known, type) and isinstance(model, known)
