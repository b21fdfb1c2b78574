"""The shortest change that reaches a cell: a quadratic programme, by a dual active set that makes rows when needed."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from assay.methods.certify.nearest_cell import Floats

DEPENDENT = 1e-12  # squared sine below which a row counts as a combination of the active ones


class Cuts(Protocol):
    """Rows a'd + b >= 0 of unit length, those most violated at d first asked for."""

    def cut(self, d: Floats, most: int, tolerance: float) -> tuple[Floats, Floats]: ...


class Solved(NamedTuple):
    """`d` is None where the cell is out of reach, or where `bound`, below its distance, already passed the limit."""

    d: Floats | None  # d
    bound: float  # a lower bound of ||d||, equal to it at the end; inf for an empty cell
    rows: Floats  # m d, active rows
    offset: Floats  # m
    multiplier: Floats  # m, their dual variables
    finished: bool = True


def least_l2(
    cell: Cuts, dims: int, *, limit: float = np.inf, tolerance: float = 0.0, most: int = 64, steps: int = 20_000
) -> Solved:
    r"""Shortest d with a_i'd + b_i >= 0 for all rows of the cell, unless it is longer than `limit`.

        min_d 1/2 d'd  s.t. A d + b >= 0      max_{l>=0} D(l) = -1/2 l'AA'l - l'b,      d = A'l

    Greedy as the coordinate ascent of the source: the row with the largest violation enters. Rows are made on demand
    (about 50 of thousands matter), and sqrt(2 D), a lower bound at every step, ends the work at `limit`.

    Source: eq. 3.5, 3.7 and 3.13, see `nearest`; active set: Goldfarb & Idnani, Math. Prog. 1983.
    Departs from print: a step re-solves for all active multipliers where the print moves one of them, so that it
        ends, exactly and after finitely many steps, where the print stops at a small change.
    """
    a, b, d = np.empty((0, dims)), np.empty(0), np.zeros(dims)
    active: list[int] = []
    lam: Floats = np.empty(0)
    for _ in range(steps):
        slack = a @ d + b
        slack[active] = np.inf
        i = int(slack.argmin()) if len(slack) else -1
        if i < 0 or slack[i] >= -tolerance:
            rows, offset = cell.cut(d, most, 2 * tolerance)  # rows at hand are within it
            if not len(rows):
                return Solved(d, float(np.linalg.norm(d)), a[active], b[active], lam)
            a, b = np.concatenate([a, rows]), np.concatenate([b, offset])
            continue
        gained = 0.0
        while True:
            held = a[active]
            gram, side = held @ held.T, held @ a[i]
            r = np.linalg.solve(gram, side) if active else np.empty(0)
            fresh = 1.0 - float(side @ r)  # squared length of the row beside the active ones
            full = -float(a[i] @ d + b[i]) / fresh if fresh > DEPENDENT else np.inf
            falls = np.flatnonzero(r > 0)
            ratio = lam[falls] / r[falls]
            k = int(ratio.argmin()) if len(falls) else -1
            part = max(float(ratio[k]), 0.0) if k >= 0 else np.inf
            if full == np.inf and part == np.inf:
                return Solved(None, np.inf, held, b[active], lam)  # an unbounded dual: no d meets all rows
            if full <= part:
                active.append(i)
                held = a[active]
                lam = np.linalg.solve(held @ held.T, -b[active]).astype(np.float64, copy=False)
                d = held.T @ lam
                break
            lam, gained = np.delete(lam - part * r, falls[k]), gained + part
            del active[falls[k]]
            if fresh > DEPENDENT:
                d = a[active].T @ lam + gained * a[i]
        size = float(np.linalg.norm(d))
        if size >= limit:
            return Solved(None, size, a[active], b[active], lam)
    return Solved(None, float(np.linalg.norm(d)), a[active], b[active], lam, finished=False)
