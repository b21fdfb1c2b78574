"""What is left of a layer all of whose channels were cut away."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


class Emptied(nn.Module):
    """Stands where a layer has nothing left to compute: its bias, or 0, in the shape of the layer's answer."""

    bias: Tensor

    def __init__(self, channels: int, dims: int, sizes: Mapping[str, tuple[int, ...]] | None) -> None:
        super().__init__()
        self.dims = dims  # of space: 0 for a Linear, whose channels come last
        self.sizes = dict(sizes or {})
        self.register_buffer("bias", torch.zeros(channels))

    @classmethod
    def of(cls, layer: _ConvNd | nn.Linear, *, silent: bool) -> Emptied:
        """`silent`: nobody reads it, so that it is 0 whatever its bias was."""
        if isinstance(layer, nn.Linear):
            new = cls(layer.out_features, 0, None)
        else:
            if isinstance(layer.padding, str):
                spread = tuple(d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
                both = spread if layer.padding == "same" else (0,) * len(spread)
            else:
                both = tuple(2 * int(p) for p in layer.padding)
            sizes = {"kernel": layer.kernel_size, "stride": layer.stride, "dilation": layer.dilation, "padding": both}
            if isinstance(layer, _ConvTransposeNd):
                sizes["more"] = tuple(int(m) for m in layer.output_padding)
            new = cls(layer.out_channels, len(layer.kernel_size), sizes)
        new.to(layer.weight)
        if layer.bias is not None:
            del new.bias
            bias = torch.zeros_like(layer.bias) if silent else layer.bias.detach().clone()
            new.bias = nn.Parameter(bias, requires_grad=layer.bias.requires_grad)
        return new.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:  # n i *s -> n o *s'
        """A tensor of its own, so that the code behind may change it in place."""
        if self.dims == 0:
            return self.bias.to(x.dtype).expand(*x.shape[:-1], -1).clone()
        space = list(x.shape[2:])
        for i, (k, s, d, p) in enumerate(
            zip(*(self.sizes[of] for of in ("kernel", "stride", "dilation", "padding")), strict=True)
        ):
            if "more" in self.sizes:
                space[i] = (space[i] - 1) * s - p + d * (k - 1) + self.sizes["more"][i] + 1
            else:
                space[i] = (space[i] + p - d * (k - 1) - 1) // s + 1
        flat = self.bias.to(x.dtype).reshape(1, -1, *[1] * self.dims)
        return flat.expand(x.shape[0], -1, *space).clone()

    def extra_repr(self) -> str:
        return f"channels={len(self.bias)}"
