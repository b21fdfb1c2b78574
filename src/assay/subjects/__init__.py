"""Reference subjects, one file each, and the doors through which a user's own model comes in.

Importing this needs no torch: the command line does it to answer `--help`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay import shelf
from assay.data.plain_file import check_plain
from assay.errors import AssayError

if TYPE_CHECKING:
    from torch import nn

    from assay.subject import Data, Subject

__all__ = ["Source", "located", "open_subject"]

PICKLED = (".pt", ".pth", ".pkl", ".ckpt", ".bin")
FORMS = "a name that `assay subjects` lists, subject.py:build, model.pt2 or model.onnx"


@dataclass(frozen=True)
class Source:
    """Where a subject comes from, as it was typed. A run keeps the words for people: nobody opens what a run names."""

    subject: str
    data: str | None = None
    bounds: tuple[float | tuple[float, ...], float | tuple[float, ...]] | None = None
    """Low and high: one number for all features, or one for each."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: int | None = None
    """Encoded images are scaled until their shorter side has this many pixels, and their centre is cut out."""
    allow_pickle: bool = False
    draws: int | None = None
    """Passes to an answer of a random model, where it does not say so itself."""

    def words(self) -> tuple[str, ...]:
        """The words that name this source on the command line."""
        words = [self.subject]
        if self.data is not None:
            words += ["--data", self.data]
        if self.bounds is not None:
            words += ["--bounds", *map(_numbers, self.bounds)]
        for option, values in (("--mean", self.mean), ("--std", self.std)):
            if values is not None:
                words += [option, ",".join(map(_number, values))]
        if self.size is not None:
            words += ["--size", str(self.size)]
        if self.draws is not None:
            words += ["--draws", str(self.draws)]
        return (*words, "--allow-pickle") if self.allow_pickle else tuple(words)


def located(source: Source) -> Path | None:
    """The file that the source names, or None for a name on the shelf; told without torch where there is none."""
    text = source.subject
    if source.draws is not None and source.draws < 1:
        raise AssayError(f"--draws {source.draws} is no number of passes; give 1 for a deterministic model, else more.")
    if source.size is not None and source.data is None:
        raise AssayError(f"--size {source.size} scales the images of --data, and there is no --data; give both.")
    if text in shelf.names("subjects"):
        return None
    path = Path(text.rpartition(":")[0]) if ".py:" in text else Path(text)
    if not path.exists():
        if not path.suffix and len(path.parts) == 1:
            shelf.load("subjects", text)  # raises: it knows what there is, and what was nearly typed
        raise AssayError(f"There is no file {str(path)!r}; check the path, or give {FORMS}.")
    if path.is_dir():
        raise AssayError(f"{text!r} is a folder; give {FORMS}, and a folder of images as --data.")
    check_plain(path)
    return path


def open_subject(source: Source) -> Subject:
    """The subject that the source names, checked, or an error that says in one line what is in the way."""
    text, path = source.subject, located(source)
    if path is None:
        return _adjusted(shelf.load("subjects", text).build(), source)
    kind = path.suffix.lower()
    if kind == ".py":
        return _open_script(path, source)
    if kind == ".safetensors":
        from assay.subjects._ranker_file import is_ranker, open_ranker

        if is_ranker(path):
            _refuse(source, "bounds", "mean", "std", "size", "draws")
            if source.data is None:
                raise AssayError(
                    f"{text} is a ranker without data; give --data: a folder of images with a number each."
                )
            return open_ranker(path, source.data)
        raise AssayError(
            f"{text!r} holds weights, which need code to run; write subject.py: def build(): model = Net(); "
            f"model.load_state_dict(safetensors.torch.load_file({path.name!r})); return model; give subject.py:build."
        )
    if kind in PICKLED:
        from assay.subjects._pickled import open_pickled

        pickled = open_pickled(path, source.allow_pickle)
        return _assembled(pickled, _open_data(source, _channels(pickled)), source, name=path.name)
    if kind == ".pt2":
        from assay.subjects._exported import open_exported

        exported = open_exported(path, source.allow_pickle)
        data = _open_data(source, exported.intake.channels)
        return _assembled(exported, data, source, name=path.name, about=f"{path.name}, a torch.export program.")
    if kind == ".onnx":
        from assay.subjects._onnx import open_onnx, with_gradients

        onnx = open_onnx(path)
        data = _open_data(source, onnx.intake.channels)
        model, about = with_gradients(onnx, path, data)
        return _assembled(model, data, source, name=path.name, about=about)
    raise AssayError(f"{text!r} is no model that can be opened; give {FORMS}.")


