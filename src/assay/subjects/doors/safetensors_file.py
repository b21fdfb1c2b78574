"""A .safetensors file: a ranker or translators of ours, or weights of a network that the user's own function builds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay.errors import AssayError
from assay.subjects.doors.builder import filled
from assay.subjects.doors.opened import refuse
from assay.subjects.doors.ranker_file import is_ranker, open_ranker, reading
from assay.subjects.doors.translator_file import is_translator, open_translator

if TYPE_CHECKING:
    from assay.subject import Subject
    from assay.subjects import Source
    from assay.subjects.doors.opened import Opened


def open(path: Path, source: Source) -> Opened | Subject:
    """A ranker or translators with their data, whole; other weights in the network of --builder."""
    ours = {"a ranker": is_ranker(path), "a translator": is_translator(path)}
    for what in (name for name, here in ours.items() if here):
        from assay.subjects.doors import OPTIONS

        refuse(source, "bounds", "mean", "std", "size", "draws", *OPTIONS)
        if source.data is None:
            wanted = "images with a number each" if what == "a ranker" else "pairs, as `assay translate` takes them"
            raise AssayError(f"{source.subject} is {what} without data; give --data: a folder of {wanted}.")
        return (open_ranker if what == "a ranker" else open_translator)(path, source.data)
    if source.builder is None:
        raise AssayError(
            f"{source.subject!r} holds weights, which need code to run; give --builder net.py:build, where build() "
            "returns the network that they were saved from."
        )
    with reading(path) as f:
        # Copies: what is given is mapped, and a file that is cut off later would end the process.
        weights = {name: f.get_tensor(name).clone() for name in f.keys()}  # noqa: SIM118  (not a mapping)
    return filled(path, weights, source)
