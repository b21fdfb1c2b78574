r"""Interval and backward linear bounds of a ReLU network over a ball, and the largest radius that they can certify.

Interval: a layer's inputs lie in a box, mid -+ half, so its outputs lie in W mid + b -+ |W| half. The first layer takes
the ball itself: W x + b -+ r ||W_i||_dual, exact in every norm.

CROWN: a linear function of a layer's outputs is pulled back to the input, one layer at a time. With l <= z <= u,

    l < 0 < u:   s z  <=  relu(z)  <=  u (z - l) / (u - l),      s = 1 if u > -l else 0;
    otherwise relu is linear on [l, u] and stays as it is,

where a coefficient of relu(z) that is positive takes the lower line and a negative one the upper line. At the input
the least of a'x over the ball is a'x - r ||a||_dual. The bounds l, u of the inner layers come from the same backward
pass, one row for each neuron and side. Only neurons that the interval leaves undecided get rows: the others are linear
already, whatever l and u are. Every inner bound is the better one of interval and backward; at the end a row takes the
best of both, over interval-bounded inner layers and over backward-bounded ones.

Source: Zhang et al., NeurIPS 2018, arXiv:1811.00866 (CROWN, adaptive lower slope); Gowal et al., 2018, arXiv:1810.12715
(interval bounds, margins folded into the last layer); Xu et al., NeurIPS 2020, arXiv:2002.12920 (backward mode through
convolutions by their transpose).
Where an answer is no class, a `Demand` takes the place of the label: rows A and offsets b, of which every A z + b must
stay above 0. Of a number z with target y and tolerance t these are z - (y - t) and (y + t) - z, so that the whole
interval of z lies within the tolerance; of labels that hold together each logit keeps its sign.

Rounding: all of it runs in float64 and is not rounded outwards. A sum of m terms errs by at most about m 1e-16 times
the sum of their sizes; `certified` asks for margins above 1e-9 times the largest logit at x, which is more than that
unless terms add up to 100 times the logits in layers of 1e5 inputs. The certificate is for the network in exact
arithmetic: a float32 forward pass may differ from it by its own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.errors import AssayError, ShapeError
from assay.methods.certify.layers import Affine, Conv, Mean, Part, Scale, layers

Norm = Literal["linf", "l2", "l1"]
Method = Literal["crown", "interval"]
Box = tuple[float, float]
Bounds = tuple[Tensor, Tensor]  # lower and upper, each n *d
Lines = tuple[Tensor, Tensor, Tensor]  # below's slope, above's slope and intercept, each n *d
Window = tuple[tuple[int, int], tuple[int, int]] | None  # rows and columns of a map; None is all of it
Proof = Callable[[Tensor, Tensor], Tensor]  # which inputs (k), their radii (k) -> verified (k bool)

DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}
DEPTHS = {"interval": 0, "crown": 2}  # between them: backward rows over interval-bounded layers
SLACK = 1e-9  # of the largest logit: what a margin has to exceed
ROWS = 2**21  # numbers in one block of backward rows (16 MB; a handful of such blocks are alive at a time)
TOGETHER = 256  # neurons, each of some input, in one backward pass: few, so that their common window is small
NEURONS = 2**22  # neurons in one block of inputs
CLOSE = 0.01  # of a radius


@dataclass(frozen=True)
class Demand:
    """What the outputs z of each input must keep, in the place of its label: rows z + offset > 0, every row."""

    rows: Tensor  # n r c
    offset: Tensor  # n r

    def __getitem__(self, which: Tensor) -> Demand:
        return Demand(self.rows[which], self.offset[which])


@torch.no_grad()
def bounds(
    net: nn.Module,
    x: Tensor,
    *,
    norm: Norm = "linf",
    radius: float | Tensor,
    method: Method = "crown",
    rows: Tensor | None = None,
    box: Box | None = None,
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of the logits over the ball around each input: n *d -> n c, n c (float64).

    `rows` (n r c, or r c for all) bounds these combinations of logits instead -> n r, n r; `margins` makes z_y - z_j.
    `radius` is one number or one per input. `box` (low, high) holds the limits of the inputs: they cut the ball in
    linf; in l2 and l1 each bound is the better one of the ball's and of the cut cube's around the ball.
    """
    relaxed = Relaxed.read(net, x, norm, box, method)
    x, classes = relaxed.x, relaxed.classes
    rows = torch.eye(classes).to(x) if rows is None else rows.to(x)
    if rows.ndim not in (2, 3) or rows.shape[-1] != classes or (rows.ndim == 3 and len(rows) != len(x)):
        raise ShapeError(
            f"rows of shape {tuple(rows.shape)} do not combine {classes} logits of {len(x)} inputs; "
            f"give r x {classes}, or {len(x)} x r x {classes}."
        )
    rows = rows.expand(len(x), *rows.shape[-2:])
    both, never = torch.cat([rows, -rows], 1), x.new_full((len(x),), math.inf)
    lows = [
        relaxed.lower(relaxed.region(part, r), both[part], never[part, None], DEPTHS[method])
        for part, r in relaxed.blocks(relaxed.every, relaxed.radii(radius))
    ]
    low = torch.cat(lows)
    return low[:, : rows.shape[1]], -low[:, rows.shape[1] :]


