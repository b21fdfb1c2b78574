"""A .safetensors file: a ranker of ours, or the weights of a network that the user's own function builds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay.errors import AssayError
from assay.subjects.doors.opened import refuse
from assay.subjects.doors.ranker_file import is_ranker, open_ranker

if TYPE_CHECKING:
    from assay.subject import Subject
    from assay.subjects import Source
    from assay.subjects.doors.opened import Opened


def open(path: Path, source: Source) -> Opened | Subject:
    """A ranker with its data, whole; other weights need code."""
    if is_ranker(path):
        refuse(source, "bounds", "mean", "std", "size", "draws")
        if source.data is None:
            raise AssayError(
                f"{source.subject} is a ranker without data; give --data: a folder of images with a number each."
            )
        return open_ranker(path, source.data)
    raise AssayError(
        f"{source.subject!r} holds weights, which need code to run; write subject.py: def build(): model = Net(); "
        f"model.load_state_dict(safetensors.torch.load_file({path.name!r})); return model; give subject.py:build."
    )
