r"""Transfer affinity: how well examples made on model A hurt model B, against B's own.

    rho(A->B) = (Acc[B] - Acc[B|A]) / (Acc[B] - Acc[B|B])

Acc[B] is B's accuracy on clean inputs, Acc[B|A] on examples made on A, with the same attack and radius for all. The
matrix is not symmetric; its diagonal is 1. Above 1, A's examples beat B's own: B's gradients mislead its attacker.

Source: Liu et al., ICLR 2019, arXiv:1810.01279 (Adv-BNN), transfer attacks; Liu, "Building Trustworthy Machine Learning
    Models" (dissertation), eq. 2.26.
Adds to print: a paired bootstrap interval over the inputs for each cell; a cell is left empty where B's own attack
    costs it nothing that can be told from 0; the gap Acc[B|B] - Acc[B|A], which is above 0 exactly where rho is above 1
    and speaks also where rho does not exist, as it does when B's gradients are dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.attack.aim import Truth
from assay.methods.attack.attacked import Model
from assay.methods.attack.transfer import Attack, broken


class Crossed(NamedTuple):
    """Every model on every model's examples."""

    x: Tensor  # s n *d: the examples, one set per source
    clean: Tensor  # m n bool: right on the clean input
    held: Tensor  # s m n bool: right on the source's example


class Interval(NamedTuple):
    value: float
    low: float
    high: float


class Cell(NamedTuple):
    rho: Interval | None
    gap: Interval | None  # Acc[B|B] - Acc[B|A]; None where B was not attacked itself
    why: str = ""  # why rho is None


def cross(
    models: Mapping[str, Model],
    x: Tensor,
    y: Truth,
    *,
    attack: Attack,
    sources: Sequence[str] | None = None,
    draws: Mapping[str, int] | None = None,
    lost: bool = False,
) -> Crossed:
    """Attack each source once and show its examples to every model: n *d, n -> Crossed.

    `sources` are the models that can be attacked, all unless told; `draws` says of random models how many passes to
    average. An answer that is NaN is refused, or with `lost` not right. The attack must start alike every time it is
    called (pgd does, without an rng), or else a model and its copy get different examples; and it should not stop at
    the source's own boundary (leave=False).
    """
    names = list(models) if sources is None else list(sources)
    strange = [name for name in [*names, *(draws or {})] if name not in models]
    if strange or not models:
        raise AssayError(f"There is no model {strange} to attack or to average; the models are {list(models)}.")
    draws = draws or {}

    def held(at: Tensor) -> Tensor:
        return torch.stack(
            [~broken(model, at, y, draws=draws.get(name, 1), lost=lost) for name, model in models.items()]
        )

    made = [attack(models[name], x, y).x for name in names]
    empty = torch.zeros(0, len(models), len(x), dtype=torch.bool, device=x.device)
    return Crossed(
        torch.stack(made) if made else x.new_zeros(0, *x.shape),
        held(x),
        torch.stack([held(at) for at in made]) if made else empty,
    )


def affinity(
    names: Sequence[str],
    clean: NDArray[np.bool_],
    held: NDArray[np.bool_],
    *,
    sources: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[tuple[str, str], Cell]:  # clean: m n;  held: s m n
    """rho(A->B) for each source A and each model B, by (A, B), from what `cross` found.

    Intervals hold 95 % and resample inputs, the same ones in numerator and denominator. Where fewer than about 97.5 %
    of the resamples have a positive denominator, it cannot be told from 0 and there is no rho.
    """
    clean, held = np.asarray(clean, dtype=bool), np.asarray(held, dtype=bool)
    crafted = list(names) if sources is None else list(sources)
    if clean.ndim != 2 or len(clean) != len(names) or held.shape != (len(crafted), *clean.shape):
        raise ShapeError(
            f"Got clean {clean.shape} and held {held.shape} for {len(names)} models and {len(crafted)} sources; "
            f"want ({len(names)}, n) and ({len(crafted)}, {len(names)}, n)."
        )
    if clean.shape[1] == 0:
        raise AssayError("An affinity of 0 inputs does not exist; give at least one.")
    lost = clean[None].astype(np.float64) - held  # s m n
    point, drawn = lost.mean(2), _resampled(lost, resamples, seed)  # s m, k s m
    cells = {}
    for a, source in enumerate(crafted):
        for b, name in enumerate(names):
            if name not in crafted:
                why = f"{name} was not attacked itself, so there is nothing to divide by"
                cells[source, name] = Cell(None, None, why)
                continue
            own = crafted.index(name)
            top, bottom = drawn[:, a, b], drawn[:, own, b]
            gap = _interval(point[a, b] - point[own, b], top - bottom)
            if np.quantile(bottom, 0.025) <= 0:
                why = (
                    f"its own examples take {name} from {clean[b].mean():.3g} to {held[own, b].mean():.3g}, a loss "
                    f"that {clean.shape[1]} inputs cannot tell from 0"
                )
                cells[source, name] = Cell(None, gap, why)
                continue
            whole = bottom > 0
            rho = _interval(point[a, b] / point[own, b], top[whole] / bottom[whole])
            cells[source, name] = Cell(rho, gap)
    return cells


def _interval(value: float, drawn: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(value), float(low), float(high))


def _resampled(lost: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """The mean of every cell over each resample of the inputs: s m n -> k s m."""
    s, m, n = lost.shape
    rng, flat = np.random.default_rng(seed), lost.reshape(s * m, n).T  # n sm
    rows = max(1, 2_000_000 // n)  # at most 16 MB of counts at a time
    parts = [
        rng.multinomial(n, np.full(n, 1 / n), size=min(rows, resamples - start)) @ flat / n
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(parts).reshape(-1, s, m)
