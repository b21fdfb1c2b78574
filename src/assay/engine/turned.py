r"""Convolutions on a CPU where torch by itself takes a slow way: the same numbers but for rounding.

Backwards to its inputs a convolution is a convolution, by kernels that are turned round,

    y = w * x   (stride 1, p zeros on each side, dilation d, kernels k x k)
    dL/dx = w' * dL/dy,   w'_{io,uv} = w_{oi,(k-1-u)(k-1-v)},   with d (k - 1) - p zeros on each side

or, by the definition, each slope times the kernel, added up where it came from: one matrix product and a fold. And
forwards it is faster where kernels lie channels-last. On two cores of aarch64 oneDNN's own way back takes 1.6 to 2.6
times as long as the way there, the turned kernels as long as that, and the fold 0.4 to 0.7 of the way back for the one
or three channels of an image. Neither is taken where it takes longer (measured), nor where weights learn. On x86_64
it gains nothing (measured), on other machines nothing was measured: there nothing is changed.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

PLACES = 500  # of all images of a batch, from which on it pays to reorder kernels
CHANNELS = 12  # on the way in, from which on turned kernels pay
FEW, WIDE = 3, 24  # channels in, at most, and out, at least, for a fold to pay

Order = Literal["rows", "channels-last"]
"""In which kernels lie, and so the answers: a model that views its activations wants rows."""

_now: ContextVar[Order | None] = ContextVar("turned", default=None)


def fastest(device: str, *, rows: bool) -> Order | None:
    """How a model is asked here; None where nothing was measured to be faster than torch by itself."""
    measured = device == "cpu" and platform.machine() == "aarch64" and bool(torch.backends.mkldnn.enabled)
    return ("rows" if rows else "channels-last") if measured else None


def order_now() -> Order | None:
    """What this code runs inside of."""
    return _now.get()


@contextmanager
def turned(order: Order | None) -> Iterator[None]:
    """Inside, convolutions on the CPU whose weights do not learn are asked in this order, and go back as above."""
    if order is None or order_now() is not None:
        yield
        return
    before = _now.set(order)
    try:
        with _Turning(order):
            yield
    finally:
        _now.reset(before)


class _Turning(TorchFunctionMode):
    def __init__(self, order: Order) -> None:
        super().__init__()
        self.order = order

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.conv2d and (found := _convolved(self.order, *args, **kwargs or {})) is not None:
            return found
        return func(*args, **kwargs or {})


def _convolved(
    order: Order,
    input: Tensor,  # torch's names, by which it may be called
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """The convolution, where it is worth another way; else None."""
    if not all(_plain(t) for t in (input, weight)) or groups != 1 or torch.is_autocast_enabled("cpu"):
        return None
    learns = torch.is_grad_enabled() and (weight.requires_grad or (bias is not None and bias.requires_grad))
    if learns or input.numel() < PLACES * input.shape[1]:
        return None
    last = order == "channels-last"
    # at each call: it takes 0.3 to 3 % of it (measured), and what is kept could be of weights that are others by now;
    # contiguous() would skip kernels of one input channel
    kernel = weight.to(memory_format=torch.channels_last) if last else weight
    way = _way_back(weight, stride, padding, dilation) if torch.is_grad_enabled() and input.requires_grad else None
    if way is not None:
        out: Tensor = _Convolution.apply(input, kernel, bias, *way)  # type: ignore[no-untyped-call]
        return out
    return F.conv2d(input, kernel, bias, stride, padding, dilation) if last else None  # type: ignore[arg-type]


def _plain(t: Tensor) -> bool:
    here = type(t) in (Tensor, nn.Parameter) and t.device.type == "cpu" and t.dtype == torch.float32 and t.ndim == 4
    return here and not torch._C._functorch.is_functorch_wrapped_tensor(t)  # type: ignore[attr-defined, no-any-return]


def _way_back(
    weight: Tensor,
    stride: int | Sequence[int],
    padding: str | int | Sequence[int],
    dilation: int | Sequence[int],
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Padding and dilation, where the other way back is open to such a convolution, and the shorter one."""
    if isinstance(padding, str) or _pair(stride) != (1, 1):
        return None
    p, d = _pair(padding), _pair(dilation)
    out, into, *size = weight.shape
    fits = all(0 <= a <= b * (k - 1) for a, b, k in zip(p, d, size, strict=True))
    return (p, d) if fits and (into >= CHANNELS or (into <= FEW and out >= WIDE)) else None


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    a, b = (value, value) if isinstance(value, int) else tuple(value) * (2 if len(value) == 1 else 1)
    return a, b


class _Convolution(torch.autograd.Function):
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
