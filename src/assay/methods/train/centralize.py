"""Weight and gradient centralisation: subtract the filter's mean from weights and from gradients while training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize

from assay.errors import AssayError, ShapeError

Operator = Literal["normalise", "standardise"]
Area = Literal["global", "tensor", "channel", "instance"]
Layer = _ConvNd | nn.Linear


def centre(w: Tensor, area: Area = "tensor") -> Tensor:  # out in *k -> out in *k
    r"""Subtract from every weight the mean of its area.

        W_{j,in,y,x} <- W_{j,in,y,x} - mean_{in,y,x} W_{j,in,y,x}

    Source: Fuhl and Kasneci, "Weight and Gradient Centralization in Deep Neural Networks", 2021,
        doi:10.1007/978-3-030-86380-7_19, eq. 2 on weights (WC), eq. 4 on gradients (GC), table 2 for the areas:
        global, the whole layer; tensor, one filter j (WC and GC proper); channel, one index `in` of all filters;
        instance, one two-dimensional mask. On a back-propagated error, s c *k, tensor is one sample (EL, eq. 11) and
        channel one channel (EB, eq. 10).
    The paper does not define "channel" for weights; it is read as for errors, the second index.

    All four are orthogonal projections P: linear, P P = P, P = P^T.
    """
    return w - _mean(w, area)


def normalise(w: Tensor, k: float = 1.0) -> Tensor:  # out in *k -> out in *k
    r"""WN, weight normalisation: give every filter the Euclidean norm k.

        W_j <- W_j k / ||W_j||

    Source: Fuhl and Kasneci, eq. 1, after Salimans and Kingma, 2016. A filter of zeros, where print divides by zero,
        stays zero.
    """
    norm: Tensor = torch.linalg.vector_norm(w, dim=_dims(w, "tensor"), keepdim=True)
    return k * w / torch.where(norm > 0, norm, 1)


def standardise(w: Tensor) -> Tensor:  # out in *k -> out in *k
    r"""WS, weight standardisation: give every filter mean 0 and standard deviation 1 (dividing by n, not n - 1).

        W_j <- (W_j - mean W_j) / std W_j

    Source: Fuhl and Kasneci, eq. 3, after Qiao et al., arXiv:1903.10520. A constant filter, where print divides zero by
        zero, becomes zero.

    With S = standardise(W), a gradient g of S reaches W as (g - mean g - S mean(g S)) / std W, filter by filter: it is
    centred, and stands at right angles to S.
    """
    centred = centre(w)
    variance = centred.square().mean(_dims(w, "tensor"), keepdim=True)
    return centred * torch.where(variance > 0, variance, 1).rsqrt()


def hidden_layers(model: nn.Module, *, fully: bool = False, output: str | None = None) -> dict[str, Layer]:
    """The layers to centre, by name: every convolution, and with `fully` the penultimate fully connected layer.

    Never the output layer: `output`, or else the last convolution or fully connected layer that the model registers.
    Source: Fuhl and Kasneci, sec. 5 (tables 3 and 5).
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Layer)}
    if not layers:
        raise AssayError(f"{type(model).__name__} has no convolution and no fully connected layer to centre.")
    output = list(layers)[-1] if output is None else output
    if output not in layers:
        raise AssayError(f"No layer of the model is called {output!r}; output is one of {', '.join(layers)}.")
    before = list(layers)[: list(layers).index(output)]
    dense = [name for name in before if isinstance(layers[name], nn.Linear)]
    if fully and not dense:
        raise AssayError(f"No fully connected layer precedes the output layer {output!r}; leave fully=True out.")
    chosen = {
        name: layer
        for name, layer in layers.items()
        if name != output and (isinstance(layer, _ConvNd) or (fully and name == dense[-1]))
    }
    if not chosen:
        raise AssayError(f"Nothing to centre: no convolution besides the output layer {output!r}; try fully=True.")
    return chosen


