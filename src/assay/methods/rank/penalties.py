"""What a walk may be charged for besides missing its target: rough, scattered or large changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError

SparseForm = Literal["smooth", "proximal", "printed"]
COUNTS = 0.1  # a value that changes by this much counts as 0.63 of a changed one in the smooth form; inputs span [0, 1]


@dataclass(frozen=True)
class Penalties:
    r"""tv TV(D) / N + sparse #(D) / N + close ||D||^2 / N, with D the change of one input and N its number of values.

        TV(D) = sum_{i < a, j < b} |D_ij - D_{i+1,j}| + |D_ij - D_{i,j+1}|,   over all channels of an a x b image
        #(D)  = sum 1 - exp(-D^2 / 0.1^2)      "smooth"
                sum |D|                        "proximal": each step is followed by a soft threshold at its pace
                the number of D != 0           "printed"

    As printed, both differences of TV run over the same i and j, so that the last row and the last column are compared
    inwards only, and the last corner not at all.

    Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.3, E 24 and 25.
    Departs from print: TV and count are divided by N as the mean square is, so that a weight means the same at every
        size; the printed count has no gradient anywhere, hence no effect at any weight, and two forms that have one
        are beside it, the smooth one by default.
    """

    tv: float = 0.0
    sparse: float = 0.0
    sparse_form: SparseForm = "smooth"
    close: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tv", "sparse", "close"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise AssayError(f"Penalties wants {name} of at least 0, got {getattr(self, name)}; 0 leaves it out.")
        if self.sparse_form not in get_args(SparseForm):
            raise AssayError(f"There is no sparse form {self.sparse_form!r}; choose {', '.join(get_args(SparseForm))}.")

    def charge(self, change: Tensor) -> Tensor:  # n *d -> n
        """The part that a gradient step lowers; "proximal" has none here, see `shrink`."""
        flat = change.flatten(1)
        total = flat.new_zeros(len(flat))
        if self.tv:
            total = total + self.tv * total_variation(change) / flat.shape[1]
        if self.sparse and self.sparse_form == "smooth":
            total = total + self.sparse * -torch.expm1(-((flat / COUNTS) ** 2)).mean(1)
        if self.sparse and self.sparse_form == "printed":
            total = total + self.sparse * (flat != 0).to(flat).mean(1)
        return total + self.close * flat.square().mean(1) if self.close else total

    def slope(self, change: Tensor) -> Tensor:  # n *d -> n *d
        """The gradient of `charge`; the printed count has none, which is 0."""
        with torch.enable_grad():
            change = change.detach().requires_grad_()
            total = self.charge(change).sum()
            return torch.autograd.grad(total, change)[0] if total.requires_grad else torch.zeros_like(change)

    def shrink(self, change: Tensor, pace: Tensor) -> Tensor:  # n *d, n -> n *d
        """argmin_D ||D - change||^2 / 2 + pace sparse ||D||_1 / N for "proximal"; the others leave it as it is."""
        if not self.sparse or self.sparse_form != "proximal":
            return change
        least = (pace * self.sparse / change[0].numel()).view(-1, *[1] * (change.dim() - 1))
        return change.sign() * (change.abs() - least).clamp_min(0)


NO_PENALTIES = Penalties()


def total_variation(change: Tensor) -> Tensor:  # n *c h w -> n
    """The sum of both differences over the range that they share (E 24)."""
    if change.dim() < 3:
        raise ShapeError(f"Total variation is for images, and these have shape {tuple(change.shape)}; leave tv at 0.")
    inner = change[..., :-1, :-1]
    down, right = (change[..., 1:, :-1] - inner).abs(), (change[..., :-1, 1:] - inner).abs()
    return (down + right).flatten(1).sum(1)
