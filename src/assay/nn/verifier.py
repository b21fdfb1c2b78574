r"""A head that says of one class whether an embedding is it: accept or reject, by a kernel machine.

    D(e) = sum_i c_i K(e_i, e) + b - own K(e, e) - threshold

The other classes keep the logits of the head that it stands on, and the genuine one gets z_g = max_{j != g} z_j + D(e):
it is answered exactly where D > 0. D is smooth in e, so that an attack climbs it. It is worked out in float64, because
multipliers are large and of both signs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.nn.kernel import Kernel


class Verifier(nn.Module):
    """D of embeddings; nothing trains. gamma is a buffer, as it may have been set by the data."""

    points: Tensor  # s d
    weight: Tensor  # s
    bias: Tensor  # ()
    threshold: Tensor  # ()
    gamma: Tensor  # ()

    def __init__(self, points: Tensor, weight: Tensor, bias: float, kernel: Kernel, *, own: bool, threshold: float):
        super().__init__()
        if points.ndim != 2 or weight.shape != points.shape[:1]:
            raise ShapeError(
                f"Verifier got points of shape {tuple(points.shape)} and weights of shape {tuple(weight.shape)}; it "
                "wants (s, d) and (s,)."
            )
        self.kernel, self.own = replace(kernel, gamma=1.0), own  # gamma is the buffer's, so that a frame is the same
        self.register_buffer("points", points.detach().double().clone())
        self.register_buffer("weight", weight.detach().double().clone())
        self.register_buffer("bias", torch.tensor(float(bias), dtype=torch.float64))
        self.register_buffer("gamma", torch.tensor(kernel.gamma, dtype=torch.float64))
        self.register_buffer("threshold", torch.tensor(float(threshold), dtype=torch.float64))

    def forward(self, e: Tensor) -> Tensor:  # n d -> n
        if e.ndim != 2 or e.shape[1] != self.points.shape[1]:
            raise ShapeError(
                f"Verifier got embeddings of shape {tuple(e.shape)}; it wants (n, {self.points.shape[1]})."
            )
        wide = e.to(self.points.dtype)
        kernel = replace(self.kernel, gamma=float(self.gamma))
        d = kernel(wide, self.points) @ self.weight + self.bias - self.threshold
        d = d - kernel.own(wide) if self.own else d
        return d.to(e.dtype)

    def extra_repr(self) -> str:
        return f"{self.kernel}, points={len(self.points)}, own={self.own}"


class GenuineHead(nn.Module):
    """A head of k logits, of which the genuine class's is decided by a verifier."""

    def __init__(self, head: nn.Module, verifier: Verifier, genuine: int) -> None:
        super().__init__()
        if genuine < 0:
            raise AssayError(f"The genuine class is {genuine}; give the place of a class, from 0.")
        self.head, self.verifier, self.genuine = head, verifier, genuine

    def forward(self, e: Tensor) -> Tensor:  # n d -> n k
        z: Tensor = self.head(e)
        own = torch.arange(z.shape[1], device=z.device) == self.genuine  # k
        best = z.masked_fill(own, -torch.inf).amax(1)
        return torch.where(own, (best + self.verifier(e))[:, None], z)
