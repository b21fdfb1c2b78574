r"""Convolutions on a CPU where torch by itself takes a slow way: the same numbers but for rounding.

Backwards to its inputs a convolution is a convolution, by kernels that are turned round,

    y = w * x   (stride 1, p zeros on each side, dilation d, kernels k x k)
    dL/dx = w' * dL/dy,   w'_{io,uv} = w_{oi,(k-1-u)(k-1-v)},   with d (k - 1) - p zeros on each side

or, by the definition, each slope times the kernel, added up where it came from: one matrix product and a fold. And
forwards it is faster where kernels lie channels-last. On two cores of aarch64 oneDNN's own way back takes 1.6 to 2.4
times as long as the way there, the turned kernels as long, and the fold 0.4 to 0.7 of its own way for the one or three
channels of an image. Neither is taken where it takes longer (measured), nor where weights learn. On other machines
nothing was measured, and nothing is changed.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CHANNELS, PLACES = 12, 500  # on the way in, and of all images, from which on turned kernels pay
FEW, WIDE = 3, 24  # channels in, at most, and out, at least, for a fold to pay

_ON = ContextVar("turned", default=False)


def pays(device: str) -> bool:
    """Whether this is a machine on which it was measured to be faster."""
    return device == "cpu" and platform.machine() == "aarch64" and bool(torch.backends.mkldnn.enabled)


def is_on() -> bool:
    """Whether this code runs inside of `turned`."""
    return _ON.get()


@contextmanager
def turned(needed: bool) -> Iterator[None]:
    """Inside, convolutions on the CPU whose weights do not learn go back by turned kernels, if that is needed."""
    if not needed or is_on():
        yield
        return
    before = _ON.set(True)
    try:
        with _Turning():
            yield
    finally:
        _ON.reset(before)


@contextmanager
def laid(model: nn.Module, needed: bool) -> Iterator[None]:
    """Inside, the kernels of the model's convolutions lie channels-last, if that is needed."""
    kernels = [
        m._parameters["weight"]
        for m in model.modules()
        if needed and isinstance(m, nn.Conv2d) and m.groups == 1 and "weight" in m._parameters
    ]
    moved = [p for p in kernels if p is not None and p.is_contiguous()]
    try:
        for p in moved:
            p.data = p.data.to(memory_format=torch.channels_last)
        yield
    finally:
        for p in moved:
            p.data = p.data.to(memory_format=torch.contiguous_format)


class _Turning(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.conv2d and (found := _convolved(*args, **kwargs or {})) is not None:
            return found
        return func(*args, **kwargs or {})


def _convolved(
    input: Tensor,  # torch's names, by which it may be called
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """The convolution, where its gradient is worth another way; else None."""
    plain = all(type(t) in (Tensor, torch.nn.Parameter) for t in (input, weight))
    if not plain or groups != 1 or isinstance(padding, str) or not (torch.is_grad_enabled() and input.requires_grad):
        return None
    if weight.requires_grad or (bias is not None and bias.requires_grad):
        return None
    if input.ndim != 4 or input.device.type != "cpu" or input.dtype != torch.float32:
        return None
    p, d, wide = _pair(padding), _pair(dilation), weight.shape
    fits = all(0 <= a <= b * (k - 1) for a, b, k in zip(p, d, wide[2:], strict=True))
    pay = wide[1] >= CHANNELS or (wide[1] <= FEW and wide[0] >= WIDE)
    if _pair(stride) != (1, 1) or not fits or not pay or input.numel() < PLACES * input.shape[1]:
        return None
    out: Tensor = _Convolution.apply(input, weight, bias, p, d)  # type: ignore[no-untyped-call]
    return out


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    a, b = (value, value) if isinstance(value, int) else tuple(value) * (2 if len(value) == 1 else 1)
    return a, b


class _Convolution(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int], dilation: tuple[int, int]
    ) -> Tensor:  # n i h w -> n o h w
        return F.conv2d(x, weight, bias, 1, padding, dilation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.padding, ctx.dilation = inputs
        ctx.size = x.shape[2:]
        ctx.save_for_backward(weight)
        ctx.save_for_forward(weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None, None]:  # n o h w -> n i h w
        (weight,) = ctx.saved_tensors
        if weight.shape[1] <= FEW:
            parts = weight.flatten(1).t() @ slope.flatten(2)  # n (i k k) (h w)
            back = F.fold(parts, ctx.size, weight.shape[2:], ctx.dilation, ctx.padding)
        else:
            rest = [d * (k - 1) - p for d, k, p in zip(ctx.dilation, weight.shape[2:], ctx.padding, strict=True)]
            back = F.conv2d(slope, weight.flip(2, 3).transpose(0, 1), None, 1, rest, ctx.dilation)
        return back, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, change: Tensor, *_: None) -> Tensor:
        (weight,) = ctx.saved_tensors
        return F.conv2d(change, weight, None, 1, ctx.padding, ctx.dilation)
