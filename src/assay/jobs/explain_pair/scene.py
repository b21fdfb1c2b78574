"""One pair: its two inputs, where its comparison is to go, and the walk that takes it there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from assay.errors import AssayError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.methods.rank.manner import Manner
    from assay.methods.rank.walk import Tied, Walk
    from assay.run import Run
    from assay.subject import Subject
    from assay.tasks import Ranking, Similarity

STEPS, STEP = 200, 0.5  # of the walk, as `walk` has them
NEAR = 0.005  # of the scale: close enough to the target
SHRINK = 0.05  # what a first step should at least take of the way, where the slope is so small that STEP takes nothing
QUARTERS = 12  # how often the step is made smaller until the walk no longer jumps past its target
COARSE = 25  # steps of the walk on such a model, at most
FAR = 1000.0  # thresholds: a distance that no pair has


class Scene(NamedTuple):
    """One pair and how its first input is walked."""

    task: Ranking | Similarity
    a: Tensor  # 1 c h w
    b: Tensor  # 1 c h w
    bounds: tuple[float, float]
    what: tuple[str, str]
    given: tuple[str, str]
    values: tuple[float | None, float | None]
    c: float
    target: float
    tied: Tied
    step: float
    even: bool  # steps of that length, not that many times the gradient
    steps: int
    manner: Manner

    @classmethod
    def of(
        cls,
        subject: Subject,
        first: int | str | Path,
        second: int | str | Path,
        target: float | None,
        run: Run,
        manner: Manner | None = None,
    ) -> Scene:
        """Read the pair, refuse what cannot be explained, and find a step that does not jump past the target."""
        from assay.methods.rank.manner import PLAIN
        from assay.methods.rank.walk import to_tie
        from assay.probe import undisturbed
        from assay.subject import PairModel
        from assay.tasks import Ranking, Similarity

        task, model = subject.task, subject.model
        if not isinstance(task, Ranking | Similarity) or not isinstance(model, PairModel) or not subject.pairs:
            raise AssayError(
                f"{subject.name!r} answers about one input at a time; --pair is for a model that compares two, such as "
                f"digits-ranker. Give --input instead."
            )
        if len(subject.inputs.shape) != 4 or subject.inputs.shape[1] not in (1, 3):
            raise AssayError(
                f"A pair of inputs of shape {subject.inputs.shape[1:]} is no pair of images; explain draws images of 1 "
                f"or 3 channels."
            )
        if subject.draws > 1:
            raise AssayError(
                f"{subject.name!r} answers at random (draws={subject.draws}), so that no two walks of it are alike; "
                f"explain takes a model that answers the same twice."
            )
        goal = task.tie if target is None else float(target)
        low, high = scale_of(task)
        if not low <= goal <= (high if ordered(task) else float("inf")):
            raise AssayError(
                f"The target {goal:g} is no answer of {subject.name!r}: it lies between {low:g} and "
                f"{f'{high:g}' if ordered(task) else 'infinity'}; {task.tie:g} is the tie."
            )
        (a, what, value), (b, what_b, value_b) = (read(subject, given) for given in (first, second))
        a, b = a.to(run.device), b.to(run.device)
        how = PLAIN if manner is None else manner
        mask = how.mask(a)
        with undisturbed(model, run):
            tied = to_tie(score_of(model, b), a, at=task.tie, mask=mask)
            c = float(score_of(model, b)(a).detach())
            near = NEAR * (high - low)
            if abs(c - goal) <= near:
                raise AssayError(
                    f"{subject.name!r} says {c:.3f} of this pair already, which is the target {goal:g}; choose another "
                    f"with --to, such as {low:g} or {high:g}."
                )
            slope = float(tied.slope)
            stuck = AssayError(
                f"The answer {c:.3f} of {subject.name!r} does not move with {what}: its gradient is 0 there, so that "
                f"there is no way to walk. Swap the two, or choose another pair"
                + (" or region." if how.region else ".")
            )
            if not slope > 0:
                raise stuck
            scene = cls(
                task=task,
                a=a,
                b=b,
                bounds=(subject.inputs.low, subject.inputs.high),
                what=(what, what_b),
                given=(str(first), str(second)),
                values=(value, value_b),
                c=c,
                target=goal,
                tied=tied,
                step=max(STEP, SHRINK / slope**2),
                even=False,
                steps=STEPS,
                manner=how,
            )
            walked = scene.walk(model)
            for _ in range(QUARTERS):
                if bool(((walked.trace - goal) * (c - goal) >= -near * abs(c - goal)).all()):
                    break
                scene = scene._replace(step=scene.step / 4)
                walked = scene.walk(model)
            steps = int(walked.steps)
            if abs(float(walked.c) - goal) > abs(c - goal) / 2:  # flat at first and steep later: no such step is right
                straight = to_tie(score_of(model, b), a, at=goal, mask=mask)
                if bool(straight.found):
                    scene = scene._replace(step=float(straight.distance) / (STEPS // 2), even=True)
                    walked = scene.walk(model)
                    steps = int((walked.trace[:, 0] - goal).abs().argmin())
            if steps == 0 or bool((walked.x == a).all()):
                raise stuck
        return scene._replace(steps=steps)

    @property
    def scale(self) -> tuple[float, float]:
        return scale_of(self.task)

    @property
    def up(self) -> bool:
        return self.target > self.c

    def walk(self, model: nn.Module, *, frames: int = 0) -> Walk:
        """The walk of this explanation, on any model."""
        from assay.methods.rank.walk import walk

        low, high = self.scale
        return walk(
            score_of(model, self.b), self.a, target=self.target, steps=self.steps, step=self.step, unit=self.even,
            tolerance=NEAR * (high - low), frames=frames, **self.manner.ways(self.a),
        )  # fmt: skip

    def as_far(self, model: nn.Module, length: float) -> Walk:
        """Steps on another model, together as long as those of the explanation, to the same end of the scale.

        Where weights are random the answer may stand at the target already, and its gradient says nothing of how far.
        """
        from assay.methods.rank.walk import walk

        steps, end = min(self.steps, COARSE), self.scale[int(self.up)]
        if self.up and not ordered(self.task):
            end = FAR * self.task.tie  # distances have no end
        return walk(
            score_of(model, self.b), self.a, target=end, steps=steps, step=length / steps, unit=True,
            **self.manner.ways(self.a),
        )  # fmt: skip

    def unit(self, x: Tensor) -> Tensor:  # *d -> *d in [0, 1]
        """As a picture; what lies outside the bounds is drawn at them."""
        low, high = self.bounds
        return ((x.detach() - low) / (high - low)).clamp(0, 1).cpu()


def ordered(task: Ranking | Similarity) -> bool:
    from assay.tasks import Ranking

    return isinstance(task, Ranking)


def scale_of(task: Ranking | Similarity) -> tuple[float, float]:
    """Where answers lie; distances have no upper end, and are shown up to twice the threshold."""
    return (0.0, 1.0) if ordered(task) else (0.0, 2 * task.tie)


def score_of(model: nn.Module, b: Tensor) -> Callable[[Tensor], Tensor]:  # 1 *d -> (n *d -> n)
    """How an input compares with b."""
    from assay.subject import PairModel

    assert isinstance(model, PairModel)
    other = model.encode(b).detach()
    return lambda a: model.compare(model.encode(a), other.expand(len(a), -1))


def read(subject: Subject, given: int | str | Path) -> tuple[Tensor, str, float | None]:
    """One input of the pair as the model takes it, 1 c h w; what it is called, and its value if that is known."""
    import numpy as np

    from assay.data.valued_images import ValuedImages
    from assay.jobs.explain import read_input
    from assay.subject import InputSpace

    pairs, space, text = subject.pairs["test"], subject.inputs, str(given).strip()
    if not re.fullmatch(r"-?\d+", text):
        if isinstance(pairs.singles, ValuedImages):  # they were scaled and cropped, so a file of the same kind is too
            return _as_theirs(subject, Path(text))
        one = replace(subject, inputs=InputSpace(space.shape[1:], space.low, space.high))
        return read_input(one, text)[0], Path(text).name, None
    index, n = int(text), len(pairs.singles)
    if not 0 <= index < n:
        raise AssayError(f"There is no input {index}; 'test' has {n:,} to make pairs of, numbered 0 to {n - 1}.")
    x, _ = pairs.singles.take(np.array([index]))
    return x.float(), f"input {index}", float(pairs.values[index])


def _as_theirs(subject: Subject, path: Path) -> tuple[Tensor, str, float | None]:
    """An image file in the form of the test images; with its number, where it is one of these or was trained on."""
    from assay.data.arrays import as_inputs
    from assay.data.image import decode
    from assay.data.valued_images import ValuedImages

    if not path.is_file():
        raise AssayError(f"There is no image {str(path)!r}; give the number of a test input, or the path of an image.")
    value, form = None, None
    for pairs in subject.pairs.values():
        if isinstance(pairs.singles, ValuedImages):
            form = form or pairs.singles.form
            there = {known.resolve(): float(v) for known, v in zip(pairs.singles.paths, pairs.values, strict=True)}
            value = there.get(path.resolve(), value)
    return as_inputs(decode(path, path.name, form)[None]), path.name, value
