r"""Attacks that go through: where the gradient does not say what a net does, something smooth stands in for it.

A defence that rounds, steps, saturates, purifies or cuts its gradient off leaves nothing to climb, and is no sturdier
for it. Its forward pass stays as it is; in the backward pass a stand-in s takes the place of the part g that misleads:

    forward   g(u),        backward   J_s(u)^T

With s(u) = u that is the straight-through estimator; BPDA is the same for any s that is near to g.

What misleads is measured, not named. u_0 = x, u_1, u_2, ... are the values that go in and out of each layer, in the
order in which a pass meets them, and x' is a point a radius away. With random w of the shape of u_k,

    a = <w, u_k(x') - u_k(x)>,   b = <J_k^T w, x' - x>,   E_k^2 = median over inputs of  sum_w (a - b)^2 / sum_w a^2

is 0 where u_k is linear, 1 where its gradient is 0 or missing, and above that where it points elsewhere. The first u_k
with E_k of BROKEN or more, also when measured from the last value before it that is sound, is a gap; a stand-in bridges
it, and what comes after is measured across that bridge. A function in a `forward` needs no module to be found. Noise is
the same in all these passes, so that a layer that rolls dice is no gap. Class scores are measured less their mean: what
is added to all of them alike changes no answer, and would make any net look linear, and led.

An honest net can be as far from linear, if it is steep: an EfficientNet on 224 x 224 pixels has E of 1.2 in its answers
over 8/255. So layers are looked at only where the net's own gradients do not lead: a climb by them takes the answers
less than LEADS times as far as noise of that size does (for that EfficientNet 6 times, behind rounding, ripples and
saturated layers at most 2). And stand-ins are kept only if a climb by theirs leads FURTHER than one by the net's own.

Stand-ins: identity, where what comes out is near to what went in (after scaling to its size); else the cubic that fits
best, of the value at the same place for each channel; for rows that do not line up, a linear map.

Sources: Bengio, Leonard & Courville 2013, arXiv:1308.3432, sec. 4 (straight through); Athalye, Carlini & Wagner, ICML
    2018, arXiv:1802.00420, sec. 4 (BPDA, and EOT for what is random). The measure and the cubic are Assay's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.methods.attack.attacked import Model
from assay.nn.mean import MeanNet, is_steady
from assay.tasks.places import Places

if TYPE_CHECKING:
    from assay.inputs.reach import Reach
    from assay.tasks import Task

BROKEN = 0.9  # of E: a gradient of 0 has 1; bundled nets have at most 0.7 at any place, at 8/255
SUSPECT = 0.75  # of E of the answers: below it no layer is looked at, each of which takes several passes
LOOKS, FITTED = 8, 128  # inputs to measure on, and to fit stand-ins to
PROJECTIONS = 3
SIZES = (1.0, 4.0, 16.0)  # radii that x' is away: the first that moves a value counts
CLIMBS = 10  # steps of a climb that shows where gradients lead
LEADS, FURTHER = 5.0, 1.1  # times as far as noise; times as far as the net's own gradients; in the median
STILL = 1e-12  # of a value's square: it did not move, up to rounding
MOST = 8  # gaps that are bridged
NEAR = 0.5  # what identity may leave unexplained of what comes out, of its variance
MORE_DRAWS = 4  # times the draws of a random model, in a gradient
JITTER, JITTERED = 0.25, 16  # of the radius, and how many points of it, where a model that is not random is rough
WIDE = 4096  # features that a linear map between rows may have

THROUGH = ("straight-through", "distilled copy", "mean network", "EOT")
"""In the order in which they are tried."""
Why = Literal["none", "zero", "nan", "misleads"]
WORDS: dict[Why, str] = {
    "none": "carries no gradient",
    "zero": "has a gradient of 0",
    "nan": "has a gradient that is NaN",
    "misleads": "has a gradient that does not say what it does",
}


class Point(NamedTuple):
    """A value of a pass: what went into or came out of the k-th call of a layer; call -1 is the input of the net."""

    call: int
    out: bool


START = Point(-1, True)


class Gap(NamedTuple):
    """Where the gradient misleads, and what stands in for it."""

    source: Point
    point: Point
    where: str  # in words: the name of a layer, or between which two
    why: Why
    error: float  # E
    stand_in: StandIn

    def told(self) -> str:
        return f"{self.where} {WORDS[self.why]}"


@dataclass(frozen=True, eq=False)
class StandIn:
    """A smooth map from what went in to what comes out, of any size: identity, a cubic at each place, or linear."""

    kind: Literal["identity", "cubic", "linear"]
    weight: Tensor | None = None  # cubic: o 3c+1; linear: g f+1
    last: bool = False  # whether a row holds the channels of each feature next to each other

    def __call__(self, u: Tensor, like: Tensor) -> Tensor:  # n *d, n *o -> n *o
        if self.kind == "linear":
            assert self.weight is not None
            return (u.flatten(1) @ self.weight[:, 1:].T + self.weight[:, 0]).reshape(like.shape)
        places = _places(u, like)
        if self.kind == "identity":
            return places.reshape(like.shape)
        assert self.weight is not None
        out = torch.einsum("of,nfp->nop", self.weight, _powers(places))
        return (out.transpose(1, 2) if self.last else out).reshape(like.shape)


def _places(u: Tensor, like: Tensor) -> Tensor:
    """What went in as channels by places, scaled to the size of what comes out: n *d -> n c p."""
    if u.ndim == 4 and like.ndim == 4:
        if u.shape[2:] != like.shape[2:]:
            u = F.interpolate(u, size=like.shape[2:], mode="bilinear", align_corners=False, antialias=True)
        return u.flatten(2)
    return u.reshape(len(u), u.shape[1] if u.ndim > 2 else 1, -1)


def _powers(u: Tensor) -> Tensor:  # n c p -> n 3c+1 p
    return torch.cat([torch.ones_like(u[:, :1]), u, u.square(), u**3], 1)


def fitted(u: Tensor, v: Tensor) -> StandIn | None:  # n *d, n *o
    """The stand-in for whatever made v of u; None where nothing that is known here comes near it."""
    u, v = u.detach(), v.detach()
    spread = float((v - v.mean(0)).double().square().mean())
    if spread == 0:
        return None
    if v.ndim == u.ndim and v.shape[:2] == u.shape[:2] and (u.ndim == 4 or u.shape == v.shape):
        same = StandIn("identity")
        if float((same(u, v) - v).double().square().mean()) <= NEAR * spread:
            return same
    found = [_cubic(u, v, last) for last in (False, True)]
    if u[0].numel() <= WIDE and v[0].numel() <= WIDE:
        found.append(_linear(u, v))
    fits = [(float((s(u, v) - v).double().square().mean()), s) for s in found if s is not None]
    least = min(fits, key=lambda fit: fit[0], default=None)
    return None if least is None or not least[0] < 0.95 * spread else least[1]


def _cubic(u: Tensor, v: Tensor, last: bool) -> StandIn | None:
    places = _places(u, v)
    p = places.shape[2]
    if v[0].numel() % p or (last and v.ndim != 2):
        return None
    target = v.reshape(len(v), p, -1).transpose(1, 2) if last else v.reshape(len(v), -1, p)  # n o p
    features = _powers(places)
    # least squares by its normal equations: few features, and as many rows as there are places
    a = torch.einsum("nfp,ngp->fg", features.double(), features.double())
    b = torch.einsum("nfp,nop->fo", features.double(), target.double())
    a += 1e-6 * a.diagonal().mean() * torch.eye(len(a), dtype=a.dtype, device=a.device)
    return StandIn("cubic", torch.linalg.solve(a, b).T.to(u.dtype), last)


def _linear(u: Tensor, v: Tensor) -> StandIn:
    x = torch.cat([torch.ones_like(u.flatten(1)[:, :1]), u.flatten(1)], 1).double()
    ridge = 1e-2 * x.square().mean() * len(x)  # as the inputs are few, what they do not tell stays 0
    small = torch.linalg.solve(
        x @ x.T + ridge * torch.eye(len(x), dtype=x.dtype, device=x.device), v.flatten(1).double()
    )
    return StandIn("linear", (x.T @ small).T.to(u.dtype))


class _Exchanged(torch.autograd.Function):
    """One value with another's gradient: g(u) to the bit, and J_s. The value comes without what made it, whose way back
    would be asked with a gradient of 0 and may answer NaN or noise.
    """

    @staticmethod
    def forward(ctx: Any, smooth: Tensor, value: Tensor) -> Tensor:  # n *o, n *o -> n *o
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


@dataclass(eq=False)
class _Pass:
    """The values that one pass met, by their place in it, and the bridges that it went over."""

    gaps: dict[Point, Gap]
    values: dict[Point, Tensor] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    only: frozenset[Point] | None = None  # the values to keep; None keeps all

    def meet(self, point: Point, value: Tensor) -> Tensor:
        """What the pass goes on with: of a value that is kept a copy, for what comes next may change it in place."""
        gap = self.gaps.get(point)
        if gap is not None and gap.source in self.values:
            smooth = gap.stand_in(self.values[gap.source], value)
            value = _Exchanged.apply(smooth, value.detach())  # type: ignore[no-untyped-call]
        if value.ndim == 0 or (self.only is not None and point not in self.only):  # a scale is no row for each input
            return value
        self.values[point] = value
        return value.clone()


@contextmanager
def _watched(net: nn.Module, seen: _Pass) -> Iterator[None]:
    """Hooks on every layer that holds no other, which tell what goes in and out and put the bridges in."""
    open_calls: list[int] = []

    def before(name: str) -> Callable[[nn.Module, Any], Any]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
            seen.names.append(name)
            open_calls.append(len(seen.names) - 1)
            if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
                return (seen.meet(Point(open_calls[-1], False), args[0]), *args[1:])
            return None

        return hook

    def after(module: nn.Module, args: Any, out: Any) -> Any:
        call = open_calls.pop()
        return seen.meet(Point(call, True), out) if isinstance(out, Tensor) and out.is_floating_point() else None

    handles = []
    try:
        for name, module in net.named_modules():
            if name and not list(module.children()) and not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_pre_hook(before(name)))
                handles.append(module.register_forward_hook(after))
        yield
    finally:
        for handle in handles:
            handle.remove()


class StraightThrough(nn.Module):
    """The net as it answers, with the gradients of stand-ins where its own mislead."""

    def __init__(self, net: nn.Module, gaps: tuple[Gap, ...]) -> None:
        super().__init__()
        self.net, self.gaps = net, gaps
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        return self.watch(x, only=())[0]

    def watch(self, x: Tensor, only: Sequence[Point] | None = None) -> tuple[Tensor, _Pass]:
        """The answer, and the values that the pass met: all, or these and what the stand-ins read."""
        kept = None if only is None else frozenset((*only, *(gap.source for gap in self.gaps)))
        seen = _Pass({gap.point: gap for gap in self.gaps}, {START: x}, only=kept)
        with _watched(self.net, seen):
            out: Tensor = self.net(x)
        if isinstance(out, Tensor) and out.is_floating_point():
            out = seen.meet(Point(len(seen.names), False), out)  # what is done to the last layer's answer
        return out, seen

    def told(self) -> str:
        return "; ".join(gap.told() for gap in self.gaps)


def carries_gradient(model: Model, x: Tensor) -> bool:
    """Whether any gradient leads from the answer to these inputs, be it 0: n *d."""
    return _slope(model, x) is not None


def _slope(model: Model, x: Tensor) -> Tensor | None:  # n *d -> n *d
    with torch.enable_grad():
        at = x.detach().clone().requires_grad_()
        out = model(at)
        return torch.autograd.grad(out.sum(), at, allow_unused=True)[0] if out.requires_grad else None


def class_axis(task: Task) -> int | None:
    """The axis of a task's answers along which only differences count, as the highest score wins; None: all counts."""
    if "classes" in task.gives:
        return 1
    return task.axis if isinstance(task, Places) else None


