r"""Pruned-YOLO: channels by the scale of their batch normalisation times their kernel, in one training with recovery.

    theta_i = |gamma_i| sum_{t in filter i} |t|
    loss + lambda(e) sum |gamma|,    lambda(e) rises from 0, then falls as a cosine to `end` of its most
    soft mask before an epoch:  |gamma_i| < mean |gamma| / 5  ->  gamma_i / 10

All channels are ranked together and the lowest share goes; a network goes through several rounds of training and
removal. A large lambda early makes scales small, a small one late lets the network recover, so that no fine-tuning
comes after.

Source: Zhang, Wang, Zhao and Su, "Pruned-YOLO: Learning Efficient Object Detector Using Model Pruning", ICANN 2021,
    eq. 1, sec. 3.2; its public code (jiachengjiacheng/Pruned-YOLO), which does otherwise in five things, each a setting
    here: the mean of |t| for the sum, an `end` of 0.2 for 0, a soft mask of every second epoch that also scales the
    shift and the running moments, at least a tenth of a layer's channels and two, and channels that are added to each
    other removed each by its own rank.
Departs from both: layers whose outputs are added lose the same channels, the lowest by the sum of their theta (print
    says only how many, the code lets each lose its own, so that channels are added that never were before:
    `own_lowest`). The mean of gamma is read as the mean of |gamma|.

Two facts pull theta apart from what a channel does. With eps = 0, a filter times s leaves the network as it is and
multiplies theta by s; a filter times s with gamma / s leaves theta as it is and divides the channel by s. |gamma| alone
follows the function. Theta makes sense only where weight decay ties the size of a kernel to its use.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.fusion import fuse_conv_bn_eval

from assay.errors import AssayError
from assay.methods.compress.fading import by_output, order

if TYPE_CHECKING:
    from assay.methods.compress.surgery import Edge

Score = Literal["sum", "mean", "gamma"]
SoftMask = Literal["paper", "code", "off"]
NORMS: dict[int, type[_BatchNorm]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
LOW, SMALLER = 1 / 5, 1 / 10  # of the mean |gamma|, below which a channel is masked; what is left of it


def theta(gamma: Tensor, kernel: Tensor, by: Score = "sum") -> Tensor:  # c, c *k -> c
    """How much a channel is worth: |gamma| times the sum (paper) or the mean (code) of its kernel, or |gamma| alone."""
    if by not in get_args(Score):
        raise AssayError(f"There is no score {by!r}; choose one of {', '.join(get_args(Score))}.")
    size = kernel.detach().abs().flatten(1)
    worth = gamma.detach().abs()
    return worth if by == "gamma" else worth * (size.sum(1) if by == "sum" else size.mean(1))


def price(done: Tensor, *, most: float, warm_up: float = 0.05, end: float = 0.0) -> Tensor:  # share of a training: *
    """lambda: a straight line up to `most` over the share `warm_up`, then a cosine down to `end` of it; 0 <= done <= 1.

    `warm_up=0, end=0.2` is the public code's; `end=1` a constant after the warm-up.
    """
    if not 0 <= most < math.inf or not 0 <= warm_up < 1 or not 0 <= end <= 1:
        raise AssayError(
            f"The price on scales got most={most:g}, warm_up={warm_up:g}, end={end:g}; it wants 0 or more, a share "
            "from 0 to below 1, and one from 0 to 1."
        )
    falls = end + (1 - end) * (1 + torch.cos(math.pi * ((done - warm_up) / (1 - warm_up)).clamp(0, 1))) / 2
    return most * (torch.where(done < warm_up, done / warm_up, falls) if warm_up else falls)


def batch_norms(net: nn.Module) -> list[_BatchNorm]:
    """Those with a scale that is trained; where nothing takes a gradient, nothing counts as frozen."""
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm) and module.affine]
    if not any(p.requires_grad for p in net.parameters()):
        return norms
    return [norm for norm in norms if norm.weight.requires_grad]


@torch.no_grad()
def soft_mask(norms: Sequence[_BatchNorm], way: SoftMask = "paper") -> int:
    """Make a tenth of the scales that are below a fifth of the mean; returns how many. `way="code"`: shift and running
    moments of those channels too."""
    if way == "off" or not norms:
        return 0
    limit = torch.cat([norm.weight.abs() for norm in norms]).mean() * LOW
    count = 0
    for norm in norms:
        low = norm.weight.abs() < limit
        parts: list[Tensor] = [norm.weight]
        if way == "code":
            parts += [part for part in (norm.bias, norm.running_mean, norm.running_var) if part is not None]
        for part in parts:
            part.mul_(torch.where(low, SMALLER, 1.0))
        count += int(low.sum())
    return count


def near_zero(norms: Iterable[_BatchNorm], below: float = 1e-2) -> float:
    """The share of scales that are smaller than this."""
    scales = torch.cat([norm.weight.detach().abs() for norm in norms])
    return float((scales < below).double().mean())


class Slimming(nn.Module):
    """A network whose scales are priced while it is trained: `penalty` beside the loss, `after_step` after each step.

    How far it is is a buffer, so that a training which is resumed goes on at the same price. The soft mask comes before
    each epoch but, in the code's way, the first and every second.
    """

    steps: Tensor

    def __init__(
        self,
        net: nn.Module,
        *,
        per_epoch: int,
        epochs: int,
        most: float,
        warm_up: float = 0.05,
        end: float = 0.0,
        way: SoftMask = "paper",
    ) -> None:
        super().__init__()
        self.net, self.norms = net, batch_norms(net)
        if not self.norms:
            raise AssayError(
                f"{type(net).__name__} has no batch normalisation with a scale that is trained, by which channels are "
                "ranked here; choose a remedy that ranks by weights."
            )
        if way not in get_args(SoftMask):
            raise AssayError(f"There is no soft mask {way!r}; choose one of {', '.join(get_args(SoftMask))}.")
        self.per_epoch, self.epochs, self.way = per_epoch, epochs, way
        self.most, self.warm_up, self.end = most, warm_up, end
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=self.norms[0].weight.device))
        if way == "paper":
            soft_mask(self.norms, way)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out

    @property
    def price(self) -> Tensor:  # ()
        """lambda now."""
        done = self.steps / (self.per_epoch * self.epochs)
        return price(done, most=self.most, warm_up=self.warm_up, end=self.end)

    def penalty(self) -> Tensor:  # -> ()
        """lambda sum |gamma|; its gradient is lambda sign(gamma)."""
        return self.price * torch.stack([norm.weight.abs().sum() for norm in self.norms]).sum()

    def after_step(self) -> None:
        self.steps.add_(1)
        self.mask_between_epochs()

    def mask_between_epochs(self) -> None:
        epoch, rest = divmod(int(self.steps), self.per_epoch)
        if rest == 0 and epoch < self.epochs and (self.way == "paper" or epoch % 2 == 0):
            soft_mask(self.norms, self.way)


class Writer(NamedTuple):
    """A layer with a batch normalisation right behind it, and what each channel that it writes is worth."""

    layer: str
    worth: Tensor  # c


def writers(net: nn.Module, edges: Sequence[Edge], example: Tensor, by: Score = "sum") -> dict[str, list[Writer]]:
    """Of each edge the layers that can be ranked; edges that have none are left out, and stay whole."""
    feeds = order(net, example).feeds
    behind = {layer: norm for norm, layer in feeds.items() if isinstance(net.get_submodule(norm), _BatchNorm)}
    groups: dict[str, list[Writer]] = {}
    for edge in edges:
        for layer in (*edge.writers, *edge.norms):
            norm = net.get_submodule(behind[layer]) if layer in behind else None
            if isinstance(norm, _BatchNorm) and norm.affine:
                each = theta(norm.weight, by_output(net.get_submodule(layer)), by).float().cpu()
                places = edge.outputs[layer].cpu()
                worth = torch.zeros(edge.size).index_add_(0, places[places >= 0], each[places >= 0])
                groups.setdefault(edge.name, []).append(Writer(layer, worth))
    return groups


def least(size: int, share: float = 0.1) -> int:
    """As few channels as a layer may have left: the public code's max(2, a tenth), but never more than it has."""
    return min(size, max(2, math.ceil(share * size)))


