"""What the worst case of a regression costs beside that of a classifier: passes, counted in one run.

    python benchmarks/aims.py            two networks of one size, equally hard to break

Both networks are trained on the digits bundled with scikit-learn and have the same layers but for the last, which has
ten logits in one and one number in the other. The radius of each is that at which it keeps about half of its right
answers, found by the minimal-norm attack, so that as many inputs leave early here as there. A pass is one input once
through the network; a backward pass counts as one more. The limit is 1.1 times the passes of the classifier.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from assay.methods.attack import Aim, minimal_norm
from assay.methods.attack.aim import Truth
from assay.methods.attack.ensemble import worst_case

LIMIT = 1.1
INPUTS = 200


class Counted(nn.Module):
    """A model that counts the inputs that pass through it, and back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.passes = model, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += len(x)
        out: Tensor = self.model(x)
        if out.requires_grad and x.requires_grad:
            out.register_hook(self._back)
        return out

    def _back(self, gradient: Tensor) -> None:
        self.passes += len(gradient)


def trained(outputs: int, x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(400):
        rows = torch.randint(len(x), (128,))
        out = model(x[rows])
        cost = (
            nn.functional.cross_entropy(out, y[rows]) if outputs > 1 else (out[:, 0] - y[rows].float()).square().mean()
        )
        adam.zero_grad()
        torch.autograd.backward(cost)
        adam.step()
    return model.eval().requires_grad_(False)


def within(out: Tensor, target: Tensor) -> Tensor:
    return 1 - (out[:, 0] - target).abs() / 2.0


def cost(model: nn.Module, x: Tensor, y: Truth) -> tuple[int, float, float]:
    """Passes of the worst case at the radius that leaves about half right; that share, and the radius."""
    radius = float(minimal_norm(model, x, y, norm="linf", steps=100).distance.median())
    counted = Counted(model)
    found = worst_case(counted, x, y, radius=radius)
    return counted.passes, 1 - float(found.success.double().mean()), radius


def main() -> int:
    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    few, label = x[-INPUTS:], y[-INPUTS:]
    classes = cost(trained(10, x[:-INPUTS], y[:-INPUTS]), few, label)
    number = cost(trained(1, x[:-INPUTS], y[:-INPUTS]), few, Aim(within, label.float()))
    for name, (passes, right, radius) in (("ten classes", classes), ("one number", number)):
        print(f"{name}: {passes / INPUTS:.0f} passes an input, {100 * right:.0f} % right at {radius:.3f}")
    ratio = number[0] / classes[0]
    print(f"ratio {ratio:.2f}, limit {LIMIT}")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
