"""The doors through which a user's own model comes in, one file each. A model passes one of them, once.

A door of files is a module with `open(path, source)`: it gives the model (`Opened`), or a whole subject where that is
what was in the file. Which one is told by the suffix, and where a suffix stands for several things, by what is inside.
A door of objects is a module with `of(model)`. Importing this needs no torch.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.subjects import Source

TORCH = (".pt", ".pth", ".ckpt", ".bin", ".jit", ".ts")


class Door(NamedTuple):
    """The module, what it opens in a few words, and the options that are about its models alone."""

    module: str
    opens: str
    takes: tuple[str, ...] = ()


SCRIPT = Door("script", "subject.py:build", ("output",))
PICKLED = Door("pickled", "model.pt", ("output",))
DOORS = {
    ".py": SCRIPT,
    ".pt2": Door("exported", "model.pt2"),
    ".onnx": Door("onnx_file", "model.onnx"),
    ".safetensors": Door("safetensors_file", "weights.safetensors"),
    **dict.fromkeys((*TORCH, ".pkl"), PICKLED),
}
OPTIONS = ("output",)
"""Options that only some doors take."""


def door_of(path: Path, source: Source) -> Door | None:
    """The door for this file, or None; an option that this door does not take is refused."""
    door = DOORS.get(path.suffix.lower())
    if door is None:
        return None
    for option in OPTIONS:
        if getattr(source, option) not in (None, ()) and option not in door.takes:
            fitting = [d.opens for d in dict.fromkeys(DOORS.values()) if option in d.takes]
            raise AssayError(
                f"--{option} does not apply to {path.name!r}; leave it out. It is for {', '.join(fitting)}."
            )
    return door


def open_file(path: Path, source: Source) -> Any:
    """The model in a file (`Opened`), or the subject; None where no door fits."""
    door = door_of(path, source)
    return None if door is None else importlib.import_module(f"{__name__}.{door.module}").open(path, source)
