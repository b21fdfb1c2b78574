"""Answers of a classifier of two classes by thresholds of each group, which is read off the input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

LEAST = 1e-3  # of a margin, so that an answer is never a tie


class ByGroup(nn.Module):
    """Yes where u(x) < q(s), q as in `methods/fair/thresholds.py`, and u a number in [0, 1) that hangs on x alone.

    The margin keeps its size and takes the sign of the answer. An input of no known group keeps the model's own answer.
    """

    def __init__(self, model: nn.Module, places: Sequence[int], states: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.model, self.places = model, list(places)
        self.states: Tensor
        self.rule: Tensor
        self.register_buffer("states", torch.tensor(states, dtype=torch.float32), persistent=False)  # g d
        start = torch.tensor([0.5, 0.5, 1.0, 0.0, 0.0], dtype=torch.float64)
        self.register_buffer("rule", start.repeat(len(states), 1))  # g 5: a, b, w, p, f

    def set(self, *rule: Tensor) -> None:  # five of g
        self.rule.copy_(torch.stack(rule, 1).double().clamp(max=2.0))  # no score reaches 2

    def forward(self, x: Tensor) -> Tensor:  # n d -> n 2
        logits: Tensor = self.model(x)
        margin = logits[:, 1] - logits[:, 0]
        same = (x[:, None, self.places].round() == self.states.round()).all(-1)  # n g
        known, group = same.any(1), same.float().argmax(1)
        a, b, w, p, f = self.rule[group].unbind(1)
        score = logits.double().softmax(1)[:, 1]
        q = (1 - p) * (w * (score >= a) + (1 - w) * (score >= b)) + p * f
        turns = torch.arange(1, x.flatten(1).shape[1] + 1, device=x.device, dtype=torch.float64)
        u = (torch.sin(x.flatten(1).double() @ turns.sqrt()) * 43758.5453).frac().abs()
        said = torch.where(known, u < q, margin > 0)
        signed = torch.where(said, 1.0, -1.0).to(margin) * margin.abs().clamp_min(LEAST)
        return torch.stack([-signed / 2, signed / 2], 1)