class Still(nn.Module):
    """A net whose answer carries no gradient, with one of 0: attacks that climb stand still, and blind ones go on."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        out: Tensor = self.net(x)
        return out + 0 * x.flatten(1).sum(1).reshape(-1, *(1,) * (out.ndim - 1))


class Jittered(nn.Module):
    """A net at points near its input, drawn anew for each row and pass: its mean is smooth where the net is rough."""

    def __init__(self, net: nn.Module, size: float) -> None:
        super().__init__()
        self.net, self.size = net, size
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        out: Tensor = self.net(x + self.size * torch.randn_like(x))
        return out


class Way(NamedTuple):
    """Whose gradients an attack follows to get through; what it finds is judged on the subject itself."""

    name: str  # of THROUGH
    model: Model
    draws: int = 1  # to a gradient
    own: bool = False  # whether its answers are the subject's own
    about: str = ""

    def is_a_number(self, x: Tensor) -> bool:
        """Whether its gradients, each a mean of so many, are numbers for most of these inputs: n *d."""
        sick = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for _ in range(self.draws):
            slope = _slope(self.model, x)
            sick |= False if slope is None else slope.isnan().flatten(1).any(1)
        return not bool(sick.double().mean() > 0.5)


def ways_through(
    model: nn.Module,
    x: Tensor,
    *,
    radius: float,
    draws: int = 1,
    bounds: tuple[float, float] = (0.0, 1.0),
    reach: Reach | None = None,
    classes: int | None = 1,
    misled: bool = False,
    teach: Callable[[], nn.Module] | None = None,
) -> tuple[Way, ...]:  # n *d
    """The ways that there are through this model, in the order of THROUGH; none through one that hides nothing.

    `misled` says that gradients were seen to mislead, even where no gap is found. `teach` gives a distilled copy of
    the model, and is called only where there is something to get through. What is random counts as that. `reach` says
    what of these inputs may change: whole numbers that come to the model whole are no gap. `classes` is the axis of the
    answers along which class scores lie (`class_axis`). Where most gradients are NaN so are their means: no EOT then.
    """
    bridged = straight_through(model, x, radius=radius, bounds=bounds, reach=reach, classes=classes)
    if bridged is None and not misled and draws == 1:
        return ()
    base = bridged or model
    ways = [] if bridged is None else [Way(THROUGH[0], bridged, draws, own=True, about=bridged.told())]
    if teach is not None:
        ways.append(Way(THROUGH[1], teach(), about="a small net that was taught its answers"))
    if draws > 1:
        middle = MeanNet(base)
        if is_steady(middle, x[:LOOKS]):
            ways.append(Way(THROUGH[2], middle, about="the same net with all its noise at its mean"))
        mean = Way(THROUGH[3], base, MORE_DRAWS * draws, own=True, about=f"gradients of {MORE_DRAWS * draws} draws")
    else:
        jittered = Jittered(base, JITTER * radius)
        mean = Way(THROUGH[3], jittered, JITTERED, about="gradients that are means over points nearby")
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        return (*ways, mean) if mean.is_a_number(x[:LOOKS]) else tuple(ways)


def straight_through(
    net: nn.Module,
    x: Tensor,
    *,
    radius: float,
    bounds: tuple[float, float] = (0.0, 1.0),
    reach: Reach | None = None,
    classes: int | None = 1,
) -> StraightThrough | None:
    """The net with a stand-in at each gap that these inputs show within the radius; None where there is none: n *d.

    Nothing of the net is changed, and the global generator is left as it was.
    """
    x = x[:FITTED].detach()
    rng = torch.Generator(x.device).manual_seed(0)  # there, as what is drawn is as large as what the layers hold
    push = (2 * torch.randint(2, x.shape, generator=torch.Generator().manual_seed(0)) - 1).to(x)[:LOOKS]
    span, near = bounds[1] - bounds[0], x[:LOOKS]

    def settled(at: Tensor) -> Tensor:
        at = at.clamp(*bounds)
        return at if reach is None else reach.take(torch.arange(len(near), device=x.device)).settled(at, near)

    far = [settled(near + min(size * radius, span) * push) for size in SIZES]
    gaps: tuple[Gap, ...] = ()
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        if not _is_suspect(net, near, far, classes, rng):
            return None
        noise, own = (_led(by, net, near, push, radius, settled, classes) for by in (None, net))
        if _median(own / noise) >= LEADS:
            return None
        for _ in range(MOST):
            gap = _next_gap(StraightThrough(net, gaps), x, far, classes, rng)
            if gap is None:
                break
            gaps = (*gaps, gap)
        if not gaps:
            return None
        bridged = StraightThrough(net, gaps)
        led = _led(bridged, net, near, push, radius, settled, classes)
        return bridged if _median(led / own) >= FURTHER else None


def _median(ratio: Tensor) -> float:  # n
    """Of two distances, where both may be 0: then the one is as long as the other."""
    return float(ratio.nan_to_num(1.0, posinf=torch.inf).median())


def _apart(out: Tensor, classes: int | None) -> Tensor:  # n *o -> n *o
    """Class scores less the mean of those that are finite; any other answer as it is."""
    if classes is None or out.ndim < 2 or out.shape[classes] == 1:
        return out
    out = out.double()
    return out - out.masked_fill(~out.isfinite(), torch.nan).nanmean(classes, keepdim=True)


def _led(
    by: nn.Module | None,
    net: nn.Module,
    x: Tensor,
    push: Tensor,
    radius: float,
    settled: Callable[[Tensor], Tensor],
    classes: int | None,
) -> Tensor:  # n *d, n *d -> n
    """How far a climb by the gradients of `by` takes the answers of the net from those to these inputs; else noise."""

    def moved(model: nn.Module, at: Tensor) -> Tensor:
        torch.manual_seed(0)
        out: Tensor = model(at)
        change: Tensor = (_apart(out, classes) - _apart(said, classes)).double().nan_to_num(0.0)
        return change.square().reshape(len(x), -1).sum(1)

    with torch.no_grad():
        torch.manual_seed(0)
        said = net(x)
    if not isinstance(said, Tensor) or said.ndim == 0:  # no answer for each input, and nothing to lead
        return torch.ones(len(x), dtype=torch.float64)
    at = settled(x + radius * push)
    if by is not None:  # half way out; but a distance has no slope at the input itself, nor on the same stair
        half = settled(x + radius * push / 2)
        with torch.no_grad():
            at = torch.where((moved(net, half) > 0).view(-1, *(1,) * (x.ndim - 1)), half, at)
    for _ in range(0 if by is None else CLIMBS):
        with torch.enable_grad():
            here = at.detach().clone().requires_grad_()
            far = moved(by or net, here).sum()
            try:
                slope = torch.autograd.grad(far, here, allow_unused=True)[0] if far.requires_grad else None
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # a way back that fails leads nowhere
                slope = None
        if slope is None:
            break
        step = 2.5 * radius / CLIMBS * slope.nan_to_num(0.0).sign()
        at = settled(torch.clamp(at + step, x - radius, x + radius))
    with torch.no_grad():
        return torch.sqrt(moved(net, at))


def _is_suspect(
    net: nn.Module, x: Tensor, far: list[Tensor], classes: int | None, rng: torch.Generator
) -> bool:  # k *d, k *d each
    """Whether the gradient of the answers themselves says so little of them that the layers are worth a look."""
    out, others = Point(0, True), []
    for at in far:
        torch.manual_seed(0)
        with torch.no_grad():
            others.append({START: at, out: net(at)})
    torch.manual_seed(0)
    with torch.enable_grad():
        at = x.clone().requires_grad_()
        values = {START: at, out: net(at)}
    if any(not isinstance(seen[out], Tensor) or seen[out].ndim == 0 for seen in (values, *others)):
        return True
    found = _error(values, others, START, out, classes, rng)
    return found is None or not found[0] < SUSPECT


def _next_gap(
    model: StraightThrough, x: Tensor, far: list[Tensor], classes: int | None, rng: torch.Generator
) -> Gap | None:
    """The first gap that is not bridged: n *d, and some of them moved away: k *d each."""
    others = []
    for at in far:
        torch.manual_seed(0)
        with torch.no_grad():
            others.append(model.watch(at)[1].values)
    torch.manual_seed(0)
    with torch.enable_grad():
        _, seen = model.watch(x[: len(far[0])].clone().requires_grad_())
    values, bridged = seen.values, {gap.point for gap in model.gaps}
    sound, answer = [START], Point(len(seen.names), False)
    for point in sorted(values, key=lambda p: (p.call, p.out)):
        if point == START or any(point not in other or other[point].shape != values[point].shape for other in others):
            continue
        source = _source(values, sound, point)
        last = point in (Point(answer.call - 1, True), answer) and answer in values
        axis = classes if last and values[point].shape == values[answer].shape else None  # of class scores
        # first from near: it goes back through a layer and not through all
        local = _error(values, others, source, point, axis, rng)
        if local is None or local[0] < BROKEN or point in bridged:
            if local is not None or _error(values, others, START, point, axis, rng) is not None:
                sound.append(point)
            continue
        errors = _error(values, others, START, point, axis, rng)
        if errors is None:
            continue
        if errors[0] < BROKEN:
            sound.append(point)
            continue
        torch.manual_seed(0)
        with torch.no_grad():
            all_values = model.watch(x, only=(source, point))[1].values
        stand_in = fitted(all_values[source], _apart(all_values[point], axis))
        if stand_in is None:
            continue
        return Gap(source, point, _where(seen.names, source, point), local[1], local[0], stand_in)
    return None


def _source(values: dict[Point, Tensor], sound: list[Point], point: Point) -> Point:
    """What a value is measured from: what went into its layer, else the last sound one of its shape, else the last."""
    if point.out and Point(point.call, False) in sound:
        return Point(point.call, False)
    alike = [p for p in sound if values[p].shape == values[point].shape]
    return (alike or sound)[-1]


def _error(
    values: dict[Point, Tensor],
    others: list[dict[Point, Tensor]],
    source: Point,
    point: Point,
    classes: int | None,
    rng: torch.Generator,
) -> tuple[float, Why] | None:
    """E of one value as a function of another, and what is wrong; None where no change of the input moves it."""
    u, v = values[source], _apart(values[point], classes)
    rows = others[0][point].shape[0]
    if len(u) != rows or len(v) != rows:
        return None
    for other in others:
        # a cell that is missing is no number, and moves nothing
        moved, by = _rows(_apart(other[point], classes) - v.detach()), _rows(other[source] - u.detach())
        if bool((moved.square().sum(1) > STILL * _rows(v).square().sum(1)).double().mean() > 0.5):
            break
    else:
        return None
    a, b, reached = [], [], False
    for _ in range(PROJECTIONS):
        w = torch.randn(v.shape, generator=rng, device=v.device).to(v)
        slope = None
        if v.requires_grad and u.requires_grad:
            (slope,) = torch.autograd.grad(v, u, w, retain_graph=True, allow_unused=True)
        reached |= slope is not None
        a.append((_rows(w) * moved).sum(1))
        b.append(torch.zeros_like(a[-1]) if slope is None else (slope.reshape(rows, -1).double() * by).sum(1))
    left, right = torch.stack(a), torch.stack(b)  # k n
    if not reached:
        return 1.0, "none"
    if bool(right.isnan().any(0).double().mean() > 0.5):
        return float("inf"), "nan"
    right = right.nan_to_num(0.0)
    there = left.square().sum(0) > 0
    ratio = ((left - right).square().sum(0)[there] / left.square().sum(0)[there]).median()
    return float(ratio.sqrt()), "zero" if not bool(right.any()) else "misleads"


def _rows(v: Tensor) -> Tensor:  # n *o -> n o
    return v.detach().reshape(len(v), -1).double().nan_to_num(0.0)


def _where(names: list[str], source: Point, point: Point) -> str:
    def name(p: Point) -> str:
        return names[p.call] if p.call < len(names) else "the answer"

    if point.out and source == Point(point.call, False):
        return f"the layer {name(point)!r}"
    begin = "the input" if source == START else repr(name(source))
    end = "the answer" if point.call >= len(names) else repr(name(point))
    return f"what lies between {begin} and {end}"
