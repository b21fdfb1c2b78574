"""What is told of masks beside their mean IoU: how good their outlines are, and each class by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.finding import Bars, Measure
from assay.methods.right.masks import TOLERANCE, Counts, boundary_f1, counts
from assay.tasks.places import NOT_COUNTED

OUTLINE = "boundary F1"
COUNTED = Counts._fields


def masks(out: Tensor, target: Tensor) -> dict[str, Tensor]:  # n k h w, n h w -> OUTLINE: n; COUNTED: n k each
    """Of each image: boundary F1, the mean over the classes that are said or true there, and each class's counts."""
    known = target != NOT_COUNTED
    said, true = (torch.where(known, classes, NOT_COUNTED) for classes in (out.argmax(1), target.long()))
    pairs = [(said == c, true == c) for c in range(out.shape[1])]
    outline = torch.stack([boundary_f1(*pair) for pair in pairs], 1)  # n k
    there = torch.stack([(a | t).flatten(1).any(1) for a, t in pairs], 1)
    tables = [counts(*pair) for pair in pairs]
    return {
        OUTLINE: (outline * there).sum(1) / there.sum(1).clamp_min(1),
        **{name: torch.stack([getattr(table, name) for table in tables], 1) for name in COUNTED},
    }


def outlined(rows: Mapping[str, NDArray[Any]], seed: int) -> Measure:
    return Measure.mean(
        OUTLINE, rows[OUTLINE].astype(float), better="higher", seed=seed, column=OUTLINE,
        about=f"outlines within {TOLERANCE} pixels of each other, the mean over the classes of each image",
    )  # fmt: skip


def by_class(rows: Mapping[str, NDArray[Any]], classes: tuple[str, ...]) -> Bars:
    """IoU and F1 of each class that is said or true anywhere, over the pixels of all images."""
    every = Counts(*(torch.as_tensor(rows[name].sum(0)) for name in COUNTED))  # k each
    met = [c for c in range(len(classes)) if int(every.tp[c] + every.fp[c] + every.fn[c])]
    f1 = ", ".join(f"{classes[c]} {float(every.f1[c]):.3f}" for c in met)
    return Bars(
        name="classes",
        title="Overlap per class",
        y_label="IoU",
        labels=tuple(classes[c] for c in met),
        values=tuple(float(every.iou[c]) for c in met),
        unit_y=True,
        says=f"IoU over the pixels of all images. The same masks by F1, which is 2 IoU / (1 + IoU): {f1}.",
    )
