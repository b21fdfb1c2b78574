"""Train the same architecture again with LocalNorm for batch normalisation."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self, get_args

import numpy as np
import torch
from torch.nn.modules.conv import _ConvNd

from assay.errors import AssayError, ShapeError
from assay.methods.train.fit import into_training
from assay.nn.local_norm import ALONE, QUARTERS, LocalNorm, LocalNormed, Mode, check, with_local_norm
from assay.probe import undisturbed
from assay.remedies._retraining import Hardening, how_alike
from assay.remedy import Cost
from assay.subject import answer_once

if TYPE_CHECKING:
    from torch import nn

    from assay.run import Run
    from assay.subject import Subject

LOOKED_AT = 16  # inputs by which a net is seen that tells them no longer apart
SAME = 1e-5  # of the largest answer


@dataclass(frozen=True)
class Localnorm(Hardening):
    """Trains it with batch normalisation in groups whose statistics are taken anew, so that noise shifts it less.

    A batch is split into `groups`, each with its own scale and shift; 32 of them have 4 inputs each of 128. `mode` is
    how it answers afterwards: each input by itself through one group (single) or through all (single-vote), or a batch
    at once, in its groups (batch) or through all of them (voting). In the last two, which are print's best, an answer
    depends on the other inputs of its batch, and an audit doubts every number. `rotations` by a quarter stand beside an
    input alone for the statistics only: left out, three of a square image. A net with convolutions and no batch
    normalisation gets LocalNorm behind each of them.
    """

    groups: int = 32
    mode: Mode = "single"
    rotations: int | None = None

    source: ClassVar[str] = "Yin, Scholte & Bohte, ICANN 2021, doi:10.1007/978-3-030-86380-7_20"
    mends: ClassVar[tuple[str, ...]] = ("everyday-change",)
    of_layers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1:
            raise AssayError(f"groups={self.groups} split nothing; give at least 1, such as 8.")
        check(self.mode, self.rotations or 0)

    def settled(self, subject: Subject) -> Self:
        return replace(super().settled(subject), rotations=self._turns(subject.inputs.shape))

    def cost(self) -> Cost | None:
        through = self.groups if self.mode in ("single-vote", "voting") else 1
        usual = QUARTERS if self.mode in ALONE else 0
        return Cost(1, through * (1 + (usual if self.rotations is None else self.rotations)))

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        if not any(isinstance(module, _ConvNd) for module in subject.model.modules()):
            return "it normalises the maps of convolutions, and the model has none"
        count = len(subject.data["train"])
        least = count // math.ceil(count / max(1, self.batch))
        if least < self.groups:
            return f"a batch of {least} inputs cannot be split into {self.groups} groups; use groups={least} or fewer"
        if self.rotations and not _is_square(subject.inputs.shape):
            return f"inputs of shape {subject.inputs.shape} cannot be turned by a quarter; use rotations=0"
        return self._folds(subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        begun = self.begun(subject.model, rng)
        model = self._local(begun, subject)
        self._refuse_blind(model, replace(subject, model=begun), run)
        self.hardened(model, subject, run, rng, about="training with LocalNorm")
        return subject.cured(model, self.name())

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self._local(subject.model, subject).eval(), self.name())

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        model = cured.model
        assert isinstance(model, LocalNormed)
        said = [_where(model), _company(self.mode), _in_each_mode(model, cured, run)]
        if self.mode in ("single-vote", "voting"):
            said += how_alike(cured, run)
        return tuple(said)

    def _local(self, net: nn.Module, subject: Subject) -> LocalNormed:
        return with_local_norm(net, self.groups, self.mode, rotations=self._turns(subject.inputs.shape))

    def _folds(self, subject: Subject) -> str | None:
        """Why rows cannot be told their groups: the net makes more of them, which one pass of a training shows."""
        x, _ = subject.data["train"].take(np.arange(min(len(subject.data["train"]), max(2, self.groups))))
        with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            model = into_training(self._local(subject.model, subject))
            try:
                model(x.to(next(model.parameters()).device))
            except ShapeError as e:
                return str(e).removesuffix(".")
            except Exception:  # what else ails it, the training tells
                return None
        return None

    def _turns(self, shape: tuple[int, ...]) -> int:
        usual = QUARTERS if self.mode in ALONE and _is_square(shape) else 0
        return usual if self.rotations is None else self.rotations

    def _refuse_blind(self, model: LocalNormed, subject: Subject, run: Run) -> None:
        """A map of 1 x 1, or one whose mean is all that is used of it, is the shift of its group after LocalNorm."""
        if self.mode not in ALONE:
            return
        x, _ = subject.data["test"].take(np.arange(min(LOOKED_AT, len(subject.data["test"]))))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tells_apart = []
            for each in (subject.model, model):
                with undisturbed(each, run):
                    out = answer_once(each, x.to(run.device))
                tells_apart.append(bool((out - out[:1]).abs().max() > SAME * out.abs().max()))
        if tells_apart == [True, False]:
            raise AssayError(
                f"Behind LocalNorm {type(subject.model).__name__} says the same of every input alone: a map of 1 x 1, "
                "or a mean over a map, is all that is left of it; use --set mode=batch or mode=voting."
            )


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[-1] == shape[-2]


def _where(model: LocalNormed) -> str:
    count = sum(isinstance(module, LocalNorm) for module in model.modules())
    if model.put_in:
        return (
            f"The model has no batch normalisation: LocalNorm was put behind its {count} convolutions, and its control "
            "is the net without any, so that part of the difference is that of normalising at all."
        )
    return f"LocalNorm stands where its {count} batch normalisations were."


def _company(mode: Mode) -> str:
    if mode in ALONE:
        return (
            "Statistics are those of the input alone, so that its answer is the same in any batch. Print's better "
            "numbers are those of mode=batch and mode=voting, where an answer is that of a batch."
        )
    return (
        f"With mode={mode} an answer depends on the other inputs of its batch, and every number here is in doubt; "
        "mode=single-vote answers for each input by itself."
    )


def _in_each_mode(model: LocalNormed, cured: Subject, run: Run) -> str:
    """How often it would be right if it were asked in each of the four ways."""
    index = run.pick(cured.data["test"])
    told = []
    for mode in get_args(Mode):
        other = replace(cured, model=model.asked(mode, rotations=model.rotations if mode in ALONE else 0))
        with undisturbed(other.model, run):
            logits, label = run.predict(other, "test", index, f"asked in mode {mode}")
        told.append(f"{mode} {100 * float((logits.argmax(1) == label).mean()):.1f} %")
    return f"Of {len(index):,} test inputs it is right on, by mode: {', '.join(told)}."


SHELVED = Localnorm
