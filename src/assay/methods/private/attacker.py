r"""An attacker who reads an attribute of people off frozen features, and who retrains.

With rows z of features, brought to mean 0 and spread 1 by the rows that it learns from, and the attribute's codes a

    linear   min over W, b   mean_i -log softmax(W z_i + b)[a_i] + c/2 |W|^2      convex: one answer, whatever the start
    mlp      the same loss of relu(V z + d), WIDTH units, in the place of z, + c/2 |V|^2; STEPS full steps of Adam from
             weights that are drawn anew by the seed each time

c is the one of PENALTIES with the smallest loss on a quarter of the rows, kept back for that; then all rows are learnt
again with it. All penalties are fitted at once. What is judged has no part in any of this.

An attribute is known better than by chance where somebody who has never seen the row would be right less often: the
commonest value of the rows that were learnt. `balanced` counts each value alike, with the prior taken out of the
attacker's answers (argmax of log p - log prior), so that a rare value that is told is not hidden by a common one. The
area is, for each value, the chance that a row that has it scores above one that has not, and their mean.

A defence is worth what it holds against an attacker who retrains on what the defence gives out; one who learnt before
it came shows an apparent privacy only. A poor attacker flatters the features: all these numbers are floors.

Source: Fuhl, Bozkir & Kasneci, ICANN 2021 (the attacker that adapts); Alain & Bengio 2016, arXiv:1610.01644 (linear
    probes of layers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.detection import auroc, auroc_interval

Kind = Literal["linear", "mlp"]
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
WIDTH, STEPS, RATE = 32, 100, 2e-2
KEPT_BACK = 0.25  # of the rows that are learnt, to choose the penalty by
LEAST = 8  # rows to learn from


@dataclass(frozen=True)
class Attacker:
    """A fitted attacker: `log_chances` are what it says of features it has not seen."""

    kind: Kind
    values: int
    centre: Tensor  # f
    scale: Tensor  # f
    layers: tuple[Tensor, ...]  # W, b of each: 1 in out, 1 1 out
    log_prior: Tensor  # k
    penalty: float
    held_out_loss: float
    """On the rows that were kept back; by it, and never by what is judged, one attacker is taken before another."""

    @classmethod
    def fit(
        cls, features: Tensor, codes: Tensor | ArrayLike, seed: int, *, kind: Kind = "linear", values: int | None = None
    ) -> Attacker:  # n *f, n of 0..values-1
        """An attacker who learnt these rows, and nothing before; `values` where the rows need not have all of them."""
        z, a = _rows(features, codes)
        k = max(int(a.max()) + 1, values or 0)
        counts = torch.bincount(a, minlength=k)
        if len(z) < LEAST or int((counts > 0).sum()) < 2:
            raise AssayError(
                f"An attacker learns from {len(z)} rows of {int((counts > 0).sum())} values; at least {LEAST} rows "
                "and two values of the attribute are needed."
            )
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed)).to(z.device)
        kept, taught = order.tensor_split([max(1, math.floor(KEPT_BACK * len(z)))])
        tried = _fitted(_scaled(z, *_spread(z[taught])), a, taught, k, kind, PENALTIES, seed)
        losses = [
            float(F.cross_entropy(_answers(_scaled(z[kept], *_spread(z[taught])), tried)[i], a[kept]))
            for i in range(len(PENALTIES))
        ]
        best = int(np.argmin(losses))
        centre, scale = _spread(z)
        whole = torch.arange(len(z), device=z.device)
        layers = _fitted(_scaled(z, centre, scale), a, whole, k, kind, (PENALTIES[best],), seed)
        prior = (counts + 0.5).double() / (counts + 0.5).sum()
        return cls(kind, k, centre, scale, layers, prior.log(), PENALTIES[best], losses[best])

    def log_chances(self, features: Tensor) -> Tensor:  # n *f -> n k
        """The log of the chance that it gives each value, row by row."""
        z = features.detach().flatten(1).to(self.centre)
        if z.shape[1] != len(self.centre):
            raise ShapeError(
                f"The attacker learnt {len(self.centre)} features and is shown {z.shape[1]}; show as many."
            )
        with torch.no_grad():
            return _answers(_scaled(z, self.centre, self.scale), self.layers)[0].log_softmax(-1)

    def judged(self, features: Tensor, codes: Tensor | ArrayLike) -> Leakage:  # m *f, m
        """What it reads off rows that it has not learnt."""
        z, a = _rows(features, codes)
        if int(a.max()) >= self.values:
            raise AssayError(
                f"A row has the code {int(a.max())}, and the attacker knows {self.values} values; fit with more."
            )
        return Leakage(self.log_chances(z).cpu().numpy(), a.cpu().numpy(), self.log_prior.cpu().numpy())


@dataclass(frozen=True)
class Leakage:
    """What was read of an attribute, row by row."""

    log_chances: NDArray[np.float64]  # m k
    codes: NDArray[np.int64]  # m
    log_prior: NDArray[np.float64]  # k: shares of the values among the rows that were learnt

    @cached_property
    def hits(self) -> NDArray[np.bool_]:  # m
        """Rows whose value it names."""
        return np.asarray(self.log_chances.argmax(1) == self.codes)

    @cached_property
    def balanced_hits(self) -> NDArray[np.bool_]:  # m
        """Rows whose value it names where it takes each value for as common."""
        return np.asarray((self.log_chances - self.log_prior).argmax(1) == self.codes)

    @cached_property
    def chance_hits(self) -> NDArray[np.bool_]:  # m
        """Rows that somebody is right about who has seen none: the commonest value of those that were learnt."""
        return np.asarray(self.codes == int(self.log_prior.argmax()))

    @property
    def accuracy(self) -> float:
        return float(self.hits.mean())

    @property
    def chance(self) -> float:
        return float(self.chance_hits.mean())

    @property
    def present(self) -> tuple[int, ...]:
        """The values that some judged row has."""
        return tuple(np.unique(self.codes).tolist())

    @property
    def per_value(self) -> dict[int, float]:
        """The share of each value's rows that is named, each value taken for as common."""
        return {v: float(self.balanced_hits[self.codes == v].mean()) for v in self.present}

    @property
    def balanced_accuracy(self) -> float:
        return float(np.mean(list(self.per_value.values())))

    @property
    def auc(self) -> tuple[float, float, float] | None:
        """The mean area with its interval; None where all judged rows have one value.

        The ends are the means of the values' own: areas of one sample hang together, and a mean of them varies at most
        by the mean of what each varies by.
        """
        if len(self.present) < 2:
            return None
        each = []
        for v in self.present:
            own, score = self.codes == v, self.log_chances[:, v]
            each.append((auroc(score[own], score[~own]), *auroc_interval(score[own], score[~own])))
        value, low, high = np.mean(each, axis=0).tolist()
        return value, low, high


