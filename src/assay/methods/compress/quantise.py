r"""Weights stored as integers of 8 or 4 bits, and activations rounded to 8.

Weights, symmetric, one scale for each output channel c, or for each group g of so many weights of it:

    scale = max |w| / top,      q = round( w / scale ) in -top .. top,      w' = scale q,      top = 127 or 7

so that |w - w'| <= scale / 2, zero stays zero, and a network in other units (weights times a constant) has the same
integers. The state of the network holds the integers themselves, two to a byte where they have 4 bits, and the scales:
it really is smaller. A pass multiplies them out again, so that it computes in floats and is no faster. torch's integer
kernels are not used: those of torch.ao differ between processors and are being retired, and torchao has none for
convolutions; where speed is wanted, onnxruntime's are in `onnx_integers`.

Activations, what goes into each of these layers, affine with an exact zero:

    scale = (high - low) / 255,   q = clamp( round( x / scale ) + zero, 0, 255 ),   x' = scale (q - zero)

with low <= 0 <= high from calibration inputs (static; beyond them it clips), or of each input by itself (dynamic: an
answer must not hang on its company). They are rounded in floats; the products are those of the integers.

What gradient an attacker gets. Of weights alone, the true one: the network is what it was, with other weights. Through
rounded activations the straight-through one: 1 where the value is within the range, 0 where it is clipped. The true one
is 0 almost everywhere; it would hide attacks that work, and the number would look better than the network is.

Source: Jacob et al., CVPR 2018, arXiv:1712.05877, sec. 2.1 and 3; Krishnamoorthi 2018, arXiv:1806.08342 (per channel);
    Dettmers and Zettlemoyer, ICML 2023, arXiv:2212.09720 (4 bits in groups); Bengio et al. 2013, arXiv:1308.3432.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError

Bits = Literal[8, 4]
TOP: dict[Bits, int] = {8: 127, 4: 7}
GROUP = 32  # weights that share a scale, of 4 bits: a float for 32 of them is one bit more each
STEPS = 255  # of an activation
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED, nn.Embedding, nn.EmbeddingBag)
ROUNDING = "rounding"  # the name of the part that rounds what goes into a layer


class Integers(NamedTuple):
    """Rows of weights as integers, with a scale for each group of a row."""

    q: Tensor  # c k int8
    scale: Tensor  # c g float


def whole(rows: Tensor, bits: Bits = 8, group: int | None = None) -> Integers:  # c k -> c k, c g
    """Rows as integers; `group` weights share a scale, a whole row unless told. A row of zeros has the scale 1."""
    if group is not None and group < 1:
        raise AssayError(f"group={group} holds no weight; give 1 or more, such as {GROUP}.")
    top, parts = TOP[bits], _groups(rows.float(), group)  # c g j
    peak = parts.abs().amax(2, keepdim=True)
    # weights of 1e-43 are real, and a 127th of them may not be
    scale = torch.where(peak > 0, peak / top, 1.0).clamp_min(torch.finfo(torch.float32).tiny)
    q = (parts / scale).round().clamp(-top, top).to(torch.int8)
    return Integers(q.flatten(1)[:, : rows.shape[1]].contiguous(), scale.squeeze(2))


def in_floats(q: Tensor, scale: Tensor, group: int | None = None) -> Tensor:  # c k, c g -> c k
    """scale q."""
    return (_groups(q.to(scale.dtype), group) * scale.unsqueeze(2)).flatten(1)[:, : q.shape[1]]


def _groups(rows: Tensor, group: int | None) -> Tensor:  # c k -> c g j
    size = max(1, min(group or rows.shape[1], rows.shape[1]))
    count = math.ceil(rows.shape[1] / size)
    short = count * size - rows.shape[1]
    return (F.pad(rows, (0, short)) if short else rows).reshape(len(rows), count, size)


def packed(q: Tensor) -> Tensor:  # c k int8 -> c ceil(k / 2) uint8
    """Integers of -8 to 7, two to a byte, the first in the lower half."""
    pairs = torch.bitwise_and(F.pad(q, (0, q.shape[1] % 2)).view(torch.uint8), 0xF).view(len(q), -1, 2)
    return torch.bitwise_or(pairs[..., 0], 16 * pairs[..., 1])


def unpacked(bytes_: Tensor, count: int) -> Tensor:  # c b uint8 -> c count int8
    halves = torch.stack([torch.bitwise_and(bytes_, 0xF), torch.bitwise_right_shift(bytes_, 4)], 2).to(torch.int8)
    return (torch.bitwise_xor(halves, 8) - 8).flatten(1)[:, :count]  # the fourth bit is the sign


class Kept(NamedTuple):
    """How the weight of a layer is stored: its shape with the output channels first, and where they belong."""

    shape: tuple[int, ...]
    axis: int
    dtype: torch.dtype
    bits: Bits
    group: int | None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def stored(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Integers, packed where two go to a byte, and scales."""
        made = whole(weight.detach().movedim(self.axis, 0).flatten(1), self.bits, self.group)
        return (made.q if self.bits == 8 else packed(made.q)), made.scale

    def weight(self, stored: Tensor, scale: Tensor) -> Tensor:
        q = stored if self.bits == 8 else unpacked(stored, math.prod(self.shape[1:]))
        return in_floats(q, scale, self.group).view(self.shape).movedim(0, self.axis).to(self.dtype)


