"""Train with a price on the scales of batch normalisation, and cut the channels that it made small, in rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from assay.errors import AssayError
from assay.methods.compress import slimming as method
from assay.methods.compress.slimming import Score, SoftMask
from assay.methods.compress.surgery import cut
from assay.remedies._retraining import _is_swift, kept_as, loss_of
from assay.remedies._shrinking import Shrinking, example

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from assay.methods.compress.surgery import Edge
    from assay.remedy import Cost
    from assay.run import Run
    from assay.subject import Subject

LOOKED_AT = 256  # training inputs by which a batch normalisation that is put in begins


@dataclass(frozen=True)
class Slimming(Shrinking):
    """Trains it with a price on the scales of batch normalisation, and cuts channels of small scale, in rounds.

    Channels of the whole network are ranked by |gamma| times the `score` of their kernel: its `sum`, its `mean` (as the
    public code has it), or `gamma` alone. `sparsity` is the price on |gamma|; it rises over the share `warm_up` of a
    training and then falls as a cosine to `end` of itself (the public code: 0.2; 1 stays). `soft_mask` makes a tenth of
    scales below a fifth of their mean before each epoch (`paper`), takes shifts and moments along every second one
    (`code`), or is `off`. After each of the `rounds` as many channels go as the price asks, equal shares at a time, or
    `rate` of them all; `at_least` is the share of a layer, and two channels, that stays. The epochs are divided among
    the rounds and a training after the last. Layers that a sum joins lose the same channels; with `as_published` each
    its own lowest, as in the public code, so that channels are added that never were. `with_norms` puts batch
    normalisation behind convolutions that have none, for the training alone: it is folded into them afterwards.
    """

    score: Score = field(default="sum", kw_only=True)
    sparsity: float = field(default=0.01, kw_only=True)
    warm_up: float = field(default=0.05, kw_only=True)
    end: float = field(default=0.0, kw_only=True)
    soft_mask: SoftMask = field(default="paper", kw_only=True)
    rounds: int = field(default=2, kw_only=True)
    rate: float | None = field(default=None, kw_only=True)
    at_least: float = field(default=0.1, kw_only=True)
    as_published: bool = field(default=False, kw_only=True)
    with_norms: bool = field(default=False, kw_only=True)

    source: ClassVar[str] = "Zhang, Wang, Zhao & Su, ICANN 2021 (Pruned-YOLO), after Liu et al., ICCV 2017"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise AssayError(f"rounds={self.rounds} cut nothing; give at least 1.")
        if not 0 <= self.at_least <= 1 or (self.rate is not None and not 0 < self.rate < 1):
            rate = "" if self.rate is None else f", rate={self.rate:g}"
            raise AssayError(f"slimming got at_least={self.at_least:g}{rate}; give shares between 0 and 1.")
        method.price(torch.zeros(()), most=self.sparsity, warm_up=self.warm_up, end=self.end)
        method.theta(torch.ones(1), torch.ones(1, 1), self.score)

    def cost(self) -> Cost | None:
        return super().cost() if self.rate is None else None  # what a rate of the channels saves, no setting says

    def asked(self) -> str:
        if self.rate is None:
            return super().asked()
        return f"With {self.rate:g} of the channels gone in each of {self.rounds} rounds"

    def paid(self, model: nn.Module, subject: Subject, run: Run | None = None) -> float:
        return super().paid(method.folded(model), subject, run)  # without what is put in for the training alone

    def foresee(self, subject: Subject) -> None:
        foldable = method.foldable(subject.model)
        if not method.batch_norms(subject.model) and not (self.with_norms and foldable):
            raise AssayError(
                "it ranks channels by the scales of batch normalisation, and "
                f"{type(subject.model).__name__} trains none; "
                + ("--set with_norms=true puts some in while it trains" if foldable else
                   "it needs convolutions or linear layers with batch normalisation behind them")
            )  # fmt: skip
        self._parts(subject)
        model = self._normed(subject, torch.Generator().manual_seed(0))
        if self.priced.kind == "latency":  # measured where it is trained
            self._ranked(model, subject)
        else:
            self._refuse_out_of_reach(model, subject, None, self.paid(model, subject))

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self._normed(subject, rng)
        whole = self.paid(model, subject, run)
        parts = self._parts(subject)
        self._refuse_out_of_reach(model, subject, run, whole)
        for number, epochs in enumerate(parts, 1):
            model = self._priced(model, subject, run, rng, epochs, number)
            if number <= self.rounds:
                model = self._cut(model, subject, run, whole, number)
        return subject.cured(method.folded(model).eval(), self.name())

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        said = []
        if self.score != "gamma":
            tied = f"a weight decay of {self.weight_decay:g} is all that ties its size to its use"
            untied = "and without weight decay nothing ties its size to its use: set weight_decay or score=gamma"
            said.append(
                "The score counts the size of a kernel, which batch normalisation takes out again: a filter times s "
                f"says the same and scores s times as much; {tied if self.weight_decay else untied}."
            )
        if self.with_norms:
            said.append(
                "Batch normalisation that was put in begins with the spread of each channel as its scale: layers of "
                "small answers are ranked below those of large ones, whatever they are worth."
            )
        return tuple(said)

    def _normed(self, subject: Subject, rng: Generator) -> nn.Module:
        """What its training begins with."""
        model = self.begun(subject.model, rng).cpu()
        if not self.with_norms:
            return model
        data = subject.data["train"]
        few = np.linspace(0, len(data) - 1, min(LOOKED_AT, len(data))).round().astype(np.int64)
        return method.with_norms(model, torch.as_tensor(data.take(few)[0]))

    def _parts(self, subject: Subject) -> list[int]:
        """Epochs of each training: one before each cut, and one after the last."""
        epochs, parts = self.epochs_on(subject), self.rounds + 1
        if epochs < parts:
            raise AssayError(
                f"epochs={epochs} cannot be divided among {self.rounds} rounds and a training after them; use --set "
                f"epochs={parts} or more, or fewer rounds."
            )
        return [epochs // parts + (i < epochs % parts) for i in range(parts)]

    def _priced(
        self, model: nn.Module, subject: Subject, run: Run, rng: Generator, epochs: int, number: int
    ) -> nn.Module:  # fmt: skip
        """Train it in place with its scales priced; on the CPU and in eval mode afterwards."""
        slim = method.Slimming(
            model, per_epoch=math.ceil(len(subject.data["train"]) / self.batch), epochs=epochs, most=self.sparsity,
            warm_up=self.warm_up, end=self.end, way=self.soft_mask,
        )  # fmt: skip
        plain = loss_of(subject)

        def loss(out: Tensor, y: Tensor) -> Tensor:
            return plain(out, y) + slim.penalty()

        with kept_as(model):
            replace(self, epochs=epochs, lr=self.learning_rate).train(
                slim, subject, run, rng, about=f"training with a price on scales, part {number} of {self.rounds + 1}",
                loss=loss, after_step=slim.after_step, swift=_is_swift(subject.model, run), resumes=True,
            )  # fmt: skip
        return model.cpu().eval()

    def _refuse_out_of_reach(self, model: nn.Module, subject: Subject, run: Run | None, whole: float) -> None:
        """Before it is trained: where rounds that cut all they may would not come down to the price."""
        if self.rate is not None:
            self._ranked(model, subject)
            return
        for number in range(1, self.rounds + 1):
            found, groups = self._ranked(model, subject)
            every = _channels(groups)
            model = _without(model, found, method.lowest(groups, (every - 1) / every, at_least=self.at_least))
            self._refuse_above(self.paid(model, subject, run), whole, number)

    def _refuse_above(self, least: float, whole: float, number: int) -> None:
        wanted = self.priced.share ** (number / self.rounds)
        if least > whole * wanted:
            raise AssayError(
                f"The price {self.price} cannot be met: with {100 * self.at_least:g} % of each layer and two channels "
                f"left, cut {number} of {self.rounds} leaves {least / whole:.3g} of the {self.priced.kind} where it "
                f"must leave {wanted:.3g}; ask for more, or set a smaller at_least."
            )

    def _ranked(self, model: nn.Module, subject: Subject) -> tuple[tuple[Edge, ...], dict[str, list[method.Writer]]]:
        """The edges, and those with layers that can be ranked."""
        found = self.prunable(subject, model)
        groups = method.writers(model, found, example(subject), self.score)
        if not groups:
            raise AssayError(
                f"No channel of {type(model).__name__} that can be cut has a batch normalisation right behind its "
                "layer; choose a remedy that ranks by weights, such as prune."
            )
        return found, groups

    def _cut(self, model: nn.Module, subject: Subject, run: Run, whole: float, number: int) -> nn.Module:
        """Without the channels of the lowest theta: `rate` of them, or as many as must go by this round."""
        found, groups = self._ranked(model, subject)
        rate = self.rate
        if rate is None:
            rate = self._count(model, subject, run, found, groups, whole, number) / _channels(groups)
        if self.as_published:
            gone = method.own_lowest(groups, rate, at_least=self.at_least)
            moved, keep = method.rearranged(model, found, gone, example(subject))
            return cut(moved, found, keep)
        return _without(model, found, method.lowest(groups, rate, at_least=self.at_least))

    def _count(
        self, model: nn.Module, subject: Subject, run: Run, found: tuple[Edge, ...],
        groups: dict[str, list[method.Writer]], whole: float, number: int,
    ) -> int:  # fmt: skip
        """How many of the lowest must go; the cost falls as more do, so by bisection."""
        every, most = _channels(groups), whole * self.priced.share ** (number / self.rounds)

        def price(count: int) -> float:
            gone = method.lowest(groups, count / every, at_least=self.at_least)
            return self.paid(_without(model, found, gone), subject, run)

        low, high = 0, every - 1
        if price(0) <= most:
            return 0
        self._refuse_above(price(high), whole, number)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if price(middle) <= most else (middle, high)
        return high


def _channels(groups: dict[str, list[method.Writer]]) -> int:
    return sum(len(writer.worth) for some in groups.values() for writer in some)


def _without(model: nn.Module, found: tuple[Edge, ...], gone: dict[str, Tensor]) -> nn.Module:
    return cut(model, found, {name: ~each for name, each in gone.items()})


SHELVED = Slimming
