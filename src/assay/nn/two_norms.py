"""Batch normalisations for two kinds of images at once, which share all other weights of a network."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from assay.nn.replaced import replaced


class TwoNorms(nn.Module):
    """One normalisation for the first half of a batch and one for the second; the first for all, while `both` is off.

    Images that are varied strongly have other means and variances than those that will be asked about. Normalised
    together, both kinds are off; each by its own, the network learns from the one and is measured on the other.

    Source: Addepalli, Jain and Babu, NeurIPS 2022, arXiv:2210.15318, sec. 4; with attacked images as the second kind,
    Xie et al., CVPR 2020, arXiv:1911.09665.
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.first, self.second = norm, copy.deepcopy(norm)
        self.both = False

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n c h w
        if not self.both:
            out: Tensor = self.first(x)
            return out
        one, two = x.chunk(2)
        return torch.cat([self.first(one), self.second(two)])


def with_two_norms(net: nn.Module) -> nn.Module:
    """A copy of `net` with two of each of its batch normalisations."""

    def two(module: nn.Module) -> nn.Module | None:
        return TwoNorms(copy.deepcopy(module)) if isinstance(module, nn.BatchNorm2d) else None

    return replaced(net, two, "batch normalisation")


def with_first_norms(net: nn.Module) -> nn.Module:
    """A copy of `net` as it was built, with the first of the two alone."""
    return replaced(net, lambda m: m.first if isinstance(m, TwoNorms) else None, "pair of batch normalisations")


def ask_both(net: nn.Module, both: bool) -> None:
    """Whether the second half of a batch has normalisations of its own from now on."""
    for module in net.modules():
        if isinstance(module, TwoNorms):
            module.both = both