def _open_script(path: Path, source: Source) -> Subject:
    """Run the user's function: it returns a Subject, a module and its data, or a module to go with --data."""
    from torch import nn

    from assay.subject import Subject
    from assay.subjects._script import call

    text = source.subject
    made = call(path, text.rpartition(":")[2] if ".py:" in text else "")
    if isinstance(made, Subject):
        return _adjusted(made, source)
    model, data = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if isinstance(model, nn.Module):
        if data is None or source.data is not None:
            data = _open_data(source, _channels(model))
        return _assembled(model, data, source, name=type(model).__name__)
    what = f"a tuple of {', '.join(type(m).__name__ for m in made)}" if isinstance(made, tuple) else type(made).__name__
    raise AssayError(f"{text} returned {what}; return an assay.Subject, a pair (nn.Module, data), or an nn.Module.")


def _adjusted(subject: Subject, source: Source) -> Subject:
    """A whole subject, on other data where --data is given. What belongs to its model stays as it was built."""
    from assay.subject import check

    _refuse(source, "bounds", "mean", "std")
    if source.data is not None:
        subject = dataclasses.replace(subject, data={"test": _other_data(subject, source, source.data)})
        check(subject)
    return subject if source.draws is None else dataclasses.replace(subject, draws=source.draws)


def _refuse(source: Source, *options: str) -> None:
    """Options that say what a model takes, where the subject says so itself."""
    for option in options:
        if getattr(source, option) is not None:
            raise AssayError(
                f"{source.subject} brings its own input space, so --{option} does not apply; leave it out."
            )


def _other_data(subject: Subject, source: Source, path: str) -> Data:
    """The data of the source for a subject that is whole: of a model of pairs, pairs of the inputs there."""
    from assay.data.pairs import Pairs
    from assay.subject import PAIRS
    from assay.subjects._ranker_file import open_pairs
    from assay.tasks import Classification, Ranking

    if isinstance(subject.task, Classification):
        return _open_data(source, subject.inputs.shape[0] if subject.inputs.is_image else None)
    shape = subject.inputs.shape[1:]  # of one input
    if isinstance(subject.task, Ranking):
        _refuse(source, "size")
        return open_pairs(path, shape, subject.task, subject.name)
    singles = _open_data(source, shape[0])
    return Pairs.alike(singles, singles.labels, PAIRS)


def _assembled(model: nn.Module, data: Any, source: Source, *, name: str, about: str = "") -> Subject:
    """A bare model and its data as a subject; whether it has gradients is tried, not believed."""
    from assay.subject import Subject

    subject = Subject.classifier(
        model, data, name=name, bounds=source.bounds, mean=source.mean, std=source.std, about=about
    )
    return dataclasses.replace(subject, differentiable=_has_gradient(subject), draws=source.draws or 1)


def _open_data(source: Source, channels: int | None) -> Data:
    """The data of the source, encoded images in as many channels as the model takes."""
    from assay.data.image_folder import ImageFolder
    from assay.data.open import open_data
    from assay.data.parquet import Parquet
    from assay.subject import pixel_bounds

    if source.data is None:
        raise AssayError(f"{source.subject} is a model without data; give --data: a folder of images, .npz, .parquet.")
    size = None if source.size is None else (source.size, source.size)
    pixels = pixel_bounds(source.bounds)
    data = open_data(source.data, size, pixels=pixels)
    if channels in (1, 3) and isinstance(data, ImageFolder | Parquet) and data.form and data.form.channels != channels:
        return open_data(source.data, size, channels, pixels=pixels)
    return data


def _channels(model: nn.Module) -> int | None:
    """What the first convolution takes."""
    from torch import nn

    return next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), None)


def _has_gradient(subject: Subject) -> bool:
    """Whether a gradient comes back from the answer to the input: not through onnxruntime, no_grad or a plain copy."""
    import numpy as np
    import torch

    model = subject.model
    modes = [(m, m.training) for m in model.modules()]
    place = next((t.device for t in model.state_dict().values()), torch.device("cpu"))
    x = subject.data["test"].take(np.arange(1))[0].to(place).requires_grad_()
    try:
        for m, _ in modes:
            m.training = False
        with torch.enable_grad():
            out = model(x)
            return bool(out.requires_grad) and torch.autograd.grad(out.sum(), x, allow_unused=True)[0] is not None
    except RuntimeError:  # what autograd raises where an operation has no derivative
        return False
    finally:
        for m, mode in modes:
            m.training = mode


def _numbers(value: float | tuple[float, ...]) -> str:
    return ",".join(map(_number, value)) if isinstance(value, tuple) else _number(value)


def _number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return repr(float(value)).removesuffix(".0")
