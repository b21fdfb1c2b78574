"""XGBoost's trees as it keeps them itself: a Booster, or a file that Booster.save_model wrote (.json, .ubj).

Of classes the margins are read, so that no sigmoid rounds them away: log-odds z of two classes as (0, z), logits of
many. What was boosted for anything else gives numbers. No gradients. The file holds numbers and nothing that runs, but
native code follows a tree wherever it points: each tree is looked at before it is asked.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.data.plain_file import read_plain
from assay.errors import AssayError, MissingExtra, SubjectError
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source

MOST_BYTES = 2**30


class XGBoostModel(nn.Module):
    """The trees of a Booster. Not differentiable."""

    def __init__(self, booster: Any, is_class: bool, digest: str | None = None) -> None:
        super().__init__()
        self.booster, self.is_class = booster, is_class
        self.features = int(booster.num_features())
        if digest is not None:
            self.state_digest = digest

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        import xgboost

        rows = x.detach().cpu().float().flatten(1).numpy()
        if rows.shape[1] != self.features:
            raise SubjectError(
                f"The trees were grown on {self.features} columns, and the data has {rows.shape[1]}; give those."
            )
        filled = rows if len(rows) else np.zeros((1, self.features), np.float32)  # no matrix without rows
        matrix = xgboost.DMatrix(filled, feature_names=self.booster.feature_names)
        z = self.booster.predict(matrix, output_margin=self.is_class, validate_features=False)
        if self.is_class and z.ndim == 1:
            z = np.stack([np.zeros_like(z), z], 1)
        return torch.from_numpy(z.reshape(len(filled), -1)[: len(rows)]).to(x)


def of(booster: Any, name: str = "XGBoost Booster", digest: str | None = None) -> Opened:
    """A Booster as a model."""
    objective = str(json.loads(booster.save_config())["learner"]["objective"]["name"])
    is_class = objective.startswith(("binary:", "multi:")) or objective == "reg:logistic"
    return Opened(
        model=XGBoostModel(booster, is_class, digest),
        name=name,
        about=f"{booster.num_boosted_rounds()} rounds of XGBoost for the objective {objective}: "
        "answers without gradients.",
        answers="classes" if is_class else "numbers",
        shape=(int(booster.num_features()),),
        columns=None if booster.feature_names is None else tuple(booster.feature_names),
        gradients=False,
    )


def open(path: Path, source: Source) -> Opened:
    """The trees in a file that Booster.save_model wrote."""
    content = read_plain(path, MOST_BYTES)
    if not content.lstrip()[:1] == b"{" or b"learner" not in content[:10_000]:
        raise AssayError(f"{str(path)!r} holds no trees of XGBoost; write them with booster.save_model({path.name!r}).")
    try:
        import xgboost
    except ImportError as e:
        raise MissingExtra.of("Reading XGBoost's trees", "xgboost", "trees") from e
    try:
        booster = xgboost.Booster(model_file=bytearray(content))
        _check(json.loads(booster.save_raw("json"))["learner"])  # as it was read, of either format
    except (xgboost.core.XGBoostError, ValueError, KeyError, TypeError) as e:
        what = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise AssayError(f"{str(path)!r} cannot be read by XGBoost ({what.strip():.200}); save the model again.") from e
    return of(booster, path.name, hashlib.blake2b(content, digest_size=16).hexdigest())


def _check(learner: dict[str, Any]) -> None:
    """Refuse trees that point outside themselves, at a column that there is not, or in a circle."""
    booster, features = learner["gradient_booster"], int(learner["learner_model_param"]["num_feature"])
    trees = booster.get("gbtree", booster).get("model", {})
    if "trees" not in trees:
        raise ValueError(f"it holds {booster.get('name', 'something')!r}, and trees are wanted")
    groups = max(1, int(learner["learner_model_param"]["num_class"])) * int(
        learner["learner_model_param"]["num_target"]
    )
    if any(not 0 <= group < groups for group in trees["tree_info"]) or len(trees["tree_info"]) != len(trees["trees"]):
        raise ValueError("a tree is for a class that there is not")
    for tree in trees["trees"]:
        left, right, column = (np.asarray(tree[k]) for k in ("left_children", "right_children", "split_indices"))
        count = len(left)
        if not count or len(right) != count or len(column) != count:
            raise ValueError("a tree is cut short")
        reached, front = 0, np.zeros(1, dtype=np.int64)
        while len(front):
            reached += len(front)
            front = front[left[front] != -1]
            below = np.concatenate([left[front], right[front]])
            if reached > count or not ((below > 0) & (below < count)).all():
                raise ValueError("a branch of a tree leads nowhere")
            if not ((column[front] >= 0) & (column[front] < features)).all():
                raise ValueError("a tree asks for a column that there is not")
            front = below
        starts, sizes = np.asarray(tree["categories_segments"]), np.asarray(tree["categories_sizes"])
        if ((starts < 0) | (sizes < 0) | (starts + sizes > len(tree["categories"]))).any():
            raise ValueError("a tree sorts by categories that it does not list")
