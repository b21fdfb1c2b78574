"""Models read in another form than they were written in: what stands around them so that every question fits.

A classifier gives one logit per class. One that gives probabilities, or a single score, is read through its logarithm;
one that takes natural units is asked in shares of the range; one that changes its input in place gets a copy. None of
these changes a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from assay.inputs.kind import Bounded

SQUASHES = ("softmax", "sigmoid")


class BeforeSquash(TorchFunctionMode):
    """Remembers what went into the latest softmax or sigmoid, so that logits can be read behind such a head."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: tuple[Tensor, Tensor] | None = None  # (input, output)

    def __torch_function__(  # type: ignore[override]
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in SQUASHES and isinstance(result, Tensor):
            source = args[0] if args else (kwargs or {}).get("input")
            # F.softmax calls Tensor.softmax: the inner pair is the outer one
            if isinstance(source, Tensor):
                self.latest = (source, result)
        return result

    def input_of(self, output: Tensor) -> Tensor | None:
        return self.latest[0] if self.latest is not None and self.latest[1] is output else None


def _log(p: Tensor) -> Tensor:
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


class LogProbabilities(nn.Module):
    """The logarithm of a model that returns probabilities, taken before they were rounded where its softmax is seen."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        with BeforeSquash() as seen:
            out: Tensor = self.model(x)
        before = seen.input_of(out)
        return _log(out) if before is None else before.log_softmax(1)


class OneScore(nn.Module):
    """A model with one score for each input as a classifier of two classes, the second where the score is high.

    A logit z is read as (0, z), a probability p as (log(1 - p), log p).
    """

    def __init__(self, model: nn.Module, probability: bool) -> None:
        super().__init__()
        self.model, self.probability = model, probability
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n 2
        with BeforeSquash() as seen:
            out: Tensor = self.model(x)
        z, before = out.reshape(x.shape[0]), seen.input_of(out) if self.probability else None
        if before is not None:
            z = before.reshape(x.shape[0])
        elif self.probability:
            return torch.stack([_log(1 - z), _log(z)], 1)
        return torch.stack([torch.zeros_like(z), z], 1)


class Rescaled(nn.Module):
    """A model of natural units, asked in shares of the range: f(low + u span).

    What `kind` has as whole numbers and codes comes to the model whole, and its gradient as if it were not rounded: 35
    is no share of 41 in single precision, and a model that counts or looks up takes 34.999996 for 34.
    """

    low: Tensor  # broadcasts to *d
    span: Tensor  # broadcasts to *d
    kind: Bounded | None = None

    def __init__(self, model: nn.Module, low: Tensor, span: Tensor, kind: Bounded | None = None) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.register_buffer("low", low.float())
        self.register_buffer("span", span.float())
        if kind is not None:
            self.kind = kind

    def forward(self, u: Tensor) -> Tensor:  # n *d -> n k
        out: Tensor = self.model(self.natural(u))
        return out

    def natural(self, u: Tensor) -> Tensor:  # n *d -> n *d
        x = self.low + u * self.span
        return x if self.kind is None else x + (self.kind.typed(x) - x).detach()


class OnACopy(nn.Module):
    """A model that changes its input in place, given a copy of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        out: Tensor = self.model(x.clone())
        return out
