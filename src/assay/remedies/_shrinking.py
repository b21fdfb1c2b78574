"""What the remedies that shrink a network share: the price, the training after, the kept weights, what was removed.

A network that was cut has other shapes than its subject, and which ones is what was learnt; its kept weights say so
(`framed`). The control trains on from the same weights for as long and cuts nothing, so that a training which would
have done the whole network good, or harm, is not taken for the work of the cut. What cannot be cut, or not so far, is
told before the first audit, which takes minutes (`foresee`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from assay.errors import AssayError
from assay.methods.compress.criteria import OF_NORMS, Criterion, without_norm
from assay.methods.compress.price import Price, affordable, cost, flops, latency, parameters, within
from assay.methods.compress.surgery import Edge, edges, shaped_like
from assay.remedies._retraining import Hardening, Start
from assay.remedy import Cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Generator, Tensor

    from assay.run import Run
    from assay.subject import Subject

EXAMPLES = 32  # inputs of a batch whose answer is timed, where a latency is the price and where one is told
NAMED = 8  # layers whose channels a remark tells, those that lost most first


@dataclass(frozen=True)
class Shrinking(Hardening):
    """A remedy that takes channels out of the network for good and trains what is left.

    `price` says how small: `flops=0.5` is at most half of the multiply-adds, and `parameters`, `memory` (weights of
    layers) and `latency` (measured here) are said alike. `epochs` is all of the training, whatever its parts; it goes
    on from the subject's weights at a tenth of the usual rate, or `start="scratch"` anew.
    """

    start: Start = "weights"
    price: str = field(default="flops=0.5", kw_only=True)

    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self.price)

    @property
    def priced(self) -> Price:
        return within(self.price)

    def cost(self) -> Cost | None:
        return Cost(1, self.priced.share if self.priced.kind in ("flops", "latency") else 1)

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is not None:
            return reason
        try:
            self.foresee(subject)
        except AssayError as e:
            return str(e).removesuffix(".")
        return None

    def foresee(self, subject: Subject) -> None:
        """Refuse in one line what cannot be cut, or not so far, as `apply` would; in about a second, without a run."""
        self.prunable(subject)

    def refuse_dear(self, model: nn.Module, found: Sequence[Edge], subject: Subject) -> None:
        """Where one channel left of each edge costs more than the price, whichever it is; a time is not foreseen."""
        if self.priced.kind != "latency" and all(map(_alike, found)):
            nothing_known = {edge.name: torch.zeros(edge.size) for edge in found}
            affordable(model, found, nothing_known, self.priced, timed(subject))

    def framed(self, subject: Subject, tensors: Mapping[str, Tensor]) -> Subject:
        return subject.cured(shaped_like(subject.model, tensors), self.name())

    def prunable(self, subject: Subject, model: nn.Module | None = None) -> tuple[Edge, ...]:
        """The edges of the subject's network, or of the one that is made of it."""
        return edges(subject.model if model is None else model, example(subject))

    def finetuned(
        self,
        model: nn.Module,
        subject: Subject,
        run: Run,
        rng: Generator,
        *,
        epochs: int | None = None,
        about: str = "training what is left",
    ) -> nn.Module:
        """Train the smaller network in place, for all of the epochs or so many of them; in eval mode."""
        part = self if epochs is None else replace(self, epochs=epochs)
        return part.hardened(model, subject, run, rng, about=about)

    def paid(self, model: nn.Module, subject: Subject, run: Run | None = None) -> float:
        """What the network costs, in what the price is of; a time is of the run's device."""
        return cost(self.priced.kind, model, timed(subject), "cpu" if run is None else run.device)

    def asked(self) -> str:
        """How small it was to become."""
        return f"At the price {self.priced}"

    def beside(self, subject: Subject, cured: Subject, run: Run) -> tuple[str, ...]:
        return removed(subject, cured, self.asked(), run)


def example(subject: Subject, most: int = 2) -> Tensor:  # -> n *d
    """A few inputs that the network is read by."""
    data = subject.data["test"]
    x, _ = data.take(np.arange(min(most, len(data))))
    return torch.as_tensor(x)


def timed(subject: Subject) -> Tensor:  # -> n *d
    """The batch that a price is paid by and a time is told of: a latency that is met on fewer is another one."""
    return example(subject, EXAMPLES)


def refuse_without_norms(model: nn.Module, found: Sequence[Edge], criteria: Iterable[Criterion]) -> None:
    """Where a criterion reads a batch normalisation that an edge has not."""
    name = next((each for each in criteria if each in OF_NORMS), None)
    lacking = None if name is None else without_norm(model, found)
    if lacking is not None:
        raise AssayError(f"{name} reads a batch normalisation, and none follows {lacking!r}; choose l1 or apoz.")


def _alike(edge: Edge) -> bool:
    """Whether its channels cost the same: each stands as often in every layer."""
    places = (at[at >= 0] for side in (edge.outputs, edge.inputs) for at in side.values())
    return all(len(set(torch.bincount(at, minlength=edge.size).tolist())) == 1 for at in places)


def removed(subject: Subject, cured: Subject, asked: str, run: Run) -> tuple[str, ...]:
    """What a smaller network has lost against the one it was made of, layer by layer and as a whole."""
    widths = [
        {name: m.out_channels if isinstance(m, _ConvNd) else m.out_features for name, m in layers(each.model)}
        for each in (subject, cured)
    ]
    lost = {name: (wide, widths[1].get(name, 0)) for name, wide in widths[0].items() if widths[1].get(name, 0) < wide}
    most = sorted(lost, key=lambda name: lost[name][1] / lost[name][0])[:NAMED]
    told = ", ".join(f"{name} {lost[name][0]:,} to {lost[name][1]:,}" for name in most)
    rest = f", and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    x = timed(cured)
    models = [each.model for each in (subject, cured)]  # counted where they are, timed as copies on the run's device
    multiplied = [flops(model, x[:1]) for model in models]
    learnt = [parameters(model) for model in models]
    times = [1e3 * latency(model, x, run.device) for model in models]
    return (
        f"{asked} it has {_of(multiplied)} multiply-adds for one input and {_of(learnt)} parameters; a "
        f"batch of {len(x)} takes {times[1]:.3g} ms where it took {times[0]:.3g} ms (medians, measured on "
        f"{run.device}).",
        f"Channels left in the {len(lost)} layers that lost some: {told}{rest}." if lost else "It lost no channel.",
    )


def _of(counts: list[int]) -> str:
    before, after = counts
    return f"{after:,} of {before:,} ({100 * after / max(1, before):.1f} %)"


def layers(model: nn.Module) -> list[tuple[str, _ConvNd | nn.Linear]]:
    return [(name, m) for name, m in model.named_modules() if isinstance(m, _ConvNd | nn.Linear)]
