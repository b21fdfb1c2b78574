r"""A quadratic programme with non-negative variables, solved to the precision of its numbers.

    min_a  1/2 a' Q a - p' a     s.t.  a >= 0,   y' a = total   (the equality may be missing)

At the solution, with mu the multiplier of the equality,

    g = Q a + y mu - p >= 0,   a >= 0,   a_i g_i = 0 for each i.

An active-set method in the manner of Goldfarb and Idnani, Math. Programming 1983, sec. 3, on the dual of theirs: the
variables in the set P are free, a_P solves its equations exactly, and the others are 0. Take the i whose g_i is most
below 0 and let a_i grow; a_P follows along

    [ 0    y_P' ] [ d_mu ]     [ y_i  ]
    [ y_P  Q_PP ] [ d_P  ]  =  [ Q_Pi ],     a_P - t d_P,   mu - t d_mu,

with curvature s = Q_ii - (y_i, Q_iP) (d_mu, d_P), until g_i = 0 at t = -g_i / s and i joins P, or until some a_j of P
is 0, which leaves it, and i goes on. The objective falls at each step, so that no set comes twice, and a set at the end
is the solution. Where s = 0 and no a_j falls, the objective falls for ever: there is no solution, and the problem that
this one is the dual of has no point that meets its constraints.

The inverse of the matrix is kept and changed by one row at a time, and made afresh now and then and at the end.

Beside others, on a semi-hard SVM of 1,000 points (RBF kernel, lambda 100): here constraints hold to 1e-11 and slack is
a / lambda to 1e-11; libsvm with C = 1e10 leaves 4e-4 and 5e-4 whatever its tolerance, and takes longer. HiGHS' QP
solver takes as long on 300 points and has multipliers off by 0.1, an objective off by 3e-9 of itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError

Array = NDArray[np.float64]
CLOSE = 1e-10  # of the largest |p|: a g_i that is so little below 0 is 0
FLAT = 1e-13  # of Q_ii: a curvature below it is none
ROUNDED = 64 * float(np.finfo(np.float64).eps)
FRESH = 100  # steps after which the inverse is made afresh
CHEAPEST = 32  # of the most violated, which are looked at again before all are


class Solved(NamedTuple):
    a: Array  # n
    mu: float
    steps: int


class Unbounded(AssayError):
    """The objective falls for ever: the problem behind it cannot be met."""


class _Set:
    """The free variables P, with rows of Q for each and the inverse of the bordered matrix."""

    def __init__(self, q: Array, p: Array, y: Array | None, total: float) -> None:
        self.q, self.p, self.y, self.total = q, p, y, total
        self.first = 0 if y is None else 1  # rows of the border
        self.members: list[int] = []
        self.rows = np.empty((16, len(p)))
        self.a = np.zeros(0)
        self.mu = 0.0
        self.inverse: Array = np.zeros((self.first, self.first))

    def towards(self, i: int) -> tuple[Array, float]:  # -> d_P with d_mu in front, s
        column = np.concatenate([self._border([i]), self.q[i, self.members]])
        way = self.inverse @ column
        d = way[self.first :]
        along = (
            d @ self.rows[: len(self.members), self.members]
        )  # of all forms of s the one that forgives an error in d
        return way, float(self.q[i, i] - 2 * d @ self.q[i, self.members] + along @ d)

    def height(self) -> Array:  # -> n, g of all
        g: Array = self.a @ self.rows[: len(self.members)] - self.p
        if self.y is not None:
            g += self.mu * self.y
        return g

    def rounding(self) -> Array:  # -> n
        """How far rounding alone may put g off: large where a kernel of few dimensions meets a large lambda."""
        return ROUNDED * (self.a @ np.abs(self.rows[: len(self.members)]))

    def height_of(self, i: int, at: float) -> float:
        g = float(self.q[i, self.members] @ self.a + self.q[i, i] * at - self.p[i])
        return g if self.y is None else g + float(self.y[i]) * self.mu

    def join(self, i: int, at: float, way: Array, s: float) -> None:
        size = len(self.members)
        if size == len(self.rows):
            self.rows = np.concatenate([self.rows, np.empty_like(self.rows)])
        self.rows[size] = self.q[i]
        self.members.append(i)
        self.a = np.append(self.a, at)
        column = np.append(-way, 1.0)
        grown = np.outer(column, column / s)
        grown[:-1, :-1] += self.inverse
        self.inverse = grown

    def leave(self, j: int) -> None:
        """Member j goes; the last takes its place."""
        last = len(self.members) - 1
        at, end = j + self.first, last + self.first
        order = np.arange(end + 1)
        order[[at, end]] = order[[end, at]]
        whole = self.inverse[np.ix_(order, order)]
        self.inverse = whole[:-1, :-1] - np.outer(whole[:-1, -1], whole[-1, :-1] / whole[-1, -1])
        self.members[j], self.rows[j], self.a[j] = self.members[last], self.rows[last], self.a[last]
        self.members.pop()
        self.a = self.a[:-1].copy()

    def alone(self, i: int) -> None:
        """Only i, which the equality then fixes."""
        assert self.y is not None
        self.members, self.rows[0] = [i], self.q[i]
        self.afresh()

    def afresh(self, i: int = 0, at: float = 0.0) -> None:
        """The equations of P solved anew, while a_i stands `at` a number."""
        matrix = self._bordered()
        right = np.concatenate([[self.total] * self.first, self.p[self.members]])
        right -= at * np.concatenate([self._border([i]), self.q[i, self.members]])
        self.inverse = np.linalg.inv(matrix).astype(np.float64, copy=False)
        found = np.linalg.solve(matrix, right)  # leaves a smaller rest than the inverse does
        self.a, self.mu = found[self.first :], float(found[0]) if self.first else 0.0

    def _bordered(self) -> Array:
        k, f = len(self.members), self.first
        matrix = np.zeros((k + f, k + f))
        matrix[f:, f:] = self.q[np.ix_(self.members, self.members)]
        if self.y is not None:
            matrix[0, 1:] = matrix[1:, 0] = self.y[self.members]
        return matrix

    def _border(self, which: list[int]) -> Array:
        return np.zeros(0) if self.y is None else self.y[which]


def nonnegative_qp(
    q: Array, p: Array, *, y: Array | None = None, total: float = 0.0, start: tuple[int, ...] = ()
) -> Solved:  # n n, n, n
    """The solution, the multiplier of the equality, and how many steps were taken.

    `q` is symmetric and positive semi-definite. With an equality, `start` names variables that can meet it: one where
    the total is not 0, two of opposite signs of y, and different rows of Q, where it is.
    """
    q, p = np.asarray(q, dtype=np.float64), np.asarray(p, dtype=np.float64)
    n = len(p)
    if q.shape != (n, n) or (y is not None and np.shape(y) != (n,)):
        raise ShapeError(f"nonnegative_qp got Q of shape {q.shape} for {n} variables; give (n, n), n and n.")
    if not (np.isfinite(q).all() and np.isfinite(p).all()):
        raise AssayError("nonnegative_qp got NaN or infinity; look at the kernel: a polynomial of what is not scaled?")
    free = _Set(q, p, None if y is None else np.asarray(y, dtype=np.float64), total)
    if y is not None:
        if not start:
            raise AssayError("nonnegative_qp with an equality wants a start that can meet it; name one or two.")
        free.members = list(start)
        for row, i in enumerate(start):
            free.rows[row] = q[i]
        free.afresh()
        if free.a.min() < 0:
            raise AssayError(f"nonnegative_qp cannot start from {start}: a variable would be below 0; name others.")
    least, steps, since = CLOSE * max(1.0, float(np.abs(p).max())), 0, 0
    most = 1000 + 5 * n
    close = np.full(n, least)
    waiting: list[int] = []
    while True:
        while waiting and free.height_of(waiting[-1], 0.0) > -close[waiting[-1]]:
            waiting.pop()
        if not waiting:
            g = free.height()
            close = np.maximum(least, free.rounding())
            off = np.abs(g[free.members]) > close[free.members]
            g[free.members] = 0.0
            low = np.argpartition(g / close, min(CHEAPEST, n) - 1)[:CHEAPEST]
            low = low[g[low] < -close[low]]
            if since and (off.any() or not len(low)):  # look again with equations that nothing has been added to
                since = 0
                _anew(free)
                continue
            if not len(low):
                _refuse_unsolved(free, off, n)
                break
            waiting = low[np.argsort(-g[low])].tolist()
        taken = _let_in(free, i := waiting.pop(), float(close[i]))
        waiting = [i for i in waiting if i not in free.members]
        steps, since = steps + taken, since + taken
        if steps > most:
            _refuse_unsolved(free, np.ones(1, dtype=bool), n)
        if since > FRESH:
            since = 0
            _anew(free)
    a = np.zeros(n)
    a[free.members] = free.a.clip(0)
    return Solved(a, free.mu, steps)


def _let_in(free: _Set, i: int, close: float) -> int:
    """Let a_i grow from 0 until it is free; how many steps that took."""
    at, steps, sure = 0.0, 0, False
    while True:
        steps += 1
        way, s = free.towards(i)
        g, down = free.height_of(i, at), way[free.first :]
        bends = s > FLAT * abs(free.q[i, i])
        whole = -g / s if bends else np.inf
        falls = down > 0
        until = np.where(falls, free.a / np.where(falls, down, 1.0), np.inf)
        j = int(until.argmin()) if len(until) else -1
        step = min(whole, float(until[j]) if j >= 0 else np.inf)
        if not np.isfinite(step):
            if not sure:  # rounding in the inverse may hide a curvature
                sure = True
                free.afresh(i, at)
                continue
            raise Unbounded(
                "The two sides cannot be kept apart: no boundary of this kind has every impostor on one side and what "
                "may not err on the other; take a finite lambda, or another kernel."
            )
        free.a = free.a - step * down
        if free.first:
            free.mu -= step * float(way[0])
        at += step
        if whole <= step or g >= -close:
            if at > 0 and bends:
                free.join(i, at, way, s)
            return steps
        free.a[j] = 0.0
        if len(free.members) == 1 and free.first:
            free.alone(i)
            return steps
        free.leave(j)


def _anew(free: _Set) -> None:
    """Solve the equations anew; members that fall below 0 by it had been kept by rounding, and leave."""
    free.afresh()
    while len(free.members) > free.first and free.a.min() < 0:
        free.leave(int(free.a.argmin()))
        free.afresh()


def _refuse_unsolved(free: _Set, off: NDArray[np.bool_], n: int) -> None:
    if off.any() or (len(free.a) and free.a.min() < 0):
        raise AssayError(
            f"A quadratic programme of {n} variables did not settle: its matrix is too near singular; take a smaller "
            "lambda, another gamma, or features of one scale."
        )