def within(found: Leakage, strata: NDArray[np.int64]) -> tuple[float, float, float] | None:  # strata: m
    """The area with its interval where rows are compared only with rows of their own stratum, such as their label.

    An attribute that is tied to the label is read wherever the label is; within one label nothing is left of that: 1/2.
    Strata weigh as many pairs as they have, and their areas are independent, so that the ends are

        A -+ sqrt( sum_s w_s^2 (A_s - end_s)^2 )        (Zou & Donner, Stat. Med. 2008)

    None where no stratum has two values.
    """
    each = []
    for v in found.present:
        parts = []
        for s in np.unique(strata):
            here = strata == s
            own, score = found.codes[here] == v, found.log_chances[here, v]
            if own.any() and not own.all():
                area = auroc(score[own], score[~own])
                low, high = auroc_interval(score[own], score[~own])
                parts.append((own.sum() * (~own).sum(), area, area - low, high - area))
        if parts:
            pairs, areas, down, up = np.array(parts, dtype=np.float64).T
            w = pairs / pairs.sum()
            value = float(w @ areas)
            each.append((value, value - float(np.linalg.norm(w * down)), value + float(np.linalg.norm(w * up))))
    if not each:
        return None
    value, low, high = np.mean(each, axis=0).tolist()
    return value, max(0.0, low), min(1.0, high)


def leakage(
    features_train: Tensor,
    codes_train: Tensor | ArrayLike,
    features_test: Tensor,
    codes_test: Tensor | ArrayLike,
    *,
    seed: int,
    kind: Kind = "linear",
    values: int | None = None,
) -> Leakage:  # n *f, n, m *f, m
    """What an attacker who learns some rows reads off others; rows of code -1, which means unknown, are left out."""
    parts = []
    for features, codes in ((features_train, codes_train), (features_test, codes_test)):
        a = torch.as_tensor(codes)
        parts.append((features[(a >= 0).to(features.device)], a[a >= 0]))
    (z, a), (shown, true) = parts
    most = max([values or 0, *(int(each.max()) + 1 for each in (a, true) if len(each))])
    return Attacker.fit(z, a, seed, kind=kind, values=most).judged(shown, true)


