r"""A ReLU network as the chain of affine maps that certificates reason about.

    f  =  A_L o relu o A_{L-1} o ... o relu o A_1,      A_l(x) = W_l x + b_l

`layers` reads a torch model into (A_1, ..., A_L): Linear, Conv2d, batch normalisation, averages and reshapes are affine
in eval mode, and neighbours become one A_l. Batch normalisation is folded into the map before it. Everything is a
float64 copy, and the user's model is never changed. The chain has to answer as the model does at two random inputs, or
it is refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from assay.errors import ShapeError, SubjectError
from assay.nn.read_as import OneScore, Rescaled
from assay.nn.small_cnn import SmallCNN

Shape = tuple[int, ...]


class Part(Protocol):
    """One linear map W and its shift; an Affine is a few of them in a row."""

    @property
    def bias(self) -> Tensor | None: ...  # broadcasts to *out

    def linear(self, x: Tensor) -> Tensor: ...  # n *in -> n *out

    def transpose(self, g: Tensor, shape: Shape) -> Tensor: ...  # n *out, *in -> n *in

    def magnitude(self) -> Part: ...  # |W| in place of W


@dataclass(frozen=True, eq=False)
class Dense:
    weight: Tensor  # out in, along the last axis
    bias: Tensor | None

    def linear(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    def transpose(self, g: Tensor, shape: Shape) -> Tensor:
        return g @ self.weight

    def magnitude(self) -> Dense:
        return Dense(self.weight.abs(), None)


@dataclass(frozen=True, eq=False)
class Conv:
    weight: Tensor  # out in/groups h w
    bias: Tensor | None  # out 1 1
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int

    def linear(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, None, self.stride, self.padding, self.dilation, self.groups)

    def transpose(self, g: Tensor, shape: Shape) -> Tensor:
        size = (len(g), *shape)
        back: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
            size, self.weight, g, self.stride, self.padding, self.dilation, self.groups
        )
        return back

    def magnitude(self) -> Conv:
        return replace(self, weight=self.weight.abs(), bias=None)


@dataclass(frozen=True, eq=False)
class Scale:
    scale: Tensor  # broadcasts to *in
    bias: Tensor | None

    def linear(self, x: Tensor) -> Tensor:
        return x * self.scale

    def transpose(self, g: Tensor, shape: Shape) -> Tensor:
        return g * self.scale

    def magnitude(self) -> Scale:
        return Scale(self.scale.abs(), None)


@dataclass(frozen=True, eq=False)
class Mean:
    """Average pooling or a reshape: linear, without a shift, and no entry of W below zero."""

    module: nn.Module
    bias: None = None

    def linear(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out

    def transpose(self, g: Tensor, shape: Shape) -> Tensor:
        pool, at = self.module, g.new_empty(len(g), *shape)
        # What autograd would call; the first use of torch.autograd.grad imports hundreds of modules.
        if isinstance(pool, nn.AvgPool2d):
            window = pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode
            g = torch.ops.aten.avg_pool2d_backward(g, at, *window, pool.count_include_pad, pool.divisor_override)
        elif isinstance(pool, nn.AdaptiveAvgPool2d):
            g = torch.ops.aten._adaptive_avg_pool2d_backward(g, at)
        return g.reshape(at.shape)

    def magnitude(self) -> Mean:
        return self


@dataclass(frozen=True, eq=False)
class Affine:
    """x -> W x + b on inputs of `in_shape`, without holding W unless `dense` is asked for."""

    parts: tuple[Part, ...]
    shapes: tuple[Shape, ...]  # what each part takes, and last what comes out
    offset: Tensor  # *out: the answer to zero, which is b

    @property
    def in_shape(self) -> Shape:
        return self.shapes[0]

    @property
    def out_shape(self) -> Shape:
        return self.shapes[-1]

    def __call__(self, x: Tensor) -> Tensor:  # n *in -> n *out
        return self.linear(x) + self.offset

    def linear(self, x: Tensor) -> Tensor:  # n *in -> n *out
        """W x."""
        for part in self.parts:
            x = part.linear(x)
        return x

    def transpose(self, g: Tensor) -> Tensor:  # n *out -> n *in
        """W^T g."""
        for part, shape in zip(reversed(self.parts), reversed(self.shapes[:-1]), strict=True):
            g = part.transpose(g, shape)
        return g

    def spread(self, r: Tensor) -> Tensor:  # n *in -> n *out
        """|W| r, the half-width of the image of a box of half-width r >= 0.

        Part by part, thus at least |W| r; equal to it unless convolutions, or overlapping averages and a dense map,
        follow one another without a ReLU.
        """
        for part in self.parts:
            r = part.magnitude().linear(r)
        return r

    def dense(self) -> tuple[Tensor, Tensor]:  # -> out in, out
        """W and b over flattened inputs and outputs."""
        n_in, n_out = math.prod(self.in_shape), math.prod(self.out_shape)
        unit = torch.eye(min(n_in, n_out), dtype=self.offset.dtype, device=self.offset.device)
        if n_in <= n_out:
            w = torch.cat([self.linear(e.reshape(-1, *self.in_shape)).flatten(1) for e in torch.split(unit, 1024)]).T
        else:
            w = torch.cat([self.transpose(e.reshape(-1, *self.out_shape)).flatten(1) for e in torch.split(unit, 1024)])
        return w.contiguous(), self.offset.flatten()


def layers(model: nn.Module, shape: Shape | None = None) -> tuple[Affine, ...]:
    """The affine maps of `model`, a ReLU between each two; `shape` is that of one input, without the batch.

    `shape=None` takes the width of the model's first Linear, where one comes first. A ReLU in front or at the end
    stands beside an identity. Reads (nested) Sequential, a module that puts (x - mean) / std in front of its child
    `model`, Rescaled and SmallCNN; a OneScore z, of a logit or before its sigmoid, as (0, z).
    """
    found = list(_flat(model, ""))
    if shape is None:
        first = next((m for _, m in found if not isinstance(m, nn.Dropout | nn.Identity)), None)
        if not isinstance(first, nn.Linear):
            kind = "an empty model" if first is None else type(first).__name__
            raise ShapeError(
                f"The shape of an input cannot be read from {kind}; give shape=, for instance (1, 28, 28)."
            )
        shape = (first.in_features,)
    weight = next((p for p in (*model.parameters(), *model.buffers())), torch.zeros(()))
    chain: list[Affine] = []
    parts: list[Part] = []
    shapes: list[Shape] = [tuple(shape)]
    for name, module in found:
        if _is(module, nn.ReLU):
            chain.append(_affine(parts, shapes, weight))
            parts, shapes = [], [shapes[-1]]
            continue
        part = _part(module, name, shapes[-1])
        if part is None:
            continue
        out = _out(part, name, module, shapes[-1], weight)
        fused = _fused(parts[-1], part, shapes[-2]) if parts else None
        if fused is None:
            parts.append(part)
            shapes.append(out)
        else:
            parts[-1], shapes[-1] = fused, out
    chain.append(_affine(parts, shapes, weight))
    _answers_alike(model, chain)
    return tuple(chain)


def _flat(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module | Scale | Dense]]:
    """Layers in order, by name; a normalisation is the Scale that it is, and a score for two classes the Dense."""
    if module._forward_hooks or module._forward_pre_hooks:
        raise SubjectError(
            f"{_called(module, name)} has forward hooks, which may change its answer; remove them first."
        )
    children = {key: child for key, child in module._modules.items() if child is not None}  # a layer may come twice
    if normalises(module) or isinstance(module, SmallCNN):
        mean, std = module.get_buffer("mean").double(), module.get_buffer("std").double()
        yield name, Scale(1 / std, -mean / std)
    elif _is(module, Rescaled):
        yield name, Scale(module.get_buffer("span").double(), module.get_buffer("low").double())
    elif _is(module, OneScore):
        assert isinstance(module, OneScore)
        yield from _one_score(module, name)
        return
    elif not _is(module, nn.Sequential):
        yield name, module
        return
    for key, child in children.items():
        yield from _flat(child, f"{name}.{key}" if name else key)


def _one_score(module: OneScore, name: str) -> Iterator[tuple[str, nn.Module | Scale | Dense]]:
    inner = list(_flat(module.model, f"{name}.model" if name else "model"))
    if module.probability:
        if not inner or not _is(inner[-1][1], nn.Sigmoid):
            raise SubjectError(
                f"{_called(module, name)} reads a probability that no sigmoid gives; let the model return its logit."
            )
        inner.pop()
    yield from inner
    like = next((p for p in (*module.parameters(), *module.buffers())), torch.zeros(()))
    yield name, Dense(torch.tensor([[0.0], [1.0]], dtype=torch.float64, device=like.device), None)


def normalises(module: nn.Module) -> bool:
    """Whether it puts (x - mean) / std in front of its child `model`."""
    return {"mean", "std"} == set(dict(module.named_buffers(recurse=False))) and set(module._modules) == {"model"}


def _is(module: object, *kinds: type[nn.Module]) -> bool:
    """One of these kinds with its forward pass untouched: a subclass may compute anything, a parametrised one not."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)