def lowest(groups: Mapping[str, Sequence[Writer]], rate: float, *, at_least: float = 0.1) -> dict[str, Tensor]:
    """Which channels of each group go, as booleans, where the lowest `rate` of all channels of all writers do.

    A group is what is added to each other, most often one layer alone. It loses as many channels as its writers have
    below the common threshold, divided equally among them; which, the sum of their theta says.
    """
    if not 0 <= rate < 1:
        raise AssayError(f"A rate of {rate:g} of the channels cannot go; give one from 0 to below 1, such as 0.5.")
    gone: dict[str, Tensor] = {}
    for name, count in counts(groups, rate, at_least=at_least).items():
        total = torch.stack([writer.worth for writer in groups[name]]).sum(0)
        gone[name] = _first(total, count)
    return gone


def own_lowest(groups: Mapping[str, Sequence[Writer]], rate: float, *, at_least: float = 0.1) -> dict[str, Tensor]:
    """As `lowest`, but each writer's own channels, by the name of its layer: the public code's reading.

    What is left of two writers is then added in its order, whatever was added before.
    """
    many = counts(groups, rate, at_least=at_least)
    return {writer.layer: _first(writer.worth, many[name]) for name, some in groups.items() for writer in some}


def counts(groups: Mapping[str, Sequence[Writer]], rate: float, *, at_least: float = 0.1) -> dict[str, int]:
    """How many channels each group loses."""
    every = torch.cat([writer.worth for some in groups.values() for writer in some])
    order = every.argsort(stable=True)
    low = torch.zeros_like(every, dtype=torch.bool)
    low[order[: math.floor(rate * len(every) + 1e-9)]] = True
    many, at = {}, 0
    for name, some in groups.items():
        size = len(some[0].worth)
        end = at + size * len(some)
        share = int(low[at:end].sum()) / len(some)
        many[name] = min(math.floor(share + 0.5), size - least(size, at_least))
        at = end
    return many


