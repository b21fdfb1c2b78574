"""Whether a map tells about the model, or about the input alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Curve, Finding, Line, Measure, Table
from assay.methods.explain.maps import METHODS, explain, methods_for, parts_of
from assay.methods.explain.sanity import (
    HALF,
    Likeness,
    Verdict,
    by_word,
    curve,
    layers,
    likeness,
    map_needs_the_model,
    retrained,
)
from assay.methods.explain.spoken import emptied, passes, spoken_of
from assay.methods.train.fit import Rows, fit
from assay.probe import Need, Probe

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

MAPS = ("gradient", "integrated-gradients", "smoothgrad", "gradcam", "occlusion", "kernel-shap")
CONTROLS = ("edges", "random")
"""Maps that never see the model: the first for images, the second, noise that stays the same, for anything else."""
EACH = {"integrated-gradients": 1, "expected-gradients": 2, "smoothgrad": 1, "lime": 5, "kernel-shap": 5, "rise": 10}
"""Points or sets of features that a map of one input takes, for each step of the budget."""
CELLS = 4  # patches on either side of an image
BACKGROUND = 32  # examples that expected gradients start from
LEARNT = 40  # training inputs of a network that is trained anew, for each step of the budget
EPOCHS = 0.2  # the same, of its passes over them
RATE = 0.002  # Adam's
TRAINED: tuple[Literal["true", "shuffled"], ...] = ("true", "shuffled")
LEARNS = 0.9  # of the loss of a guess: above it nothing was learnt
HEADLINE = "maps that need the model"
CALLED = {"weights": "under random weights", "shuffled": "under shuffled labels"}
Kind = Literal["absolute", "signed"]
Says = Literal["pass", "fail", "cannot tell"]
TOLD: dict[str, Says] = {"needs the model": "pass", "does not need the model": "fail", "cannot tell": "cannot tell"}


@dataclass(frozen=True)
class DoesTheMapNeedTheModel(Probe):
    """Does the map need the model?

    On a copy, the layers are initialised anew from the last to the first: a map that tells about the model has to
    change. It is the map of the class that the model says, or of the number of its answer that the task names, held
    while the layers change. The likeness of two maps of one input is Spearman's rank correlation of their absolute
    values, 1 for the same order. With more than the quick budget and training data, the network is also trained anew,
    on shuffled labels (a map has to change) and on the true ones (how alike maps of equally good models are). `retrain`
    says so or not.
    """

    methods: tuple[str, ...] = MAPS
    inputs: int | None = None
    retrain: bool | None = None

    in_quick: ClassVar[bool] = False
    source: ClassVar[str] = "Adebayo et al., NeurIPS 2018, arXiv:1810.03292, sec. 3 and 4"
    needs: ClassVar[tuple[Need, ...]] = ("focus", "gradients")

    def __post_init__(self) -> None:
        self.refuse_below(2, "inputs")
        if len(set(self.methods) & set(METHODS)) < max(1, len(self.methods)):
            raise AssayError(
                f"The setting methods={','.join(self.methods)} of {self.name()!r} must name some of "
                f"{', '.join(METHODS)}, none twice."
            )

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and any(isinstance(m, torch.jit.ScriptModule) for m in subject.model.modules()):
            return "it draws the weights of single layers anew, and those of TorchScript cannot be taken apart"
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        test, budget = subject.data["test"], run.budget
        index = run.pick(test, self.inputs or budget.few(4 + budget.steps // 5))
        background = subject.data.get("train", test)
        start = background.take(run.pick(background, BACKGROUND))[0].to(run.device)
        model = passes(subject.model, subject.draws, subject.task)
        admitted = methods_for(model, torch.empty(1, *subject.inputs.shape))
        maps = [m for m in self.methods if m in admitted]
        control = CONTROLS[0] if subject.inputs.is_image else CONTROLS[1]
        wanted = budget.restarts > 1 if self.retrain is None else self.retrain
        nets, losses = self._trained(subject, run) if wanted and "train" in subject.data else ({}, {})
        names = maps if control in maps else [*maps, control]
        work = partial(_randomise, subject, names, nets, start, run)
        rows = run.map(work, subject, "test", index, "does the map need the model")
        tried = _Tried(maps, control, [n[0] or "the model" for n in reversed(layers(subject.model, start))], rows)
        verdicts = {m: tried.overall(m) for m in maps}
        measures = (_headline(verdicts), *tried.measures(run.seed))
        left_out = [m for m in (*self.methods, *([] if subject.inputs.is_image else ["edges"])) if m not in maps]
        told: tuple[Says, ...] = ("pass", "fail", "cannot tell")
        return Finding(
            says=". ".join(
                f"{says.capitalize()}: {', '.join(who)}"
                for says in told
                if (who := [tried.named(m) for m, v in verdicts.items() if v == says])
            )
            + f". On {len(index)} inputs, a map passes if, signs left out, it keeps less than half of what it should "
            f"when the weights are random{' and when the labels were shuffled' if nets else ''}."
            + (f" Left out, as this model or its inputs do not admit them: {', '.join(left_out)}." if left_out else "")
            + ("" if nets else f" Shuffled labels and another seed were not tried: {_untried(subject)}."),
            measures=measures,
            samples=Table(
                "test",
                {
                    "index": index,
                    **({"label": np.asarray(rows["label"], dtype=np.int64)} if "label" in rows else {}),
                    **tried.columns(),
                },
            ),
            views=(tried.curve("absolute"), tried.curve("signed"), tried.bars(run.seed)),
            alarms=(
                *tried.alarms([m.name for m in measures]),
                *_untaught(losses, _guess(subject) if losses else 0.0, measures),
            ),
        )

    def _trained(self, subject: Subject, run: Run) -> tuple[dict[str, nn.Module], dict[str, float]]:
        """The same network from new weights, on true and on shuffled labels of part of the training data; last losses.

        While a probe asks, the subject's weights collect no gradients, so that a copy has to be told to.
        """
        train, steps, rng = subject.data["train"], run.budget.steps, run.rng()
        rows = run.rows(subject, "train", run.pick(train, LEARNT * steps), "inputs to train it on")
        blank = copy.deepcopy(subject.model).requires_grad_(True)
        losses: list[float] = []

        def loss(out: Tensor, target: Tensor) -> Tensor:
            if "classes" in subject.task.gives:
                return F.cross_entropy(out, target)
            return subject.task.loss(out, target).mean()

        def learn(net: nn.Module, data: Rows) -> None:
            epochs = max(1, round(EPOCHS * steps))
            curve = fit(net, data, epochs=epochs, lr=RATE, optimiser="adam", loss=loss, rng=rng, device=run.device)
            losses.append(curve.epochs[-1])

        nets: dict[str, nn.Module] = {}
        with run.progress("training it anew", len(TRAINED)) as tick:
            for labels in TRAINED:
                nets[labels] = retrained(blank, rows, labels=labels, rng=rng, train=learn).requires_grad_(False)
                tick(1)
        return nets, dict(zip(TRAINED, losses, strict=True))


def _untried(subject: Subject) -> str:
    return "they need more than this budget" if "train" in subject.data else "there are no training data"


def _guess(subject: Subject) -> float:
    """The loss of a model that saw no input: of a classifier one that gives all classes the same chance."""
    if "classes" in subject.task.gives:
        return float(np.log(len(subject.task.classes)))
    target = np.asarray(subject.data["train"].labels)
    out = subject.task.trivial(target).out
    return float(subject.task.loss(out.expand(len(target), *out.shape), torch.as_tensor(target)).mean())


def _randomise(
    subject: Subject, names: list[str], nets: Mapping[str, nn.Module], start: Tensor, run: Run, shard: Shard
) -> Mapping[str, Tensor]:
    """How alike each map stays to itself, layer by layer and after training anew; every shard meets the same chance."""
    task, space = subject.task, subject.inputs
    said = spoken_of(task, subject.predict(shard.x))
    blank = emptied(task, space.shape, (space.low, space.high), start, tokens=subject.tokens)
    parts, _ = parts_of(subject.kind, task, shard.x[0], CELLS)
    told = {"label": shard.y} if "classes" in task.gives else {}
    for name in names:

        def see(model: nn.Module, x: Tensor, name: str = name) -> Tensor:
            found = explain(
                passes(model, subject.draws, task),
                x,
                said,
                name,
                baseline=blank,
                background=start,
                groups=None if name == "rise" else parts,
                samples=EACH[name] * run.budget.steps if name in EACH else None,
                rng=run.rng(),
            )
            return by_word(found.values)

        steps = curve(subject.model, shard.x, see, rng=run.rng())
        told[f"{name} absolute"] = torch.stack([alike.absolute for _, alike in steps], 1)  # n layers
        told[f"{name} signed"] = torch.stack([alike.signed for _, alike in steps], 1)
        for labels, net in nets.items():
            alike = likeness(see(subject.model, shard.x), see(net, shard.x))
            told[f"{name} {labels} absolute"], told[f"{name} {labels} signed"] = alike.absolute, alike.signed
    return told


class _Tried:
    """How alike every map stayed to itself, and what follows."""

    def __init__(self, maps: list[str], control: str, order: list[str], rows: Mapping[str, NDArray[Any]]) -> None:
        self.maps, self.control, self.order, self.rows = maps, control, order, rows

    @property
    def every(self) -> list[str]:
        return self.maps if self.control in self.maps else [*self.maps, self.control]

    def after(self, name: str, what: str, kind: Kind = "absolute") -> NDArray[np.float64]:
        """With all weights random ("weights"), or trained anew on "true" or "shuffled" labels: n."""
        rows = self.rows[f"{name} {kind}"][:, -1] if what == "weights" else self.rows[f"{name} {what} {kind}"]
        return np.clip(np.asarray(rows, dtype=np.float64), -1, 1)

    def likeness(self, name: str, what: str) -> Likeness:
        signed, absolute = (torch.from_numpy(self.after(name, what, kind)) for kind in ("signed", "absolute"))
        return Likeness(signed, absolute, None)

    @property
    def trials(self) -> list[str]:
        return ["weights", *(["shuffled"] if f"{self.control} shuffled absolute" in self.rows else [])]

    def verdict(self, name: str, trial: str) -> Verdict:
        return map_needs_the_model(
            self.likeness(name, trial), self.likeness(name, "true") if f"{name} true absolute" in self.rows else None
        )

    def overall(self, name: str) -> Says:
        """Fail if a trial says so, pass if all do."""
        told = {TOLD[self.verdict(name, trial).says] for trial in self.trials}
        return "fail" if "fail" in told else "pass" if told == {"pass"} else "cannot tell"

    def named(self, name: str) -> str:
        """The map, and where it fails, what is left of it if its signs count."""
        kept = self.after(name, "weights", "signed").mean()
        return f"{name} (with its signs it keeps {kept:.2f})" if self.overall(name) == "fail" else name

    def measures(self, seed: int) -> list[Measure]:
        found = []
        for trial in self.trials:
            for m in self.maps:
                verdict, sign = self.verdict(m, trial), float(self.after(m, trial, "signed").mean())
                beside = [Beside(f"{self.control}, blind to the model", float(self.after(self.control, trial).mean()))]
                if f"{m} true absolute" in self.rows:
                    beside.append(Beside("another seed", float(self.after(m, "true").mean())))
                found.append(
                    Measure.mean(
                        f"{m}, likeness {CALLED[trial]}",
                        self.after(m, trial),
                        better="lower",
                        seed=seed,
                        column=f"{m}, {CALLED[trial]}",
                        about=f"rank correlation with the map of the model as it is; with its signs, {sign:.2f}. "
                        f"{TOLD[verdict.says].capitalize()}: minus half of what it should keep, {verdict.excess:+.2f} "
                        f"({verdict.low:+.2f} to {verdict.high:+.2f}), and below 0 if it needs the model",
                        beside=(*beside, Beside("a random map", 0.0)),
                    )
                )
        return found

    def columns(self) -> dict[str, NDArray[np.float64]]:
        kept = {f"{m}, {CALLED[trial]}": self.after(m, trial) for trial in self.trials for m in self.every}
        return kept | {
            f"{m}, another seed": self.after(m, "true") for m in self.every if f"{m} true absolute" in self.rows
        }

    def curve(self, kind: Kind) -> Curve:
        mean = {m: self.rows[f"{m} {kind}"].mean(0) for m in self.every}
        along = tuple(map(float, range(len(self.order) + 1)))
        return Curve(
            name=f"cascade-{kind}",
            title=f"What a map keeps while layers turn random, {'without' if kind == 'absolute' else 'with'} its signs",
            x_label="layers that are random, from the last",
            y_label="likeness to the own map",
            lines=tuple(Line(label=m, x=along, y=(1.0, *(float(v) for v in mean[m]))) for m in self.every),
            says=f"Lower is better; a random map is at 0, and {self.control}, which never sees the model, stays at 1. "
            f"Layers in order: {', '.join(self.order)}.",
        )

    def bars(self, seed: int) -> Bars:
        left = [Measure.mean(m, self.after(m, "weights"), better="lower", seed=seed) for m in self.every]
        return Bars(
            name="verdicts",
            title="What is left of a map when all weights are random",
            y_label="likeness to the own map",
            labels=tuple(self.every),
            values=tuple(m.value or 0.0 for m in left),
            low=tuple(m.low or 0.0 for m in left),
            high=tuple(m.high or 0.0 for m in left),
            marks=(Beside("half of the own map", HALF), Beside("a random map", 0.0)),
            says="Lower is better. " + ", ".join(f"{m}: {self.overall(m)}" for m in self.every) + ".",
        )

    def alarms(self, doubted: list[str]) -> tuple[Alarm, ...]:
        if self.overall(self.control) == "fail":
            return ()
        return (
            Alarm(
                f"The control {self.control}, which never sees the model, was not found out: the trial is blind here.",
                doubts=tuple(doubted),
            ),
        )


def _untaught(losses: Mapping[str, float], guess: float, measures: tuple[Measure, ...]) -> list[Alarm]:
    """Where training anew taught nothing, its maps are those of random weights once more."""
    return [
        Alarm(
            f"Trained anew on {labels} labels, the network ended at a loss of {loss:.2f}, and a guess has "
            f"{guess:.2f}: it has learnt next to nothing, and its maps tell no more than random weights.",
            doubts=tuple(m.name for m in measures if labels == "true" or CALLED["weights"] not in m.name),
        )
        for labels, loss in losses.items()
        if loss > LEARNS * guess
    ]


def _headline(verdicts: Mapping[str, Says]) -> Measure:
    """The share of maps; the interval goes from those that pass to those that do not fail."""
    told = list(verdicts.values())
    passed, may = (float(np.mean([v in kinds for v in told])) for kinds in (("pass",), ("pass", "cannot tell")))
    return Measure(
        name=HEADLINE,
        value=passed,
        low=passed,
        high=may,
        n=len(told),
        unit="%",
        better="higher",
        about="the interval goes from the maps that pass to those that do not fail",
        beside=(Beside("maps blind to the model", 0.0),),
    )


SHELVED = DoesTheMapNeedTheModel