class Centralizer:
    r"""Centre gradients after backward and weights after the optimiser's step, on the `hidden_layers` of a model.

        backward -> `after_backward`: Delta W <- P Delta W (GC) -> step -> `after_step`: W <- P W (WC)

    Source: Fuhl and Kasneci, sec. 3 and 5; both flags on is the paper's proposal. Residual networks keep their batch
        normalisation. The order is the one above; the paper's own account of it is in a supplement.

    Under SGD the two flags are one method. With d = g + lambda w, v <- mu v + d, and w <- w - lr s, where s = v, or
    s = d + mu v for Nesterov, every line is linear in (w, v, g), and P with it: after WC, w = P w, and P v obeys the
    recursion that v obeys under GC. So from a centred start, WC, GC and both give the same weights, for any momentum,
    weight decay, schedule and area. `after_step()` called once before training centres the start, which WC would do
    anyway one step later. From another start GC keeps the mean that it finds (weight decay shrinks it). Adam divides
    each coordinate by its own scale, which does not commute with P: there the three differ.

    Centring costs nothing at inference: the trained model is an ordinary one.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weights: bool = True,
        gradients: bool = True,
        fully: bool = False,
        area: Area = "tensor",
        output: str | None = None,
    ) -> None:
        self.weights = weights
        self.gradients = gradients
        self.area: Area = area
        self.layers = hidden_layers(model, fully=fully, output=output)
        for name, layer in self.layers.items():
            if "weight" not in dict(layer.named_parameters(recurse=False)):
                raise AssayError(f"The weight of layer {name!r} is computed, not stored; remove its parametrization.")
            if isinstance(layer, _ConvTransposeNd) and layer.groups > 1:
                raise AssayError(f"Layer {name!r} is a transposed convolution in {layer.groups} groups; use groups=1.")
            try:
                _dims(_out_first(layer, layer.weight), area)
            except ShapeError as wrong:
                raise ShapeError(f"Layer {name!r}: {wrong}") from None

    @torch.no_grad()
    def after_backward(self) -> None:
        if self.gradients:
            for layer in self.layers.values():
                if layer.weight.grad is not None:
                    grad = _out_first(layer, layer.weight.grad)
                    grad -= _mean(grad, self.area)

    @torch.no_grad()
    def after_step(self) -> None:
        if self.weights:
            for layer in self.layers.values():
                weight = _out_first(layer, layer.weight)
                weight -= _mean(weight, self.area)


@contextmanager
def centred_errors(model: nn.Module, *, area: Area, fully: bool = False, output: str | None = None) -> Iterator[None]:
    """Within this context, centre the error that comes back to each of the `hidden_layers`: E <- P E.

    Source: Fuhl and Kasneci, eq. 10 (EB, area channel) and 11 (EL, area tensor: one sample); table 2 finds it harmful.
    The paper does not say where E is taken; here at the layer's output, before its activation.
    """

    def tap(_layer: nn.Module, _inputs: tuple[Tensor, ...], out: Tensor) -> None:
        if out.requires_grad:
            out.register_hook(lambda error: centre(error, area))  # type: ignore[no-untyped-call]

    handles = [layer.register_forward_hook(tap) for layer in hidden_layers(model, fully=fully, output=output).values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def reparametrised(
    model: nn.Module, operator: Operator, *, gradients: bool = False, fully: bool = False, output: str | None = None
) -> Iterator[None]:
    """Within this context the `hidden_layers` compute with WN or WS of their weights, and train through it.

        forward with S = operator(V),   V <- V - lr dL/dV,   and at the end W = S

    `gradients` centres dL/dV too, which under WS it is already. Afterwards each layer holds S as an ordinary weight, so
    that it costs nothing at inference. Neither operator leaves a filter its scale: a standardised one multiplies it by
    about the root of its inputs, and wants a batch normalisation behind it.

    Source: Salimans and Kingma, NeurIPS 2016, arXiv:1602.07868 (without its gain); Qiao et al. 2019, arXiv:1903.10520.
        Fuhl and Kasneci do not say whether theirs is trained through or put upon the weights after each step.
    """
    layers = hidden_layers(model, fully=fully, output=output)
    for layer in layers.values():
        parametrize.register_parametrization(layer, "weight", _Through(operator, layer))
    stored = [layer.parametrizations["weight"].original for layer in layers.values()]  # type: ignore[index, union-attr]
    handles = [
        v.register_hook(lambda g, layer=layer: _out_first(layer, centre(_out_first(layer, g))))
        for v, layer in zip(stored, layers.values(), strict=True)
        if gradients
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer in layers.values():
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


class _Through(nn.Module):
    """An operator on the filters of a layer, as a parametrization."""

    def __init__(self, operator: Operator, layer: Layer) -> None:
        super().__init__()
        self.apply_to = {"normalise": normalise, "standardise": standardise}[operator]
        self.turned = isinstance(layer, _ConvTransposeNd)

    def forward(self, w: Tensor) -> Tensor:  # out in *k -> out in *k
        return self.apply_to(w.transpose(0, 1)).transpose(0, 1) if self.turned else self.apply_to(w)


def _mean(w: Tensor, area: Area) -> Tensor:
    return w.mean(_dims(w, area), keepdim=True)


def _dims(w: Tensor, area: Area) -> list[int]:
    """The dimensions that one area spans."""
    if w.dim() < 2:
        raise ShapeError(f"Centring wants a tensor of shape (out, in, ...), got {tuple(w.shape)}; leave biases alone.")
    if area not in get_args(Area):
        raise AssayError(f"No area is called {area!r}; it is one of {', '.join(get_args(Area))}.")
    kept = {"global": (), "tensor": (0,), "channel": (1,), "instance": (0, 1)}[area]
    dims = [d for d in range(w.dim()) if d not in kept]
    if all(w.shape[d] == 1 for d in dims):
        raise ShapeError(
            f"Area {area!r} of a tensor of shape {tuple(w.shape)} holds one value, which centring would set to zero; "
            "choose a larger area, such as 'tensor'."
        )
    return dims


def _out_first(layer: Layer, w: Tensor) -> Tensor:
    """A view of `w` with the output index first: transposed convolutions keep it second."""
    return w.transpose(0, 1) if isinstance(layer, _ConvTransposeNd) else w
