"""Learn which channels the network can do without at a price, and take them out for good."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from assay.errors import AssayError
from assay.methods.compress.bill import bill, seconds
from assay.methods.compress.gates import CLOSED_AT_FIRST, RATE, ROUNDS, Gates, gate_lr, may_vanish, remeasure, thin
from assay.methods.compress.surgery import cut
from assay.remedies._retraining import loss_of
from assay.remedies._shrinking import Shrinking, timed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Generator, Tensor, nn

    from assay.methods.compress.bill import Bill
    from assay.methods.compress.dependency import Edge
    from assay.run import Run
    from assay.subject import Subject

MEASURED = 16  # batches of training inputs that normalisations are measured anew on


@dataclass(frozen=True)
class Gator(Shrinking):
    """Trains it with gates on its channels that close for good where one costs more than it does for the task.

    `price` is what a channel costs: multiply-adds, weights (`memory`, `parameters`) or seconds measured on this device
    (`latency`). `alpha` is what all of it weighs beside the loss. It doubles from round to round until the price is
    met, in `gating` of the epochs at most; what they leave undecided goes by how likely it is to close, and the other
    epochs train what is left. `rate` lets gates of cheap and dear channels learn alike; 0 is print's one rate for all,
    with which hardly a gate moves. `multiple=8` keeps channels in multiples of 8, as hardware likes. `as_coded` counts
    as the public code does. `tau` is how soft gates are to the gradient, `closed_at_first` how often they begin shut.
    """

    alpha: float = field(default=1.0, kw_only=True)
    gating: float = field(default=0.5, kw_only=True)
    rate: float = field(default=RATE, kw_only=True)
    tau: float = field(default=1.0, kw_only=True)
    closed_at_first: float = field(default=CLOSED_AT_FIRST, kw_only=True)
    multiple: int = field(default=1, kw_only=True)
    as_coded: bool = field(default=False, kw_only=True)

    source: ClassVar[str] = "Passov, David & Netanyahu, ICANN 2021, with the public code EliPassov/gator"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.gating < 1:
            raise AssayError(f"gating={self.gating:g} is no part of the epochs; give a share above 0 and below 1.")
        if not 0 < self.alpha < math.inf or not 0 <= self.rate < math.inf:
            raise AssayError(
                f"alpha={self.alpha:g} and rate={self.rate:g} move no gate; give an alpha above 0, such as 1, and a "
                "rate of 0 or more, such as 0.2."
            )
        if self.multiple < 1:
            raise AssayError(f"multiple={self.multiple} is no count of channels; give 1 to keep any number, or 8.")

    def foresee(self, subject: Subject) -> None:
        model = self.begun(subject.model, torch.Generator().manual_seed(0)).cpu()
        found = self.prunable(subject, model)
        if self.priced.kind == "latency":  # measured where it is trained
            return
        lasting = (~may_vanish(model, found, timed(subject))).tolist()
        fewest = {e.name: torch.arange(e.size) < int(lasts) for e, lasts in zip(found, lasting, strict=True)}
        least = self.paid(cut(model, found, fewest), subject) / self.paid(model, subject)
        if least > self.priced.share:
            raise AssayError(
                f"The price {self.priced} cannot be met: with one channel of each edge that must last the network "
                f"still costs {least:.3g} of its {self.priced.kind}; ask for more than that."
            )

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng).to(run.device)
        found = self.prunable(subject, model)
        few = timed(subject).to(run.device)
        whole = self.paid(model, subject, run)
        wanted = self.priced.share * whole
        epochs = self.epochs_on(subject)
        with_gates = max(1, min(round(self.gating * epochs), epochs - 1))
        rounds = min(ROUNDS, with_gates)
        each = [len(part) for part in np.array_split(range(with_gates), rounds)]
        steps = each[0] * math.ceil(len(subject.data["train"]) / self.batch)
        gates = Gates(
            found,
            self._bill(model, found, few, run).to(run.device),
            alpha=self.alpha,
            lr=self._gate_lr(steps),
            rate=self.rate or None,
            momentum=self.momentum,
            tau=self.tau,
            closed_at_first=self.closed_at_first,
            multiple=self.multiple,
            may_vanish=may_vanish(model, found, few),
            as_coded=self.as_coded,
        )
        bare = copy.deepcopy(model)  # what a cut costs, whatever the weights
        left = iter(each)
        done = 0

        def train(gates: Gates) -> None:
            nonlocal done
            part = replace(self, epochs=next(left))
            done += part.epochs or 0
            about = f"training with gates, {int(gates.counts().sum()):,} of {len(gates.open):,} channels open,"
            loss = gates.loss(loss_of(subject))
            part.train(model, subject, run, rng, about=about, loss=loss, after_step=gates.step)

        def price(keep: Mapping[str, Tensor]) -> float:
            return self.paid(cut(bare, found, keep), subject, run)

        small = cut(model, found, thin(gates, model, train, price, wanted, rounds=rounds))
        remeasure(small, self._batches(subject, run, rng))
        if epochs > done:
            self.finetuned(small, subject, run, rng, epochs=epochs - done)
        return subject.cured(small.eval(), self.name())

    def _gate_lr(self, steps: int) -> float:
        """Of which a gate that nobody needs is closed in half of the first round."""
        if not self.rate:
            return self.learning_rate
        return gate_lr(max(1, steps // 2), self.alpha, rate=self.rate, momentum=self.momentum)

    def _bill(self, model: nn.Module, found: tuple[Edge, ...], few: Tensor, run: Run) -> Bill:
        kind = self.priced.kind
        if kind == "latency":
            return seconds(model, found, few, run.device, as_coded=self.as_coded)
        return bill(model, found, few, kind)

    def _batches(self, subject: Subject, run: Run, rng: Generator) -> Iterator[Tensor]:
        """Some training inputs, on the device, in batches as equal as can be: none of a single input."""
        data = subject.data["train"]
        order = torch.randperm(len(data), generator=rng)[: MEASURED * self.batch]
        for index in order.tensor_split(math.ceil(len(order) / self.batch)):
            yield torch.as_tensor(data.take(index.numpy())[0], device=run.device)


SHELVED = Gator
