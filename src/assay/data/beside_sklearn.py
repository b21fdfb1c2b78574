"""Files that come with scikit-learn, read without importing it: that takes as long as importing torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError


def file(name: str) -> Path:
    """`name` is a path inside of sklearn/datasets."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise AssayError("The bundled data need scikit-learn, which is not installed: pip install scikit-learn")
    return Path(found.submodule_search_locations[0], "datasets", *name.split("/"))


def table(name: str, *, delimiter: str | None = ",", skip: int = 0) -> NDArray[np.float64]:  # -> n d
    """The numbers of a text file, gzipped or not, after the first `skip` lines."""
    return np.loadtxt(file(f"data/{name}"), delimiter=delimiter, skiprows=skip)
