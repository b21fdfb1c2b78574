"""LightGBM's trees as it keeps them itself: a Booster, or its text in a file (.txt, .lgb).

Of classes the raw scores r are read, so that no sigmoid rounds them away. With s LightGBM's own `sigmoid`,

    binary, cross_entropy  (0, s r)
    multiclass             r
    multiclassova          log sigmoid(s r) for each class

What was boosted for anything else gives numbers. No gradients. The file holds numbers and nothing that runs, but it is
read by native code that ends the process where a file is cut short, and follows whatever the trees point at: each tree
is looked at first.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.plain_file import read_plain
from assay.errors import AssayError, MissingExtra, SubjectError
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source

MOST_BYTES = 2**30
TWO = ("binary", "cross_entropy", "xentropy")


class LightGBMModel(nn.Module):
    """The trees of a Booster, up to the best iteration where it knows one. Not differentiable."""

    def __init__(self, booster: Any, objective: str, sigmoid: float, digest: str | None = None) -> None:
        super().__init__()
        self.booster, self.objective, self.sigmoid = booster, objective, sigmoid
        self.features = int(booster.num_feature())
        if digest is not None:
            self.state_digest = digest

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        rows = x.detach().cpu().double().flatten(1).numpy()
        if rows.shape[1] != self.features:
            raise SubjectError(
                f"The trees were grown on {self.features} columns, and the data has {rows.shape[1]}; give those."
            )
        if not len(rows):
            return x.new_zeros(0, max(2, self.booster.num_model_per_iteration()))
        is_class = self.objective in TWO or self.objective.startswith("multiclass")
        z = np.asarray(self.booster.predict(rows, raw_score=is_class), dtype=np.float64)
        if self.objective in TWO:
            z = np.stack([np.zeros_like(z), self.sigmoid * z], 1)
        elif self.objective == "multiclassova":
            z = -np.logaddexp(0, -self.sigmoid * z)
        return torch.from_numpy(z.reshape(len(rows), -1)).to(x)


def of(booster: Any, name: str = "LightGBM Booster", digest: str | None = None) -> Opened:
    """A Booster as a model."""
    header = booster.model_to_string(num_iteration=1)
    said = re.search(r"^objective=(\w+)(.*)$", header, re.MULTILINE)
    objective, rest = (said[1], said[2]) if said else ("none", "")
    sigmoid = re.search(r"sigmoid:([\d.e+-]+)", rest)
    is_class = objective in TWO or objective.startswith("multiclass")
    columns = tuple(booster.feature_name())
    made_up = columns == tuple(f"Column_{i}" for i in range(len(columns)))
    return Opened(
        model=LightGBMModel(booster, objective, float(sigmoid[1]) if sigmoid else 1.0, digest),
        name=name,
        about=f"{booster.num_trees()} trees of LightGBM for the objective {objective}: answers without gradients.",
        answers="classes" if is_class else "numbers",
        shape=(int(booster.num_feature()),),
        columns=None if made_up else columns,
        gradients=False,
    )


def open(path: Path, source: Source) -> Opened:
    """The trees in a text file that Booster.save_model wrote."""
    content = read_plain(path, MOST_BYTES)
    if not content.startswith(b"tree\n"):
        raise AssayError(
            f"{str(path)!r} holds no trees of LightGBM; write them with booster.save_model({path.name!r})."
        )
    try:
        _check_trees(content)
    except (ValueError, KeyError, IndexError) as e:
        what = f"{e} is missing" if isinstance(e, KeyError) else e
        raise AssayError(f"{str(path)!r} is no whole text of LightGBM's trees ({what}); save the model again.") from e
    try:
        import lightgbm
    except ImportError as e:
        raise MissingExtra.of("Reading LightGBM's trees", "lightgbm", "trees") from e
    try:
        booster = lightgbm.Booster(model_str=content.decode())
    except (lightgbm.basic.LightGBMError, UnicodeDecodeError) as e:
        what = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise AssayError(f"{str(path)!r} cannot be read by LightGBM ({what:.200}); save the model again.") from e
    return of(booster, path.name, hashlib.blake2b(content, digest_size=16).hexdigest())


def _check_trees(content: bytes) -> None:
    """Refuse what LightGBM's reader would run over: trees that are cut short, or that point outside themselves."""
    head, _, body = content.partition(b"\n\n")
    told = _fields(head.partition(b"\n")[2])
    features = int(told["max_feature_idx"]) + 1
    if not 0 < features == len(told["feature_names"].split()) == len(told["feature_infos"].split()):
        raise ValueError("its columns are not those that it counts")
    at = 0
    for size in map(int, told["tree_sizes"].split()):
        tree = body[at : at + size]
        if size < 1 or len(tree) < size or not tree.startswith(b"Tree="):
            raise ValueError("a tree is cut short")
        _check_tree(_fields(tree.strip(b"\n")), features)
        at += size
    if not at or not body[at:].startswith(b"end of trees"):
        raise ValueError("the trees do not end where they should")


def _check_tree(told: dict[str, str], features: int) -> None:
    leaves, kinds = int(told["num_leaves"]), int(told["num_cat"])
    if leaves < 1 or kinds < 0 or int(told.get("is_linear", "0")):
        raise ValueError(f"a tree of {leaves} leaves, {kinds} kinds" if leaves < 1 or kinds < 0 else "trees are linear")
    _floats(told, "leaf_value", leaves)
    if leaves == 1:
        return
    nodes = np.arange(leaves - 1)
    columns, decisions = _integers(told, "split_feature", leaves - 1), _integers(told, "decision_type", leaves - 1)
    thresholds = _floats(told, "threshold", leaves - 1)
    for side in ("left_child", "right_child"):
        child = _integers(told, side, leaves - 1)
        # A node is made after the one that it hangs on; with that, no way through the tree comes back.
        if not np.where(child >= 0, (child > nodes) & (child < leaves - 1), ~child < leaves).all():
            raise ValueError("a branch leads nowhere")
    if not ((columns >= 0) & (columns < features)).all():
        raise ValueError("a tree asks for a column that there is not")
    sorts = (decisions & 1) == 1
    if not sorts.any():
        return
    edges = _integers(told, "cat_boundaries", kinds + 1)
    if edges[0] != 0 or (np.diff(edges) < 0).any() or not ((thresholds >= 0) & (thresholds < kinds))[sorts].all():
        raise ValueError("a tree sorts by categories that it does not list")
    _integers(told, "cat_threshold", int(edges[-1]))


def _fields(text: bytes) -> dict[str, str]:
    """The lines KEY=VALUE; none twice, as readers take either."""
    told: dict[str, str] = {}
    for line in text.decode("ascii" if b"feature_names" not in text else "utf-8").split("\n"):
        key, _, value = line.partition("=")
        if key in told or "\r" in line or "\0" in line:
            raise ValueError(f"a line {key[:40]!r} is not what it should be")
        told[key] = value
    return told


def _integers(told: dict[str, str], key: str, count: int) -> NDArray[np.int64]:
    values = np.array([int(v) for v in told[key].split(" ")], dtype=np.int64)
    if len(values) != count:
        raise ValueError(f"{key} has {len(values)} numbers for {count}")
    return values


def _floats(told: dict[str, str], key: str, count: int) -> NDArray[np.float64]:
    values = np.array([float(v) for v in told[key].split(" ")])
    if len(values) != count:
        raise ValueError(f"{key} has {len(values)} numbers for {count}")
    return values