def _called(module: object, name: str) -> str:
    kind = "Normalisation" if isinstance(module, Scale) else type(module).__name__
    return f"Layer {name!r} ({kind})" if name else f"The model ({kind})"


def _part(module: nn.Module | Scale | Dense, name: str, shape: Shape) -> Part | None:
    """The affine map of one layer; None where it does nothing."""
    called = _called(module, name)
    if isinstance(module, Dense):
        return module
    if isinstance(module, Scale):
        assert module.bias is not None
        return Scale(_finite(module.scale, called), _finite(module.bias, called))
    if _is(module, nn.Identity):
        return None
    if _is(module, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.BatchNorm1d, nn.BatchNorm2d) and module.training:
        raise SubjectError(f"{called} is in training mode, where it is no fixed function; call model.eval() first.")
    if _is(module, nn.Dropout, nn.Dropout1d, nn.Dropout2d):
        return None
    if _is(module, nn.Linear):
        assert isinstance(module, nn.Linear)
        return Dense(_copied(module.weight, called), _copied(module.bias, called) if module.bias is not None else None)
    if _is(module, nn.Conv2d):
        return _conv(module, called)  # type: ignore[arg-type]
    if _is(module, nn.BatchNorm1d, nn.BatchNorm2d):
        return _batch_norm(module, called, len(shape))  # type: ignore[arg-type]
    if _is(module, nn.Flatten) and module.start_dim == 1:
        return Mean(module)
    if _is(module, nn.AvgPool2d, nn.AdaptiveAvgPool2d):
        return Mean(module)
    raise SubjectError(
        f"{called} is not affine and no ReLU; certificates read Linear, Conv2d, ReLU, Flatten, AvgPool2d, "
        f"AdaptiveAvgPool2d, BatchNorm, Dropout and Identity in Sequential: build the model from these."
    )


