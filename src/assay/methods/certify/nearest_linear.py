"""The smallest change that reaches a cell in l_inf or l1: a linear programme, with rows made when needed."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from assay.errors import AssayError
from assay.methods.certify.nearest_cell import Box
from assay.methods.certify.nearest_qp import Cuts, Solved

INFEASIBLE = 2  # linprog's status


def least_linear(
    cell: Cuts,
    dims: int,
    norm: float,
    *,
    limit: float = np.inf,
    tolerance: float = 0.0,
    most: int = 64,
    box: Box | None = None,
) -> Solved:
    r"""Smallest d with a_i'd + b_i >= 0 for all rows of the cell, unless it is larger than `limit`.

        l_inf:  min v     s.t. A d + b >= 0, -v <= d_k <= v          (3.20)
        l1:     min 1'v   s.t. A d + b >= 0, -v_k <= d_k <= v_k      (3.21)

    l1 is solved as d = p - m with p, m >= 0. A programme with some of the rows is a lower bound: it ends the work once
    it passes `limit`, and is the answer once its solution violates no other row.

    Source: sec. 3.1.4, see `nearest`.
    """

    from scipy.optimize import linprog

    low, high = (np.full(dims, -np.inf), np.full(dims, np.inf)) if box is None else box
    if norm == np.inf:
        cost = np.append(np.zeros(dims), 1.0)
        eye, one = sparse.eye_array(dims), sparse.csr_array(np.ones((dims, 1)))
        fixed = sparse.block_array([[eye, -one], [-eye, -one]]).tocsr()  # d - v <= 0, -d - v <= 0
        bounds = np.stack([np.append(low, 0.0), np.append(high, np.inf)], 1)
    else:
        cost = np.ones(2 * dims)
        fixed = sparse.csr_array((0, 2 * dims))
        bounds = np.stack([np.zeros(2 * dims), np.concatenate([high, -low])], 1)
    a, b, d, value = np.empty((0, dims)), np.empty(0), np.zeros(dims), 0.0
    while True:
        rows, offset = cell.cut(d, most, tolerance)
        if not len(rows):
            return Solved(d, value, a, b, np.empty(0))
        a, b = np.concatenate([a, rows]), np.concatenate([b, offset])
        wide = np.concatenate([-a, np.zeros((len(a), 1)) if norm == np.inf else a], 1)
        told = linprog(
            cost,
            A_ub=sparse.vstack([fixed, sparse.csr_array(wide)]),
            b_ub=np.concatenate([np.zeros(fixed.shape[0]), b]),
            bounds=bounds,
            method="highs",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        if told.status == INFEASIBLE:
            return Solved(None, np.inf, a, b, np.empty(0))
        if told.status != 0:
            raise AssayError(f"HiGHS did not solve a programme of {len(a)} rows: {told.message}")
        d = told.x[:dims] if norm == np.inf else told.x[:dims] - told.x[dims:]
        value = float(told.fun)
        if value >= limit:
            return Solved(None, value, a, b, np.empty(0))
