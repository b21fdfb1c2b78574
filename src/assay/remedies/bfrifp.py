"""Let any filters fade out while the network is trained on, and cut them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from assay.errors import AssayError
from assay.methods.compress.fading import Choice, Fading, Pace, faded, nearer, plan, ranked, strength
from assay.methods.compress.price import affordable
from assay.methods.compress.surgery import cut
from assay.remedies._retraining import _is_swift, kept_as
from assay.remedies._shrinking import Shrinking, example, timed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.methods.compress.surgery import Edge
    from assay.remedy import Cost
    from assay.run import Run
    from assay.subject import Subject


class _Gone(NamedTuple):
    edges: tuple[Edge, ...]
    gone: dict[str, Tensor]  # of each edge, bool


@dataclass(frozen=True)
class Bfrifp(Shrinking):
    """Lets the same share of each layer's filters fade out while the rest is trained to take over, and cuts them.

    Which fade does not matter by its source: the `last` ones by index, those with the lowest or the highest L1 norm, or
    random ones (`choice`). `share` is that of each layer; left out, as large as the price asks. Filters of layer l of n
    answer exp(min(-lambda_e e + lambda_l (n - l) / n, 0)) times what they did, e epochs after the start (`whole`: in
    whole epochs), and are frozen. Below `dead` they are silent, or fire normal noise of size `noise` while the network
    trains (`fires`). `freezes=false` lets them learn on.
    """

    choice: Choice = field(default="last", kw_only=True)
    share: float | None = field(default=None, kw_only=True)
    lambda_e: float = field(default=2.0, kw_only=True)
    lambda_l: float = field(default=5.0, kw_only=True)
    dead: float = field(default=0.01, kw_only=True)
    noise: float = field(default=0.01, kw_only=True)
    whole: bool = field(default=False, kw_only=True)
    fires: bool = field(default=True, kw_only=True)
    freezes: bool = field(default=True, kw_only=True)

    source: ClassVar[str] = "Qiu, Gu & Zhang, ICANN 2021 (BFRIFP)"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.pace
        faded(torch.ones(2), 0.5 if self.share is None else self.share, self.choice)

    @property
    def pace(self) -> Pace:
        return Pace(self.lambda_e, self.lambda_l, self.dead, self.noise, self.whole)

    def cost(self) -> Cost | None:
        return super().cost() if self.share is None else None  # what a share of the channels saves, no setting says

    def asked(self) -> str:
        return super().asked() if self.share is None else f"With {self.share:g} of each layer's channels gone"

    def foresee(self, subject: Subject) -> None:
        found = self.prunable(subject)
        self._refuse_short(subject, plan(subject.model, found, {}, example(subject)).layers)
        if self.share is None:
            self.refuse_dear(subject.model, found, subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng).cpu()
        found, gone = self._gone(model, subject, run)
        made = plan(model, found, gone, example(subject))
        fading = Fading(
            model, made, per_epoch=math.ceil(len(subject.data["train"]) / self.batch), pace=self.pace,
            fires=self.fires, freezes=self.freezes,
        )  # fmt: skip
        self._refuse_short(subject, made.layers)
        with kept_as(model):
            self.train(
                fading, subject, run, rng, about="training while filters fade", after_step=fading.after_step,
                swift=_is_swift(subject.model, run), resumes=True,
            )  # fmt: skip
        small = cut(fading.faded_out(), found, {name: ~each for name, each in gone.items()})
        return subject.cured(small.eval(), self.name())

    def beside(self, subject: Subject, cured: Subject, run: Run) -> tuple[str, ...]:
        return (*super().beside(subject, cured, run), *self._handed_over(subject, cured, run))

    def _gone(self, model: nn.Module, subject: Subject, run: Run) -> _Gone:
        """Which channels fade; the same for the same run, but for a price that is measured."""
        found, draw = self.prunable(subject, model), torch.Generator().manual_seed(run.seed)
        if self.share is not None:
            return _Gone(
                found, {e.name: faded(strength(model, e), self.share, self.choice, rng=draw) for e in found}
            )  # fmt: skip
        scores = {e.name: ranked(strength(model, e), self.choice, rng=draw) for e in found}
        keep = affordable(model, found, scores, self.priced, timed(subject), per="layer", device=run.device)
        return _Gone(found, {name: ~each for name, each in keep.items()})

    def _refuse_short(self, subject: Subject, layers: int) -> None:
        epochs, wanted = self.epochs_on(subject), self.pace.length(layers)
        if epochs < wanted:
            faster = math.ceil(10 * self.lambda_e * wanted / max(1, epochs)) / 10
            raise AssayError(
                f"epochs={epochs} end before all filters have faded, which takes {wanted:.1f} epochs of {layers} "
                f"layers; use --set epochs={math.ceil(2 * wanted)}, or lambda_e={faster:g} or more."
            )

    def _handed_over(self, subject: Subject, cured: Subject, run: Run) -> tuple[str, ...]:
        if self.start != "weights" or (self.share is None and self.priced.kind == "latency"):
            return ()  # the filters that faded, or which they were, are not known any more
        found, gone = self._gone(subject.model, subject, run)
        ratios = nearer(subject.model, cured.model, found, gone)
        if not ratios:
            return ()
        return (
            f"Kept filters are {sum(ratios) / len(ratios):.3g} times as far from those that faded as before (2-"
            f"Wasserstein, the mean over {len(ratios)} convolutions); below 1 they came nearer, as filters that only "
            "shrink do too.",
        )


SHELVED = Bfrifp
