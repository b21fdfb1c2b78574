"""A scikit-learn estimator in a .skops file: an archive that names the types it is made of, and holds no pickle.

What skops itself trusts is made (Python's own plain types, numpy's, most of scikit-learn's), and scikit-learn's other
classes; every other type is refused by its name unless the user trusts it with --trust. Native code follows a tree of
scikit-learn's wherever it points, so that trees are looked at before they are asked; what cannot be looked at (the
index of neighbours) has to be trusted by name, too.
"""

from __future__ import annotations

import hashlib
import importlib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.data.archive import check_unpacked
from assay.data.plain_file import MOST_UNPACKED, some
from assay.errors import AssayError, MissingExtra
from assay.subjects import doors
from assay.subjects.doors.estimator import EstimatorModel
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source


UNSEEN = ("sklearn.neighbors._kd_tree", "sklearn.neighbors._ball_tree")
"""Native classes of scikit-learn that take any numbers for places in memory, and do not show them."""


def open(path: Path, source: Source) -> Opened:
    """The estimator in the file, if all its types are trusted."""
    try:
        import skops.io  # type: ignore[import-untyped, unused-ignore]
    except ImportError as e:
        raise MissingExtra.of("Reading .skops", "skops", "sklearn") from e
    try:
        check_unpacked(path, MOST_UNPACKED)
        types = skops.io.get_untrusted_types(file=path)
        known = [name for name in types if name in source.trust or _is_scikit_learns(name)]
        unknown = [name for name in types if name not in known]
        if unknown:
            raise AssayError(
                f"{str(path)!r} holds types that nobody vouched for: {some(unknown)}; if you know them and who made "
                f"the file, add --trust {unknown[0]} for each."
            )
        made = skops.io.load(path, trusted=known)
        _check_trees(made)
    except AssayError:
        raise
    except (Exception, MemoryError) as e:  # skops raises what the types that it makes do
        what = str(e).strip().splitlines()
        damaged = "no archive" if isinstance(e, zipfile.BadZipFile) else type(e).__name__
        raise AssayError(
            f"{str(path)!r} cannot be read by skops ({damaged}: {what[0] if what else 'no message':.200}); write it "
            f"again with skops.io.dump."
        ) from e
    try:
        opened = replace(doors.of_object(made), name=path.name)
    except doors.Unopened as e:
        raise AssayError(f"{str(path)!r} holds {type(made).__name__}, no estimator; dump a fitted one.") from e
    if isinstance(opened.model, EstimatorModel):  # known by its file, which nobody but this holds an object of
        opened.model.state_digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return opened


def _is_scikit_learns(name: str) -> bool:
    """Whether it is a class, not a function, that comes with scikit-learn."""
    module, _, kind = name.rpartition(".")
    if module.partition(".")[0] != "sklearn" or module.startswith(UNSEEN):
        return False
    try:
        found = getattr(importlib.import_module(module), kind, None)
    except ImportError:
        return False
    return isinstance(found, type) and found.__module__ == module


def _check_trees(made: Any) -> None:
    """Refuse trees that point outside themselves: every node comes after the one that it hangs on."""
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
    from sklearn.tree._tree import Tree

    waiting, seen = [made], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Tree):
            nodes = part.__getstate__()["nodes"]
            _check_nodes(nodes["left_child"], nodes["right_child"], nodes["feature"], part.n_features)
        elif isinstance(part, TreePredictor):
            nodes = part.nodes
            leaf = nodes["is_leaf"] == 1
            left, right = (np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right"))
            _check_nodes(left, right, nodes["feature_idx"], 2**16)
        elif isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple) or (isinstance(part, np.ndarray) and part.dtype.hasobject):
            waiting += list(part.flat) if isinstance(part, np.ndarray) else part
        elif hasattr(part, "__dict__") and not isinstance(part, type):
            waiting += vars(part).values()


def _check_nodes(left: NDArray[Any], right: NDArray[Any], feature: NDArray[Any], features: int) -> None:
    places = np.arange(len(left))
    inner = left != -1
    for side in (left, right):
        if not ((side > places) & (side < len(left)))[inner].all():
            raise ValueError("a branch of a tree leads nowhere")
    if not len(left) or not ((feature >= 0) & (feature < features))[inner].all():
        raise ValueError("a tree asks for a column that there is not")
