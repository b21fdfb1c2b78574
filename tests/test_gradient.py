"""Whether a gradient leads from answers to inputs, as taking one would tell: it is not taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.gradient import gradient_of


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        slope: Tensor = 2 * g * ctx.saved_tensors[0]
        return slope


class Writes(nn.Module):
    """Writes over a value in place, which is needed on the way back or is not."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.weight = where, nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        match self.where:
            case "what a function kept":
                z = x + 1
                out: Tensor = Squares.apply(z)
                z.zero_()
            case "what its own weight needs":
                z = x + 1
                out = z * self.weight
                z.zero_()
            case "what a frozen weight needs not":
                z = x + 1
                out = z * self.weight.detach()
                z.zero_()
            case "what leads to weights alone":
                z = self.weight.exp()
                out = x.sin() + (z * z).sum()
                z.zero_()
            case "a sum":
                out = 2 * x
                out += torch.relu(x)
            case "nothing, and answers a constant":
                out = self.weight.expand(len(x), 3)
            case other:
                raise AssertionError(other)
        return out


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("what a function kept", "refused"),
        ("what its own weight needs", "refused"),
        ("what a frozen weight needs not", "leads"),
        ("what leads to weights alone", "leads"),
        ("a sum", "leads"),
        ("nothing, and answers a constant", "none"),
    ],
)
def test_it_says_what_taking_one_would(where: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Writes(where), torch.rand(1, 3)
    at = x.clone().requires_grad_()
    try:
        (slope,) = torch.autograd.grad(model(at).sum(), at, allow_unused=True)
        taken = "none" if slope is None else "leads"
    except RuntimeError:
        taken = "refused"
    with monkeypatch.context() as patch:  # a process that took one has no forks that can
        patch.setattr(torch.autograd, "grad", None)
        patch.setattr(torch.autograd, "backward", None)
        patch.setattr(Tensor, "backward", None)
        said = gradient_of(model, x)
    assert said == taken == wanted