def margins(y: Tensor, classes: int) -> Tensor:
    """The rows e_y - e_j for all j other than y: n -> n c-1 c."""
    unit = torch.eye(classes, dtype=torch.float64, device=y.device)
    other = torch.arange(classes - 1, device=y.device).expand(len(y), -1)
    other = other + (other >= y[:, None]).long()  # n c-1: skips y
    return unit[y][:, None] - unit[other]


@torch.no_grad()
def certified(
    net: nn.Module,
    x: Tensor,
    y: Tensor | Demand,
    *,
    norm: Norm = "linf",
    radius: float | Tensor,
    method: Method = "crown",
    box: Box | None = None,
) -> Tensor:
    """Whether no point of the ball is given another class than y: n *d, n -> n bool. Never where x itself is.

    Of a Demand: whether it is kept in the whole ball.
    """
    relaxed = Relaxed.read(net, x, norm, box, method)
    return relaxed.proof(y, DEPTHS[method])(relaxed.every, relaxed.radii(radius))


@torch.no_grad()
def certified_radius(
    net: nn.Module,
    x: Tensor,
    y: Tensor | Demand,
    *,
    norm: Norm = "linf",
    high: float | Tensor,
    method: Method = "crown",
    steps: int = 12,
    box: Box | None = None,
) -> Tensor:
    """The largest radius up to `high` that was verified for each input: n *d, n -> n float64.

    0 where x is misclassified, and where no radius that was tried could be verified; `certified` at radius 0 tells the
    two apart. `high` is one number or one per input: the distance of an adversarial example is a good one.
    `steps` radii are tried for each input by bisection; "crown" does so with interval-bounded inner layers, and then
    tries as many again with backward-bounded ones, which climb from there by doubling before they bisect: at large
    radii all neurons are undecided and have rows, so these are the costly ones. An input that is verified at `high`
    leaves the batch, and so does one whose radius is known to 1 %.
    """
    if steps < 1:
        raise AssayError(f"certified_radius tries steps radii for each input and needs steps >= 1, got {steps}.")
    relaxed = Relaxed.read(net, x, norm, box, method)
    top = relaxed.radii(high)
    found = torch.zeros_like(top)
    rows = relaxed.every[relaxed.proof(y, 0)(relaxed.every, found)]  # what is misclassified has left
    found[rows] = _climb(relaxed.proof(y, min(1, DEPTHS[method])), rows, found[rows], top[rows], top[rows], steps)
    if method == "crown":
        low = found[rows]
        first = torch.where(low > 0, 2 * low, top[rows] / 2**steps).minimum(top[rows])
        found[rows] = _climb(relaxed.proof(y, 2), rows, low, first, top[rows], steps)
    return found


@torch.no_grad()
def unstable(
    net: nn.Module,
    x: Tensor,
    *,
    norm: Norm = "linf",
    radius: float | Tensor,
    method: Method = "crown",
    box: Box | None = None,
) -> Tensor:
    """How many neurons of each ReLU layer may be on either side of zero in the ball: n *d -> n layers.

    Only these are relaxed, so a layer with many of them is where an undecided input lost its certificate.
    """
    relaxed = Relaxed.read(net, x, norm, box, method)
    counts = []
    for part, r in relaxed.blocks(relaxed.every, relaxed.radii(radius)):
        region = relaxed.region(part, r)
        inner = relaxed.interval(region)
        if method == "crown":
            inner = relaxed.backward(region, inner)
        counts.append(torch.stack([_undecided(b).sum(1) for b in inner], 1) if inner else part.new_zeros(len(part), 0))
    return torch.cat(counts)


