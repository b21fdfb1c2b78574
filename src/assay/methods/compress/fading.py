r"""BFRIFP: any filters fade out while a network is trained on, and those that stay take over.

    f_j = BN_l(w_j * F)              where filter j of layer l stays,
    f_j = BN_l(w_j * F) D(l, e)      where it fades,
    D(l, e) = exp( min( -lambda_e e + lambda_l (n - l) / n, 0 ) ),    l = 1 .. n from the bottom, e epochs done

What fades is frozen, or it would grow against D. Where D < 0.01 a layer is dead: its faded outputs are 0, or noise of
0.01 N(0, 1) (random firing, RFPN). With the defaults the top is dead after 2.3 epochs, the bottom before 4.8.

Source: Qiu, Gu and Zhang, "BFRIFP: Brain Functional Reorganization Inspired Filter Pruning", ICANN 2021, eq. 1-3, 6.
Departs from print: e runs on within an epoch (`whole` gives print's steps of 1, 0.135, 0.018). Frozen means out of the
    optimiser's reach: with a gradient of 0 alone, weight decay and momentum still move a filter; the scale and shift
    of its batch normalisation are frozen too. Channels that are added to each other fade as one set, of which print
    says nothing. n and L of eq. 2 are read as the same number. Eq. 5 differentiates by weights that do not occur in
    it, and is not used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.methods.compress.surgery import Edge

Choice = Literal["last", "lowest-l1", "highest-l1", "random"]


@dataclass(frozen=True)
class Pace:
    """How fast layers fade, from which decay on they are dead, and how strong the noise is that dead ones fire."""

    lambda_e: float = 2.0
    lambda_l: float = 5.0
    dead: float = 0.01
    noise: float = 0.01
    whole: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.lambda_e < math.inf or not 0 <= self.lambda_l < math.inf:
            raise AssayError(
                f"Fading got lambda_e={self.lambda_e:g}, lambda_l={self.lambda_l:g}; it wants one above 0, such as 2, "
                "and one of 0 or more, such as 5."
            )
        if not 0 < self.dead < 1 or not 0 <= self.noise < math.inf:
            raise AssayError(
                f"Fading got dead={self.dead:g}, noise={self.noise:g}; it wants a decay between 0 and 1, such as 0.01, "
                "and 0 or more."
            )

    def decay(self, layer: Tensor, layers: int, epoch: Tensor) -> Tensor:  # l, () -> l
        """D(l, e); `layer` counts from 1 at the bottom to `layers` at the top."""
        e = epoch.floor() if self.whole else epoch
        return (-self.lambda_e * e + self.lambda_l * (layers - layer) / layers).clamp_max(0).exp()

    def length(self, layers: int) -> float:
        """Epochs until every layer is dead."""
        return (-math.log(self.dead) + self.lambda_l * (layers - 1) / layers) / self.lambda_e


def ranked(l1: Tensor, by: Choice = "last", *, rng: torch.Generator | None = None) -> Tensor:  # c -> c
    """The rank of each channel, as a score: the lowest fade first.

    `l1` is the sum of |w| of each channel's filters, over all layers that write it. "last" is print's choice: the
    order of channels means nothing, so that it is any choice.
    """
    if by not in get_args(Choice):
        raise AssayError(f"There is no choice {by!r} of filters; choose one of {', '.join(get_args(Choice))}.")
    if by == "last":
        return torch.arange(len(l1)).flip(0).double()
    if by == "random":
        return torch.randperm(len(l1), generator=rng).double()
    return l1.cpu().argsort(descending=by == "highest-l1", stable=True).argsort().double()


def faded(l1: Tensor, share: float, by: Choice = "last", *, rng: torch.Generator | None = None) -> Tensor:  # c -> c
    """Which channels fade, as booleans: `share` of them, rounded, but never all."""
    if not 0 <= share < 1:
        raise AssayError(f"A share of {share:g} of the channels cannot fade; give one from 0 to below 1, such as 0.5.")
    return ranked(l1, by, rng=rng) < min(len(l1) - 1, math.floor(share * len(l1) + 0.5))


class Place(NamedTuple):
    """Where channels fade: behind a module, or before it (`entering`), as a layer of this number."""

    module: str
    gone: Tensor  # c bool, along the axis of channels
    layer: int
    entering: bool


class Held(NamedTuple):
    """What of a parameter is frozen."""

    parameter: str
    gone: Tensor  # bool, of the parameter's dimensions


class Plan(NamedTuple):
    """What fades where, as which of so many layers, and what stays as it is meanwhile."""

    places: tuple[Place, ...]
    held: tuple[Held, ...]
    layers: int


def plan(net: nn.Module, edges: Sequence[Edge], gone: Mapping[str, Tensor], example: Tensor) -> Plan:
    """Layers are those that write what `edges` join, numbered as they are run; `gone` are channels by their edge.

    Channels fade behind the normalisations that follow their layers, which would undo a scale before them. Where a
    layer has none right behind it, they fade before the layers that read them.
    """
    run = order(net, example)
    writes = {name for edge in edges for name in (*edge.writers, *edge.norms) if name in run.layers}
    number = {name: i for i, name in enumerate((name for name in run.layers if name in writes), 1)}
    modules = dict(net.named_modules())
    places: list[Place] = []
    held: list[Held] = []
    for edge in edges:
        out = gone.get(edge.name)
        if out is None or not out.any():
            continue
        own = [name for name in (*edge.writers, *edge.norms) if name in number]
        behind = {name: norm for norm, name in run.feeds.items() if norm in edge.norms}
        if all(name in behind for name in own):
            places += [Place(behind[name], at(edge.outputs[behind[name]], out), number[name], False) for name in own]
        else:
            first = min(number[name] for name in own)
            places += [Place(name, at(edge.inputs[name], out), first, True) for name in edge.readers]
        for name in (*edge.writers, *edge.norms):
            held += _held(name, modules[name], at(edge.outputs[name], out))
    return Plan(tuple(places), tuple(held), len(number))


def at(places: Tensor, gone: Tensor) -> Tensor:  # p, c -> p
    """Channels that are gone, place by place of a module; -1 is a place of others."""
    return gone.to(places.device)[places.clamp_min(0)] & (places >= 0)


class Order(NamedTuple):
    """Convolutions and Linears as they are run, and for each normalisation right behind one of them, which."""

    layers: tuple[str, ...]
    feeds: Mapping[str, str]


@torch.no_grad()
def order(net: nn.Module, example: Tensor) -> Order:
    """By one pass of a copy of the network over `example`."""
    net = copy.deepcopy(net).eval()
    layers: list[str] = []
    feeds: dict[str, str] = {}
    from_: list[tuple[Tensor, str]] = []  # holds the tensors, so that none takes another's place

    def ran(name: str, module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        if name not in layers:
            layers.append(name)
        from_.append((out, name))

    def normalises(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs["input"]
        layer = next((layer for out, layer in from_ if out is given), None)
        if layer is not None:
            feeds[name] = layer

    for name, module in net.named_modules():
        if isinstance(module, _ConvNd | nn.Linear):
            module.register_forward_hook(partial(ran, name))
        elif isinstance(module, _NormBase):
            module.register_forward_pre_hook(partial(normalises, name), with_kwargs=True)
    net(example)
    return Order(tuple(layers), feeds)


def strength(net: nn.Module, edge: Edge) -> Tensor:  # -> c
    """The sum of |w| of each channel's filters, over all layers that write it."""
    total = torch.zeros(edge.size)
    for name in edge.writers:
        size = by_output(net.get_submodule(name)).abs().flatten(1).sum(1).cpu()
        places = edge.outputs[name].cpu()
        total.index_add_(0, places[places >= 0], size[places >= 0])
    return total