class InIntegers(nn.Module):
    """A layer whose weight is multiplied out of integers whenever it is read; what else it does is its own class's."""

    stored: Tensor
    scale: Tensor
    kept: Kept
    plain: ClassVar[type[nn.Module]]
    """Its own class."""

    @property
    def weight(self) -> Tensor:
        return self.kept.weight(self.stored, self.scale)


KINDS: dict[type, type[InIntegers]] = {}


def _in_integers(kind: type[nn.Module]) -> type[InIntegers]:
    """The same class of layer, with a weight of integers. Not torch's parametrisations: taking one off a copy takes it
    off the original, whose class it is."""
    if kind not in KINDS:
        KINDS[kind] = type(kind.__name__, (InIntegers, kind), {"__module__": __name__, "plain": kind})
    return KINDS[kind]


class Rounded(nn.Module):
    """Values as the nearest of 256 steps between `low` and `high`; its slope is 1 between them and 0 beyond."""

    scale: Tensor
    zero: Tensor

    def __init__(self, low: float = 0.0, high: float = 0.0) -> None:
        super().__init__()
        scale, zero = _steps(torch.tensor(low), torch.tensor(high))
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *d
        return _rounded(x, self.scale, self.zero, clips=True)


class RoundedByItself(nn.Module):
    """Each input of a batch as the nearest of 256 steps between its own least and largest value; its slope is 1."""

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *d
        seen = x.detach().flatten(1)
        scale, zero = (v.view(-1, *(1,) * (x.ndim - 1)) for v in _steps(seen.amin(1), seen.amax(1)))
        return _rounded(x, scale, zero, clips=False)


def _rounded(x: Tensor, scale: Tensor, zero: Tensor, *, clips: bool) -> Tensor:  # n *d -> n *d
    """In plain operators, so that the slope outlives an export; torch's fake_quantize has no form for that."""
    step = (x / scale).round() + zero
    held = step.clamp(0, STEPS)
    inner = torch.where(held == step, x, x.detach()) if clips else x
    return inner + (scale * (held - zero) - inner).detach()


def _steps(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:  # n, n -> n, n
    """Scale and zero point of a range, which is widened to hold zero; of an empty one the scale is 1."""
    low, high = low.clamp_max(0), high.clamp_min(0)
    scale = torch.where(high > low, (high - low) / STEPS, 1.0).clamp_min(torch.finfo(torch.float32).tiny)
    return scale, (-low / scale).round().clamp(0, STEPS)


def layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers whose weights are stored as integers, by name: linear, convolutional (transposed too), embeddings."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, LAYERS) and ("weight" in layer._parameters or isinstance(layer, InIntegers))
    }


