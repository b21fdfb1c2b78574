"""Pickled models, which are refused unless the user insists: opening one runs whatever code its maker put into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from assay.errors import AssayError
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source


def open(path: Path, source: Source) -> Opened:
    """The pickled model, with the user's consent."""
    return Opened(model=open_pickled(path, source.allow_pickle), name=path.name)


def open_pickled(path: Path, allow_pickle: bool) -> nn.Module:
    """A whole nn.Module out of a pickle, with --allow-pickle."""
    if not allow_pickle:
        raise AssayError(
            f"{str(path)!r} is a pickle, which can run any code when it is opened; convert it where you trust it: "
            f"program = torch.export.export(model.eval(), (x,)); torch.export.save(program, {path.stem + '.pt2'!r}) "
            f"(or safetensors and a subject.py), or insist with --allow-pickle."
        )
    try:
        made = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as e:  # the code in a pickle raises what it likes
        what = str(e).strip().splitlines()
        raise AssayError(
            f"{str(path)!r} cannot be unpickled ({type(e).__name__}: {what[0] if what else 'no message'}); "
            f"write a subject.py that has the model's class and loads the weights."
        ) from e
    if isinstance(made, nn.Module):
        return made
    if isinstance(made, Mapping):
        names = [str(k) for k in made]
        raise AssayError(
            f"{str(path)!r} holds weights or settings ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}), "
            f"which need code to run; write subject.py: def build(): model = Net(); "
            f"model.load_state_dict(torch.load({path.name!r}, weights_only=True)); return model."
        )
    raise AssayError(f"{str(path)!r} holds {type(made).__name__}, not a torch.nn.Module; pickle the whole model.")
