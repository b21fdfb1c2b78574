r"""Influence: what a last layer would do to other inputs if one training label were another, without learning it anew.

The layer W is the minimum of J (head.py). A label i moved from y to c adds x_i (e_y - e_c)' / n to its gradient, and
the minimum moves, to first order, by -H^-1 of that. With L any function of the scores of the aimed inputs A,

    S    = H^-1 A' dL/dz          d c
    pull = 1/n X S                n c:   L grows by  pull_ic - pull_iy  where label i changes from y to c,
                                         and by  <pull_i, p_i - e_y>  where the i-th input is left out

One solve with H serves all n inputs and all c classes. H is that of the whole layer, no estimate and no diagonal: this
is the derivative itself, exact in the limit of a small share of a label, and for a whole label as good as J is
quadratic. With L the smooth count of rounds.py it is an attack; with the loss of one input, an explanation of it.

Source: Koh and Liang, "Understanding Black-box Predictions via Influence Functions", ICML 2017, arXiv:1703.04730, eq. 2
    and sec. 5.2; Cook and Weisberg, "Residuals and Influence in Regression", 1982.
Departs from print: a label is changed where print perturbs an input, and H is solved with where print estimates it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.methods.poison.head import fit_heads, hessian_solve
from assay.methods.poison.rounds import Pull, wrong_slope

SHARP = 2.0  # of scores whose layer has a ridge of about 0.001; on the one subject compared, half or twice took less


def influence(x: Tensor, weights: Tensor, aimed: Tensor, slope: Tensor, *, ridge: float) -> Tensor:
    """x: n d, weights: d c, aimed: m d, slope: dL/dz, m c  ->  the pull, n c"""
    return x @ hessian_solve(x, weights, aimed.T @ slope, ridge=ridge) / len(x)


def left_out(x: Tensor, labels: Tensor, weights: Tensor, pull: Tensor) -> Tensor:  # n d, n, d c, n c -> n
    """By how much L grows, to first order, where an input is not learnt from."""
    told = torch.softmax(x @ weights, 1) - F.one_hot(labels, weights.shape[1]).to(x)
    return (pull * told).sum(1)


def pull_of_head(x: Tensor, classes: int, aimed: Tensor, targets: Tensor, *, ridge: float) -> Pull:
    """The pull of the layer that the labels make, learnt anew each time; x: n d, aimed: m d, targets: m."""
    last: list[Tensor] = []

    def pull(labels: Tensor) -> Tensor:  # n -> n c
        weights = fit_heads(x, labels[None], classes, ridge=ridge, start=last[-1] if last else None)[0]
        last[:] = [weights]  # the next layer is near it
        return influence(x, weights, aimed, wrong_slope(aimed @ weights, targets, SHARP), ridge=ridge)

    return pull
