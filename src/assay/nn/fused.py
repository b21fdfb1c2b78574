r"""A convolution, what is added to it and the ReLU behind it as one kernel, and all that is masked on its way back too.

    out = relu( W x + b + z ),        dz = (v_1 + v_2 + ...) [out > 0],        dx = W^T dz

with z the other branch of a residual block, or nothing, and v_i what comes back from each of those who take `out`. Step
by step every sum and every ReLU reads and writes all of a layer once more, and of the passes of a ResNet-18 on 32 x 32
pixels that is a third of the time of an H200. cuDNN has the first line as one kernel, the sum and its mask are another.
At stride 1 the way back is a convolution too, with W turned round, which has the better kernels.

A first layer of one or three channels is filled up with zeros: without that no tensor core takes it, and 32 channels
have better kernels than the least, which is eight. There and back through the first layer of 9,216 images on an H200:
32 x 32 and 64 filters 2.9 in place of 3.2 ms, 28 x 28 and 32 filters 1.7 in place of 2.3, 32 x 32 at stride 2 and 32
filters 1.3 in place of 1.7.

A convolution of single pixels that passes some by, as where the channels of a block change, takes its pixels first. Of
the 55 ms of a ResNet-18 and of its way back, 9,216 images, a profile found 3.5 in one convolution without tensor cores,
with putting things in another order of memory and back; by what it reads and writes it is that of 64 channels.

torch.fx reads what follows what; of a model that it cannot read as a whole it reads the parts. Only gradients with
respect to inputs are given: weights are held. Convolutions of groups have kernels of their own and stay as they are.
Elsewhere than on CUDA the same is computed step by step. Of a layer that lies channels-last torch gives no view as
rows, so that each `view` becomes a `reshape`.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

from assay.nn.folded import hooked

CHANNELS = 8  # a tensor core takes a multiple of so many
FILLED = 32  # channels of a first layer, which has fewer
LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # a model may walk through them: they stay what they are
RELUS: tuple[Any, ...] = (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
SUMS: tuple[Any, ...] = (operator.add, operator.iadd, torch.add, "add", "add_")


def fused(model: nn.Module) -> nn.Module:
    """A copy of a model in eval mode whose convolutions are fused with what follows them, where they can be.

    It is not held against the model here: who copies, compares.
    """
    held = copy.deepcopy(model)
    try:
        return _rewritten(held, fx.Tracer().trace(held))
    except Exception:  # whatever a stranger's model does when it is traced
        return _in_parts(copy.deepcopy(model))  # the other may have kept what the tracer showed it


def _in_parts(held: nn.Module) -> nn.Module:
    for name, child in held.named_children():
        if isinstance(child, LISTS):
            _in_parts(child)
        elif any(True for _ in child.children()):
            held.set_submodule(name, fused(child))
    return held


class ConvRelu(nn.Module):
    """relu( conv(x) + z ), given to each of so many `takers` by itself, so that what they pull back comes apart."""

    weight: Tensor  # k c+ a b
    bias: Tensor | None  # k
    turned: Tensor | None  # c+ k a b

    def __init__(self, conv: nn.Conv2d, takers: int, bias: Tensor | None) -> None:
        super().__init__()
        assert not isinstance(conv.padding, str)
        few = conv.in_channels < CHANNELS
        self.takers, self.spare = takers, FILLED - conv.in_channels if few else -conv.in_channels % CHANNELS
        self.how = (conv.stride, conv.padding, conv.dilation)
        room = tuple(d * (k - 1) - p for d, k, p in zip(conv.dilation, conv.kernel_size, conv.padding, strict=True))
        self.back = (1, room, conv.dilation) if conv.stride == (1, 1) and min(room) >= 0 else None
        weight = F.pad(conv.weight.detach(), (0, 0, 0, 0, 0, self.spare))
        last = conv.weight.is_contiguous(memory_format=torch.channels_last)
        laid = torch.channels_last if last else torch.contiguous_format
        turned = None if self.back is None else weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=laid)
        self.register_buffer("weight", weight.contiguous(memory_format=laid))
        self.register_buffer("bias", bias)
        self.register_buffer("turned", turned)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Any:  # n c h w, n k h' w' -> n k h' w', or some of them
        kind = self.weight.dtype
        x, z = x.to(kind), None if z is None else z.to(kind)
        x = F.pad(x, (0, 0, 0, 0, 0, self.spare)) if self.spare else x
        outs = _ConvRelu.apply(x, z, self)  # type: ignore[no-untyped-call]
        return outs if self.takers > 1 else outs[0]


class _ConvRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor | None, layer: ConvRelu) -> tuple[Tensor, ...]:  # type: ignore[override]
        weight, bias, how = layer.weight, layer.bias, layer.how
        if not x.is_cuda:
            out = F.conv2d(x, weight, bias, *how)
            out = (out if z is None else out + z).relu_()
        elif z is None:
            out = torch.cudnn_convolution_relu(x, weight, bias, *how, 1)
        else:
            out = torch.cudnn_convolution_add_relu(x, weight, z, 1.0, bias, *how, 1)
        ctx.save_for_backward(out, x if layer.back is None else None)
        ctx.layer, ctx.added = layer, z is not None
        ctx.set_materialize_grads(False)  # who only asks for a shape pulls nothing back
        return (out, *(out.view_as(out) for _ in range(layer.takers - 1)))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *vs: Tensor | None) -> tuple[Tensor | None, ...]:
        layer, (out, x) = ctx.layer, ctx.saved_tensors
        dz = _masked(out, *(v for v in vs if v is not None))
        if layer.back is not None:
            dx = F.conv2d(dz, layer.turned, None, *layer.back)
        else:
            dx = _pulled_back(dz, x, layer.weight, *layer.how)
        return dx, dz if ctx.added else None, None


class Sampled(nn.Module):
    """A convolution of single pixels at a stride: of the pixels that it reads, at stride 1."""

    weight: Tensor  # k c 1 1
    bias: Tensor | None  # k

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.stride = conv.stride
        self.register_buffer("weight", conv.weight.detach())
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach())

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n k h/a w/b
        out: Tensor = _Sampled.apply(x.to(self.weight.dtype), self)  # type: ignore[no-untyped-call]
        return out


class _Sampled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Sampled) -> Tensor:  # type: ignore[override]
        ctx.layer = layer
        ctx.save_for_backward(x)
        last = x.is_contiguous(memory_format=torch.channels_last)
        laid = torch.channels_last if last else torch.contiguous_format
        down, right = layer.stride
        return F.conv2d(x[:, :, ::down, ::right].contiguous(memory_format=laid), layer.weight, layer.bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, None]:
        layer, (x,) = ctx.layer, ctx.saved_tensors  # the way back has kernels, and gives dx in the order of x
        return _pulled_back(dz, x, layer.weight, layer.stride, (0, 0), (1, 1)), None


def _pulled_back(dz: Tensor, x: Tensor, weight: Tensor, *how: tuple[int, ...]) -> Tensor:
    """dx alone, neither of the weights nor of the bias; `how`: stride, padding, dilation."""
    alone = [True, False, False]
    dx, _, _ = torch.ops.aten.convolution_backward(dz, x, weight, None, *how, False, [0, 0], 1, alone)
    return dx  # type: ignore[no-any-return]


def _masked(out: Tensor, first: Tensor, *more: Tensor) -> Tensor:
    """What comes back, summed, where `out` is above 0: each n k h w -> n k h w."""
    for v in more[:-1]:
        first = first + v
    if not more:
        return torch.ops.aten.threshold_backward(first, out, 0)  # type: ignore[no-any-return]
    if out.is_cuda:
        return _sum_under_mask()(first, more[-1], out)
    return torch.ops.aten.threshold_backward(first + more[-1], out, 0)  # type: ignore[no-any-return]


@cache
def _sum_under_mask() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    code = "template <typename T> T sum_under_mask(T a, T b, T out) { return out > T(0) ? a + b : T(0); }"
    made: Callable[[Tensor, Tensor, Tensor], Tensor] = torch.cuda.jiterator._create_jit_fn(code)
    return made


def _rewritten(held: nn.Module, graph: fx.Graph) -> nn.Module:
    """`held` by its graph, in which each ReLU that follows a convolution, or a sum with one, has become part of it."""
    parts = dict(held.named_modules())
    called = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")

    def conv_of(node: object) -> nn.Conv2d | None:
        """The convolution of this node, if it is called here alone and its answer is taken once."""
        if not isinstance(node, fx.Node) or not _is(node, nn.Conv2d, (), parts) or len(node.args) != 1 or node.kwargs:
            return None
        conv = parts[str(node.target)]
        assert isinstance(conv, nn.Conv2d)
        plain = conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
        return conv if plain and called[str(node.target)] == len(node.users) == 1 else None

    for node in list(graph.nodes):
        if _is(node, nn.Identity, (), parts):  # what folding leaves of a batch normalisation
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            continue
        if node.op == "call_method" and node.target == "view":
            node.target = "reshape"
        if not _is(node, nn.ReLU, RELUS, parts) or not node.users:
            continue
        at = last = node.args[0]
        other = None
        if _is(last, None, SUMS, parts) and len(last.args) == 2 and not last.kwargs and len(last.users) == 1:
            at, other = sorted(last.args, key=lambda part: conv_of(part) is None)
        conv, beside = conv_of(at), conv_of(other)
        if conv is None or not isinstance(other, fx.Node | None):
            continue
        bias = conv.bias
        if beside is not None and beside.bias is not None:  # of two convolutions that are added, one adds for both
            bias = nn.Parameter(beside.bias if bias is None else beside.bias + bias, requires_grad=False)
            beside.bias = None
        takers = list(node.users)
        parts[at.target] = ConvRelu(conv, len(takers), bias)
        held.set_submodule(at.target, parts[at.target])
        with graph.inserting_before(node):
            out = graph.call_module(at.target, (*at.args, *(() if other is None else (other,))))
            for i, taker in enumerate(takers):
                own = out if len(takers) == 1 else graph.call_function(operator.getitem, (out, i))
                taker.replace_input_with(node, own)
        for done in (node, at) if last is at else (node, last, at):
            graph.erase_node(done)
    for node in graph.nodes:
        conv = conv_of(node)
        if conv is not None and conv.kernel_size == (1, 1) and conv.padding == (0, 0) and conv.stride != (1, 1):
            held.set_submodule(str(node.target), Sampled(conv))
    graph.lint()
    return fx.GraphModule(held, graph)


def _is(node: Any, kind: type[nn.Module] | None, targets: tuple[Any, ...], parts: dict[str, nn.Module]) -> bool:
    """Whether a node calls a module of this very kind, without hooks, or one of these functions or methods."""
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_module":
        return type(parts[str(node.target)]) is kind and not hooked(parts[str(node.target)])
    return node.op in ("call_function", "call_method") and node.target in targets
