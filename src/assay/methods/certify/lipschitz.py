r"""The exact Lipschitz constant of a ReLU network on a box or everywhere, by branch and bound (LipBaB).

    L_p(f, X)  =  sup { ||J(x)||_p : x in X, f differentiable at x },   J = W_L D_{L-1} W_{L-1} ... D_1 W_1

with D_l the 0/1 diagonal of active neurons. A node of the search is a polytope of inputs (the box and a half-space for
each cut on the way) and a state for each neuron: active, inactive or undecided. Its bound is ||U||_p, where
|J_ij| <= U_ij by interval arithmetic with D in [0, 1] for the undecided; with none it is ||J||_p, signs and
all. The node of the largest bound is cut in two by an undecided neuron of the first layer that has one: there
pre-activations are affine in the input. Stopped at any time, [lower, upper] holds the constant.

Source: Bhowmick, D'Souza and Raghavan, "LipBaB: Computing Exact Lipschitz Constant of ReLU Networks", ICANN 2021,
arXiv:2105.05495: algorithms 1 (`_symprop`), 2 (`_bounds`), 3 (`_Regions.cut`), 4 (`_search`), the filter of sec. 4.6
(`_Regions.decide`).

Departs from print, in speed and in rare corners, not in the value:
- A side of a neuron exists where max z > 1e-8 over the closed polytope (z at unit gradient, the box scaled to
  [-1, 1]^n). As the polytope has an interior, this is the paper's strict inequality; the authors' program asks for
  z >= 0, which also finds regions without volume.
- A side with -1e-9 < max z <= 1e-8 is a region that rounding can neither show nor rule out; print does not speak of it.
  Its bound, before any cut of it, stays in `upper`, and nothing of it goes into `lower`: the interval holds, and is
  called exact only where that bound is no larger than what was found. A side that lies behind a cut by the same
  hyperplane, as a copy of a neuron makes, is empty and no such region.
- Points of the polytope that are known already (corners that earlier programs found) show most sides without a linear
  program, and all undecided neurons of the layer are filtered, not only those before the first that stays undecided.
- Algorithm 1 runs at every node, with the states known there, and decides some neurons of deeper layers.
- Any point of a node has a Jacobian, so that `lower` does not wait for the first leaf.
- `upper` begins at the smallest of the first bound, the product of norms and, for p = 2, ||mid J||_2 + ||rad J||_2; the
  last bounds the inner nodes too.
- An input that the box fixes (low = high) cannot vary, and its column of J does not count.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.certify.layers import layers

Array = NDArray[np.float64]
States = NDArray[np.int8]
INACTIVE, ACTIVE, UNDECIDED = 0, 1, -1
THIN = 1e-8  # a half-space that reaches into a polytope by less is not cut off
FAINT = 1e-9  # one that stays away by more than this is not there; linear programs are solved to 1e-10
SAME = 1e-9  # bounds that differ by less, relatively, are equal
BATCH = 64  # nodes cut between two looks at the heap
START = 256  # random points that the root knows


@dataclass(frozen=True)
class Lipschitz:
    """lower <= L_p(f, X) <= upper; `first` is the upper bound before any cut."""

    lower: float
    upper: float
    first: float
    nodes: int
    # "gap": as tight as was asked for; "thin": a region too thin to be seen keeps it from being tighter
    stopped: Literal["gap", "nodes", "seconds", "thin"]

    @property
    def exact(self) -> bool:
        return self.upper <= self.lower * (1 + SAME)


class Chain(NamedTuple):
    """W_l and b_l of a network with its inputs flattened, those that the box fixes taken into b_1."""

    weights: list[Array]  # out in
    biases: list[Array]
    low: Array  # n; -inf everywhere for the global constant
    high: Array


def lipschitz(
    net: nn.Module,
    box: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    p: float = 2,
    gap: float = 1.0,
    rows: ArrayLike | None = None,
    nodes: int = 100_000,
    seconds: float | None = None,
    shape: tuple[int, ...] | None = None,
) -> Lipschitz:
    """L_p of `net` from ||.||_p to ||.||_p on `box` = (low, high), numbers or arrays of one input's shape; None: R^n.

    p is 1, 2 or math.inf. `gap=1.5` stops when upper <= 1.5 lower; 1.0 is exact. `rows` (k' k) looks at rows @ f
    in place of f: [[1, -1, 0]] is the margin between the first two classes. After `nodes` nodes or `seconds` the
    interval reached so far is returned. `shape` is that of one input, where neither box nor net says it.
    """
    if gap < 1:
        raise AssayError(f"lipschitz got gap={gap}; 1.0 is exact, 1.5 stops at upper <= 1.5 lower.")
    if nodes < 1:
        raise AssayError(f"lipschitz got nodes={nodes}; it needs at least 1, the bound before any cut.")
    chain = _chain(net, box, shape, rows)
    return _search(chain, _norm(p), gap=gap, nodes=nodes, seconds=seconds, enough=0.0)


def certified_radius(
    net: nn.Module,
    x: Tensor,
    *,
    reach: float,
    p: float = 2,
    bounds: tuple[float, float] | None = None,
    demand: tuple[ArrayLike, ArrayLike] | None = None,
    nodes: int = 1000,
    seconds: float | None = None,
) -> float:
    r"""A radius in ||.||_p inside which the answer to the one input `x` (*d) stays the same.

        radius  =  min( reach, min_j (f_y - f_j)(x) / L_p(f_y - f_j, X) ),   X = {x' : |x' - x| <= reach}

    Larger `reach` allows a larger radius and raises L_p. `bounds` are those of all valid inputs, if there are any: the
    radius is then about changes that keep them. `nodes` and `seconds` are for each rival class; the search for a class
    ends when it can no longer lower the radius. Where the answer is no class, `demand` is rows (r k) and offsets (r):
    every rows f + offset must stay above 0, and takes the place of f_y - f_j.
    """
    norm = _norm(p)
    if not reach > 0:
        raise AssayError(f"certified_radius got reach={reach}; give how far around the input to look, above 0.")
    at = x.detach().cpu().double().numpy()
    low, high = at - reach, at + reach
    if bounds is not None:
        if at.min() < bounds[0] or at.max() > bounds[1]:
            raise AssayError(f"The input spans {at.min():.6g} to {at.max():.6g}, outside bounds={bounds}; widen them.")
        low, high = np.maximum(low, bounds[0]), np.minimum(high, bounds[1])
    chain = _chain(net, (low, high), tuple(at.shape), None)
    z = _forward(_chain(net, (at, at), tuple(at.shape), None), np.zeros((1, 0)))[-1][0]
    if demand is None:
        rivals = np.argsort(-z)
        y = int(z.argmax())
        rows, offset = np.eye(len(z))[y] - np.eye(len(z))[rivals[rivals != y]], np.zeros(len(z) - 1)
    else:
        rows, offset = (np.asarray(part, dtype=np.float64) for part in demand)
        order = np.argsort(rows @ z + offset, kind="stable")  # the nearest to being broken first
        rows, offset = rows[order], offset[order]
    radius = reach
    for row, off in zip(rows, offset, strict=True):
        margin = float(row @ z + off)
        if margin <= 0:
            return 0.0
        only = _with_rows(chain, row[None])
        found = _search(only, norm, gap=1.0, nodes=nodes, seconds=seconds, enough=margin / radius)
        if found.upper * radius > margin:
            radius = margin / found.upper
    return radius


def norm_product(net: nn.Module, p: float = 2, *, shape: tuple[int, ...] | None = None) -> float:
    """prod_l ||W_l||_p, the bound that needs no search: valid everywhere, and loose."""
    return _product([affine.dense()[0].cpu().numpy() for affine in layers(net, shape)], _norm(p))


def symbolic_bounds(
    net: nn.Module, box: tuple[ArrayLike, ArrayLike], *, shape: tuple[int, ...] | None = None
) -> tuple[Array, Array]:
    """Bounds of the outputs over `box` by algorithm 1, tighter than interval arithmetic: -> k, k."""
    if box is None:
        raise AssayError("symbolic_bounds got no box; outputs are bounded on a bounded one only, give (low, high).")
    chain = _chain(net, box, shape, None)
    return _symprop(chain, _undecided(chain))


def _norm(p: float) -> float:
    if p not in (1, 2, math.inf):
        raise AssayError(f"lipschitz got p={p!r}; it knows 1, 2 and math.inf (other induced norms are NP-hard).")
    return float(p)


def _chain(
    net: nn.Module, box: tuple[ArrayLike, ArrayLike] | None, shape: tuple[int, ...] | None, rows: ArrayLike | None
) -> Chain:
    ends = [] if box is None else [np.asarray(end, dtype=np.float64) for end in box]
    if shape is None:
        shape = next((end.shape for end in ends if end.ndim), None)
    affine = layers(net, shape)
    shape = affine[0].in_shape
    for name, end in zip(("low", "high"), ends, strict=False):
        if end.shape not in ((), shape):
            raise ShapeError(f"The box has {name} of shape {end.shape} for inputs of {shape}; give that or a number.")
        if not np.isfinite(end).all():
            raise AssayError(f"The box has {name} with {end.flat[int(np.argmin(np.isfinite(end)))]}; give finite ends.")
    low, high = (np.broadcast_to(end, shape).flatten() for end in (ends or [np.array(-np.inf), np.array(np.inf)]))
    wrong = np.flatnonzero(low > high)
    if len(wrong):
        i = int(wrong[0])
        where = tuple(int(k) for k in np.unravel_index(i, shape))
        raise AssayError(f"The box has low {low[i]:.6g} above high {high[i]:.6g} at index {where}; swap them there.")
    pairs = [tuple(t.cpu().numpy() for t in a.dense()) for a in affine]
    weights, biases = [w for w, _ in pairs], [b for _, b in pairs]
    free = low < high
    biases[0] = biases[0] + weights[0][:, ~free] @ low[~free]
    weights[0] = np.ascontiguousarray(weights[0][:, free])
    chain = Chain(weights, biases, low[free], high[free])
    return chain if rows is None else _with_rows(chain, np.asarray(rows, dtype=np.float64))


def _with_rows(chain: Chain, rows: Array) -> Chain:
    outputs = len(chain.biases[-1])
    if rows.ndim != 2 or rows.shape[1] != outputs:
        raise ShapeError(f"rows has shape {rows.shape} for {outputs} outputs; it wants (rows, {outputs}).")
    last = (rows @ chain.weights[-1], rows @ chain.biases[-1])
    return chain._replace(weights=[*chain.weights[:-1], last[0]], biases=[*chain.biases[:-1], last[1]])


def _product(weights: Sequence[Array], p: float) -> float:
    return float(np.prod([_induced(w[None], p)[0] for w in weights]))


def _induced(m: Array, p: float) -> Array:  # b k n -> b
    if 0 in m.shape[1:]:
        return np.zeros(len(m))
    if p == 2:
        return np.asarray(np.linalg.svd(m, compute_uv=False)[:, 0], np.float64)
    return np.asarray(np.abs(m).sum(1 if p == 1 else 2).max(1), np.float64)


def _forward(chain: Chain, x: Array) -> list[Array]:  # m n -> m h_l for each layer
    z = [x @ chain.weights[0].T + chain.biases[0]]
    for w, b in zip(chain.weights[1:], chain.biases[1:], strict=True):
        z.append(np.maximum(z[-1], 0) @ w.T + b)
    return z


def _undecided(chain: Chain) -> States:
    return np.full(sum(len(b) for b in chain.biases[:-1]), UNDECIDED, np.int8)


def _symprop(chain: Chain, states: States) -> tuple[Array, Array]:
    """Algorithm 1: bounds of the outputs over the box; fills in the `states` (h) that it decides, in place."""
    low, high = chain.low, chain.high  # of the variables: inputs, then a new one for each undecided neuron
    e, d = chain.weights[0], chain.biases[0]  # h v, h: this layer's neurons as expressions in the variables
    at = 0
    for w, b in zip(chain.weights[1:], chain.biases[1:], strict=True):
        least, most = _range(e, d, low, high)
        state = states[at : at + len(e)]  # a view
        at += len(e)
        state[(state == UNDECIDED) & (least >= 0)] = ACTIVE
        state[(state != INACTIVE) & (most <= 0)] = INACTIVE
        on, new = state == ACTIVE, np.flatnonzero(state == UNDECIDED)
        e, d = np.concatenate([w[:, on] @ e[on], w[:, new]], 1), w[:, on] @ d[on] + b
        low, high = np.concatenate([low, np.zeros(len(new))]), np.concatenate([high, most[new]])
    return _range(e, d, low, high)


def _range(e: Array, d: Array, low: Array, high: Array) -> tuple[Array, Array]:
    up, down = np.maximum(e, 0), np.minimum(e, 0)
    return up @ low + down @ high + d, up @ high + down @ low + d


def _bounds(weights: Sequence[Array], states: States, p: float, *, as_published: bool = False) -> Array:
    """Algorithm 2 for many nodes at once: b h -> b. Signs matter for p = 2 only: 1 and inf give |J| the norm of J."""
    low = high = np.broadcast_to(weights[0], (len(states), *weights[0].shape))  # b h n
    at = 0
    for w in weights[1:]:
        state = states[:, at : at + w.shape[1], None]
        at += w.shape[1]
        low = np.where(state == ACTIVE, low, np.where(state == UNDECIDED, np.minimum(low, 0), 0))
        high = np.where(state == ACTIVE, high, np.where(state == UNDECIDED, np.maximum(high, 0), 0))
        mid, half = w @ ((low + high) / 2), np.abs(w) @ ((high - low) / 2)
        low, high = mid - half, mid + half
    bound = _induced(np.maximum(np.abs(low), np.abs(high)), p)
    if p == 2:
        signed = _induced((low + high) / 2, p) + _induced((high - low) / 2, p)  # without undecided neurons ||J||_2
        some = (states == UNDECIDED).any(1)
        bound = np.where(some & as_published, bound, np.minimum(bound, signed))
    return bound


@dataclass(eq=False)
class _Node:
    bound: float
    states: States  # of all hidden neurons
    cuts: tuple[Any, ...]  # ((...), row, least): row @ u >= least, newest last, shared with the parent
    seen: NDArray[np.int64]  # known points of the polytope
    basis: Any = None
    branch: int = -1  # the neuron to cut by
    slivers: list[States] = field(default_factory=list)  # regions of it that may be there, too thin to be seen
    lost: bool = False  # it is one itself
    plane: tuple[Array, float] = field(default_factory=lambda: (np.zeros(0), 0.0))


class _Program(Protocol):
    """max c u over -1 <= u <= 1 (or all of R^n) and rows u >= least.

    Where c u has no maximum, u is a point with c u >= enough, or None if the solver does not show one.
    """

    def load(self, rows: Array, least: Array, basis: Any) -> None: ...

    def highest(self, c: Array, enough: float) -> Array | None: ...

    def basis(self) -> Any: ...


class _Highs:
    """HiGHS with its simplex basis kept from one objective to the next and from a node to its children."""

    def __init__(self, n: int, side: float) -> None:
        import highspy

        self.n, self.index = n, np.arange(n, dtype=np.int32)
        self.hs: Any = highspy
        self.h: Any = self.hs.Highs()
        options = {
            "output_flag": False,
            "presolve": "off",
            "threads": 1,
            "solver": "simplex",
            "primal_feasibility_tolerance": 1e-10,
            "dual_feasibility_tolerance": 1e-10,
        }
        for option, value in options.items():
            self.h.setOptionValue(option, value)
        self.lp = self.hs.HighsLp()
        self.lp.num_col_ = n
        self.lp.col_cost_ = np.zeros(n)
        self.lp.col_lower_, self.lp.col_upper_ = np.full(n, -side), np.full(n, side)
        self.lp.sense_ = self.hs.ObjSense.kMaximize
        self.lp.a_matrix_.format_ = self.hs.MatrixFormat.kRowwise

    def load(self, rows: Array, least: Array, basis: Any) -> None:
        self.rows, self.least = rows, least
        k, lp = len(rows), self.lp
        lp.num_row_, lp.row_lower_, lp.row_upper_ = k, least, np.full(k, np.inf)
        matrix = lp.a_matrix_
        matrix.num_row_, matrix.num_col_ = k, self.n
        matrix.start_ = np.arange(0, self.n * k + 1, self.n, dtype=np.int32)
        matrix.index_, matrix.value_ = np.tile(self.index, k), rows.ravel()
        self.h.passModel(lp)
        if basis is not None:  # the parent's, in which the newest row is basic
            columns, old = basis
            start = self.hs.HighsBasis()
            start.col_status = columns
            start.row_status = old + [self.hs.HighsBasisStatus.kBasic] * (k - len(old))
            start.valid = True
            self.h.setBasis(start)

    def highest(self, c: Array, enough: float) -> Array | None:
        self.h.changeColsCost(self.n, self.index, c)
        status, known = None, self.hs.HighsModelStatus
        # the primal simplex goes on from the last corner, which stays feasible; where it is lost, the dual from scratch
        for strategy in (4, 1):
            self.h.setOptionValue("simplex_strategy", strategy)
            self.h.run()
            status = self.h.getModelStatus()
            if status == known.kOptimal:
                return np.array(self.h.getSolution().col_value)
            if status in (known.kUnbounded, known.kUnboundedOrInfeasible):  # the polytope is never empty
                return self._along_ray(c, enough)
            self.h.clearSolver()
        raise AssayError(f"HiGHS ended with {self.h.modelStatusToString(status)!r}; is a weight of the net huge?")

    def _along_ray(self, c: Array, enough: float) -> Array | None:
        _, shown, ray = self.h.getPrimalRay()
        at = np.array(self.h.getSolution().col_value)
        if not shown or len(at) == 0 or c @ ray <= 0:
            return None
        u: Array = at + max(0.0, (enough - c @ at) / (c @ ray)) * ray
        return u if (self.rows @ u >= self.least - 1e-9).all() else None

    def basis(self) -> Any:
        now = self.h.getBasis()
        return (now.col_status, now.row_status) if now.valid else None


class _Linprog:
    """scipy's HiGHS, which starts afresh each time."""

    def __init__(self, n: int, side: float) -> None:
        self.ends = (-side, side)

    def load(self, rows: Array, least: Array, basis: Any) -> None:
        self.rows, self.least = rows, least

    def highest(self, c: Array, enough: float) -> Array | None:
        from scipy.optimize import linprog

        tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        got = linprog(-c, -self.rows, -self.least, bounds=self.ends, method="highs-ds", options=tight)
        if got.status == 0:
            x: Array = got.x
            return x
        if got.status in (2, 3):  # "infeasible" may mean unbounded too; the polytope is never empty
            return None
        raise AssayError(f"linprog ended with {got.message!r}; is a weight of the net huge?")

    def basis(self) -> Any:
        return None


def _program(n: int, side: float) -> _Program:
    try:
        return _Highs(n, side)
    except ImportError:
        return _Linprog(n, side)


class _Regions:
    """What all nodes share: the network over scaled inputs u, the known points, the linear program."""

    def __init__(self, chain: Chain) -> None:
        n = len(chain.low)
        self.bounded = bool(np.isfinite(chain.low).all())
        centre = (chain.low + chain.high) / 2 if self.bounded else np.zeros(n)
        radius = (chain.high - chain.low) / 2 if self.bounded else np.ones(n)
        first = (chain.weights[0] * radius, chain.biases[0] + chain.weights[0] @ centre)
        self.unit = Chain([first[0], *chain.weights[1:]], [first[1], *chain.biases[1:]], -np.ones(n), np.ones(n))
        self.ends = np.cumsum([0, *(len(b) for b in chain.biases[:-1])])
        self.program = _program(n, 1.0 if self.bounded else np.inf)
        rng = np.random.default_rng(0)
        if self.bounded:
            points = rng.uniform(-1, 1, (START, n))
        else:
            points = rng.normal(size=(START, n)) * np.geomspace(0.1, 100, START)[:, None]
        self.points, self.count = points, START

    def add(self, u: Array) -> int:
        if self.count == len(self.points):
            self.points = np.concatenate([self.points, np.empty_like(self.points)])
        self.points[self.count] = u
        self.count += 1
        return self.count - 1

    def affine(self, states: States) -> tuple[int, Array, Array]:
        """LinProp: the first layer with an undecided neuron, or the last, as functions of u: -> l, h n, h."""
        e, d = self.unit.weights[0], self.unit.biases[0]
        for l, (w, b) in enumerate(zip(self.unit.weights[1:], self.unit.biases[1:], strict=True)):
            state = states[self.ends[l] : self.ends[l + 1]]
            if (state == UNDECIDED).any():
                return l, e, d
            on = state == ACTIVE
            e, d = w[:, on] @ e[on], w[:, on] @ d[on] + b
        return len(self.unit.weights) - 1, e, d

    def height(self, nodes: Sequence[_Node], weights: Sequence[Array], p: float) -> float:
        """The largest ||J||_p at a point of each node, of points that are clear of every kink in the node."""
        nodes = [node for node in nodes if node.branch >= 0 and len(node.seen)]
        if not nodes:
            return 0.0
        middle = np.stack([self.points[node.seen].mean(0) for node in nodes])
        states = np.stack([node.states for node in nodes])
        clear = np.ones(len(nodes), bool)
        x = middle
        for l, (w, b) in enumerate(zip(self.unit.weights[:-1], self.unit.biases[:-1], strict=True)):
            z = x @ w.T + b
            state = states[:, self.ends[l] : self.ends[l + 1]]
            open_ = state == UNDECIDED
            clear &= ~(open_ & (np.abs(z) <= THIN * (1 + np.abs(b)))).any(1)
            state[open_] = z[open_] > 0
            x = np.where(state == ACTIVE, z, 0)
        return float(_bounds(weights, states[clear], p).max(initial=0.0))

    def decide(self, node: _Node) -> None:
        """The feasibility filter: fix each neuron with one side in the polytope, layer by layer; then choose a cut."""
        loaded = False
        while True:
            l, e, d = self.affine(node.states)
            if l == len(self.unit.weights) - 1:
                return
            start = self.ends[l]
            state = node.states[start : self.ends[l + 1]]  # a view
            open_ = np.flatnonzero(state == UNDECIDED)
            size = np.linalg.norm(e[open_], axis=1)
            flat = size <= 1e-12 * (1 + np.abs(d[open_]))
            for j in open_[flat]:
                state[j] = d[j] > 0
                if size[open_ == j] > 0 and not (self.bounded and np.abs(e[j]).sum() < abs(d[j])):
                    self.shave(node, start + j)  # so slow a neuron may still change its sign
            open_, size = open_[~flat], size[~flat]
            row, shift = e[open_] / size[:, None], d[open_] / size
            z = self.points[node.seen] @ row.T + shift  # m open
            most, least = z.max(0, initial=-np.inf), z.min(0, initial=np.inf)
            for i in np.flatnonzero((most <= THIN) | (least >= -THIN)):
                for sign in (1.0, -1.0):
                    if (most[i] > THIN) if sign > 0 else (least[i] < -THIN):
                        continue
                    edge = np.abs(row[i]).sum() + sign * shift[i]  # the most in the box
                    if self.bounded and edge <= THIN:
                        most[i], least[i] = (edge, least[i]) if sign > 0 else (most[i], -edge)
                        continue
                    if self.bounded and not node.cuts:
                        u: Array | None = np.sign(sign * row[i])
                    else:
                        if not loaded:
                            self.load(node)
                            loaded = True
                        u = self.program.highest(sign * row[i], 1.0 - sign * shift[i])
                    if u is None:
                        most[i], least[i] = (np.inf, least[i]) if sign > 0 else (most[i], -np.inf)
                        continue
                    node.seen = np.append(node.seen, self.add(u))
                    z = row @ u + shift
                    most, least = np.maximum(most, z), np.minimum(least, z)
                if most[i] > THIN and least[i] < -THIN:
                    continue
                state[open_[i]] = ACTIVE if most[i] > max(THIN, -least[i]) else INACTIVE
                reach = -least[i] if state[open_[i]] == ACTIVE else most[i]  # of the side that is given up
                if reach > -FAINT and not self.behind(node, row[i], shift[i]):
                    self.shave(node, start + open_[i])
                    if max(most[i], -least[i]) <= THIN:  # neither side can be seen
                        node.slivers[-1][start + open_[i]] = UNDECIDED
                        node.lost = True
                        return
            left = np.flatnonzero(state[open_] == UNDECIDED)
            if len(left):
                i = left[0]
                node.branch, node.plane = int(start + open_[i]), (row[i], float(shift[i]))
                if loaded:
                    node.basis = self.program.basis()
                return

    def shave(self, node: _Node, neuron: int) -> None:
        """Keep in mind the part of the node where a neuron that was just decided is in its other state."""
        other = node.states.copy()
        other[neuron] = ACTIVE if node.states[neuron] == INACTIVE else INACTIVE
        node.slivers.append(other)

    @staticmethod
    def behind(node: _Node, row: Array, shift: float) -> bool:
        """Whether one of the node's cuts is by this hyperplane, bit for bit, so that nothing lies on its other side."""
        cuts = node.cuts
        while cuts:
            cuts, cut, least = cuts
            if any(least == -sign * shift and (cut == sign * row).all() for sign in (1.0, -1.0)):
                return True
        return False

    def load(self, node: _Node) -> None:
        rows, least, cuts = [], [], node.cuts
        while cuts:
            cuts, row, bound = cuts
            rows.append(row)
            least.append(bound)
        n = len(self.unit.low)
        self.program.load(np.array(rows[::-1]).reshape(-1, n), np.array(least[::-1]), node.basis)

    def cut(self, node: _Node) -> list[_Node]:
        row, shift = node.plane
        z = self.points[node.seen] @ row + shift
        children = []
        for state, sign in ((INACTIVE, -1.0), (ACTIVE, 1.0)):
            states = node.states.copy()
            states[node.branch] = state
            seen = node.seen[sign * z >= 0]
            child = _Node(node.bound, states, (node.cuts, sign * row, -sign * shift), seen, node.basis)
            if self.bounded:
                _symprop(self.unit, child.states)  # what is decided now may decide more
            self.decide(child)
            children.append(child)
        return children


def _search(chain: Chain, p: float, *, gap: float, nodes: int, seconds: float | None, enough: float) -> Lipschitz:
    """Algorithm 4, many nodes at a time; ends early when the upper bound is at most `enough`."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    weights = chain.weights
    regions = _Regions(chain)
    states = _undecided(chain)
    if regions.bounded:
        _symprop(chain, states)
    first = float(_bounds(weights, states[None], p, as_published=True)[0])
    ceiling = min(first, _product(weights, p), float(_bounds(weights, states[None], p)[0]))
    if len(chain.low) == 0:
        return Lipschitz(0.0, 0.0, 0.0, 1, "gap")
    root = _Node(ceiling, states, (), np.arange(START))
    batch = max(1, min(BATCH, 2**24 // max(w.shape[0] * weights[0].shape[1] for w in weights)))
    regions.decide(root)
    heap: list[tuple[float, int, _Node]] = []
    order = itertools.count()  # of equals, the oldest first
    lower, thin, count, fresh = 0.0, 0.0, 1, [root]
    while True:
        lower = max(lower, regions.height(fresh, weights, p))
        for node, top in zip(fresh, _bounds(weights, np.stack([n.states for n in fresh]), p), strict=True):
            if node.slivers:
                highest = float(_bounds(weights, np.stack(node.slivers), p).max())
                thin = max(thin, min(node.bound, highest))  # of what its parent may reach
            node.bound = min(node.bound, float(top))
            if node.branch >= 0:
                heapq.heappush(heap, (-node.bound, next(order), node))
            elif not node.lost:
                lower = max(lower, node.bound)
        rest, goal = -heap[0][0] if heap else 0.0, max(lower * gap * (1 + SAME), enough)
        upper = max(lower, thin, rest)
        if upper <= goal:
            return Lipschitz(lower, upper, first, count, "gap")
        if rest <= max(goal, thin):
            return Lipschitz(lower, upper, first, count, "thin")
        if count >= nodes:
            return Lipschitz(lower, upper, first, count, "nodes")
        if time.monotonic() > until:
            return Lipschitz(lower, upper, first, count, "seconds")
        goal = max(goal, thin)
        fresh = []
        # a quarter of the heap at most: cutting far below the top is work that best-first search would not do
        for _ in range(min(batch, 1 + len(heap) // 4)):
            if fresh and (-heap[0][0] <= goal or count >= nodes or time.monotonic() > until):
                break
            fresh += regions.cut(heapq.heappop(heap)[2])
            count += 2
