r"""Class-similarity label smoothing: a wrong class gets the more of the label, the more similar it is to the right one.

    y_k = (1 - alpha) e_k + alpha s_k,     s_k(j) ~ exp(-beta z_k(j)) for j != k,     s_k(k) = 0,     sum_j s_k(j) = 1

z_k are the distances d_k(j) from class k to each other class j, less their mean and over their standard deviation, so
that beta means the same for every source of distances. They come from

    images     d_k(j) = mean || x - x' ||_p over all x in class k, x' in class j, p = 1 or 2      `class_distances`
    codes      the same of r(x), what an autoencoder makes of x, p = 2                            `fit_encoder`
    words      d_k(j) = || V(name of k) - V(name of j) ||_2, V a table of word vectors            `word_vectors`

beta = 0 gives alpha/(K-1) to each other class, beta -> inf gives alpha to the nearest. The matrix of distances is
symmetric; that of the labels is not. The least cross-entropy at an input of class k is that of the output y_k.

Source: Liu & JaJa, "Class-Similarity Based Label Smoothing for Confidence Calibration", ICANN 2021, eq. 13-18;
    alpha = 0.1 and beta in [0.5, 6] there, beta = 2 where alpha is studied. Uniform smoothing: eq. 9.
Where print is open: z_k is taken over the K-1 other classes; the distance of a class to itself, which is 0 for words
    and not 0 for images, would otherwise change what beta means. The autoencoder has one hidden layer on either side;
    print gives the size of its code alone. A name of several words is the mean of their vectors.
Mind that eq. 9 leaves alpha/K on the right class, where eq. 18 leaves none: at equal alpha uniform smoothing is weaker
    by (K-1)/K. `similarity_labels` with beta = 0 is the uniform one of equal strength. Read with u a distribution,
    eq. 9 divides by K twice and sums to less than 1; `uniform_labels` divides once, as eq. 10 does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.train.fit import Loss, Rows, fit, reset

Norm = Literal["l1", "l2"]

CELLS = 2**24  # numbers in the largest intermediate table


def similarity_labels(distance: Tensor, *, alpha: float = 0.1, beta: float = 2.0) -> Tensor:  # k k -> k k
    """One label y_k a row, from the distances of each class (a row) to all; the diagonal is not read. In float64."""
    if distance.ndim != 2 or distance.shape[0] != distance.shape[1] or len(distance) < 2:
        raise ShapeError(f"similarity_labels got distances of shape {tuple(distance.shape)}; it wants (k, k), k >= 2.")
    _check_alpha("similarity_labels", alpha)
    if not 0 <= beta < math.inf:
        raise AssayError(f"similarity_labels got beta={beta}; it wants 0 (all classes alike) or more, such as 2.")
    k = len(distance)
    other = ~torch.eye(k, dtype=torch.bool, device=distance.device)
    away = distance.double()[other].view(k, k - 1)
    if not bool((away >= 0).all()) or not bool(away.isfinite().all()):
        raise AssayError("similarity_labels got distances that are negative, NaN or infinite; mend them.")
    spread = away.std(1, correction=0, keepdim=True)
    level = spread <= 1e-12 * away.amax(1, keepdim=True)  # all as far: there is nothing to tell them by but rounding
    z = torch.where(level, 0, (away - away.mean(1, keepdim=True)) / torch.where(level, 1, spread))
    labels = (1 - alpha) * torch.eye(k, dtype=torch.float64, device=distance.device)
    labels[other] = (alpha * (-beta * z).softmax(1)).flatten()
    return labels


def uniform_labels(classes: int, *, alpha: float = 0.1) -> Tensor:  # -> k k
    """(1 - alpha) e_k + alpha/K: uniform label smoothing, the comparison (eq. 9). In float64."""
    _check_alpha("uniform_labels", alpha)
    return (1 - alpha) * torch.eye(classes, dtype=torch.float64) + alpha / classes


def smoothed(labels: Tensor) -> Loss:  # k k
    """The cross-entropy of row y of `labels` and the output, for `fit`: logits n k, classes n -> scalar."""
    if labels.ndim != 2 or labels.shape[0] != labels.shape[1]:
        raise ShapeError(f"smoothed got labels of shape {tuple(labels.shape)}; it wants one row a class, (k, k).")

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels.to(logits)[y])

    return loss


def class_distances(x: Tensor, y: Tensor, *, classes: int, norm: Norm = "l2") -> Tensor:  # n *d, n -> k k
    r"""The mean distance over all pairs of inputs, one of either class; symmetric, in float64.

    In L1 the mean splits into coordinates, and in each of them, with v the sorted values of all classes and F_k(t) the
    share of class k that is at most v_t,

        mean |a - b| = sum_t (v_{t+1} - v_t) [ F_k(t) (1 - F_j(t)) + F_j(t) (1 - F_k(t)) ]

    which takes d n (log n + K^2) steps in place of d n^2.
    """
    if norm not in get_args(Norm):
        raise AssayError(f"class_distances got norm={norm!r}; it knows {' and '.join(get_args(Norm))}.")
    if y.shape != x.shape[:1] or x.ndim < 2 or not x.is_floating_point():
        raise ShapeError(
            f"class_distances got {x.dtype} inputs of shape {tuple(x.shape)} with labels of shape {tuple(y.shape)}; it "
            "wants n float inputs of at least one feature and n class indices."
        )
    if (
        len(y) == 0
        or int(y.min()) < 0
        or int(y.max()) >= classes
        or int((size := y.bincount(minlength=classes)).min()) == 0
    ):
        raise AssayError(f"class_distances wants an input of each of the {classes} classes and of no other; take more.")
    points = x.detach().flatten(1)
    if not bool(points.isfinite().all()):
        raise AssayError("class_distances got inputs with NaN or inf; clean the data.")
    share = F.one_hot(y, classes).double() / size  # n k: columns sum to 1
    return _l1(points, share) if norm == "l1" else _l2(points, share)


def _l1(points: Tensor, share: Tensor) -> Tensor:  # n d, n k -> k k
    n, k = share.shape
    total = share.new_zeros(k, k)
    for part in torch.split(points.T, max(1, CELLS // (n * k))):  # d n
        value, order = part.double().sort(1)
        below = share[order[:, :-1]].cumsum(1)  # d n-1 k, F
        total += torch.einsum("dtk,dt,dtj->kj", below, value.diff(dim=1), 1 - below)
    return total + total.T


def _l2(points: Tensor, share: Tensor) -> Tensor:  # n d, n k -> k k
    points = points - points.mean(0)  # keeps digits: cdist expands the square
    total = share.new_zeros(share.shape[1], share.shape[1])
    for rows in torch.split(torch.arange(len(points), device=points.device), max(1, CELLS // len(points))):
        total += share[rows].T @ torch.cdist(points[rows], points).double() @ share
    return (total + total.T) / 2  # symmetric but for rounding


def fit_encoder(
    data: Rows,
    *,
    code: int = 256,
    width: int = 512,
    epochs: int = 10,
    lr: float = 1e-3,
    rng: torch.Generator,
    on_epoch: Callable[[int, float], None] | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:  # n *d -> n code
    """The encoder of an autoencoder that was trained on the inputs of `data` to give them back (mean squared error)."""
    import numpy as np

    if min(code, width) < 1:
        raise AssayError(f"fit_encoder got code={code} and width={width}; it wants at least 1 of either.")
    d = torch.as_tensor(data.take(np.arange(1))[0]).numel()
    with torch.random.fork_rng(devices=[]):  # Linear draws weights that reset draws again, from rng
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(d, width), nn.ReLU(), nn.Linear(width, code))
        decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, d))
    both = reset(nn.Sequential(encoder, decoder), rng)
    fit(
        both,
        data,
        epochs=epochs,
        lr=lr,
        rng=rng,
        optimiser="adam",
        loss=F.mse_loss,
        augment=lambda x, y, rng: (x, x.flatten(1)),
        on_epoch=on_epoch,
        device=device,
    )
    trained: nn.Module = both.get_submodule("0")
    return trained.eval().requires_grad_(False)


def word_distances(vectors: Tensor) -> Tensor:  # k d -> k k
    """|| V(k) - V(j) ||_2."""
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ShapeError(f"word_distances got vectors of shape {tuple(vectors.shape)}; it wants one a class, (k, d).")
    wide = vectors.double()
    away: Tensor = torch.linalg.vector_norm(wide[:, None] - wide, dim=2)
    return away


def word_vectors(path: str | Path, names: Sequence[str]) -> Tensor:  # -> k d
    """A vector for each class name from a text file of word vectors: a word and its numbers a line (GloVe, word2vec,
    Wikipedia2Vec). Case does not count; a name that the file lacks is the mean of its words that it has."""
    tokens = [_tokens(name) for name in names]
    wanted = {token for row in tokens for level in row for token in level}
    found: dict[str, Tensor] = {}
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                word, _, numbers = line.rstrip().partition(" ")
                word = word.lower()
                if word in wanted and word not in found and numbers.count(" ") > 0:  # a first line may be two counts
                    found[word] = torch.tensor([float(v) for v in numbers.split()], dtype=torch.float64)
    except (OSError, ValueError) as e:
        raise AssayError(f"Cannot read word vectors from {str(path)!r}: {e}; give a text file, a word a line.") from e
    vectors = []
    for name, levels in zip(names, tokens, strict=True):
        known = next((here for level in levels if (here := [found[t] for t in level if t in found])), None)
        if known is None:
            raise AssayError(f"{str(path)!r} has no word of the class {name!r}; rename the class or take another file.")
        vectors.append(torch.stack(known).mean(0))
    if len({len(v) for v in vectors}) > 1:
        raise AssayError(f"The vectors of {str(path)!r} differ in length; is it a text file of word vectors?")
    return torch.stack(vectors)


def _tokens(name: str) -> tuple[list[str], list[str], list[str]]:
    """'T-shirt/top': the name itself, then t-shirt and top, then t, shirt and top."""
    low = name.lower().strip()
    return [low.replace(" ", "_")], re.findall(r"\w+(?:-\w+)*", low), re.findall(r"[^\W_]+", low)


def _check_alpha(who: str, alpha: float) -> None:
    if not 0 <= alpha < 1:
        raise AssayError(f"{who} got alpha={alpha}; it wants a share in [0, 1), such as 0.1.")