def _rows(features: Tensor, codes: Tensor | ArrayLike) -> tuple[Tensor, Tensor]:
    z, a = features.detach().flatten(1).double(), torch.as_tensor(codes).long().to(features.device)
    if a.shape != (len(z),) or len(z) == 0:
        raise ShapeError(
            f"An attacker got {len(z)} rows and codes of shape {tuple(a.shape)}; give one code for each row."
        )
    if int(a.min()) < 0:
        raise AssayError(
            f"Row {int((a < 0).nonzero()[0])} has the code {int(a.min())}, of which nothing is known; leave it out."
        )
    broken = (~z.isfinite().all(1)).nonzero()
    if len(broken):
        raise AssayError(f"The features of row {int(broken[0])} hold NaN or infinity; leave it out or mend the model.")
    return z, a


def _spread(z: Tensor) -> tuple[Tensor, Tensor]:  # n f -> f, f
    scale = z.std(0, correction=0)
    return z.mean(0), torch.where(
        scale > 1e-9 * z.abs().amax(0).clamp_min(1e-300), scale, torch.inf
    )  # still: read as 0


def _scaled(z: Tensor, centre: Tensor, scale: Tensor) -> Tensor:  # n f -> n f
    return (z - centre) / scale


def _answers(z: Tensor, layers: tuple[Tensor, ...]) -> Tensor:  # n f, of c attackers -> c n k
    out = z[None].to(layers[0].dtype)
    for i in range(0, len(layers), 2):
        out = torch.baddbmm(layers[i + 1], out.expand(len(layers[i]), -1, -1), layers[i])
        out = out.relu() if i + 2 < len(layers) else out
    return out.double()


def _fitted(
    z: Tensor, a: Tensor, rows: Tensor, k: int, kind: Kind, penalties: tuple[float, ...], seed: int
) -> tuple[Tensor, ...]:  # n f, n
    """An attacker for each penalty, learnt together: their losses are added, and none has a part in another's."""
    z, a = z[rows], a[rows]
    basis = None
    if kind == "linear" and z.shape[1] > len(z):  # the best W is a sum of rows, so that it is sought among these alone
        basis = torch.linalg.qr(z.T).Q  # f n
        z = z @ basis
    f = z.shape[1]
    c = torch.tensor(penalties, dtype=torch.float64, device=z.device)

    def loss(*layers: Tensor) -> Tensor:
        out = _answers(z, layers)
        wrong = F.cross_entropy(out.transpose(1, 2), a.expand(len(c), -1), reduction="none").mean(1)
        size = torch.stack([w.square().sum((1, 2)) for w in layers[::2]]).sum(0)
        return (wrong + c / 2 * size).sum()

    if kind == "linear":
        layers = tuple(
            torch.zeros(shape, dtype=z.dtype, device=z.device, requires_grad=True)
            for shape in ((len(c), f, k), (len(c), 1, k))
        )
        search = torch.optim.LBFGS(
            layers, max_iter=300, tolerance_grad=1e-6, tolerance_change=1e-10, line_search_fn="strong_wolfe"
        )

        def again() -> Tensor:
            search.zero_grad()
            value = loss(*layers)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.enable_grad():
            search.step(again)  # type: ignore[no-untyped-call]
    else:
        rng = torch.Generator().manual_seed(seed)
        drawn = []
        for wide, out in ((f, WIDTH), (WIDTH, k)):
            w = torch.randn(1, wide, out, generator=rng) / math.sqrt(wide)
            drawn += [w.repeat(len(c), 1, 1), torch.zeros(len(c), 1, out)]
        layers = tuple(each.to(z.device).requires_grad_(True) for each in drawn)
        z = z.float()
        adam = torch.optim.Adam(layers, RATE, fused=True)
        with torch.enable_grad():
            for _ in range(STEPS):
                adam.zero_grad()
                loss(*layers).backward()  # type: ignore[no-untyped-call]
                adam.step()
    found = tuple(each.detach() for each in layers)
    return found if basis is None else (basis @ found[0], found[1])
