r"""Scores that tell outliers from ordinary inputs, high where an input is familiar; `fit` once, `score` many.

Each class is a fitted score: `X.fit(train, labels)` looks at training inputs, `score(seen)` gives one number per input.
Both take a `Seen` (activations.py: inputs, logits z, features f, by rule those that enter the last linear layer), so
that one forward pass serves all. detection.py says how well a score separates two sets.

    MaxSoftmax     log max_c softmax(z)_c                      Hendrycks & Gimpel, ICLR 2017, arXiv:1610.02136
    Energy         T log sum_c exp(z_c / T)                    Liu et al., NeurIPS 2020, arXiv:2010.03759, eq. 4
    Odin           log max_c softmax(z(x') / T)_c,
                   x' = x + eps sign grad_x log max_c softmax(z(x) / T)_c
                                                               Liang et al., ICLR 2018, arXiv:1706.02690, eq. 1-2
    Mahalanobis    - min_c (f - mu_c)' S^+ (f - mu_c)          Lee et al., NeurIPS 2018, arXiv:1807.03888, eq. 1-2
    Neighbours     - || f/|f| - its k-th nearest of training ||  Sun et al., ICML 2022, arXiv:2204.06507, sec. 3
    Vim            log sum_c exp(z_c) - a || R'(f - o) ||      Wang et al., CVPR 2022, arXiv:2203.10807, sec. 4
    SoftRmaxTail   log max_c p_c of softRmax, and two others   Wang, TU Delft 2024 (dissertation), sec. 8.2

Departs from print: probabilities come as logarithms, in the same order but without the ties that rounding to 1 makes,
    and in float64, for at T = 1000 all softmax probabilities agree in their first digits. Odin and Mahalanobis choose
    settings and weigh layers on outliers in print; here settings are given, with one layer: no outlier is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.activations import BATCH, Seen
from assay.methods.uncertainty.detection import threshold_at
from assay.nn.softrmax import log_softrmax, nearest_distance
from assay.nn.student_head import log_student

CELLS = 2**24  # distances in one table
NORMAL = 1e-5  # log-probabilities in float32 sum to one this closely
RANK = 1e-10  # eigenvalues of a covariance below this share of the largest are rounding

SURE, AMBIGUOUS, UNFAMILIAR = 0, 1, 2  # what `SoftRmaxTail.cause` says

SoftRmaxScore = Literal["posterior", "entropy", "distance"]


class OutlierScore(Protocol):
    """A fitted score."""

    def score(self, seen: Seen) -> Tensor: ...  # -> n, high = familiar


@dataclass(frozen=True)
class MaxSoftmax:
    """The logarithm of the largest softmax probability. Nothing to fit."""

    @classmethod
    def fit(cls, train: Seen, labels: Tensor) -> MaxSoftmax:
        return cls()

    def score(self, seen: Seen) -> Tensor:  # -> n
        return log_top(check_finite(seen.logits, "logits"))


@dataclass(frozen=True)
class Energy:
    """Minus the free energy of the logits. Nothing to fit."""

    temperature: float = 1.0

    @classmethod
    def fit(cls, train: Seen, labels: Tensor, *, temperature: float = 1.0) -> Energy:
        return cls(check_positive("Energy", "temperature", temperature))

    def score(self, seen: Seen) -> Tensor:  # -> n
        z = check_finite(seen.logits, "logits")
        if bool((z.logsumexp(1).abs() < NORMAL).all()):
            raise AssayError("Energy got log-probabilities, for which it is 0 at every input; give it logits.")
        return self.temperature * (z / self.temperature).logsumexp(1)


@dataclass(frozen=True)
class Odin:
    """The largest softmax probability at a high temperature, after a small step that raises it. Nothing to fit.

    Familiar inputs rise more. The gradient is taken with respect to the inputs alone. The step may leave the inputs'
    range, as in print.
    """

    model: nn.Module
    temperature: float = 1000.0
    eps: float = 0.0014
    batch: int = BATCH

    @classmethod
    def fit(
        cls, train: Seen, labels: Tensor, *, model: nn.Module, temperature: float = 1000.0, eps: float = 0.0014
    ) -> Odin:
        if eps < 0:
            raise AssayError(f"Odin got eps={eps}; the step is up the gradient, so it may not be negative.")
        return cls(model, check_positive("Odin", "temperature", temperature), eps)

    def score(self, seen: Seen) -> Tensor:  # -> n
        return torch.cat([self._score(x) for x in torch.split(seen.inputs, self.batch)])

    def _score(self, x: Tensor) -> Tensor:  # n *d -> n
        with torch.enable_grad():
            at = x.detach().clone().requires_grad_()
            (way,) = torch.autograd.grad(log_top(self.model(at).double() / self.temperature).sum(), at)
        with torch.no_grad():
            z = check_finite(self.model(x + self.eps * way.sign()), "logits")
            return log_top(z / self.temperature)


@dataclass(frozen=True)
class Mahalanobis:
    """Minus the squared distance to the nearest class mean, under the covariance that all classes share.

    Directions in which no class varies in training have no scale; as in print the pseudo-inverse leaves them out, and
    an outlier that differs only in those is not seen.
    """

    means: Tensor  # c r, of the classes that occur, white
    whiten: Tensor  # f r: whiten whiten' = S^+

    @classmethod
    def fit(cls, train: Seen, labels: Tensor) -> Mahalanobis:
        f = check_finite(train.features, "features")
        if labels.shape != f.shape[:1]:
            raise ShapeError(f"Got labels of shape {tuple(labels.shape)} for {len(f)} inputs; give one class each.")
        classes, member, count = torch.unique(labels.to(f.device), return_inverse=True, return_counts=True)
        if len(classes) < 2:
            raise AssayError(f"All {len(f)} training inputs are of class {int(classes[0])}; Mahalanobis wants several.")
        means = f.new_zeros(len(classes), f.shape[1]).index_add_(0, member, f) / count[:, None]  # c f
        apart = f - means[member]
        sizes, axes = torch.linalg.eigh(apart.T @ apart / len(f))
        keep = sizes > RANK * sizes[-1]
        if not float(sizes[-1]) > 0:
            raise AssayError("The features do not vary within any class; Mahalanobis has no scale: give more inputs.")
        whiten = axes[:, keep] / sizes[keep].sqrt()
        return cls(means @ whiten, whiten)

    def score(self, seen: Seen) -> Tensor:  # -> n
        white = check_finite(seen.features, "features", self.whiten.shape[0]) @ self.whiten  # n r
        rows = max(1, CELLS // self.means.numel())
        return torch.cat([-(w[:, None] - self.means).square().sum(2).amin(1) for w in torch.split(white, rows)])


@dataclass(frozen=True)
class Neighbours:
    """Minus the distance of the feature's direction to the k-th nearest one of training.

    All training features are kept. Tables of distances are cut into pieces, so that memory does not grow with the
    number of inputs scored. The neighbour is sought in the features' own precision and its distance taken anew: from a
    product, the distance between near points would have half of the digits.
    """

    train: Tensor  # n f, of length 1
    k: int

    @classmethod
    def fit(cls, train: Seen, labels: Tensor, *, k: int = 50) -> Neighbours:
        check_finite(train.features, "features")
        if not 1 <= k <= len(train.features):
            raise AssayError(f"Neighbours got k={k} with {len(train.features)} training inputs; k is from 1 to that.")
        return cls(nn.functional.normalize(train.features.detach().flatten(1)), k)

    def score(self, seen: Seen) -> Tensor:  # -> n
        check_finite(seen.features, "features", self.train.shape[1])
        found = []
        unit = nn.functional.normalize(seen.features.detach().flatten(1))
        for f in torch.split(unit, max(1, CELLS // len(self.train))):
            kth = (f @ self.train.T).topk(self.k, sorted=True).indices[:, -1]  # largest cosine = least distance
            found.append(-(f.double() - self.train[kth].double()).norm(dim=1))
        return torch.cat(found)


@dataclass(frozen=True)
class Vim:
    """The energy of the logits less that of a virtual one, the part of the feature outside the principal subspace.

    o = -W^+ b is the feature at which all logits are 0, R spans what is left of the training features around o beyond
    the first `dim` principal directions, and a makes the mean virtual logit of training equal to the mean largest one.
    Softmax over c + 1 logits gives the virtual one a probability; this is the logarithm of the odds against it, in the
    same order. z = W f + b comes from `head`, the last linear layer, whatever follows it.
    """

    weight: Tensor  # c f
    bias: Tensor  # c
    origin: Tensor  # f
    rest: Tensor  # f r, R
    alpha: float

    @classmethod
    def fit(cls, train: Seen, labels: Tensor, *, head: nn.Linear, dim: int | None = None) -> Vim:
        f = check_finite(train.features, "features", head.in_features)
        width = f.shape[1]
        # print: 1000 and 512 for wide features; half for those narrower than print has
        dim = dim if dim is not None else 1000 if width >= 2048 else 512 if width >= 768 else width // 2
        if not 0 <= dim < width:
            raise AssayError(f"Vim got dim={dim} for {width} features; it must leave at least one direction over.")
        weight = head.weight.detach().to(f)
        bias = head.bias.detach().to(f) if head.bias is not None else f.new_zeros(len(weight))
        origin = -torch.linalg.pinv(weight) @ bias
        away = f - origin
        rest = torch.linalg.eigh(away.T @ away / len(f)).eigenvectors[:, : width - dim]  # smallest first
        length = (away @ rest).norm(dim=1).mean()
        if not float(length) > RANK * float(away.norm(dim=1).mean()):
            raise AssayError(f"All training features lie in {dim} dimensions, so Vim has nothing left over; lower dim.")
        top = (f @ weight.T + bias).amax(1).mean()
        if not float(top) > 0:
            raise AssayError(f"The largest logit is {float(top):.3g} on average; Vim wants it positive to scale by it.")
        return cls(weight, bias, origin, rest, float(top / length))

    def score(self, seen: Seen) -> Tensor:  # -> n
        f = check_finite(seen.features, "features", len(self.origin))
        virtual: Tensor = self.alpha * ((f - self.origin) @ self.rest).norm(dim=1)  # n
        return (f @ self.weight.T + self.bias).logsumexp(1) - virtual


@dataclass(frozen=True)
class SoftRmaxTail:
    r"""What the softRmax posterior says by itself: it is 1/k far from all e_i, where that of softmax is one-hot.

        posterior  log max_i p_i        entropy  1 + sum_i p_i log p_i / log k        distance  -min_i ||z - e_i||^2

    `seen.logits` are the z that enter the head, not the head's log p (for those MaxSoftmax is the posterior). With `nu`
    the head is of t densities (nn/student_head.py), which sit on the same e_i.

    A flat posterior has two causes, which `cause` tells apart by d = min_i ||z - e_i||^2. Inputs whose posterior is
    above that of `accept` of the training inputs are SURE. Of the others those between classes are AMBIGUOUS, those in
    the tail UNFAMILIAR: between the e_i (in their convex hull) d is at most 1 - 1/k, so the tail begins where d is
    above both this and that of `accept` of the training inputs.

    Source: Wang, TU Delft 2024 (dissertation), sec. 8.2, which suggests the score and has no evaluation; `cause` is an
        addition. A direction that the network ignores leaves z as it is: no score of z can see it.
    """

    flat: float  # log max p at or below which the posterior is flat
    far: float  # d above which z is in the tail
    power: float = 1.0
    by: SoftRmaxScore = "posterior"
    nu: float | None = None  # of the t densities that stand in the place of the power

    @classmethod
    def fit(
        cls,
        train: Seen,
        labels: Tensor,
        *,
        power: float = 1.0,
        by: SoftRmaxScore = "posterior",
        nu: float | None = None,
        accept: float = 0.95,
    ) -> SoftRmaxTail:
        if by not in get_args(SoftRmaxScore):
            raise AssayError(f"SoftRmaxTail got by={by!r}; choose one of {', '.join(get_args(SoftRmaxScore))}.")
        z = check_finite(train.logits, "logits")
        flat = threshold_at(_posterior(z, power, nu).amax(1), accept=accept)
        far = -threshold_at(-nearest_distance(z), accept=accept)
        return cls(flat, max(far, 1 - 1 / z.shape[1]), power, by, nu)

    def score(self, seen: Seen) -> Tensor:  # -> n
        z = check_finite(seen.logits, "logits")
        if self.by == "distance":
            return -nearest_distance(z)
        log_p = _posterior(z, self.power, self.nu)
        if self.by == "posterior":
            return log_p.amax(1)
        return 1 + (log_p.exp() * log_p).sum(1) / torch.tensor(z.shape[1]).log()

    def cause(self, seen: Seen) -> Tensor:  # -> n of SURE, AMBIGUOUS, UNFAMILIAR
        """Why the posterior of an input is flat, if it is."""
        z = check_finite(seen.logits, "logits")
        flat = _posterior(z, self.power, self.nu).amax(1) <= self.flat
        return flat * torch.where(nearest_distance(z) > self.far, UNFAMILIAR, AMBIGUOUS)


def _posterior(z: Tensor, power: float, nu: float | None) -> Tensor:  # n k -> n k
    return log_softrmax(z, power=power) if nu is None else log_student(z, nu=nu)


def along_rays(of: Callable[[Tensor], Tensor], start: Tensor, ways: Tensor, distances: Tensor) -> Tensor:
    """A score, or any function n *d -> n, at start + t way / |way|: *d, r *d, t -> r t.

    For a posterior look at the worst ray: softRmax need not fall along one, and stays where it is on a ray that the
    network ignores.
    """
    wide = (-1,) + (1,) * start.ndim
    unit = ways / ways.flatten(1).norm(dim=1).view(wide)
    at = start + distances.view(-1, *(1,) * start.ndim) * unit[:, None]  # r t *d
    return of(at.flatten(0, 1)).view(len(ways), len(distances))


def log_top(z: Tensor) -> Tensor:  # n c -> n
    """log max softmax, exact where the probability rounds to 1: -log(1 + sum of the others relative to the largest)."""
    top, at = z.max(1, keepdim=True)
    return -(z - top).scatter(1, at, -torch.inf).exp().sum(1).log1p()


def check_finite(rows: Tensor, name: str, width: int | None = None) -> Tensor:  # n *f -> n f in float64
    """Rows of numbers as long as those of training, or a line that says what is wrong with them."""
    flat = rows.detach().flatten(1) if rows.ndim > 1 else rows
    if flat.ndim != 2 or len(flat) == 0 or flat.shape[1] < 2:
        raise ShapeError(f"Got {name} of shape {tuple(rows.shape)}; give (n, {name}) with at least 2 columns.")
    if width is not None and flat.shape[1] != width:
        raise ShapeError(f"Got {flat.shape[1]} {name} for each input where {width} were fitted; use the same layer.")
    broken = torch.nonzero(~flat.isfinite().all(1))
    if len(broken):
        raise AssayError(f"Row {int(broken[0])} of the {name} holds NaN or inf; leave that input out.")
    return flat.double()


def check_positive(who: str, name: str, value: float) -> float:
    if not value > 0:
        raise AssayError(f"{who} got {name}={value}; it must be positive.")
    return value
