r"""Discriminant analysis with Student-t class densities: far from the data every class is as likely.

    p(y = k | x) = p(x | k) / sum_j p(x | j),     p(x | k) = t_nu(x; mu_k, S)          equal priors
    log p(x | k) = const - (nu + D)/2 log(1 + (x - mu_k)' S^-1 (x - mu_k) / nu)

With Gaussians (nu = inf, linear discriminant analysis) the posterior goes to 0 or 1 far away, whatever lies there. A
polynomial tail of the same power and scale in all classes cancels, and the posterior goes to 1/k. The smaller nu, the
sooner.

Location and scale are those of greatest likelihood for a given nu, by expectation maximisation: with k(i) the class of
x_i, and all n inputs,

    u_i = (nu + D) / (nu + (x_i - mu_k(i))' S^-1 (x_i - mu_k(i)))
    mu_k = sum_{i in k} u_i x_i / sum_{i in k} u_i,     S = sum_i u_i (x_i - mu_k(i)) (x_i - mu_k(i))' / sum_i u_i

Source: Wang & Loog, CVPR 2022, arXiv:2203.12693; Wang, TU Delft 2024 (dissertation), sec. 5.3.1, where x has one
    dimension and the example two classes. The division of S by sum u in place of n has the same fixed point and gets
    there sooner: Kent, Tyler & Vardi, Commun. Statist. Simul. 1994; Liu, Rubin & Wu, Biometrika 1998 (PX-EM).
Departs from print: print says "(noncentral) Student's t"; its argument needs a location and a scale. nu, which it
    leaves open, is given and not fitted: on data with light tails its likelihood grows with nu, back to the Gaussian.
    Print says that equal powers suffice for 1/k. They do not: with a scale for each class the limit in one dimension is
    s_i^nu / sum_j s_j^nu. So the scale is shared; `pooled=False` gives each class its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError

STEPS = 1000  # of EM at most; some 10 to 100 do
CLOSE = 1e-9  # relative change of S after which EM has arrived


class StudentLDA(nn.Module):
    """The last module of a classifier, after what gives features. It returns log p, which are logits; nothing trains.

    `fit_student_lda` makes one. The scale is kept as W with W'W = S^-1, one for all classes or one a class.
    """

    mean: Tensor  # k d
    whiten: Tensor  # 1 d d, or k d d
    nu: Tensor  # k, equal unless someone sets them apart; inf is Gaussian

    def __init__(self, classes: int, features: int, *, nu: float = 1.0, pooled: bool = True) -> None:
        super().__init__()
        if classes < 2 or features < 1 or not nu > 0:
            raise AssayError(
                f"StudentLDA got classes={classes}, features={features}, nu={nu}; it wants at least 2, at least 1, and "
                "nu > 0: 1 is Cauchy's, inf the Gaussian."
            )
        self.register_buffer("mean", torch.zeros(classes, features))
        self.register_buffer("whiten", torch.eye(features).repeat(1 if pooled else classes, 1, 1))
        self.register_buffer("nu", torch.full((classes,), float(nu)))

    def log_density(self, x: Tensor) -> Tensor:  # n d -> n k
        """log p(x | k)."""
        if x.ndim != 2 or x.shape[1] != self.mean.shape[1]:
            raise ShapeError(f"StudentLDA got features of shape {tuple(x.shape)}; it wants (n, {self.mean.shape[1]}).")
        d = x.shape[1]
        centre = self.mean.mean(0)
        gone = x - centre
        far = gone.detach().abs().amax(1, keepdim=True).clamp_min(1)  # n 1: the square of a long x would overflow
        near = gone / far  # n d
        groups = (self.mean - centre).chunk(len(self.whiten))
        away = torch.cat(  # n k, (x - mu)' S^-1 (x - mu) / far^2
            [_squares(near @ w.mT, m @ w.mT, far) for w, m in zip(self.whiten, groups, strict=True)], 1
        )
        log_det = self.whiten.diagonal(dim1=1, dim2=2).log().sum(1)  # 1 or k, of W
        gaussian = self.nu.isinf()
        nu = self.nu.masked_fill(gaussian, 1)
        front = torch.lgamma((nu + d) / 2) - torch.lgamma(nu / 2) - d / 2 * (nu * math.pi).log()
        tail = front - (nu + d) / 2 * ((far**-2 + away / nu).log() + 2 * far.log())
        bell = -d / 2 * math.log(2 * math.pi) - far * (away * far) / 2
        return torch.where(gaussian, bell, tail) + log_det

    def forward(self, x: Tensor) -> Tensor:  # n d -> n k
        return self.log_density(x).log_softmax(1)

    def extra_repr(self) -> str:
        return f"classes={len(self.mean)}, features={self.mean.shape[1]}, pooled={len(self.whiten) == 1}"


def fit_student_lda(
    x: Tensor, y: Tensor, *, classes: int, nu: float = 1.0, pooled: bool = True, ridge: float = 1e-6
) -> StudentLDA:  # n d, n
    """Locations and scale of greatest likelihood; computed in float64, kept in the type of x.

    `ridge` times the mean variance is added to the diagonal of S, for features that never vary. With fewer inputs than
    features, or where most of them are equal, the likelihood has no maximum but for the ridge.
    """
    if x.ndim != 2 or not x.is_floating_point() or y.shape != x.shape[:1]:
        raise ShapeError(
            f"fit_student_lda got {x.dtype} features of shape {tuple(x.shape)} with labels of shape {tuple(y.shape)}; "
            "it wants float features (n, d) and n class indices."
        )
    lda = StudentLDA(classes, x.shape[1], nu=nu, pooled=pooled).to(x.device)
    if len(y) == 0 or int(y.min()) < 0 or int(y.max()) >= classes or int(y.bincount(minlength=classes).min()) == 0:
        raise AssayError(f"fit_student_lda wants an input of each of the {classes} classes and of no other; take more.")
    if not bool(x.isfinite().all()) or not 0 <= ridge < math.inf:
        raise AssayError(f"fit_student_lda got features with NaN or inf, or ridge={ridge}; give finite numbers >= 0.")
    rows = x.detach().double()
    middle, unit = rows.mean(0), rows.std(0, correction=0).square().mean().sqrt()  # S is of order 1 in these units
    if float(unit) == 0:
        raise AssayError("fit_student_lda got the same features for every input; give features that vary.")
    rows = (rows - middle) / unit
    if pooled:
        mean, whiten = _em(rows, y, classes, nu, ridge)
        whiten = whiten[None]
    else:
        alone = [_em(rows[y == k], y[y == k] * 0, 1, nu, ridge) for k in range(classes)]
        mean, whiten = torch.cat([m for m, _ in alone]), torch.stack([w for _, w in alone])
    lda.mean, lda.whiten = (mean * unit + middle).to(x.dtype), (whiten / unit).to(x.dtype)
    lda.nu = lda.nu.to(x.dtype)
    return lda


def _em(x: Tensor, y: Tensor, classes: int, nu: float, ridge: float) -> tuple[Tensor, Tensor]:  # -> k d, d d
    """Locations and W. A Gaussian has weights 1 and arrives in one step."""
    n, d = x.shape
    member = nn.functional.one_hot(y, classes).double()  # n k
    u = x.new_ones(n, 1)
    scale = x.new_zeros(d, d)
    for _ in range(STEPS):
        weight = member * u
        mean = (weight.T @ x) / weight.sum(0)[:, None]
        off = x - mean[y]
        before, scale = scale, (off * u).T @ off / u.sum()
        scale = scale + ridge * scale.trace() / d * torch.eye(d, dtype=x.dtype, device=x.device)
        lower, broken = torch.linalg.cholesky_ex(scale)
        if int(broken):
            raise AssayError(
                f"The scale of {n} inputs of {d} features is singular (ridge={ridge:g}); give more inputs, fewer "
                "features or ridge=1e-6."
            )
        whiten: Tensor = torch.linalg.solve_triangular(lower, torch.eye(d, dtype=x.dtype, device=x.device), upper=False)
        if math.isinf(nu) or float((scale - before).norm()) <= CLOSE * float(scale.norm()):
            return mean, whiten
        u = (nu + d) / (nu + (off @ whiten.T).square().sum(1, keepdim=True))
    raise AssayError(f"EM for nu={nu:g} did not settle in {STEPS} steps; take a larger nu or ridge, or more inputs.")


def _squares(z: Tensor, m: Tensor, far: Tensor) -> Tensor:  # n d, k d, n 1 -> n k
    """|| z - m / far ||^2."""
    m_near = m.square().sum(1) / far.square()  # n k
    return (z.square().sum(1, keepdim=True) - 2 * z @ m.T / far + m_near).clamp_min(0)
