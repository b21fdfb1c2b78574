r"""A network without kinks, for searches that follow second derivatives: every kink is rounded while `Softly` is on.

A network of pieces that are linear has a gradient that is constant on each piece. Kinks are rounded by one function,

    r(z) = softplus(beta z) / beta,    0 <= r(z) - max(z, 0) <= ln 2 / beta,

and by what is made of it, so that each becomes exact as beta grows:

    relu                   r(z)                            max(a, b), min(a, b)   a + r(b - a),  a - r(a - b)
    leaky_relu, prelu      s z + (1 - s) r(z)              |z|                    r(z) + r(-z)
    relu6, hardtanh,       low + r(z - low) - r(z - high)  max over many          log sum exp(beta z) / beta, which for
    clamp                                                                         two is a + r(b - a)
    hardsigmoid            (r(z + 3) - r(z - 3)) / 6       hardswish              z hardsigmoid(z)
    elu, celu, selu        r(z) + a (exp(-r(-z)) - 1)      softshrink             r(z - s) - r(-z - s)
    gelu, silu, mish,      w f(z / w) with w = max(1, 1 / beta): they are smooth, but on inputs far larger than 1
    softplus               their bend is as narrow as a kink, and the search as blind

`relative` measures z in units of its own size, the root mean square of its row: r becomes u r(z / u). A layer that is
scaled up while the next is scaled down leaves the network as it is; with `relative` it leaves the search too.

Source: softplus for ReLU is from Dombrowski et al., NeurIPS 2019, arXiv:1906.07983, sec. 3; the other forms are ours.

What cannot be rounded (a comparison that depends on the input, a jump, an order) is left and named in `left`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
JUMPS = {
    "gt": ">", "lt": "<", "ge": ">=", "le": "<=", "greater": ">", "less": "<", "greater_equal": ">=",
    "less_equal": "<=", "__gt__": ">", "__lt__": "<", "__ge__": ">=", "__le__": "<=",
}  # fmt: skip
JUMPS |= {
    name: name
    for name in (
        "sign", "sgn", "heaviside", "round", "floor", "ceil", "trunc", "fix", "frac", "fmod", "remainder", "bucketize",
        "floor_divide", "searchsorted", "hardshrink", "sort", "topk", "kthvalue", "median", "nanmedian", "quantile",
        "argmax", "argmin", "argsort", "cummax", "cummin", "aminmax", "fractional_max_pool2d",
        "adaptive_max_pool2d_with_indices", "fractional_max_pool2d_with_indices",
    )
}  # fmt: skip
"""What bends or jumps with the input and has no rounded form here; == and != hold on no open set, and do not count."""


class Softly(TorchFunctionMode):
    """Inside it every kink that is known is rounded, module or function, in place or not, also in exported programs."""

    def __init__(self, beta: float, *, relative: bool = False) -> None:
        super().__init__()
        self.beta, self.relative = beta, relative
        self.left: set[str] = set()

    def __torch_function__(  # type: ignore[override]
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]  # relu_.default in an exported program
        plain = name if name.startswith("__") else name.rstrip("_")
        given = args[0] if args else kwargs.get("input")
        if isinstance(given, Tensor) and given.is_floating_point():
            if plain in ROUNDED:
                inside = given.clone() if name != plain else given
                told = {k: v for k, v in kwargs.items() if k not in ("input", "inplace", "out")}
                soft = ROUNDED[plain](self, inside, *args[1:], **told)
                if soft is not None:
                    return given.copy_(soft) if name != plain else soft
                self._leave(plain, args, kwargs)
            elif plain in JUMPS:
                self._leave(JUMPS[plain], args, kwargs)
        return func(*args, **kwargs)

    def _leave(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(isinstance(a, Tensor) and a.requires_grad for a in (*args, *kwargs.values())):
            self.left.add(what)

    def unit(self, z: Tensor) -> Tensor | float:
        """The size of each row of z, 1 where it is 0: n *d -> n 1*."""
        if not self.relative or z.numel() == 0:
            return 1.0
        rows = tuple(range(1, z.ndim)) if z.ndim > 1 else tuple(range(z.ndim))
        size = z.detach().square().mean(rows, keepdim=True).sqrt()
        return torch.where(size > 0, size, 1.0)

    def ramp(self, z: Tensor, unit: Tensor | float) -> Tensor:
        """r(z), with z in that unit."""
        return unit * F.softplus(z / unit, self.beta)

    def most(self, z: Tensor, dim: int, unit: Tensor | float) -> Tensor:
        """The maximum over one dimension, which stays."""
        return unit * (torch.logsumexp(z / unit * self.beta, dim, keepdim=True) / self.beta)


def kinks_left(model: Callable[[Tensor], Tensor], x: Tensor) -> tuple[str, ...]:
    """The functions between input and answer whose kinks or jumps `Softly` does not round: n *d -> names."""
    with torch.enable_grad(), Softly(1.0) as soft:
        model(x.detach().requires_grad_())
    return tuple(sorted(soft.left))


def _relu(soft: Softly, z: Tensor) -> Tensor:
    return soft.ramp(z, soft.unit(z))


def _leaky(soft: Softly, z: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return negative_slope * z + (1 - negative_slope) * _relu(soft, z)


def _prelu(soft: Softly, z: Tensor, weight: Tensor) -> Tensor:
    slope = weight.view(1, -1, *[1] * (z.ndim - 2)) if weight.numel() > 1 and z.ndim > 1 else weight
    return slope * z + (1 - slope) * _relu(soft, z)


def _rrelu(
    soft: Softly, z: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor | None:
    return None if training else _leaky(soft, z, (lower + upper) / 2)


def _clamp(soft: Softly, z: Tensor, min: Any = None, max: Any = None, inplace: bool = False) -> Tensor:
    unit = soft.unit(z)
    low = z if min is None else min + soft.ramp(z - min, unit)
    return low if max is None else low - soft.ramp(z - max, unit)


def _hardtanh(soft: Softly, z: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    return _clamp(soft, z, min_val, max_val)


def _hardsigmoid(soft: Softly, z: Tensor, inplace: bool = False) -> Tensor:
    unit = soft.unit(z)
    return (soft.ramp(z + 3, unit) - soft.ramp(z - 3, unit)) / 6


def _elu(
    soft: Softly, z: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0, inplace: bool = False
) -> Tensor:
    if isinstance(scale, bool):  # F.elu has `inplace` in its place
        scale = 1.0
    unit = soft.unit(z)
    return scale * (soft.ramp(z, unit) + alpha * torch.expm1(-input_scale * soft.ramp(-z, unit)))


def _celu(soft: Softly, z: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return _elu(soft, z, alpha, input_scale=1 / alpha)


def _selu(soft: Softly, z: Tensor, inplace: bool = False) -> Tensor:
    return _elu(soft, z, SELU_ALPHA, SELU_SCALE)


def _softshrink(soft: Softly, z: Tensor, lambd: float = 0.5) -> Tensor:
    unit = soft.unit(z)
    return soft.ramp(z - lambd, unit) - soft.ramp(-z - lambd, unit)


def _threshold(soft: Softly, z: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor | None:
    return _clamp(soft, z, threshold) if value == threshold else None  # else it jumps


def _abs(soft: Softly, z: Tensor) -> Tensor:
    unit = soft.unit(z)
    return soft.ramp(z, unit) + soft.ramp(-z, unit)


def _maximum(soft: Softly, a: Tensor, other: Tensor) -> Tensor:
    return a + soft.ramp(other - a, soft.unit(a))


def _minimum(soft: Softly, a: Tensor, other: Tensor) -> Tensor:
    return a - soft.ramp(a - other, soft.unit(a))


def _wider(smooth: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """w f(z / w), which is f itself where its bend is no narrower than that of r."""

    def widened(soft: Softly, z: Tensor, *args: Any, inplace: bool = False, **kwargs: Any) -> Tensor:
        width = torch.clamp_min(torch.as_tensor(soft.unit(z)) / soft.beta, 1.0)
        return width * smooth(z / width, *(a for a in args if not isinstance(a, bool)), **kwargs)

    return widened


def _amax(soft: Softly, z: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(z.ndim))
    unit = soft.unit(z)
    if isinstance(unit, Tensor) and 0 in {d % z.ndim for d in dims} and z.ndim > 1:
        unit = unit.amax(0, keepdim=True)  # rows of different size have no unit in common but the largest
    for d in dims:
        z = soft.most(z, d, unit)
    return z if keepdim else z.squeeze(dims)


def _amin(soft: Softly, z: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return -_amax(soft, -z, dim, keepdim)


def _max(soft: Softly, z: Tensor, *args: Any, **kwargs: Any) -> Any:
    return _extreme(soft, z, _amax, _maximum, torch.max, *args, **kwargs)


def _min(soft: Softly, z: Tensor, *args: Any, **kwargs: Any) -> Any:
    return _extreme(soft, z, _amin, _minimum, torch.min, *args, **kwargs)


def _extreme(soft: Softly, z: Tensor, of_many: Any, of_two: Any, exact: Any, *args: Any, **kwargs: Any) -> Any:
    """torch.max and torch.min: over all, over a dimension (with the places, which stay exact), or of two tensors."""
    second = args[0] if args else kwargs.get("other", kwargs.get("dim"))
    if second is None:
        return of_many(soft, z)
    if isinstance(second, Tensor):
        return of_two(soft, z, second)
    keepdim = bool(args[1] if len(args) > 1 else kwargs.get("keepdim", False))
    found = exact(z, second, keepdim)
    return type(found)((of_many(soft, z, second, keepdim), found.indices))


def _pool(dims: int) -> Callable[..., Tensor | None]:
    """Maxima over windows, one dimension after the other: log sum exp over a product of them is that of its parts."""
    exact = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]

    def pooled(
        soft: Softly, z: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Tensor | None:  # fmt: skip
        if return_indices:
            return None
        shape = exact(z.detach(), kernel_size, stride, padding, dilation, ceil_mode).shape
        size, pad, gap = _each(kernel_size, dims), _each(padding, dims), _each(dilation, dims)
        step = _each(stride, dims) if stride else size
        unit = soft.unit(z)
        for k in range(dims):
            d = k - dims
            reach = gap[k] * (size[k] - 1) + 1
            right = (shape[d] - 1) * step[k] + reach - z.shape[d] - pad[k]
            ends = [0, 0] * (dims - 1 - k) + [pad[k], right]
            windows = F.pad(z, ends, value=-math.inf).unfold(d, reach, step[k])[..., :: gap[k]]  # ... w
            wide_unit = unit[..., None] if isinstance(unit, Tensor) else unit
            z = soft.most(windows, -1, wide_unit)[..., 0]
        return z

    return pooled


def _pool_with_places(dims: int) -> Callable[..., tuple[Tensor, Tensor] | None]:
    """The places stay those of the exact maximum. Exported programs pool this way and use the values alone."""
    exact = (F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices)[dims - 1]

    def pooled(soft: Softly, z: Tensor, *args: Any, return_indices: bool = True, **kwargs: Any) -> Any:
        places = exact(z.detach(), *args, **kwargs)[1]
        return _pool(dims)(soft, z, *args, **kwargs), places

    return pooled


def _adaptive(dims: int) -> Callable[..., Tensor | None]:
    """Maxima over windows that share a side among so many, as torch cuts them."""

    def pooled(soft: Softly, z: Tensor, output_size: Any, return_indices: bool = False) -> Tensor | None:
        if return_indices:
            return None
        unit = soft.unit(z)
        for k, many in enumerate(_each(output_size, dims)):
            d, side = k - dims, z.shape[k - dims]
            cuts = [(i * side // n, -(-(i + 1) * side // n)) for n in (many or side,) for i in range(n)]
            z = torch.cat([soft.most(z.narrow(d, a, b - a), d, unit) for a, b in cuts], d)
        return z

    return pooled


def _each(given: Any, dims: int) -> tuple[Any, ...]:
    """One number for each dimension; torch lets one stand for all."""
    many = tuple(given) if isinstance(given, Sequence) else (given,)
    return many * dims if len(many) == 1 else many


ROUNDED: dict[str, Callable[..., Any]] = {
    "relu": lambda soft, z, inplace=False: _relu(soft, z),
    "relu6": lambda soft, z, inplace=False: _clamp(soft, z, 0.0, 6.0),
    "leaky_relu": _leaky,
    "prelu": _prelu,
    "rrelu": _rrelu,
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda soft, z, inplace=False: z * _hardsigmoid(soft, z),
    "elu": _elu,
    "celu": _celu,
    "selu": _selu,
    "softshrink": _softshrink,
    "threshold": _threshold,
    "_threshold": _threshold,  # as F calls it
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda soft, z, min: _clamp(soft, z, min),
    "clamp_max": lambda soft, z, max: _clamp(soft, z, None, max),
    "abs": _abs,
    "absolute": _abs,
    "__abs__": _abs,
    "maximum": _maximum,
    "minimum": _minimum,
    "fmax": _maximum,
    "fmin": _minimum,
    "max": _max,
    "min": _min,
    "amax": _amax,
    "amin": _amin,
    "gelu": _wider(F.gelu),
    "silu": _wider(F.silu),
    "mish": _wider(F.mish),
    "softplus": _wider(F.softplus),
    **{f"max_pool{d}d": _pool(d) for d in (1, 2, 3)},
    **{f"_max_pool{d}d": _pool(d) for d in (1, 2, 3)},  # as F calls it
    **{f"max_pool{d}d_with_indices": _pool_with_places(d) for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": _adaptive(d) for d in (1, 2, 3)},
}
