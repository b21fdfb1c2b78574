"""A Keras 3 model on its torch backend, as an object or out of a .keras file, with its gradients.

A .keras file is an archive of a description and weights. It is read with `safe_mode`, which refuses a Lambda layer's
bytecode; beyond that, only Keras's own classes are made: a description that names another module is refused by that
name, because to make an object Keras imports what it is told to.

Images come with channels first; a model that wants them last (`image_data_format`, Keras's default) gets them there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from assay.data.archive import check_unpacked, open_archive
from assay.data.plain_file import MOST_UNPACKED
from assay.errors import AssayError, MissingExtra, SubjectError
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source

MOST_TEXT = 64 * 2**20
PARTS = {"config.json", "metadata.json", "model.weights.h5"}


class KerasModel(nn.Module):
    """A Keras model in inference mode; `state_digest` is a hash of its description, its weights are torch's."""

    def __init__(self, model: Any, shape: tuple[int | None, ...] | None, nhwc: bool, digest: str) -> None:
        super().__init__()
        self.model, self.shape, self.nhwc = model, shape, nhwc
        self.state_digest = digest
        self.register_state_dict_post_hook(_without_seeds)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_not_missed)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Any:  # n *d -> n k
        wanted = self.shape
        if wanted is not None and (
            len(wanted) != x.ndim - 1 or any(w not in (None, s) for w, s in zip(wanted, x.shape[1:], strict=True))
        ):
            told = " x ".join("any" if w is None else str(w) for w in wanted)
            raise SubjectError(
                f"The Keras model takes inputs of shape {told} (channels first), and the data has "
                f"{' x '.join(map(str, x.shape[1:]))}; bring the data to that shape."
            )
        return self.model(x.permute(0, 2, 3, 1) if self.nhwc else x, training=False)


SEED = "seed_generator"  # of dropout; drawn anew, and named anew, each time a model is loaded, and for training alone


def _without_seeds(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in [n for n in state if n.startswith(prefix) and SEED in n]:
        del state[name]


def _not_missed(module: nn.Module, keys: Any) -> None:
    keys.missing_keys[:] = [name for name in keys.missing_keys if SEED not in name]


def _keras() -> Any:
    """Keras, on torch."""
    loaded = "keras" in sys.modules
    os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        import keras  # type: ignore[import-untyped, unused-ignore]
    except ImportError as e:
        raise MissingExtra.of("Reading .keras", "keras and h5py", "keras") from e
    if keras.backend.backend() != "torch":
        how = "before Keras is imported" if loaded else "in the environment"
        raise AssayError(f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=torch {how}.")
    return keras


def of(model: Any, name: str | None = None, layout: str | None = None) -> Opened:
    """A Keras model as a model of tensors."""
    keras = _keras()
    given = getattr(model, "input_shape", None)
    if isinstance(given, list | dict):
        raise AssayError(f"The Keras model {model.name!r} takes {len(given)} inputs; give one that takes one batch.")
    sides = None if given is None else tuple(given[1:])
    is_image = sides is not None and len(sides) == 3
    nhwc = is_image and (layout or {"channels_last": "nhwc"}.get(keras.config.image_data_format())) == "nhwc"
    shape = (sides[2], sides[0], sides[1]) if nhwc and sides is not None else sides
    try:
        described = json.dumps(model.get_config(), sort_keys=True, default=str)
    except NotImplementedError:  # a model of the user's own class
        described = f"{type(model).__module__} {type(model).__qualname__}"
    digest = hashlib.blake2b(f"{described} {nhwc}".encode(), digest_size=16).hexdigest()
    return Opened(
        model=KerasModel(model, shape, nhwc, digest),
        name=name or model.name,
        about=f"{name or model.name}, a Keras model on torch.",
        shape=shape,
        notes=("Its images have their channels last; they are put there.",) if nhwc else (),
    )


def open(path: Path, source: Source) -> Opened:
    """The model in a .keras file, made of Keras's own classes alone."""
    keras = _keras()
    try:
        names = check_unpacked(path, MOST_UNPACKED)
        strange = [name for name in names if name not in PARTS]
        if strange:
            raise AssayError(f"{str(path)!r} holds {strange[0]!r} beside the model; save it without assets.")
        with open_archive(path) as archive:
            if archive.getinfo("config.json").file_size > MOST_TEXT:
                raise AssayError(f"{str(path)!r} is described by more than {MOST_TEXT:,} bytes; save it again.")
            for module, kind in _named(json.loads(archive.read("config.json"))):
                if module.partition(".")[0] not in ("keras", "builtins"):
                    raise AssayError(
                        f"{str(path)!r} wants {kind!r} of the module {module!r}, which would be imported; give a model "
                        "of Keras's own layers, or a subject.py that builds it."
                    )
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except AssayError:
        raise
    except Exception as e:  # Keras raises whatever a description makes it meet
        said = [line.strip() for line in str(e).splitlines() if line.strip()] or ["no message"]
        damaged = "no archive" if isinstance(e, zipfile.BadZipFile) else type(e).__name__
        raise AssayError(
            f"{str(path)!r} cannot be loaded by Keras {keras.__version__} ({damaged}: {said[0]:.200}); save it again."
        ) from e
    return of(model, path.name, source.layout)


def _named(config: Any) -> Iterator[tuple[str, str]]:
    """Every module that the description names, with the class that is wanted of it."""
    waiting = [config]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("module"), str):
                yield part["module"], str(part.get("class_name"))
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
