"""Pickled models, which are refused unless the user insists: opening one runs whatever code its maker put into it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from assay.errors import AssayError
from assay.subjects import doors
from assay.subjects.doors.builder import filled
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source

ESTIMATORS = (".pkl", ".pickle", ".joblib")
"""What estimators are pickled as; a network that torch.save wrote is told by being an archive."""


def open(path: Path, source: Source) -> Opened:
    """The pickled model, with the user's consent; weights alone without it, into the network of --builder."""
    if source.builder is not None:
        return filled(path, _weights(path), source)
    made = open_pickled(path, source.allow_pickle)
    try:
        return replace(doors.of_object(made), name=path.name)
    except doors.Unopened as e:
        raise AssayError(
            f"{str(path)!r} holds {type(made).__name__}, not a torch.nn.Module or an estimator; pickle the whole model."
        ) from e


def _weights(path: Path) -> Mapping[str, Any]:
    """The tensors of a state dict, read by torch's unpickler that makes nothing else."""
    try:
        made = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:  # torch's reader raises whatever it meets
        what = str(e).strip().splitlines()
        raise AssayError(
            f"{str(path)!r} holds more than weights ({type(e).__name__}: {what[0] if what else 'no message':.200}); "
            "save model.state_dict(), as .safetensors at best."
        ) from e
    inner = made.get("state_dict", made) if isinstance(made, Mapping) else made
    if not isinstance(inner, Mapping):
        raise AssayError(f"{str(path)!r} holds {type(made).__name__}, no state dict; save model.state_dict().")
    return {str(name): value for name, value in inner.items()}


def open_pickled(path: Path, allow_pickle: bool) -> Any:
    """Whatever is in a pickle, with --allow-pickle: a whole nn.Module, an estimator."""
    if not allow_pickle and path.suffix.lower() in ESTIMATORS:
        raise AssayError(
            f"{str(path)!r} is a pickle, which can run any code when it is opened; convert it where you trust it: "
            f"skops.io.dump(model, {path.stem + '.skops'!r}) for an estimator, torch.export.save(program, "
            f"{path.stem + '.pt2'!r}) for a network, or insist with --allow-pickle."
        )
    if not allow_pickle:
        raise AssayError(
            f"{str(path)!r} is a pickle, which can run any code when it is opened; convert it where you trust it: "
            f"program = torch.export.export(model.eval(), (x,)); torch.export.save(program, {path.stem + '.pt2'!r}) "
            f"(weights alone open with --builder net.py:build), or insist with --allow-pickle."
        )
    try:
        if path.suffix.lower() in ESTIMATORS and not zipfile.is_zipfile(path):
            import joblib  # type: ignore[import-untyped, unused-ignore]

            return joblib.load(path)
        made = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as e:  # the code in a pickle raises what it likes
        what = str(e).strip().splitlines()
        raise AssayError(
            f"{str(path)!r} cannot be unpickled ({type(e).__name__}: {what[0] if what else 'no message'}); "
            f"write a subject.py that has the model's class and loads the weights."
        ) from e
    if not isinstance(made, Mapping):
        return made
    names = [str(k) for k in made]
    raise AssayError(
        f"{str(path)!r} holds weights or settings ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}), "
        f"which need code to run; give --builder net.py:build, or write subject.py: def build(): model = Net(); "
        f"model.load_state_dict(torch.load({path.name!r}, weights_only=True)); return model."
    )