@dataclass(frozen=True)
class Region:
    """The ball around each of n inputs, and the cube around it cut by the box."""

    x: Tensor  # n *d
    radius: Tensor  # n
    norm: Norm
    cube: Bounds
    cut: bool  # whether there is a box

    def take(self, which: Tensor) -> Region:
        low, high = self.cube
        return Region(self.x[which], self.radius[which], self.norm, (low[which], high[which]), self.cut)

    def least(self, g: Tensor, window: Window, owner: Tensor) -> Tensor:
        """min g'x over the region of input `owner`: k *d, k -> k."""
        if self.norm == "linf":
            return _least_in(self.cube, g, window, owner)
        size = torch.linalg.vector_norm(g.flatten(1), DUAL[self.norm], 1)
        ball = _dot(g, _seen(self.x, window)[owner]) - self.radius[owner] * size
        return torch.maximum(ball, _least_in(self.cube, g, window, owner)) if self.cut else ball


@dataclass(frozen=True)
class Relaxed:
    """A network and n inputs, read once for all radii."""

    chain: tuple[Affine, ...]
    x: Tensor  # n *d float64
    norm: Norm
    box: Box | None

    @classmethod
    def read(cls, net: nn.Module, x: Tensor, norm: Norm, box: Box | None, method: Method) -> Relaxed:
        for value, kind in ((norm, Norm), (method, Method)):
            if value not in get_args(kind):
                raise AssayError(f"Bounds know {', '.join(get_args(kind))}, got {value!r}; choose one of these.")
        chain = layers(net, tuple(x.shape[1:]))
        if len(chain[-1].out_shape) != 1:
            raise ShapeError(f"The network gives {chain[-1].out_shape} for each input; bounds want one row of logits.")
        x = x.detach().to(chain[0].offset)
        if not bool(x.isfinite().all()):
            raise AssayError("An input holds NaN or infinity; bounds are taken around finite inputs only.")
        if box is not None and not (box[0] < box[1] and bool(((x >= box[0]) & (x <= box[1])).all())):
            raise AssayError(f"Not all inputs lie in the box {box}; give its lower and upper limit for all inputs.")
        return cls(chain, x, norm, box)

    @property
    def classes(self) -> int:
        return self.chain[-1].out_shape[0]

    @cached_property
    def every(self) -> Tensor:
        return torch.arange(len(self.x), device=self.x.device)

    @cached_property
    def reach(self) -> Tensor:
        """||W_i||_dual of the first layer's rows: *out."""
        first = self.chain[0]
        channels, *grid = first.out_shape if len(first.out_shape) == 3 else (math.prod(first.out_shape), 1, 1)
        neurons = torch.ones(*grid, channels, device=self.x.device).nonzero()  # k 3: neighbours share a window
        norms = []
        for some in torch.split(neurons, min(TOGETHER, self.rows_at_once(0))):
            pulled, _ = _pulled(first, *_units(some, first))
            norms.append(torch.linalg.vector_norm(pulled.flatten(1), DUAL[self.norm], 1))
        return torch.cat(norms).reshape(*grid, channels).permute(2, 0, 1).reshape(first.out_shape)

    def radii(self, radius: float | Tensor) -> Tensor:  # -> n
        r = torch.as_tensor(radius, dtype=self.x.dtype, device=self.x.device)
        if r.ndim > 1 or (r.ndim == 1 and len(r) != len(self.x)) or not bool(((r >= 0) & r.isfinite()).all()):
            raise AssayError(f"A radius is a finite number >= 0, one or one for each of {len(self.x)}, got {radius}.")
        return r.expand(len(self.x))

    def region(self, which: Tensor, radii: Tensor) -> Region:
        x = self.x[which]
        r, (low, high) = radii.reshape(-1, *[1] * (x.ndim - 1)), self.box or (-math.inf, math.inf)
        return Region(x, radii, self.norm, ((x - r).clamp_min(low), (x + r).clamp_max(high)), self.box is not None)

    def blocks(self, which: Tensor, radii: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """As many inputs at a time as memory holds: k, k -> parts of both."""
        size = max(1, NEURONS // sum(math.prod(a.in_shape) for a in self.chain))
        return zip(torch.split(which, size), torch.split(radii, size), strict=True)

    def rows_at_once(self, k: int) -> int:
        """How many rows a pass backward from layer k takes."""
        return max(1, ROWS // max(math.prod(shape) for affine in self.chain[: k + 1] for shape in affine.shapes))

    def proof(self, y: Tensor | Demand, depth: int) -> Proof:
        """A check whether all margins of label y, or all that is demanded, are positive in the whole ball."""
        if isinstance(y, Demand):
            return self.kept(y, depth)
        y = y.to(self.x.device)
        if y.shape != (len(self.x),) or y.is_floating_point() or bool(((y < 0) | (y >= self.classes)).any()):
            raise ShapeError(
                f"Labels of shape {tuple(y.shape)} and type {y.dtype} do not fit {len(self.x)} inputs; "
                f"give each one class index from 0 to {self.classes - 1}."
            )

        def proves(which: Tensor, radii: Tensor) -> Tensor:
            verified = [torch.zeros(0, dtype=torch.bool, device=self.x.device)]
            for part, r in self.blocks(which, radii):
                enough = SLACK * self.logits(self.x[part]).abs().amax(1)
                low = self.lower(self.region(part, r), margins(y[part], self.classes), enough[:, None], depth)
                verified.append((low > enough[:, None]).all(1))
            return torch.cat(verified)

        return proves

    def kept(self, y: Demand, depth: int) -> Proof:
        """The same of a Demand; the slack is of the largest output or offset."""
        rows, offset = y.rows.to(self.x), y.offset.to(self.x)
        if rows.ndim != 3 or rows.shape[::2] != (len(self.x), self.classes) or offset.shape != rows.shape[:2]:
            raise ShapeError(
                f"A demand with rows {tuple(rows.shape)} and offsets {tuple(offset.shape)} does not fit {len(self.x)} "
                f"inputs and {self.classes} outputs; give n x r x {self.classes}, and n x r."
            )

        def proves(which: Tensor, radii: Tensor) -> Tensor:
            verified = [torch.zeros(0, dtype=torch.bool, device=self.x.device)]
            for part, r in self.blocks(which, radii):
                size = self.logits(self.x[part]).abs().amax(1).maximum(offset[part].abs().amax(1))
                enough = SLACK * size[:, None] - offset[part]  # n r
                verified.append((self.lower(self.region(part, r), rows[part], enough, depth) > enough).all(1))
            return torch.cat(verified)

        return proves

    def logits(self, x: Tensor) -> Tensor:  # n *d -> n c
        for k, affine in enumerate(self.chain):
            x = affine(x.relu() if k else x)
        return x

    def lower(self, region: Region, rows: Tensor, enough: Tensor, depth: int) -> Tensor:
        """Lower bounds of rows of logits: n r c, n r -> n r. Inputs with all of them above `enough` go no deeper."""
        inner = self.interval(region)
        low = self.at_the_end(region, inner, rows, linear=False)
        for stage in range(1, depth + 1 if inner else 1):
            left = torch.nonzero(~(low > enough).all(1))[:, 0]
            if len(left) == 0:
                break
            few, inside = region.take(left), [(lo[left], hi[left]) for lo, hi in inner]
            if stage == 2:
                inside = self.backward(few, inside)
                low[left] = low[left].maximum(self.at_the_end(few, inside, rows[left], linear=False))
            low[left] = low[left].maximum(self.at_the_end(few, inside, rows[left], linear=True))
        return low

    def interval(self, region: Region) -> list[Bounds]:
        """Bounds of what goes into each ReLU, by boxes alone."""
        inner: list[Bounds] = []
        for k in range(len(self.chain) - 1):
            inner.append(self.step(region, inner, k))
        return inner

    def step(self, region: Region, inner: list[Bounds], k: int) -> Bounds:
        """The outputs of layer k from the bounds before it."""
        affine = self.chain[k]
        if k > 0:
            low, high = inner[k - 1]
            return _spread(affine, (low.relu(), high.relu()))
        cube = _spread(affine, region.cube) if region.norm == "linf" or region.cut else None
        if region.norm == "linf":
            assert cube is not None
            return cube
        mid = affine(region.x)
        half = region.radius.reshape(-1, *[1] * (mid.ndim - 1)) * self.reach
        ball = mid - half, mid + half
        return ball if cube is None else (ball[0].maximum(cube[0]), ball[1].minimum(cube[1]))

    def backward(self, region: Region, rough: list[Bounds]) -> list[Bounds]:
        """Bounds of what goes into each ReLU; `rough` is what the intervals say."""
        inner: list[Bounds] = []
        lines: list[Lines] = []
        for k in range(len(self.chain) - 1):
            low, high = self.step(region, inner, k) if k else rough[0]
            if k > 0:
                low, high = low.contiguous(), high.contiguous()
                self.refine(region, lines, k, low, high)
            inner.append((low, high))
            lines.append(_lines(low, high))
        return inner

    def refine(self, region: Region, lines: list[Lines], k: int, low: Tensor, high: Tensor) -> None:
        """Tighten in place the bounds of the neurons of layer k that may be on either side of zero."""
        affine = self.chain[k]
        grid = (len(low), *affine.out_shape) if len(affine.out_shape) == 3 else (len(low), -1, 1, 1)
        low, high = low.view(grid), high.view(grid)
        todo = torch.nonzero(((low < 0) & (high > 0)).permute(2, 3, 1, 0))  # k 4: neighbours share a window
        for some in torch.split(todo, max(1, min(TOGETHER, self.rows_at_once(k) // 2))) if len(todo) else ():
            y, x, channel, owner = some.unbind(1)
            neuron, place = torch.unique_consecutive(some[:, :3], dim=0, return_inverse=True)
            unit, window = _units(neuron, affine)
            g, window = _pulled(affine, unit, window)
            g = g[place]  # a neuron's row is the same for every input
            shift = affine.offset.view(grid[1:])[channel, y, x]
            both, twice = torch.cat([shift, -shift]), owner.repeat(2)
            below, above = self.pull(region, lines, k, torch.cat([g, -g]), window, both, twice).chunk(2)
            low[owner, channel, y, x] = low[owner, channel, y, x].maximum(below)
            high[owner, channel, y, x] = high[owner, channel, y, x].minimum(-above)

    def pull(
        self, region: Region, lines: list[Lines], k: int, g: Tensor, window: Window, shift: Tensor, owner: Tensor
    ) -> Tensor:
        """min of g'(inputs of layer k, in the window) + shift over the region of input `owner`: r *in, r, r -> r."""
        for j in range(k - 1, -1, -1):
            below, above, intercept = (_seen(line, window)[owner] for line in lines[j])
            up, down = g.clamp_min(0), g.clamp_max(0)
            shift = shift + _dot(down, intercept)
            g = (up * below).addcmul_(down, above)  # on what goes into ReLU j
            shift = shift + g.flatten(1) @ _seen(self.chain[j].offset, window).flatten()
            g, window = _pulled(self.chain[j], g, window)
        return shift + region.least(g, window, owner)

    def at_the_end(self, region: Region, inner: list[Bounds], rows: Tensor, *, linear: bool) -> Tensor:
        """Lower bounds of rows of logits, backward along lines or from the last box alone: n r c -> n r."""
        n, r, _ = rows.shape
        last = len(self.chain) - 1
        lines = [_lines(low, high) for low, high in inner] if linear else []
        owner = torch.arange(n, device=rows.device).repeat_interleave(r)
        lows = []
        size = self.rows_at_once(last)
        for row, who in zip(torch.split(rows.flatten(0, 1), size), torch.split(owner, size), strict=True):
            (g, window), shift = _pulled(self.chain[last], row, None), row @ self.chain[last].offset
            if linear or not inner:
                lows.append(self.pull(region, lines, last, g, window, shift, who))
            else:
                low, high = inner[-1]
                lows.append(shift + _least_in((low.relu(), high.relu()), g, window, who))
        return torch.cat(lows).reshape(n, r)


def _lines(low: Tensor, high: Tensor) -> Lines:
    """Slope of the line below relu, slope and intercept of the line above, on [low, high]."""
    open_ = (low < 0) & (high > 0)
    on = (low >= 0).to(low.dtype)
    above = torch.where(open_, high / (high - low), on)
    below = torch.where(open_, (high > -low).to(low.dtype), on)
    return below, above, torch.where(open_, -above * low, 0.0)


def _undecided(bound: Bounds) -> Tensor:  # n *d -> n d
    low, high = bound
    return ((low < 0) & (high > 0)).flatten(1)


def _spread(affine: Affine, box: Bounds) -> Bounds:
    low, high = box
    mid, half = affine((low + high) / 2), affine.spread((high - low) / 2)
    return mid - half, mid + half


def _least_in(box: Bounds, g: Tensor, window: Window, owner: Tensor) -> Tensor:
    """min g'x over the box of input `owner`: k *d, k -> k."""
    low, high = (_seen(side, window)[owner] for side in box)
    return _dot(g.clamp_min(0), low) + _dot(g.clamp_max(0), high)


def _dot(a: Tensor, b: Tensor) -> Tensor:  # k *d, k *d -> k
    dots: Tensor = torch.linalg.vecdot(a.flatten(1), b.flatten(1))
    return dots


def _seen(x: Tensor, window: Window) -> Tensor:
    """*d h w -> *d of the window."""
    if window is None:
        return x
    (top, bottom), (left, right) = window
    return x[..., top:bottom, left:right]


def _units(neurons: Tensor, affine: Affine) -> tuple[Tensor, Window]:
    """One-hot outputs of a layer at (y, x, channel), in the smallest window that holds them: k 3 -> k *out."""
    y, x, channel = neurons.unbind(1)
    shape, window = affine.out_shape, None
    if len(shape) == 3:
        window = (int(y.min()), int(y.max()) + 1), (int(x.min()), int(x.max()) + 1)
        y, x = y - window[0][0], x - window[1][0]
        shape = (shape[0], *(last - first for first, last in window))
    size = len(neurons), *(shape if window else (math.prod(shape), 1, 1))
    unit = torch.zeros(size, dtype=torch.float64, device=neurons.device)
    unit[torch.arange(len(neurons), device=neurons.device), channel, y, x] = 1.0
    return unit.view(len(neurons), *shape), window


def _pulled(affine: Affine, g: Tensor, window: Window) -> tuple[Tensor, Window]:
    """W^T g where g is zero outside a window of the outputs, and the window of the inputs that it reaches.

    A neuron of a convolution sees few inputs, and so do those that it sees: nothing is computed for the others.
    """
    for part, shape, out in reversed(list(zip(affine.parts, affine.shapes, affine.shapes[1:], strict=False))):
        tile = _tile(part)
        if tile and window is None:
            window = (0, out[1]), (0, out[2])
        if window is not None and isinstance(part, Conv) and _sees(part):
            g = F.conv_transpose2d(g, part.weight, None, part.stride, 0, 0, part.groups, part.dilation)
            first = [w[0] * s - p for w, s, p in zip(window, part.stride, part.padding, strict=True)]
            reached = [(max(f, 0), min(f + n, m)) for f, n, m in zip(first, g.shape[2:], shape[1:], strict=True)]
            (top, bottom), (left, right) = ((a - f, b - f) for (a, b), f in zip(reached, first, strict=True))
            g, window = g[..., top:bottom, left:right], (reached[0], reached[1])
        elif window is not None and isinstance(part, Scale):
            g = g * _seen(part.scale.expand(shape), window)
        elif window is not None and tile:
            g = g.repeat_interleave(tile[0], 2).repeat_interleave(tile[1], 3) / (tile[0] * tile[1])
            (top, bottom), (left, right) = window
            window = (top * tile[0], bottom * tile[0]), (left * tile[1], right * tile[1])
        else:
            if window is not None:
                full = g.new_zeros(len(g), *out)
                _seen(full, window).copy_(g)
                g, window = full, None
            flat = isinstance(part, Mean) and isinstance(part.module, nn.Flatten)
            g = g.reshape(-1, *shape) if flat else part.transpose(g, shape)
    return g, window


def _sees(part: Conv) -> bool:
    """Whether every output sees an input, and not only padding: then no window is empty."""
    return all(p <= d * (k - 1) for p, d, k in zip(part.padding, part.dilation, part.weight.shape[2:], strict=True))


def _tile(part: Part) -> tuple[int, int] | None:
    """The size of the tiles that an average is taken over, where they do not overlap and there is no padding."""
    pool = part.module if isinstance(part, Mean) else None
    if not isinstance(pool, nn.AvgPool2d) or pool.ceil_mode or pool.divisor_override:
        return None
    size, stride, padding = (
        v if isinstance(v, tuple) else (v, v) for v in (pool.kernel_size, pool.stride, pool.padding)
    )
    return size if size == stride and padding == (0, 0) else None


def _climb(proves: Proof, which: Tensor, low: Tensor, trial: Tensor, high: Tensor, steps: int) -> Tensor:
    """The largest verified radius: doubling from `trial` until one fails or is `high`, then bisection; all k -> k."""
    low, fails = low.clone(), torch.full_like(high, math.inf)
    for _ in range(steps):
        left = torch.nonzero((low < high) & ((fails - low > CLOSE * low) | (low == 0)))[:, 0]
        if len(left) == 0:
            break
        at = trial[left]
        held = proves(which[left], at)
        low[left] = torch.where(held, at, low[left])
        fails[left] = torch.where(held, fails[left], at)
        trial = torch.where(fails.isinf(), (2 * low).minimum(high), (low + fails) / 2)
    return low
