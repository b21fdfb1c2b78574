r"""A label tree found by looking: classes whose features lie together are one group.

With Q_i the mean feature of class i and s_i^2 the mean squared distance of its features to Q_i,

    dis(i, j)^2  =  || Q_i - Q_j ||^2 + s_i^2 + s_j^2,      A_ij  =  exp( -dis(i, j) / delta )

dis^2 is the mean squared distance of a feature of i to one of j; dis(i, i)^2 = 2 s_i^2 is not 0, so that it is no
metric. The groups are those of spectral clustering of A (normalised Laplacian).

Source: Li, Zhou, Zhou and Wang, "MMF: Multi-task Multi-structure Fusion for Hierarchical Image Classification", ICANN
    2021, sec. 3.3, eq. 1-2, with 30 groups for 100 classes there, a number which matters little (table 1). Print says
    the variance of a vector; it is the trace here, which makes dis^2 a mean over pairs.
Departs from print: delta is 1 there, and exp(-dis) of features in large units is then 0. Here it is the median distance
    of two classes, so that units do not matter; `as_published=True` takes 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.label_tree import LabelTree, grouped, read_tree
from assay.data.plain_file import some
from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.activations import features

SHARE = 0.3  # groups to a class, where no number is given
FOUND = ("features", "inputs")
"""Where a tree may be found, in the place of a file: in what enters the last linear layer, or in the inputs."""


def trees_from(
    sources: Sequence[str],
    classes: Sequence[str],
    model: nn.Module,
    head: str | None,
    inputs: Callable[[], tuple[Tensor, Tensor]],
    *,
    span: Tensor | float = 1.0,
    groups: int | None = None,
) -> list[LabelTree]:  # inputs: -> n *d, n
    """The trees of these texts, and those to be found; `inputs` are asked for only if one is.

    `span` is the range of the inputs, of each feature where they differ: those are compared in shares of it.
    """
    trees = []
    for source in sources:
        if source not in FOUND:
            trees.append(read_tree(source, classes))
            continue
        x, y = inputs()
        if source == "features":
            if head is None:
                raise AssayError("A tree of features wants a last linear layer; name a file, or take trees=inputs.")
            x = features(model, x, head, entering=True)
        else:
            wide = torch.as_tensor(span).to(x)
            x = x / torch.where(wide > 0, wide, 1)
        trees.append(visual_tree(x, y, classes, groups=groups))
    return trees


def visual_tree(
    seen: Tensor, y: Tensor, classes: Sequence[str], *, groups: int | None = None, as_published: bool = False
) -> LabelTree:  # n *f, n
    """The tree of three levels with so many groups of these classes, by what their inputs' features are."""
    k = len(classes)
    wanted = how_many(k, groups)
    lacking = [name for name, size in zip(classes, y.bincount(minlength=k).tolist(), strict=False) if not size]
    if lacking:
        raise AssayError(f"A tree cannot be found: there is no input of {some(lacking)}; give trees=FILE.")
    alike = affinity(class_spreads(seen, y, classes=k), as_published=as_published)
    return grouped(classes, clustered(alike, wanted).tolist(), "the tree found from features")


def how_many(classes: int, groups: int | None) -> int:
    """The groups of a tree of so many classes, where a number is given and where none is."""
    wanted = max(2, round(SHARE * classes)) if groups is None else groups
    if not 2 <= wanted < classes:
        raise AssayError(
            f"A tree of {classes} classes cannot have groups={wanted}; give a number from 2 to {classes - 1}."
        )
    return wanted


def class_spreads(seen: Tensor, y: Tensor, *, classes: int) -> Tensor:  # n *f, n -> k k
    """dis: the root of the mean squared distance of a feature of one class to one of the other; in float64."""
    if y.shape != seen.shape[:1] or seen.ndim < 2:
        raise ShapeError(
            f"class_spreads got features of shape {tuple(seen.shape)} with labels of shape {tuple(y.shape)}; it "
            "wants n rows of features and n class indices."
        )
    size = y.bincount(minlength=classes)
    if len(size) > classes or int(size.min()) == 0:
        none = int(size[:classes].argmin())
        raise AssayError(f"class_spreads has no input of class {none} of {classes}; give some of every class.")
    rows = seen.detach().flatten(1).double()
    if not bool(rows.isfinite().all()):
        raise AssayError("class_spreads got features with NaN or inf; check the model and the data.")
    share = F.one_hot(y, classes).double() / size  # n k: columns sum to 1
    mean = share.T @ rows
    spread = share.T @ (rows - mean[y]).square().sum(1)
    return (torch.cdist(mean, mean, compute_mode="donot_use_mm_for_euclid_dist") ** 2 + spread[:, None] + spread).sqrt()


def affinity(distance: Tensor, *, as_published: bool = False) -> NDArray[np.float64]:  # k k -> k k
    """exp(-dis / delta), in (0, 1]."""
    away = distance.cpu().numpy()
    others = ~np.eye(len(away), dtype=bool)
    scale = 1.0 if as_published else float(np.median(away[others]))
    alike: NDArray[np.float64] = np.exp(-away / scale) if scale > 0 else np.ones_like(away)
    alone = np.flatnonzero((np.where(others, alike, 0.0) < np.finfo(np.float64).tiny).all(1))
    if len(alone):
        raise AssayError(
            f"exp(-dis / {scale:g}) is 0 from class {alone[0]} to all others, {away[alone[0]].min():.3g} away or more; "
            "scale the features, or leave as_published out."
        )
    return alike


def clustered(alike: NDArray[np.float64], groups: int) -> NDArray[np.int64]:  # k k -> k
    """The group of each class, numbered in the order of the classes."""
    from sklearn.cluster import SpectralClustering

    found = SpectralClustering(
        groups,
        affinity="precomputed",
        assign_labels="cluster_qr",
        random_state=0,  # no restarts: the same each time
    ).fit_predict(alike)
    number = {int(g): i for i, g in enumerate(dict.fromkeys(found.tolist()))}
    return np.array([number[int(g)] for g in found], dtype=np.int64)
