r"""The last layer of a classifier, learnt anew on features that stay: regularised softmax regression, many at once.

    J(W) = 1/n sum_i -log softmax(x_i W)_{y_i}  +  ridge/2 |W|^2        W: d c,  the last of d features is constant

J is strictly convex, so that the labels decide the layer and no seed does. Labels come as r labellings of the same n
inputs, and all r layers are learnt together by Newton's method, each step by conjugate gradients, which need products
with the Hessian only:

    H V = 1/n X' ( P * (X V) - P <P, X V> )  +  ridge V,       P = softmax(X W), products and <.,.> input by input

preconditioned by A (x) I_c with A = 1/n X' diag(w) X + ridge I, w_i = sum_c P_ic (1 - P_ic) / (c - 1) at the start: of
two classes that is H itself. It keeps what every gradient has: a sum of 0 over the classes.

Features are brought to mean 0 and spread 1 by the training inputs, and divided by the root of their number: a ridge
then means the same for few and for many.

Source: Boehning, Ann. Inst. Stat. Math. 1992 (the Hessian of softmax regression); Nocedal and Wright, Numerical
    Optimization, 2006, alg. 7.1 (Newton by conjugate gradients).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError, ShapeError

CLOSE = 1e-7  # the largest gradient that is left, of a loss of about 1
NEWTON, INNER, HALVINGS = 60, 200, 30
TINY = 1e-30
BLOCK = 2**22  # scores that are held at a time, of all inputs under some of the labellings


class Scaling(NamedTuple):
    """How features were brought to mean 0 and spread 1, for others of the same layer."""

    mean: Tensor  # d
    spread: Tensor  # d

    @classmethod
    def of(cls, x: Tensor) -> Scaling:  # n d
        rows = x.double()
        spread = rows.std(0, correction=0)
        changes = spread > 1e-9 * (1 + rows.abs().amax(0))  # what never changes stays 0
        return cls(rows.mean(0), torch.where(changes, spread, torch.inf))

    def __call__(self, x: Tensor) -> Tensor:  # n d -> n d+1
        """In float64, with the constant."""
        rows = (x.double() - self.mean) / self.spread / math.sqrt(len(self.mean))
        return torch.cat([rows, torch.ones_like(rows[:, :1])], 1)


def fit_heads(x: Tensor, labels: Tensor, classes: int, *, ridge: float, start: Tensor | None = None) -> Tensor:
    """x: n d, labels: r n class indices or r n c shares of them, start: d c  ->  r d c"""
    n, d = x.shape
    if labels.ndim not in (2, 3) or labels.shape[1] != n or n == 0:
        raise ShapeError(
            f"fit_heads got labels of shape {tuple(labels.shape)} for {n} inputs; it wants one labelling or more, "
            f"(r, {n})."
        )
    if not 0 < ridge < math.inf:
        raise AssayError(f"fit_heads got ridge={ridge}; give a number above 0, such as 0.001: without it W is not one.")
    x, begun = x.double(), torch.zeros(d, classes).to(x).double() if start is None else start
    several = max(1, BLOCK // (n * classes))
    precondition = _preconditioner(x, begun, ridge)
    return torch.cat([_fitted(x, part, classes, ridge, begun, precondition) for part in torch.split(labels, several)])


def hessian_solve(x: Tensor, weights: Tensor, right: Tensor, *, ridge: float) -> Tensor:  # n d, d c, d c -> d c
    """H^-1 applied to `right`, whose sum over the classes is 0, at the layer that `weights` are."""
    p = torch.softmax(x @ weights, 1)[None]
    solved = _conjugate(x, p, right[None], ridge, _preconditioner(x, weights, ridge), torch.tensor([1e-10]).to(x))
    return solved[0]


def _preconditioner(x: Tensor, weights: Tensor, ridge: float) -> Tensor:  # n d, d c -> d d
    p = torch.softmax(x @ weights, 1)
    w = (p * (1 - p)).sum(1) / max(1, p.shape[1] - 1)
    a = (x * w[:, None]).T @ x / len(x)
    root: Tensor = torch.linalg.cholesky(a + ridge * torch.eye(len(a)).to(a))
    return root


def _into(x: Tensor, w: Tensor) -> Tensor:  # n d, r d c -> r n c
    """One large product, where a product for each labelling would be many thin ones."""
    r, d, c = w.shape
    return (x @ w.transpose(0, 1).reshape(d, r * c)).reshape(len(x), r, c).transpose(0, 1)


def _back(x: Tensor, z: Tensor) -> Tensor:  # n d, r n c -> r d c
    r, n, c = z.shape
    return (x.T @ z.transpose(0, 1).reshape(n, r * c)).reshape(-1, r, c).transpose(0, 1) / n


def _dot(a: Tensor, b: Tensor) -> Tensor:  # r d c, r d c -> r
    return (a * b).sum((1, 2))


def _conjugate(x: Tensor, p: Tensor, right: Tensor, ridge: float, root: Tensor, within: Tensor) -> Tensor:
    """H^-1 right by preconditioned conjugate gradients, until what is left is `within` so much of it.

    x: n d, p: r n c, right: r d c, root: d d, within: r -> r d c
    """

    def eased(v: Tensor) -> Tensor:
        r, d, c = v.shape
        flat = v.transpose(0, 1).reshape(d, r * c)
        return torch.cholesky_solve(flat, root).reshape(d, r, c).transpose(0, 1)

    v, left = torch.zeros_like(right), right.clone()
    limit = within * _dot(right, right).sqrt()
    way = eased(left)
    height = _dot(left, way)
    for _ in range(INNER):
        if bool((_dot(left, left).sqrt() <= limit).all()):
            break
        z = p * _into(x, way)
        bent = _back(x, z - p * z.sum(2, keepdim=True)) + ridge * way
        step = height / _dot(way, bent).clamp_min(TINY)
        v += step[:, None, None] * way
        left -= step[:, None, None] * bent
        to = eased(left)
        lower = _dot(left, to)
        way = to + (lower / height.clamp_min(TINY))[:, None, None] * way
        height = lower
    return v


def _fitted(x: Tensor, labels: Tensor, classes: int, ridge: float, start: Tensor, root: Tensor) -> Tensor:  # -> r d c
    given = F.one_hot(labels, classes).to(x) if labels.ndim == 2 else labels.to(x)
    w = start.expand(len(given), *start.shape).clone()
    open_ = torch.arange(len(w), device=w.device)

    def height(w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # k d c, k n c -> k, k n c
        said = torch.log_softmax(_into(x, w), 2)
        return -(said * y).sum((1, 2)) / len(x) + ridge / 2 * _dot(w, w), said

    for _ in range(NEWTON):
        now, y = w[open_], given[open_]
        j, said = height(now, y)
        p = said.exp()
        gradient = _back(x, p - y) + ridge * now
        size = _dot(gradient, gradient).sqrt()
        far = size > CLOSE
        if not bool(far.any()):
            return w
        open_, now, y, j, p, gradient, size = (a[far] for a in (open_, now, y, j, p, gradient, size))
        # a way need not be exact: single precision halves the time, and what is left is measured in double
        slack = size.sqrt().clamp(1e-4, 0.1).float()
        way = -_conjugate(x.float(), p.float(), gradient.float(), ridge, root.float(), slack).double()
        down = _dot(gradient, way)
        step = torch.ones_like(down)
        for _ in range(HALVINGS):
            there, _ = height(now + step[:, None, None] * way, y)
            # rounding of a loss of about 1 hides what the last steps gain
            high = there > j + 1e-4 * step * down + 1e-14
            if not bool(high.any()):
                break
            step = torch.where(high, step / 2, step)
        w[open_] = now + step[:, None, None] * way
    raise AssayError(
        f"{len(open_)} of {len(w)} last layers did not settle in {NEWTON} steps; give a larger ridge than {ridge:g}."
    )
