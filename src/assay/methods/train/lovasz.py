r"""Lovasz losses: the error 1 - IoU of hard answers, continued to soft ones so that it has slopes.

Of one class, with g_i whether pixel i is of it and m_i >= 0 how wrong it is, sorted so that m_(1) >= m_(2) >= ...,

    loss = sum_k (J_k - J_{k-1}) m_(k),    J_k = 1 - (G - g_(1) - ... - g_(k)) / (G + (1 - g_(1)) + ... + (1 - g_(k))),

J_0 = 0 and G = sum g: J_k is what 1 - IoU would be if the k worst pixels were wrong and no other. For errors of 0 and 1
it is 1 - IoU. It is convex in m and a straight line wherever the order stays.

    lovasz_softmax   m_i(c) = 1 - f_i(c) where c is the class of pixel i, else f_i(c): probabilities, all classes
    lovasz_hinge     m_i = max(0, 1 - s_i y_i), y_i = -1 or 1: a score, one class

Source: Berman, Rannen Triki and Blaschko, CVPR 2018, arXiv:1705.08790, eq. 8, 9 and 11, algorithm 1. Wang and Quan
(GLUNet, ICANN 2021, sec. 3.3) print the first with the labels -1 and 1 of the second, and take the mean over all
classes, also those that an image does not have (`as_published`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError

NOT_COUNTED = -1


def lovasz(errors: Tensor, true: Tensor) -> Tensor:  # *n p in [0, inf), *n p bool -> *n
    """The extension of 1 - IoU at these errors, over the last axis. Without a true pixel it is the largest error."""
    if errors.shape != true.shape:
        raise ShapeError(f"lovasz got errors of shape {tuple(errors.shape)} and truth of {tuple(true.shape)}.")
    worst, order = errors.sort(dim=-1, descending=True)
    g = true.to(errors.dtype).gather(-1, order)
    there = g.sum(-1, keepdim=True)
    jaccard = 1 - (there - g.cumsum(-1)) / (there + (1 - g).cumsum(-1)).clamp_min(1)
    step = torch.cat([jaccard[..., :1], jaccard.diff(dim=-1)], -1)
    loss: Tensor = (step * worst).sum(-1)
    return loss


def lovasz_softmax(
    probability: Tensor, target: Tensor, *, as_published: bool = False
) -> Tensor:  # n k *p, n *p whole -> n
    """The mean over the classes that each target has; `as_published` over all. Targets of -1 do not count."""
    if probability.ndim < 3 or probability.shape[:1] + probability.shape[2:] != target.shape:
        raise ShapeError(
            f"lovasz_softmax got probabilities of shape {tuple(probability.shape)} for targets of shape "
            f"{tuple(target.shape)}; give (n, classes, places) and (n, places)."
        )
    f, y = probability.flatten(2), target.flatten(1).long()  # n k p, n p
    if int(y.max()) >= f.shape[1] or int(y.min()) < NOT_COUNTED:
        raise AssayError(f"lovasz_softmax got classes from {int(y.min())} to {int(y.max())} for {f.shape[1]}.")
    own = y[:, None] == torch.arange(f.shape[1], device=y.device)[:, None]  # n k p
    # an error of 0 of no class is last in the order and weighs nothing: as if the pixel were not there
    errors = torch.where(own, 1 - f, f) * (y != NOT_COUNTED)[:, None]
    each = lovasz(errors, own)  # n k
    counted = torch.ones_like(own[..., 0]) if as_published else own.any(-1)
    return (each * counted).sum(1) / counted.sum(1).clamp_min(1)


def lovasz_hinge(score: Tensor, target: Tensor) -> Tensor:  # n *p, n *p of 0 and 1 -> n
    """Of one class against the rest; a score above 0 says that a pixel is of it."""
    if score.shape != target.shape:
        raise ShapeError(f"lovasz_hinge got scores of shape {tuple(score.shape)} for targets of {tuple(target.shape)}.")
    s, g = score.flatten(1), target.flatten(1).bool()
    return lovasz((1 - torch.where(g, s, -s)).clamp_min(0), g)


def region_and_edge(
    logits: Tensor, edge: Tensor, target: Tensor, edges: Tensor, *, share: float = 0.7
) -> Tensor:  # n k *p, n 1 *p, n *p, n *p of 0 and 1 -> n
    """share L_seg + (1 - share) L_edge, both Lovasz-softmax: of the classes, and of whether there is an edge.

    Source: Wang and Quan, GLUNet, eq. 6, with lambda = 0.7.
    """
    if not 0 <= share <= 1:
        raise AssayError(f"region_and_edge got share={share}; give a number from 0 to 1, such as 0.7.")
    of_edge = torch.sigmoid(edge)
    both = torch.cat([1 - of_edge, of_edge], 1)
    return share * lovasz_softmax(logits.softmax(1), target) + (1 - share) * lovasz_softmax(both, edges)