def rearranged(
    net: nn.Module, edges: Sequence[Edge], gone: Mapping[str, Tensor], example: Tensor
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy in which the channels that each layer keeps come first, and which channels of each edge then stay.

    `gone` is by layer (`own_lowest`). What follows one layer moves with it; what reads a sum, with the last layer that
    was added before it is run. Cut it, and it is the public code's network.
    """
    runs = order(net, example)
    net = copy.deepcopy(net)
    keep: dict[str, Tensor] = {}
    for edge in edges:
        own = [layer for layer in runs.layers if layer in gone and layer in (*edge.writers, *edge.norms)]
        if not own:
            continue
        moved = {layer: torch.cat([(~gone[layer]).nonzero()[:, 0], gone[layer].nonzero()[:, 0]]) for layer in own}
        keep[edge.name] = torch.arange(edge.size) < int((~gone[own[0]]).sum())
        for name in dict.fromkeys((*edge.writers, *edge.norms, *edge.readers)):
            at = runs.feeds.get(name, name)
            before = [layer for layer in own if layer == at] or [
                layer for layer in own if at in runs.layers and runs.layers.index(layer) < runs.layers.index(at)
            ]
            to = moved[(before or own)[-1]]
            module = net.get_submodule(name)
            if name in edge.outputs:
                _move(module, edge.outputs[name], to, 0)
            if name in edge.readers:
                _move(module, edge.inputs[name], to, 1)
    return net, keep


def _first(worth: Tensor, count: int) -> Tensor:  # c -> c
    gone = torch.zeros(len(worth), dtype=torch.bool)
    gone[worth.cpu().argsort(stable=True)[:count]] = True
    return gone


@torch.no_grad()
def _move(module: nn.Module, places: Tensor, to: Tensor, axis: int) -> None:
    """Put what stands at channel to[c] to channel c, of outputs (axis 0) or of inputs (axis 1)."""
    real = (places >= 0).nonzero()[:, 0].cpu()
    table = real[places.cpu()[real].argsort(stable=True)].view(len(to), -1)  # the places of each channel: c r
    index = torch.arange(len(places))
    index[table] = table[to]
    swapped = isinstance(module, _ConvTransposeNd)
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        along = (1 - axis if swapped else axis) if name == "weight" and tensor.ndim > 1 else 0
        if (axis == 0 or name == "weight") and tensor.ndim > along and tensor.shape[along] == len(places):
            tensor.copy_(tensor.index_select(along, index.to(tensor.device)))


@torch.no_grad()
def with_norms(net: nn.Module, x: Tensor) -> nn.Module:
    """A copy with a batch normalisation right behind each convolution that is `foldable` and has none there yet.

    It begins with the moments of that convolution's answers to `x` and undoes itself, gamma = std and beta = mean, so
    that in eval mode the copy answers as `net` does.
    """
    runs = order(net, x)
    can = foldable(net)
    bare = [name for name in runs.layers if name in can and name not in runs.feeds.values()]
    net = copy.deepcopy(net).eval()
    heard: dict[str, Tensor] = {}
    hooks = [
        net.get_submodule(name).register_forward_hook(
            lambda module, given, out, name=name: heard.update({name: out.detach()})
        )
        for name in bare
    ]
    net(x)
    for hook in hooks:
        hook.remove()
    for name in bare:
        layer, out = net.get_submodule(name), heard[name]
        assert isinstance(layer, _ConvNd)
        norm = NORMS[len(layer.kernel_size)](layer.out_channels).to(out).eval()
        var, mean = torch.var_mean(out.transpose(0, 1).flatten(1), dim=1, correction=0)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(var)
        norm.bias.copy_(mean)
        norm.weight.copy_((var + norm.eps).sqrt())
        parent, _, last = name.rpartition(".")
        setattr(net.get_submodule(parent), last, Normed(layer, norm))
    return net


class Normed(nn.Sequential):
    """A convolution with the batch normalisation that `with_norms` put behind it."""

    def __init__(self, layer: _ConvNd, norm: _BatchNorm) -> None:
        super().__init__(layer, norm)


def folded(net: nn.Module) -> nn.Module:
    """A copy in which each `Normed` is one convolution again, that answers as both did in eval mode."""
    net = copy.deepcopy(net).eval()
    for name, module in list(net.named_modules()):
        if isinstance(module, Normed):
            layer, norm = module
            assert isinstance(layer, _ConvNd)
            assert isinstance(norm, _BatchNorm)
            trained = layer.weight.requires_grad
            one = fuse_conv_bn_eval(layer, norm, transpose=isinstance(layer, _ConvTransposeNd))
            parent, _, last = name.rpartition(".")
            setattr(net.get_submodule(parent), last, one.requires_grad_(trained))
    return net


def foldable(net: nn.Module) -> list[str]:
    """Convolutions with a bias that `with_norms` can put a batch normalisation behind, and `folded` take it out again.

    None that is frozen: what a normalisation behind it learnt would be folded into its weights.
    """
    some = any(p.requires_grad for p in net.parameters())  # else nothing counts as frozen

    def can(layer: nn.Module) -> bool:
        if not isinstance(layer, _ConvNd) or layer.bias is None:
            return False
        grouped = isinstance(layer, _ConvTransposeNd) and layer.groups > 1
        return not grouped and (not some or (layer.weight.requires_grad and layer.bias.requires_grad))

    return [name for name, layer in net.named_modules() if can(layer)]
