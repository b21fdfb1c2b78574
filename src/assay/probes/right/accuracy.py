"""The first question: how often is it right, and where is it wrong?

Right is what the task calls good enough to rely on: the label, a number within its tolerance, a mask that overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from assay.finding import (
    Alarm,
    Bars,
    Beside,
    Exhibit,
    Finding,
    Gallery,
    Histogram,
    Matrix,
    Measure,
    Panel,
    Table,
    View,
    Witnesses,
    share,
    wilson,
)
from assay.probe import Probe
from assay.probes import _masks
from assay.probes._leaks import seen_in_training
from assay.probes._mistakes import mistakes
from assay.run import KEPT_BYTES
from assay.standard import Standard
from assay.tasks import Segmentation

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run, Shard
    from assay.subject import Subject


TRAINED = 500  # training inputs that a model at chance is shown


@dataclass(frozen=True)
class Accuracy(Probe):
    """How often is it right on inputs like those it was made for?"""

    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = "Wilson, JASA 1927 (the interval of a proportion)"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.8),)

    def ask(self, subject: Subject, run: Run) -> Finding:
        if "classes" not in subject.task.gives:
            return _by_score(subject, run)
        index = run.pick(subject.data["test"])
        logits, label = run.predict(subject, "test", index, "accuracy")
        said, sure = logits.argmax(1), softmax(logits, axis=1).max(1)
        right = said == label
        names, k = subject.task.classes, len(subject.task.classes)
        confusion = np.bincount(label * k + said, minlength=k * k).reshape(k, k)
        counts = confusion.sum(1)
        seen = np.flatnonzero(counts)
        hits = confusion[seen, seen]
        bands = [wilson(int(h), int(n)) for h, n in zip(hits, counts[seen], strict=True)]
        rate = hits / counts[seen]
        worst = int(rate.argmin())
        wrong = np.flatnonzero(~right)
        bars = Bars(
            name="classes",
            title="Accuracy per class",
            y_label="accuracy",
            labels=tuple(names[c] for c in seen),
            values=tuple(rate.tolist()),
            low=tuple(b[0] for b in bands),
            high=tuple(b[1] for b in bands),
            unit_y=True,
            says="Bars are 95 % intervals; a class whose interval lies below the others is where to look first.",
        )
        matrix = Matrix(
            name="confusion",
            title="What it says for what it sees",
            row_label="label",
            column_label="model says",
            rows=tuple(names[c] for c in seen),
            columns=names,
            values=tuple(tuple(float(v) for v in row) for row in confusion[seen]),
            says="Counts of inputs; mistakes lie off the diagonal.",
        )
        samples = Table("test", {"index": index, "label": label, "said": said, "confidence": sure, "right": right})
        views: list[View] = [bars, *([matrix] if k <= 30 else [])]
        return Finding(
            says=f"It is right on {share(int(right.sum()), len(right))} of the inputs; its weakest class is "
            f"{names[seen[worst]]!r} with {100 * rate[worst]:.0f} %.",
            measures=(
                Measure.proportion(
                    "accuracy",
                    right,
                    better="higher",
                    column="right",
                    beside=(Beside(*subject.trivially_right("test", index)),),
                    about="share of inputs whose most likely class is the label",
                ),
                Measure(
                    name="weakest class",
                    value=float(rate[worst]),
                    low=bands[worst][0],
                    high=bands[worst][1],
                    n=int(counts[seen[worst]]),
                    unit="%",
                    better="higher",
                    about=f"accuracy of the class that it gets wrong most, {names[seen[worst]]!r}",
                ),
            ),
            samples=samples,
            views=(*views, *mistakes(subject, samples, ~right, run.budget.shown, "The mistakes it is surest of")),
            alarms=(*_few(len(index)), *_at_chance(subject, run, label, right), *_leaks(subject, run, index)),
            witnesses=_as_they_are(subject, index[wrong], said[wrong]),
        )


def _by_score(subject: Subject, run: Run) -> Finding:
    """The same of a task whose answers are no classes: how many are good enough, and how good they are on average."""
    task, index = subject.task, run.pick(subject.data["test"])
    masks = isinstance(task, Segmentation)

    def work(shard: Shard) -> Mapping[str, Tensor]:
        out = task.checked(subject.predict(shard.x), len(shard.x))
        sure = task.confidence(out)
        told = {} if sure is None else {"confidence": sure}
        told |= _masks.masks(out, shard.y) if masks else {}
        return {"score": task.score(out, shard.y), "right": task.right(out, shard.y), **told}

    rows = run.map(work, subject, "test", index, "accuracy")
    score, right = rows["score"].astype(np.float64), rows["right"].astype(bool)
    says, *blind = subject.blind("test", index)
    worst = np.argsort(score, kind="stable")
    return Finding(
        says=f"{share(int(right.sum()), len(right))} of its answers are good enough to rely on; the mean "
        f"{task.headline.removeprefix('mean ')} is {score.mean():.2f}.",
        measures=(
            Measure.proportion(
                "accuracy",
                right,
                better="higher",
                column="right",
                beside=(Beside(says, float(task.right(*blind).double().mean())),),
                about=f"share of {task.noun}s whose answer {task.good}",
            ),
            Measure.mean(
                task.headline,
                score,
                better="higher",
                seed=run.seed,
                column="score",
                beside=(Beside(says, float(task.score(*blind).mean())),),
                about="mean score of the answers: 1 is perfect, 0 is worthless",
            ),
            *([_masks.outlined(rows, run.seed)] if masks else []),
        ),
        samples=Table("test", {"index": index, **{k: v for k, v in rows.items() if k not in _masks.COUNTED}}),
        views=(
            Histogram(
                name="scores",
                title="How good its answers are",
                x_label=task.headline,
                edges=tuple(np.linspace(0, 1, 21).tolist()),
                counts=((f"{task.noun}s", tuple(np.histogram(score, 20, (0, 1))[0].astype(float).tolist())),),
            ),
            *([_masks.by_class(rows, task.classes)] if masks else []),
            *_worst(subject, index[worst[: run.budget.shown]], run.device),
        ),
        alarms=(*_few(len(index)), *_leaks(subject, run, index)),
        witnesses=_as_they_are(subject, index[~right], run.device),
    )


def _worst(subject: Subject, shown: NDArray[np.int64], device: str) -> tuple[Gallery, ...]:
    """The inputs with the worst answers, where they are pictures."""
    if not subject.inputs.is_picture or not len(shown):
        return ()
    x, target = subject.data["test"].take(shown)
    low, high, task = subject.inputs.low, subject.inputs.high, subject.task
    exhibits = []
    for i, out in enumerate(subject.predict(x.to(device)).cpu()):
        exhibit = Exhibit.of(
            int(shown[i]), f"{task.told(target[i])}, said {task.words(out)}", x[i].numpy(), low=low, high=high
        )
        picture = task.picture(out)
        if picture is not None:
            panel = Panel.of("answer", f"What it says of input {shown[i]}", picture)
            exhibit = replace(exhibit, panels=(*exhibit.panels, panel))
        exhibits.append(exhibit)
    return (Gallery(name="mistakes", title="Its worst answers", exhibits=tuple(exhibits)),)


def _as_they_are(subject: Subject, index: NDArray[np.int64], said: NDArray[np.int64] | str) -> Witnesses | None:  # k, k
    """The inputs whose answers are not good enough; `said`, or the device on which they are asked for it."""
    if not len(index):
        return None
    each = math.prod(subject.inputs.shape) * np.dtype(np.float32).itemsize
    some = np.linspace(0, len(index) - 1, num=min(len(index), max(1, KEPT_BYTES // each)), dtype=np.int64)
    x, target = (part.numpy() for part in subject.data["test"].take(index[some]))
    return Witnesses(
        split="test",
        index=index[some],
        clean=x,
        changed=x,
        label=target,
        said=subject.said(x, said) if isinstance(said, str) else said[some],
        norm=("none",) * len(some),
        radius=np.zeros(len(some)),
        how=("as it is",) * len(some),
        left_out=len(index) - len(some),
    )


def _few(n: int) -> tuple[Alarm, ...]:
    return (Alarm(f"Only {n} inputs were asked about; under 30, intervals are wide."),) if n < 30 else ()


def _at_chance(
    subject: Subject, run: Run, label: NDArray[np.int64], right: NDArray[np.bool_]
) -> tuple[Alarm, ...]:  # n, n
    """A model that is no better here than one that sees nothing, and what its training data say of that."""
    if not _no_better(label, right):
        return ()
    mend = "the inputs may be in other units than it was trained on (--bounds), or its classes in another order"
    says = f"It is right no more often than always saying the commonest class: {mend}."
    if "train" in subject.data:
        logits, truth = run.predict(subject, "train", run.pick(subject.data["train"], TRAINED), "training inputs")
        learnt = logits.argmax(1) == truth
        if not _no_better(truth, learnt):
            says = (
                f"It is right on {share(int(learnt.sum()), len(learnt))} of the training inputs, and here no more "
                f"often than always saying the commonest class: {mend} in the test data."
            )
    return (Alarm(says),)


def _no_better(label: NDArray[np.int64], right: NDArray[np.bool_]) -> bool:  # n, n
    low, _ = wilson(int(right.sum()), len(right))
    return bool(low <= np.bincount(label).max() / len(label))


def _leaks(subject: Subject, run: Run, index: NDArray[np.int64]) -> tuple[Alarm, ...]:
    """Test inputs that stand bit for bit in the training data say nothing about new inputs."""
    leaked = seen_in_training(subject, run, {"test": index})["test"]
    if not len(leaked):
        return ()
    return (
        Alarm(
            f"{share(len(leaked), len(index))} of the test inputs stand in the training data too (for example "
            f"input {leaked[0]}); the accuracy may be memory.",
            doubts=("accuracy",),
        ),
    )


SHELVED = Accuracy
