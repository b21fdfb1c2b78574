r"""What a network is taught with that tells persons apart, in parts: four losses and their weights.

    L      =  L_sym  +  L_cla  +  2 L_tri  +  L_gm
    L_sym  =  1/P sum_i  |f_i1 - f_i2|^2 (1 - |c_i1 - c_i2|) (c_i1 + c_i2)      pairs i of a left and a right part,
                                                                                f their features, c their confidences
    L_cla  =  cross entropy with the target 1 - e for the true class, e / (K - 1) for each other, e = 0.1
    L_tri  =  mean over inputs of  max( d(hardest positive) - d(hardest negative) + 0.3, 0 )
    L_gm   =  cross entropy of part i of one image, matched with the parts of another of the same person; i is right

Source: Meng et al., ICANN 2021, eq. 3 to 8 and sec. 4.1; L_tri after Hermans et al., 2017, arXiv:1703.07737. How parts
    are compared for L_gm print takes from Wang et al. (HOReID), CVPR 2020; here it is the cosine of their features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.train.balanced import balanced
from assay.nn.parts_net import PartsNet

SYMMETRIC, CLASSES, TRIPLETS, MATCHING = 1.0, 1.0, 2.0, 1.0
SMOOTHING, MARGIN, SHARPNESS = 0.1, 0.3, 10.0


def part_features(features: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:  # n c h w, n p h w -> n p c, n p
    """Of each part the mean of the map weighed by its heat map, and its confidence, the heat map's peak."""
    if heat.shape[0] != features.shape[0] or heat.shape[2:] != features.shape[2:]:
        raise ShapeError(
            f"part_features got a map of shape {tuple(features.shape)} and heat maps of shape {tuple(heat.shape)}; it "
            "wants n c h w and n p h w."
        )
    return torch.einsum("nchw,nphw->npc", features, heat) / features[0, 0].numel(), heat.flatten(2).amax(2)


def symmetric_loss(left: Tensor, right: Tensor, left_sure: Tensor, right_sure: Tensor) -> Tensor:  # n p c, n p -> n
    """L_sym of each input, over its P pairs of parts."""
    apart = (left - right).square().sum(-1)
    return (apart * (1 - (left_sure - right_sure).abs()) * (left_sure + right_sure)).mean(-1)


def smoothed_target(y: Tensor, classes: int, smoothing: float = SMOOTHING) -> Tensor:  # n -> n k
    """1 - e for the true class, e / (K - 1) for each other."""
    return F.one_hot(y, classes) * (1 - smoothing * classes / (classes - 1)) + smoothing / (classes - 1)


def smoothed_loss(logits: Tensor, y: Tensor, smoothing: float = SMOOTHING) -> Tensor:  # n k, n -> scalar
    """L_cla, by torch's smoothing, which gives e' / K to every class, the true one too: e' = e K / (K - 1)."""
    k = logits.shape[1]
    return F.cross_entropy(logits, y, label_smoothing=smoothing * k / (k - 1))


def batch_hard(features: Tensor, y: Tensor, margin: float = MARGIN) -> Tensor:  # n d, n -> scalar
    """L_tri: of each input the farthest of its class and the nearest of another, in the batch."""
    same = y[:, None] == y[None]
    if bool(same.all()) or bool((same.sum(1) < 2).any()):
        raise AssayError(
            f"batch_hard got {len(y)} inputs in which some class is alone, by itself or without another input; give "
            "batches of several classes with at least 2 inputs each (balanced.py)."
        )
    square = (features[:, None] - features[None]).square().sum(-1)
    distance = square.clamp_min(1e-12).sqrt()  # the root has no slope at 0
    farthest = distance.masked_fill(~same, -torch.inf).amax(1)
    nearest = distance.masked_fill(same, torch.inf).amin(1)
    return (farthest - nearest + margin).relu().mean()


def matching_loss(one: Tensor, other: Tensor, sharpness: float = SHARPNESS) -> Tensor:  # n p c, n p c -> scalar
    """L_gm: each part of one image should find itself among the parts of the other."""
    scores = sharpness * F.normalize(one, dim=-1) @ F.normalize(other, dim=-1).transpose(1, 2)  # n p p
    right = torch.arange(one.shape[1], device=one.device).expand(len(one), -1)
    return F.cross_entropy(scores.flatten(0, 1), right.flatten())


def teach(
    net: PartsNet,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    each: int,
    lr: float,
    rng: torch.Generator,
    heat: Tensor | None = None,
    sides: tuple[Sequence[int], Sequence[int]] = ((), ()),
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
) -> list[float]:  # n c h w, n -> the loss of each step
    """Train on images of persons y, `each` of every person in a batch: L_cla and L_tri, and with heat maps of
    parts (n p h' w', as large as the last map) L_sym over the parts `sides` and L_gm too.

    By Adam with a rate that falls to 0 along a cosine. The linear layer behind the descriptor, which sees it normalised
    over the batch (Luo et al. 2019, arXiv:1903.07071, sec. 3.5), is thrown away. x and y
    lie where the net does; the net is left in evaluation mode.
    """
    persons, y = torch.unique(y, return_inverse=True)
    order = balanced(torch.zeros_like(y), y, each=each)
    wide = net.describes**-0.5
    head = (wide * (2 * torch.rand(len(persons), net.describes, generator=rng) - 1)).to(x.device).requires_grad_()
    optimiser = torch.optim.Adam([*net.parameters(), head], lr=lr)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    net.train()
    losses: list[Tensor] = []
    while len(losses) < steps:
        for index in order(rng)[: steps - len(losses)]:
            at = index.to(x.device)
            first, last = net.maps(x[at] if augment is None else augment(x[at], rng))
            f = net.descriptor(first, last)
            logits = F.batch_norm(f, None, None, training=True) @ head.T
            loss = CLASSES * smoothed_loss(logits, y[at]) + TRIPLETS * batch_hard(f, y[at])
            if heat is not None:
                parts, sure = part_features(last, heat[at])
                left, right = map(list, sides)
                alike = symmetric_loss(parts[:, left], parts[:, right], sure[:, left], sure[:, right]).mean()
                loss = loss + SYMMETRIC * alike + MATCHING * matching_loss(parts[0::2], parts[1::2])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            falling.step()
            losses.append(loss.detach())
    net.eval()
    found: list[float] = torch.stack(losses).tolist()
    return found