def _conv(module: nn.Conv2d, called: str) -> Conv:
    padding = (0, 0) if module.padding == "valid" else module.padding
    if isinstance(padding, str) or module.padding_mode != "zeros":
        raise SubjectError(f"{called} pads by {module.padding!r}, {module.padding_mode!r}; give numbers and 'zeros'.")
    bias = None if module.bias is None else _copied(module.bias, called)[:, None, None]
    return Conv(_copied(module.weight, called), bias, module.stride, padding, module.dilation, module.groups)


def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d, called: str, axes: int) -> Scale:
    if module.running_mean is None or module.running_var is None:
        raise SubjectError(f"{called} keeps no running statistics, so it depends on the batch; track them.")
    mean, var = _copied(module.running_mean, called), _copied(module.running_var, called)
    scale = (var + module.eps).rsqrt()
    shift = -mean * scale
    if module.affine:
        gain = _copied(module.weight, called)
        scale, shift = scale * gain, shift * gain + _copied(module.bias, called)
    view = (-1,) + (1,) * (axes - 1)
    return Scale(_finite(scale, called).view(view), _finite(shift, called).view(view))


def _fused(a: Part, b: Part, shape: Shape) -> Part | None:
    """b o a as one part where that is cheap, else None; `shape` is what a takes."""
    if isinstance(a, Conv) and isinstance(b, Scale):
        bias = b.bias if a.bias is None else a.bias * b.scale + (0 if b.bias is None else b.bias)
        return replace(a, weight=a.weight * b.scale.reshape(-1, 1, 1, 1), bias=bias)
    if isinstance(a, Dense) and len(shape) == 1:
        if isinstance(b, Scale) and b.scale.ndim == 1:
            bias = b.bias if a.bias is None else a.bias * b.scale + (0 if b.bias is None else b.bias)
            return Dense(a.weight * b.scale[:, None], bias)
        if isinstance(b, Dense):
            bias = b.bias if a.bias is None else b.weight @ a.bias + (0 if b.bias is None else b.bias)
            return Dense(b.weight @ a.weight, bias)
    return None


def _out(part: Part, name: str, module: object, shape: Shape, like: Tensor) -> Shape:
    zero = torch.zeros(1, *shape, dtype=torch.float64, device=like.device)
    try:
        return tuple(part.linear(zero).shape[1:])
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ShapeError(f"{_called(module, name)} cannot take an input of shape {shape}: {reason}") from error


def _affine(parts: list[Part], shapes: list[Shape], like: Tensor) -> Affine:
    at = torch.zeros(1, *shapes[0], dtype=torch.float64, device=like.device)
    for part in parts:
        at = part.linear(at) if part.bias is None else part.linear(at) + part.bias
    return Affine(tuple(parts), tuple(shapes), at[0])


def _copied(weight: Tensor, called: str) -> Tensor:
    return _finite(weight.detach().to(torch.float64, copy=True), called)


def _finite(weight: Tensor, called: str) -> Tensor:
    if not bool(torch.isfinite(weight).all()):
        where = tuple(int(i) for i in torch.nonzero(~torch.isfinite(weight))[0])
        raise SubjectError(
            f"{called} has the weight {float(weight[where])} at {where}; certify a model that is finite."
        )
    return weight


def _answers_alike(model: nn.Module, chain: list[Affine]) -> None:
    shape, device = chain[0].in_shape, chain[0].offset.device
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    plain = copy.deepcopy(model).double()
    for module in plain.modules():
        if isinstance(module, Rescaled):
            module.kind = None  # a proof is over all values, and whole numbers are among them
    with torch.no_grad():
        theirs = plain(x)
        for i, affine in enumerate(chain):
            x = affine(x if i == 0 else x.relu())
    if theirs.shape != x.shape or not torch.allclose(theirs, x, rtol=1e-4, atol=1e-4 * float(x.abs().max())):
        raise SubjectError(
            f"The model ({type(model).__name__}) answers otherwise than its layers in order do; give an nn.Sequential."
        )
