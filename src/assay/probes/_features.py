"""What a model makes of training inputs, and of test inputs in two halves: those aimed at, and those that judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.inputs.reach import Reach
from assay.methods.poison.head import Scaling
from assay.methods.poison.trial import Inputs
from assay.methods.shift.principal import principal
from assay.methods.train.typicality import comparable
from assay.methods.uncertainty.activations import shown

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run, Shard
    from assay.subject import Subject

TIMES, MOST = 4, 10_000  # as many training inputs as other questions have, at most
AIMED = 2_000  # inputs that are aimed at, at most: a graph has a weight for each of them and each label
WIDE = 256  # features; of more, their principal directions


class Seen(NamedTuple):
    places: NDArray[np.int64]  # n: in the training data
    inputs: Inputs
    right: NDArray[np.bool_]  # j: whether the model itself is right on those that judge

    @classmethod
    def of(cls, subject: Subject, run: Run) -> Seen:
        """Features are brought to one scale by the training inputs alone."""
        train, test = subject.data["train"], subject.data["test"]
        wanted = len(train) if run.budget.samples is None else TIMES * run.budget.samples
        places = run.pick(train, min(wanted, MOST, len(train)), bounded=False)
        rows = run.pick(test)
        if len(rows) < 2:
            raise AssayError(f"There is {len(rows)} test input, and half of them are aimed at; give at least 2.")
        look = _looker(subject, run)
        told = run.map(look, subject, "train", places, "what training inputs look like")
        asked = run.map(look, subject, "test", rows, "what test inputs look like")
        x, other = (torch.as_tensor(part["features"], device=run.device) for part in (told, asked))
        if x.shape[1] > WIDE:
            few = principal([x], WIDE)
            x, other = few(x), few(other)
        scaling = Scaling.of(x)
        x, other = scaling(x), scaling(other)
        y, other_y = (torch.as_tensor(part["y"], device=run.device) for part in (told, asked))
        aimed, judges = halves(np.asarray(asked["y"]), run.seed)
        if len(aimed) > AIMED:
            aimed = np.sort(np.random.default_rng(run.seed).choice(aimed, AIMED, replace=False))
        given = Inputs(x, y, other[aimed], other_y[aimed], other[judges], other_y[judges])
        return cls(places, given, np.asarray(asked["right"])[judges])


def _looker(subject: Subject, run: Run) -> Callable[[Shard], Mapping[str, Tensor]]:
    """Features and whether the model is right: what enters its last linear layer, or where none is, the input."""
    head, reach = subject.layers.get("head"), subject.kind.reach if subject.kind is not None else None
    choices = reach.choices if isinstance(reach, Reach) else None
    if head is not None and not subject.tokens:
        try:
            shown(subject.model, subject.data["test"].take(np.arange(1))[0].to(run.device), (head,), entering=True)
        except AssayError:
            head = None

    def look(shard: Shard) -> Mapping[str, Tensor]:
        if head is None:
            out, features = subject.predict(shard.x), comparable(shard.x, choices).nan_to_num()
        else:
            out, inner = shown(subject.model, shard.x, (head,), entering=True)
            features = inner[head].flatten(1)
        return {"features": features.float(), "y": shard.y, "right": subject.task.right(out, shard.y)}

    return look


def halves(labels: NDArray[Any], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # n -> m, j
    """To aim at and to judge by, each class in halves; by labels and seed, whatever the inputs are."""
    order = np.random.default_rng(seed).permutation(len(labels))
    if labels.ndim == 1 and labels.dtype.kind in "iub":
        order = order[np.argsort(labels[order], kind="stable")]
    return np.sort(order[1::2]), np.sort(order[::2])