def nearer(begun: nn.Module, small: nn.Module, edges: Sequence[Edge], gone: Mapping[str, Tensor]) -> list[float]:
    """Of each convolution, how far its kept filters are from those that are gone: W_2 at the end over W_2 at the start.

    `small` is what was trained and cut. Filters are compared by the inputs that are left. A distance that falls shows
    no hand-over by itself: filters that only shrink come nearer too.
    """
    ratios = []
    for edge in edges:
        for name in edge.writers:
            layer, now = begun.get_submodule(name), dict(small.named_modules()).get(name)
            out = at(edge.outputs[name], gone[edge.name]).cpu()
            if not isinstance(layer, _ConvNd) or not isinstance(now, _ConvNd) or layer.groups > 1 or not out.any():
                continue
            weight = by_output(layer).cpu()  # o i *k
            away = torch.zeros(weight.shape[1], dtype=torch.bool)
            for other in edges:
                if name in other.readers:
                    away |= at(other.inputs[name], gone[other.name]).cpu()
            left = weight[:, ~away]
            far = wasserstein2(left[~out], left[out])
            if far > 0:
                ratios.append(wasserstein2(by_output(now), left[out]) / far)
    return ratios


def facing(net: nn.Module, edges: Sequence[Edge], gone: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of all weights that read what is gone: those by which others could make up for a decay."""
    total = 0.0
    for edge in edges:
        for name in edge.readers if edge.name in gone else ():
            module = net.get_submodule(name)
            weight = by_output(module).detach().double().transpose(0, 1)  # i o *k
            away = at(edge.inputs[name], gone[edge.name]).to(weight.device)
            if len(away) == len(weight):  # of a grouped convolution each reads a part
                total += float(weight[away].square().sum())
    return math.sqrt(total)


def by_output(layer: nn.Module) -> Tensor:  # -> o *k
    """The weights of a convolution or a Linear, one row for each output channel."""
    weight: Tensor = layer.get_parameter("weight").detach()
    if not isinstance(layer, _ConvTransposeNd):
        return weight
    parts = weight.reshape(layer.groups, -1, *weight.shape[1:]).transpose(1, 2)  # g o/g i/g *k
    return parts.flatten(0, 1)


def _held(name: str, module: nn.Module, out: Tensor) -> Iterator[Held]:
    """Of a layer or what follows one: all that makes these outputs."""
    for part, parameter in module.named_parameters(recurse=False):
        if part == "weight" and isinstance(module, _ConvTransposeNd):
            each = out.view(module.groups, 1, -1).expand(-1, len(parameter) // module.groups, -1)  # g i/g o/g
            away = each.flatten(0, 1).reshape(*parameter.shape[:2], *[1] * (parameter.ndim - 2))
        elif len(parameter) == len(out):
            away = out.view(-1, *[1] * (parameter.ndim - 1))
        else:
            continue  # one number for all channels, as a PReLU may have
        yield Held(f"{name}.{part}", away)


class Fading(nn.Module):
    """A network that fades while it is trained; `after_step` after each step of the optimiser, `faded_out` at the end.

    How far it is is a buffer, so that a training which is resumed goes on at the same decay. In eval mode nothing
    fires. The noise comes from torch's own generators. Without `freezes` what fades is trained on.
    """

    steps: Tensor

    def __init__(
        self,
        net: nn.Module,
        plan: Plan,
        *,
        per_epoch: int,
        pace: Pace | None = None,
        fires: bool = True,
        freezes: bool = True,
    ) -> None:
        super().__init__()
        self.net, self.pace, self.layers = net, pace or Pace(), plan.layers
        self.per_epoch, self.fires = per_epoch, fires
        here = next(net.parameters()).device
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=here))
        numbers = torch.tensor([float(place.layer) for place in plan.places], device=here)
        self.register_buffer("numbers", numbers, persistent=False)
        self._decay = torch.ones(len(plan.places), device=here)
        self._hooks = []
        for i, place in enumerate(plan.places):
            self.register_buffer(f"gone_{i}", place.gone.to(here))  # kept: another choice is another training
            module = net.get_submodule(place.module)
            if place.entering:
                self._hooks.append(module.register_forward_pre_hook(partial(self._enters, i)))
            else:
                self._hooks.append(module.register_forward_hook(partial(self._leaves, i)))
        self._held = [held.parameter for held in plan.held] if freezes else []
        for i, name in enumerate(self._held):
            self.register_buffer(f"away_{i}", plan.held[i].gone.to(here), persistent=False)
            self.register_buffer(f"held_{i}", net.get_parameter(name).detach().clone(), persistent=False)

    @property
    def epoch(self) -> Tensor:  # ()
        return self.steps / self.per_epoch

    def decays(self) -> Tensor:  # -> places
        """D of each place now."""
        return self.pace.decay(self.get_buffer("numbers"), self.layers, self.epoch)

    def forward(self, x: Tensor) -> Tensor:
        self._decay = self.decays()
        out: Tensor = self.net(x)
        return out

    def after_step(self) -> None:
        """Put back what is frozen, and count."""
        self.hold()
        self.steps.add_(1)

    @torch.no_grad()
    def hold(self) -> None:
        """Put back what is frozen, to the bit."""
        for i, name in enumerate(self._held):
            parameter = self.net.get_parameter(name)
            parameter.copy_(torch.where(self.get_buffer(f"away_{i}"), self.get_buffer(f"held_{i}"), parameter))

    def faded_out(self) -> nn.Module:
        """The network itself, without what was put around it; cut what faded out of it."""
        self.hold()
        for hook in self._hooks:
            hook.remove()
        return self.net

    def _fade(self, i: int, x: Tensor, axis: int) -> Tensor:
        d, gone = self._decay[i], self.get_buffer(f"gone_{i}")
        dead = d < self.pace.dead
        shape = [1] * x.ndim
        shape[axis] = -1
        gain = d.masked_fill(dead, 0.0).expand(len(gone)).masked_fill(~gone, 1.0).to(x.dtype).view(shape)
        if not (self.fires and self.training):
            return x * gain
        noise = self.pace.noise * (gone & dead).to(x.dtype).view(shape)
        return x * gain + noise * torch.randn_like(x)

    def _leaves(self, i: int, module: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
        return self._fade(i, out, 1)

    def _enters(self, i: int, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._fade(i, given[0], -1 if isinstance(module, nn.Linear) else 1), *given[1:]


def wasserstein2(kept: Tensor, gone: Tensor, *, as_published: bool = False) -> float:  # n *d, m *d
    r"""2-Wasserstein distance of two sets of filters, each a point of equal weight.

        W_2 = min_pi ( sum_ij pi_ij ||x_i - y_j||^2 )^(1/2),    rows of pi sum to 1/n, columns to 1/m

    of n = m points the best pairing, sqrt(mean ||x_i - y_pi(i)||^2). Eq. 6 has the root of the mean norm, without the
    square; `as_published` gives that.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment, linprog
    from scipy.sparse import csr_array, eye_array, kron, vstack

    if not len(kept) or not len(gone):
        raise AssayError(
            f"There is no distance between {len(kept)} and {len(gone)} filters; give at least one of each."
        )
    x, y = (part.detach().double().flatten(1).cpu() for part in (kept, gone))
    far = (torch.cdist(x, y) ** (1 if as_published else 2)).numpy()  # n m
    n, m = far.shape
    if n == m:
        return math.sqrt(far[linear_sum_assignment(far)].mean())
    ones = [csr_array(np.ones((1, k))) for k in (n, m)]
    sums = vstack([kron(eye_array(n), ones[1]), kron(ones[0], eye_array(m))])
    told = linprog(far.ravel(), A_eq=sums, b_eq=np.r_[np.full(n, 1 / n), np.full(m, 1 / m)], method="highs")
    return math.sqrt(max(0.0, float(told.fun)))