def quantise(
    model: nn.Module,
    bits: Bits = 8,
    *,
    group: int | None = None,
    ranges: Mapping[str, tuple[float, float]] | Literal["dynamic"] | None = None,
) -> nn.Module:
    """A copy with weights of so many bits and, with `ranges` of what goes into its layers, activations of 8.

    `group` weights share a scale: all of an output channel unless told, of 4 bits 32.
    """
    made = restored(model)
    found = layers(made)
    if not found:
        raise AssayError(
            f"{type(model).__name__} has no linear layer, convolution or embedding, so that no weight could be stored "
            "as integers; ship it in another form, such as float16."
        )
    shared = GROUP if group is None and bits == 4 else group
    for name, layer in found.items():
        weight = layer.weight
        assert isinstance(weight, Tensor)  # layers
        if not bool(weight.isfinite().all()):
            raise AssayError(
                f"The weights of {name or type(layer).__name__!r} hold NaN or infinity, which no integer stands for; "
                "mend the network first."
            )
        _store(layer, weight, bits, shared)
        if ranges is not None and not isinstance(layer, nn.Embedding | nn.EmbeddingBag):  # those take no values
            part = RoundedByItself() if ranges == "dynamic" else Rounded(*ranges.get(name, (0.0, 0.0)))
            layer.register_module(ROUNDING, part)
            layer.register_forward_pre_hook(_round)
    return made


def _store(layer: nn.Module, weight: Tensor, bits: Bits, group: int | None) -> None:
    axis = 1 if isinstance(layer, TRANSPOSED) else 0
    kept = Kept(tuple(weight.movedim(axis, 0).shape), axis, weight.dtype, bits, group)
    del layer._parameters["weight"]
    _become(layer, _in_integers(type(layer)))
    for name, value in zip(("stored", "scale"), kept.stored(weight), strict=True):
        layer.register_buffer(name, value)  # no parameters: whoever trains would ask for their gradient
    assert isinstance(layer, InIntegers)  # by its class of now
    layer.kept = kept


def _become(layer: nn.Module, kind: type[nn.Module]) -> None:
    layer.__class__ = kind


def _round(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    part = getattr(layer, ROUNDING)
    return (part(args[0]), *args[1:])


def restored(model: nn.Module) -> nn.Module:
    """A copy in floats: integers multiplied out, nothing rounded; of a network that has neither, a copy."""
    made = copy.deepcopy(model).eval()
    for layer in layers(made).values():
        if isinstance(layer, InIntegers):
            value = layer.weight.detach().clone()
            for name in ("stored", "scale"):
                del layer._buffers[name]
            del layer.kept
            _become(layer, layer.plain)
            layer.register_parameter("weight", nn.Parameter(value))
        if hasattr(layer, ROUNDING):
            delattr(layer, ROUNDING)
            for key, hook in list(layer._forward_pre_hooks.items()):
                if hook is _round:
                    del layer._forward_pre_hooks[key]
    return made


def seen_ranges(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, tuple[float, float]]:  # each n *d
    """The least and the largest value that goes into each layer, over these inputs; of what was called at all."""
    found: dict[str, tuple[float, float]] = {}

    def look(name: str) -> Any:
        def seen(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            low, high = (float(v) for v in args[0].detach().aminmax())
            if not (math.isfinite(low) and math.isfinite(high)):
                raise AssayError(
                    f"What goes into {name!r} is from {low:g} to {high:g} on a calibration input; leave that input out."
                )
            least, most = found.get(name, (low, high))
            found[name] = (min(low, least), max(high, most))

        return seen

    hooks = [layer.register_forward_pre_hook(look(name)) for name, layer in layers(model).items()]
    count = 0
    try:
        with torch.no_grad():
            for x in batches:
                count += len(x)
                model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not count:
        raise AssayError("There is no input to calibrate on; give at least one.")
    return found


def left_in_floats(model: nn.Module) -> Iterator[tuple[str, int]]:
    """The parameters that stay floats, by name, with how many numbers each has: biases, norms, recurrent layers."""
    return ((name, p.numel()) for name, p in model.named_parameters() if p.is_floating_point())
