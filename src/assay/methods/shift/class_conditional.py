r"""Class-conditional domain invariance, P(z | y, D) = P(z | y): two domains compared within each class.

    gap = sum_c w_c MMD^2(z_a | c, z_b | c),     w_c the share of class c among the inputs that are compared

Both domains of a class are dealt anew, each class by itself, so that other shares of classes are no gap: p is the share
of such deals, summed over classes, that reach the gap. Classes of which one domain has fewer than LEAST inputs are left
out, and named.

Source: Wang, Loog & van Gemert, ICPR 2020, arXiv:2010.07591, eq. 3.3 in Wang's dissertation, TU Delft 2024; MMD^2 as in
    mk_mmd.py, without bias.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import ShapeError
from assay.methods.shift.mk_mmd import TIE, mmd_test

LEAST = 5


class ConditionalGap(NamedTuple):
    squared: float
    low: float
    high: float
    p_value: float
    each: dict[int, float]  # of every class that was compared
    left_out: tuple[int, ...]


def class_conditional_gap(
    a: Tensor, y_a: Tensor, b: Tensor, y_b: Tensor, *, rng: torch.Generator, deals: int = 500
) -> ConditionalGap | None:  # n *d, n, m *d, m
    """The gap between two domains, or None where no class has enough inputs in both."""
    if y_a.shape != a.shape[:1] or y_b.shape != b.shape[:1]:
        raise ShapeError(
            f"class_conditional_gap got {len(a)} and {len(b)} rows with labels of shapes {tuple(y_a.shape)} and "
            f"{tuple(y_b.shape)}; give one each."
        )
    found, weight, left_out = {}, [], []
    for c in sorted({*y_a.tolist(), *y_b.tolist()}):
        mine, theirs = a[y_a == c], b[y_b == c]
        if min(len(mine), len(theirs)) < LEAST:
            left_out.append(int(c))
            continue
        found[int(c)] = mmd_test(mine, theirs, rng=rng, deals=deals)
        weight.append(float(len(mine) + len(theirs)))
    if not found:
        return None
    w = torch.tensor(weight, dtype=torch.float64) / sum(weight)
    squared = torch.tensor([shift.squared for shift in found.values()], dtype=torch.float64)
    half = torch.tensor([shift.high - shift.squared for shift in found.values()], dtype=torch.float64)
    value, reach = float(w @ squared), math.sqrt(float((w * half).square().sum()))
    dealt = w @ torch.stack([shift.dealt.double() for shift in found.values()])
    return ConditionalGap(
        squared=value,
        low=value - reach,
        high=value + reach,
        p_value=(1 + int((dealt >= value - TIE).sum())) / (1 + deals),
        each={c: shift.squared for c, shift in found.items()},
        left_out=tuple(left_out),
    )
