r"""RIAP: zeros are padded early in a run of convolutions, so that a pixel at the border counts as much as an inner one.

A run of l convolutions that keep the size of a map, with the reaches n_1 .. n_l (n = dilation (kernel - 1) / 2), pads
n_s zeros a side before layer s. Here the map goes beyond the border by e_s pixels a side after layer s instead,

    e_s  =  min( n_1 + .. + n_s,  n_{s+1} + .. + n_l ),        pad before layer s:   p_s  =  e_s - e_{s-1} + n_s

as far as the image has spread, or as is still of use: whichever is less. With equal reaches these are the printed
paddings: 2n in the first l // 2 layers, n in the middle one where l is odd, 0 in the others. Without biases, and with
activations that leave 0 as it is, the run gives what it gives if the image is padded once by n_1 + .. + n_l and no
layer pads at all; then every pixel has the same influence on the answer at its own place, which stays largest there.
With biases or batch normalisation that is only nearly so from three layers on: padded zeros stand where such an image
would carry biases. A run of two is padded once, and equal with either.

Source: Li, Poon and Yang, "RIAP: A Method for Effective Receptive Field Rectification", ICANN 2021, sec. 4.1.
Wider than print: reaches may differ within a run and along the axes. Print leaves pooling and skip connections to
    words; here a run ends where the map is pooled, strided, joined or used twice, so that nothing else need change.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules import activation, batchnorm, dropout, instancenorm

from assay.errors import AssayError

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
POINTWISE = (  # modules that take a map of any size and hand on one of the same size, position by position
    nn.Identity, nn.GroupNorm, batchnorm._BatchNorm, instancenorm._InstanceNorm, dropout._DropoutNd,
    activation.ReLU, activation.LeakyReLU, activation.ELU, activation.SELU, activation.CELU, activation.GELU,
    activation.SiLU, activation.Mish, activation.Tanh, activation.Sigmoid, activation.Softplus, activation.PReLU,
    activation.Hardtanh, activation.Hardswish, activation.Hardsigmoid,
)  # fmt: skip
FUNCTIONS = {
    torch.relu, torch.tanh, torch.sigmoid, torch.clamp, F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu,
    F.mish, F.tanh, F.sigmoid, F.softplus, F.hardtanh, F.hardswish, F.dropout, F.dropout2d, F.batch_norm, operator.pos,
}  # fmt: skip
METHODS = {"relu", "relu_", "tanh", "sigmoid", "clamp", "clamp_", "clamp_min", "contiguous"}


def paddings(reaches: Sequence[int]) -> list[int]:
    """The zeros that each layer of a run pads on either side, from the reach of each."""
    if min(reaches, default=-1) < 0:
        raise AssayError(f"paddings got the reaches {list(reaches)}; give one of at least 0 for each layer of a run.")
    whole = sum(reaches)
    beyond = [min(done, whole - done) for done in accumulate(reaches, initial=0)]  # e_0 .. e_l
    return [beyond[s + 1] - beyond[s] + n for s, n in enumerate(reaches)]


def runs(net: nn.Module) -> list[list[str]]:
    """The convolutions that follow one another at one size, by name, where RIAP pads otherwise than they do.

    Between two of a run stand only normalisations, activations and dropout, and nothing else reads what lies between. A
    network whose forward pass cannot be followed without running it (it branches on values) is followed part by part.
    """
    modules = dict(net.named_modules())
    whole = [run for part, prefix in _followed(net) for run in _chains(part, prefix, modules)]
    return [run for run in whole if sum(max(_reach(modules[name]) or (0,)) > 0 for name in run) > 1]


def with_riap(net: nn.Module) -> nn.Module:
    """A copy of `net`, with its weights under their names, whose runs of convolutions pad as RIAP does."""
    if (why := why_not(net)) is not None:
        raise AssayError(f"RIAP has nothing to pad in {type(net).__name__}: {why}.")
    fresh = copy.deepcopy(net)
    for run in runs(net):
        layers = [fresh.get_submodule(name) for name in run]
        reaches = zip(*(_reach(layer) or () for layer in layers), strict=True)  # for each axis, those of all layers
        for layer, pads in zip(layers, zip(*map(paddings, reaches), strict=True), strict=True):
            assert isinstance(layer, CONVOLUTIONS)
            layer.padding = pads
    return fresh


def why_not(net: nn.Module) -> str | None:
    """What a network lacks for it, in words, or None."""
    if runs(net):
        return None
    convolutions = [module for module in net.modules() if isinstance(module, CONVOLUTIONS)]
    if not convolutions:
        return "it has no convolution"
    strided = sum(max(_pair(module.stride)) > 1 for module in convolutions)
    bare = sum(_reach(module) is None for module in convolutions) - strided
    told = [f"{strided} of its {len(convolutions)} convolutions have a stride" if strided else ""]
    told += [f"{bare} of {len(convolutions)} do not pad zeros to the same size" if bare else ""]
    more = "; ".join(filter(None, told))
    return f"no two of its convolutions follow one another at one size{f' ({more})' if more else ''}"


def _pair(numbers: int | Sequence[int]) -> tuple[int, ...]:  # of a stride that others have set, which may be a list
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)


def _reach(module: nn.Module) -> tuple[int, ...] | None:
    """How far each side of the kernel reaches, along each axis; None of what does not pad zeros to the same size."""
    if not isinstance(module, CONVOLUTIONS) or module.padding_mode != "zeros" or max(_pair(module.stride)) > 1:
        return None
    if any(k % 2 == 0 for k in module.kernel_size):
        return None
    reach = tuple(d * (k - 1) // 2 for k, d in zip(module.kernel_size, module.dilation, strict=True))
    return reach if module.padding in ("same", reach) else None


def _followed(net: nn.Module, prefix: str = "") -> Iterator[tuple[fx.Graph, str]]:
    """The data flow of the network, or of the largest parts of it whose flow can be told."""
    if not any(isinstance(module, CONVOLUTIONS) for module in net.modules()) or isinstance(net, CONVOLUTIONS):
        return
    try:
        yield fx.Tracer().trace(copy.deepcopy(net)), prefix
    except Exception:  # whatever a forward pass does with what is no tensor
        for name, child in net.named_children():
            yield from _followed(child, f"{prefix}{name}.")


def _chains(graph: fx.Graph, prefix: str, modules: dict[str, nn.Module]) -> Iterator[list[str]]:
    """Longest chains of convolutions that keep the size, by name."""
    called = [prefix + str(node.target) for node in graph.nodes if node.op == "call_module"]

    def name_of(node: fx.Node) -> str | None:
        name = prefix + str(node.target)
        own = node.op == "call_module" and called.count(name) == 1  # one padding cannot serve two places
        return name if own and _reach(modules[name]) is not None else None

    def is_pointwise(node: fx.Node) -> bool:
        if node.op == "call_module":
            return isinstance(modules[prefix + str(node.target)], POINTWISE)
        return node.target in (FUNCTIONS if node.op == "call_function" else METHODS if node.op == "call_method" else ())

    def before(node: fx.Node) -> fx.Node | None:
        """The convolution whose output this one alone reads, through pointwise layers."""
        at = node
        while True:
            given = [each for each in at.all_input_nodes if each.op != "get_attr"]
            if len(given) != 1 or len(given[0].users) != 1:
                return None
            at = given[0]
            if name_of(at) is not None:
                return at
            if not is_pointwise(at):
                return None

    ends: dict[fx.Node, list[str]] = {}  # the last convolution of each chain so far
    for node in graph.nodes:
        name = name_of(node)
        if name is not None:
            previous = before(node)
            ends[node] = [*(ends.pop(previous, []) if previous is not None else []), name]
    yield from ends.values()
