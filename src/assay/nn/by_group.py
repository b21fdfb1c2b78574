"""Answers of a classifier of two classes by thresholds of each group, which is read off the input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from assay.errors import AssayError

LEAST = 1e-3  # of a margin, so that an answer is never a tie
STEPS = 1000.0  # of a column's range, below which two inputs toss the same coin: rounding must not toss it again
EDGE = 0.5**0.5  # where a step begins: no number with few digits lies there


class ByGroup(nn.Module):
    """Yes where u(x) < q(s), q as in `methods/fair/thresholds.py`, and u a number in [0, 1) that hangs on x alone.

    The margin keeps its size and takes the sign of the answer. An input of no known group keeps the model's own answer.
    `low` and `span` are where the values of a column begin and how far they go.
    """

    def __init__(
        self,
        model: nn.Module,
        places: Sequence[int],
        states: Sequence[Sequence[float]],
        low: Tensor | float = 0.0,
        span: Tensor | float = 1.0,
    ) -> None:
        super().__init__()
        self.model, self.places = model, list(places)
        self.states: Tensor
        self.rule: Tensor
        self.low: Tensor
        self.span: Tensor
        self.register_buffer("states", torch.tensor(states, dtype=torch.float32), persistent=False)  # g d
        apart = (self.states[:, None] - self.states).abs().amax(-1) + torch.eye(len(states)) * 2
        if not bool((apart > 0).all()):
            raise AssayError(f"Two groups stand as the same numbers among {list(states)}; give each its own.")
        self.near = min(0.5, float(apart.min()) / 2)
        start, wide = (torch.as_tensor(each, dtype=torch.float64) for each in (low, span))
        self.register_buffer("low", start, persistent=False)
        self.register_buffer("span", torch.where(wide > 0, wide, 1.0), persistent=False)
        start = torch.tensor([0.5, 0.5, 1.0, 0.0, 0.0], dtype=torch.float64)
        self.register_buffer("rule", start.repeat(len(states), 1))  # g 5: a, b, w, p, f

    def set(self, *rule: Tensor) -> None:  # five of g
        self.rule.copy_(torch.stack(rule, 1).double().clamp(max=2.0))  # no score reaches 2

    def forward(self, x: Tensor) -> Tensor:  # n d -> n 2
        logits: Tensor = self.model(x)
        margin = logits[:, 1] - logits[:, 0]
        same = ((x[:, None, self.places] - self.states).abs() < self.near).all(-1)  # n g
        known, group = same.any(1), same.float().argmax(1)
        a, b, w, p, f = self.rule[group].unbind(1)
        score = logits.double().softmax(1)[:, 1]
        q = (1 - p) * (w * (score >= a) + (1 - w) * (score >= b)) + p * f
        steps = (STEPS * (x.double() - self.low) / self.span + EDGE).floor().nan_to_num(-1.0).flatten(1)
        turns = torch.arange(1, steps.shape[1] + 1, device=x.device, dtype=torch.float64)
        u = (torch.sin(steps @ turns.sqrt()) * 43758.5453).frac().abs()
        said = torch.where(known, u < q, margin > 0)
        signed = torch.where(said, 1.0, -1.0).to(margin) * margin.abs().clamp_min(LEAST)
        return torch.stack([-signed / 2, signed / 2], 1)
