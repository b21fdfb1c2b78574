"""What its confidence does on the way from the data to where no data are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.finding import Alarm, Beside, Curve, Finding, Line, Measure, Table, share
from assay.methods.attack.jacobian import jacobian
from assay.methods.uncertainty.outliers import along_rays
from assay.probe import Probe
from assay.tasks import Task

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

Floats = NDArray[np.float64]
EACH, WAYS, LOOKED = 2, 8, 16  # inputs for each step of the budget, random ways from each, inputs whose slopes are seen
NEAREST, POINTS = 1 / 16, 15  # the first distance, and how many there are
WIDE = 1024  # values of an input up to which the least heeded direction is looked for
MANY = 64  # numbers of an answer that is no class, likewise
CERTAIN, FLAT = 0.99, 0.05  # sure at least so much; and at most so far of the way from chance to certainty
RANDOM, AWAY, LEAST = "random ways", "away from the data's middle", "the way it heeds least"


@dataclass(frozen=True)
class IsItSureFarAway(Probe):
    """Is it sure where no data are?

    From test inputs one walks outward along straight lines, far beyond the bounds of the inputs: in random directions,
    away from the middle of the data, and in the one direction that the model heeds least. Distances are in diameters
    of the input space (its range times the root of the number of values), up to `reach` of them. A classifier that
    knows its limits ends at chance, one over the number of classes; softmax on a network of ReLUs ends at certainty.
    The last direction is the one that no confidence can tell: what a model ignores changes nothing in its answer.

    Where an answer is no class, its confidence is what its task says of it, and chance is that of an answer that says
    nothing: logits of 0, or a spread without end.
    """

    reach: float = 1000.0
    inputs: int | None = None
    ways: int = WAYS

    source: ClassVar[str] = (
        "Wang, TU Delft 2024 (dissertation), sec. 5.5 and 8.2; Hein, Andriushchenko & Bitterwolf, CVPR 2019, "
        "arXiv:1812.05720 (ReLU networks are sure far away)"
    )

    def __post_init__(self) -> None:
        self.refuse_below(1, "reach", "inputs", "ways")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and subject.tokens:
            reason = "it walks away from the inputs, and an input here is a row of words by number: none is far away"
        if reason is None and subject.in_classes().task.chance is None:
            reason = (
                f"it needs a confidence and what that is of an answer that says nothing; the task is "
                f"{subject.task.name()}, which does not say so"
            )
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        test = subject.data["test"]
        index = run.pick(test, self.inputs or run.budget.few(EACH * run.budget.steps))
        diameter = (subject.inputs.high - subject.inputs.low) * math.sqrt(math.prod(subject.inputs.shape))
        steps = np.geomspace(NEAREST, self.reach, POINTS)
        middle, least = self._landmarks(subject, run, index, diameter)
        walk = partial(self._walk, subject, torch.as_tensor(steps * diameter), middle, least)
        rows = run.map(walk, subject, "test", index, "walks away from the data")
        start, broken = np.asarray(rows["start"], dtype=np.float64), np.asarray(rows["broken"], dtype=np.int64)
        paths = {name: np.asarray(rows[name], dtype=np.float64) for name in (RANDOM, AWAY, LEAST) if name in rows}
        chance = subject.task.chance
        assert chance is not None  # why_not saw to it
        ends = paths[RANDOM][..., -1]  # n ways
        top = np.unravel_index(int(ends.argmax()), ends.shape)
        high = np.maximum.accumulate(
            np.concatenate([np.repeat(start[:, None, None], self.ways, 1), paths[RANDOM]], 2), 2
        )
        rises = (high[..., -1] > high[..., 0] + 0.01).mean(1)
        beside = (Beside("chance", chance), Beside("at the inputs", float(start.mean())))
        mean = partial(Measure.mean, seed=run.seed, better="lower")
        measures = (
            mean(
                HEADLINE,
                ends.mean(1),
                column="far away",
                about=f"its {_what(subject.task)} {self.reach:g} diameters out, over {self.ways} random ways an input",
                beside=beside,
            ),
            mean(
                "ways that end in certainty",
                (ends >= CERTAIN).mean(1),
                unit="%",
                about=f"share of the random ways at whose end its confidence is at least {CERTAIN:g}",
            ),
            Measure.mean(
                "ways that end at chance",
                (ends - chance <= FLAT * (1 - chance)).mean(1),
                seed=run.seed,
                better="higher",
                unit="%",
                about=f"share of the random ways at whose end it is within {FLAT:g} of the way from chance to 1",
            ),
            Measure(
                name="surest end",
                value=float(ends.max()),
                n=ends.size,
                better="lower",
                about="the largest confidence at the end of any random way",
                beside=beside[:1],
            ),
            Measure.mean(
                "ways on which it gets surer",
                rises,
                seed=run.seed,
                better="neither",
                unit="%",
                about="share of the random ways on which it is somewhere surer than at the input; a polynomial head "
                "peaks where its latent point passes a class",
            ),
            *(
                mean(f"confidence far away, {name}", paths[name][:, -1], beside=beside, about=about)
                for name, about in ((AWAY, ABOUT_AWAY), (LEAST, ABOUT_LEAST))
                if name in paths
            ),
        )
        return Finding(
            says=f"{self.reach:g} diameters away from the data its confidence is {100 * ends.mean():.0f} % on average, "
            f"where chance is {100 * chance:.0f} % and it has {100 * start.mean():.0f} % at the inputs; at the end of "
            f"{share(int((ends >= CERTAIN).sum()), ends.size)} ways it is certain.",
            measures=measures,
            samples=Table(
                "test",
                {
                    "index": index,
                    **({"label": np.asarray(test.labels)[index]} if "classes" in subject.task.gives else {}),
                    "confidence": start,
                    "far away": ends.mean(1),
                    "surest end": ends.max(1),
                    **{name: of[:, -1] for name, of in paths.items() if name != RANDOM},
                },
            ),
            views=(_curve(steps, paths, paths[RANDOM][top], chance, _what(subject.task)),),
            alarms=_alarms(subject, LEAST in paths, broken, self.ways),
        )

    def _landmarks(
        self, subject: Subject, run: Run, index: NDArray[np.int64], diameter: float
    ) -> tuple[Tensor, Tensor | None]:  # *d, *d
        """The middle of the inputs asked about, and the direction that moves the answers least, of near and far."""
        rows = run.map(lambda s: {"x": s.x.double()}, subject, "test", index, "the middle of the data")
        x = torch.as_tensor(rows["x"], device=run.device)
        middle = x.mean(0).float()
        size = middle.numel()
        if size > WIDE or size < 2 or not subject.differentiable or subject.draws > 1:
            return middle, None
        if not 2 <= _numbers(subject) <= MANY:
            return middle, None
        few = x[np.linspace(0, len(x) - 1, min(LOOKED, len(x))).round().astype(int)].float()
        way = torch.randn(few.shape, generator=run.rng(), device=run.device)
        far = few + self.reach * diameter * way / way.flatten(1).norm(dim=1).view(-1, *(1,) * middle.ndim)
        classes = "classes" in subject.task.gives

        def said(x: Tensor) -> Tensor:  # n *d -> n k
            out: Tensor = subject.model(x)
            return out if classes else out.flatten(1)

        gram = torch.zeros(size, size, dtype=torch.float64, device=run.device)
        for at in (few, far):
            for one in torch.split(at, 4):
                slopes = jacobian(said, one).flatten(2).flatten(0, 1).double()  # n k d -> nk d
                gram += slopes.T @ slopes / slopes.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
        if not bool(gram.isfinite().all()):
            return middle, None
        return middle, torch.linalg.eigh(gram).eigenvectors[:, 0].float().view_as(middle)

    def _walk(
        self, subject: Subject, distances: Tensor, middle: Tensor, least: Tensor | None, shard: Shard
    ) -> Mapping[str, Tensor]:
        """The largest probability along each way from each input; certainty where it is no number, and counted."""

        def sure(x: Tensor) -> Tensor:  # n *d -> n
            out = subject.predict(x).double()
            if "classes" in subject.task.gives:
                return out.softmax(1).amax(1)
            told = subject.task.confidence(out)
            assert told is not None  # why_not saw to it
            return told

        ways = torch.randn(len(shard.x), self.ways, *shard.x.shape[1:], generator=shard.rng, device=shard.x.device)
        away = shard.x - middle
        at = distances.to(shard.x)
        told: dict[str, list[Tensor]] = {RANDOM: [], AWAY: []}
        if least is not None:
            told[LEAST] = []
        for i, x in enumerate(shard.x):
            still = bool(away[i].abs().max() == 0)  # an input in the middle itself goes any way
            lead = [ways[i, 0] if still else away[i], *([] if least is None else [least])]
            paths = along_rays(sure, x, torch.cat([ways[i], torch.stack(lead)]), at)
            told[RANDOM].append(paths[: self.ways])
            for name, path in zip(list(told)[1:], paths[self.ways :], strict=True):
                told[name].append(path)
        found = {name: torch.stack(of) for name, of in told.items()}
        broken = (~found[RANDOM].isfinite()).any(2).sum(1)
        return {
            "start": sure(shard.x),
            "broken": broken,
            **{name: torch.where(of.isfinite(), of, 1.0) for name, of in found.items()},
        }


HEADLINE = "confidence far away"
ABOUT_AWAY = "the same, straight away from the mean of the inputs asked about"
ABOUT_LEAST = (
    "the same, along the direction in which the slopes of its answers, at inputs and far out, are smallest: as at the "
    "inputs where the model ignores it, and then no confidence can tell"
)


def _what(task: Task) -> str:
    return "largest probability" if "classes" in task.gives else "confidence"


def _curve(steps: Floats, paths: Mapping[str, Floats], surest: Floats, chance: float, what: str) -> Curve:
    x = tuple(map(float, np.log10(steps)))

    def line(label: str, y: Floats) -> Line:
        return Line(label=label, x=x, y=tuple(map(float, y)))

    random = paths[RANDOM]
    return Curve(
        name="rays",
        title="Its confidence on the way out",
        x_label="distance from the input, in diameters of the input space (powers of ten)",
        y_label=what,
        unit_y=True,
        lines=(
            line(f"{RANDOM}, mean", random.mean((0, 1))),
            line("the surest of them at each distance", random.max((0, 1))),
            line("the one that ends surest", surest),
            *(line(f"{name}, mean", paths[name].mean(0)) for name in (AWAY, LEAST) if name in paths),
            line("chance", np.full(len(steps), chance)),
        ),
        says="A conservative classifier falls to chance, not always all the way down: look at the surest way too.",
    )


def _numbers(subject: Subject) -> int:
    """How many numbers an answer has that is no class; 2 stand for those of classes, however many there are."""
    if "classes" in subject.task.gives:
        return 2
    return subject.task.trivial(np.asarray(subject.data["test"].labels)).out.numel()


def _alarms(subject: Subject, least: bool, broken: NDArray[np.int64], ways: int) -> tuple[Alarm, ...]:
    alarms = []
    if broken.any():
        count = share(int(broken.sum()), broken.size * ways)
        says = f"On {count} random ways its answer is NaN or infinite somewhere; such an answer counts as certain."
        alarms.append(Alarm(says, doubts=(HEADLINE,)))
    if not least:
        why = (
            "the model gives no gradients"
            if not subject.differentiable
            else "its answers are random"
            if subject.draws > 1
            else f"an answer has {_numbers(subject):,} numbers, and slopes are taken of 2 to {MANY}"
            if not 2 <= _numbers(subject) <= MANY
            else f"an input has {math.prod(subject.inputs.shape):,} values, and it is looked for among 2 to {WIDE:,}"
        )
        alarms.append(Alarm(f"The direction that it heeds least was not looked for: {why}."))
    return tuple(alarms)


SHELVED = IsItSureFarAway
