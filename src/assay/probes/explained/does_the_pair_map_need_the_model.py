"""Whether the change that turns a comparison tells about the model, or only about the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.finding import Alarm, Bars, Beside, Curve, Exhibit, Finding, Gallery, Line, Measure, Panel, Table
from assay.methods.explain.sanity import HALF, Verdict, needs_the_model
from assay.methods.rank.maps import grey
from assay.methods.rank.pair_sanity import (
    Seen,
    Stage,
    Start,
    blind,
    cascade,
    compare,
    leaks,
    movable,
    needs_the_labels,
    needs_the_weights,
    stages,
    trained_anew,
)
from assay.methods.rank.walk import walk
from assay.methods.train.ranker import Course, Targets
from assay.nn.siamese import Siamese
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.subject import PairModel
from assay.tasks import Ranking

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

LEARN = 20  # steps of training anew, for each step of the budget
RATE = 3e-3  # Adam's: higher than usual, for fewer steps
LEARNT = 200  # inputs to train on, for each step of the budget
FAR = 0.25  # length of the walk, as a root mean square over the values of an input, in parts of their range
NEAR = 0.01  # a comparison this near to the end of its range has arrived
WORSE = 1.5  # times the subject's error: a network trained anew that errs more is no equal
STARTS: tuple[Start, ...] = ("branch", "output")
TARGETS: tuple[Targets, ...] = ("true", "shuffled pairs", "shuffled images")
CHANGE, PERCEPTION = "change", "perception"
HEADLINE = "maps that need the model"
Says = Literal["pass", "fail", "cannot tell"]
TOLD: dict[str, Says] = {"needs the model": "pass", "does not need the model": "fail", "cannot tell": "cannot tell"}


@dataclass(frozen=True)
class DoesThePairMapNeedTheModel(Probe):
    """Does the map of a comparison need the model?

    The map is the change of the first input that drives the comparison to the far end; where the model has a decoder,
    also what the model sees of that change. Chance replaces the weights, from the end of the branch and from the
    output, `draws` times; and the targets of `models` networks trained anew, by `learn` steps each. A map passes if
    each time less than half of it is left and if it is clearly less alike without meaning in the targets than with it.
    """

    pairs: int | None = None
    draws: int = 3
    models: int | None = None
    learn: int | None = None

    needs: ClassVar[tuple[Need, ...]] = ("order", "gradients")
    in_quick: ClassVar[bool] = False
    source: ClassVar[str] = (
        "'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 5.3.9; Adebayo et "
        "al., NeurIPS 2018, arXiv:1810.03292"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=1.0),)

    def __post_init__(self) -> None:
        self.refuse_below(2, "pairs")
        self.refuse_below(1, "draws", "models", "learn")

    def ask(self, subject: Subject, run: Run) -> Finding:
        pairs = subject.pairs["test"]
        index = run.pick(pairs, self.pairs or run.budget.few(10 + run.budget.steps))
        nets = self._trained(subject, run) if "train" in subject.pairs else {}
        maps = _maps(subject)
        rows = run.map(
            partial(_randomise, subject, nets, self.draws, run), subject, "test", index, "does the pair map need it"
        )
        first = pairs.take(index[:1])[0].to(run.device)
        order: dict[str, list[str]] = {
            s: [step.layer for step in cascade(subject.model, first, start=s, rng=run.rng())] for s in STARTS
        }
        tried = _Tried(maps, order, rows)
        errors, leaked = _errors(subject, nets, run)
        measures = (tried.headline(), *tried.measures(run.seed), *errors)
        return Finding(
            says=tried.says() + ("" if nets else " Without training data, whether it needs the labels was not asked."),
            measures=measures,
            samples=Table("test", {"index": index, **tried.columns()}),
            views=(*tried.curves(), tried.bars(run.seed), *_gallery(subject, nets, index, run)),
            alarms=(*tried.alarms(), *leaked, *_unequal(errors)),
        )

    def _trained(self, subject: Subject, run: Run) -> dict[Targets, list[nn.Module]]:
        """The same network from new weights, on true targets and on targets without meaning."""
        train, task = subject.pairs["train"], subject.task
        assert isinstance(task, Ranking)
        rows = np.random.default_rng(run.seed).permutation(len(train.singles))[: LEARNT * run.budget.steps]
        x, _ = train.singles.take(np.sort(rows))
        values, models = train.values[np.sort(rows)], self.models or max(2, run.budget.restarts)
        model = cast(Siamese, subject.model)  # any model of pairs will do
        nets: dict[Targets, list[nn.Module]] = {targets: [] for targets in TARGETS}
        course = Course(steps=self.learn or LEARN * run.budget.steps, lr=RATE, device=run.device)
        with run.progress("training it anew", models * len(TARGETS)) as tick:
            for m in range(models):
                for k, targets in enumerate(TARGETS):
                    rng = torch.Generator().manual_seed(run.seed + 1 + len(TARGETS) * m + k)
                    net = trained_anew(
                        model, x, values, low=task.low, high=task.high, targets=targets, rng=rng, course=course
                    )
                    nets[targets].append(net)
                    tick(1)
        return nets


def _maps(subject: Subject) -> tuple[str, ...]:
    """The maps on trial; the last is blind to the model, and has to be found out."""
    assert isinstance(subject.model, PairModel)
    control = "edges" if subject.inputs.is_picture else "intensity"
    return (CHANGE, *([PERCEPTION] if subject.model.decoder is not None else []), control)


def _see(subject: Subject, targets: Tensor, steps: int, model: nn.Module, pair: Tensor) -> Seen:
    """All maps of each pair, one kind below the other: n 2 *d -> Seen of (kinds n) rows.

    Steps have one length for all models: weights drawn anew have other gradients, and maps do not know lengths.
    """
    assert isinstance(model, PairModel)
    low, high = subject.inputs.low, subject.inputs.high
    a, b = pair[:, 0], pair[:, 1]
    with torch.no_grad():
        e = model.encode(b)
    length = FAR * (high - low) * a[0].numel() ** 0.5 / steps
    went = walk(
        lambda x: model.compare(model.encode(x), e),
        a,
        target=targets,
        steps=steps,
        step=length,
        unit=True,
        tolerance=NEAR,
    )
    moved = (went.c - went.trace[0]).abs()
    found = [went.x - a]
    if model.decoder is not None:
        with torch.no_grad():
            found.append(model.decode(model.encode(went.x)) - model.decode(model.encode(a)))
    control = list(blind(a).values())[-1]
    return Seen(torch.cat([*found, control]), torch.cat([*(moved for _ in found), torch.ones_like(moved)]))


def _explain(subject: Subject, run: Run, pair: Tensor) -> Any:
    """The map of a model, towards the end of the range that is far for the subject: the same for every model."""
    with torch.no_grad():
        targets = (subject.model(pair) < 0.5).to(pair.dtype)
    return partial(_see, subject, targets, run.budget.steps)


def _randomise(
    subject: Subject, nets: Mapping[Targets, Sequence[nn.Module]], draws: int, run: Run, shard: Shard
) -> Mapping[str, Tensor]:
    """Each cascade, each network trained anew and what is blind, against the own maps; every shard meets one chance."""
    explain, maps = _explain(subject, run, shard.x), _maps(subject)
    told: dict[str, Tensor] = {}

    def keep(name: str, found: Sequence[Stage]) -> None:
        for field in ("signed", "absolute", "moved"):
            rows = torch.stack([getattr(s, field) for s in found])  # stages draws kinds*n
            kinds = rows.view(*rows.shape[:2], len(maps), len(shard.x)).permute(2, 3, 0, 1)  # kinds n stages draws
            told.update({f"{name} {m} {field}": kind for m, kind in zip(maps, kinds, strict=True)})

    for start in STARTS:
        keep(start, stages(subject.model, shard.x, explain, start=start, rng=run.rng(), draws=draws)[1:])
    own = explain(subject.model, shard.x)
    for targets, models in nets.items():
        keep(targets, [compare(targets, own, [explain(net, shard.x) for net in models])])
    for name, look in blind(shard.x[:, 0]).items():
        keep(name, [compare(name, own, [Seen(look.repeat(len(maps), *[1] * (look.dim() - 1)), own.moved)])])
    return told


class _Tried:
    """How alike every map stayed to itself, and what follows."""

    def __init__(
        self, maps: Sequence[str], order: Mapping[str, Sequence[str]], rows: Mapping[str, NDArray[Any]]
    ) -> None:
        *self.maps, self.control = maps
        self.order, self.rows = order, rows

    def found(self, name: str, trial: str) -> list[Stage]:
        """The stages of a trial for a map, draws x n each."""
        layers = self.order.get(trial, [trial])
        fields = [
            torch.from_numpy(np.asarray(self.rows[f"{trial} {name} {field}"], dtype=np.float64)).permute(1, 2, 0)
            for field in ("signed", "absolute", "moved")
        ]
        return [Stage(layer, *(field[k] for field in fields)) for k, layer in enumerate(layers)]

    @property
    def shuffled(self) -> list[str]:
        return [t for t in TARGETS[1:] if f"{t} {self.control} absolute" in self.rows]

    @property
    def blind(self) -> list[str]:
        return [b for b in ("intensity", "edges") if f"{b} {self.control} absolute" in self.rows]

    def labels(self, name: str, trial: str) -> Verdict:
        return needs_the_labels(self.found(name, trial)[0], self.found(name, TARGETS[0])[0])

    def verdict(self, name: str, trial: str) -> Says:
        if trial in STARTS:
            return TOLD[needs_the_weights(self.found(name, trial))]
        return TOLD[self.labels(name, trial).says]

    def overall(self, name: str) -> Says:
        """Fail if a trial says so; pass if all do and both kinds of chance were tried."""
        told = {self.verdict(name, trial) for trial in (*STARTS, *self.shuffled)}
        return "fail" if "fail" in told else "pass" if told == {"pass"} and self.shuffled else "cannot tell"

    def left(self, name: str, trial: str) -> NDArray[np.float64]:
        """What is left of a map at the last stage of a trial, each pair's mean over draws or models: n."""
        return self.found(name, trial)[-1].absolute.mean(0).numpy()

    def signed(self, name: str, trial: str) -> float:
        return float(self.found(name, trial)[-1].signed.mean())

    def headline(self) -> Measure:
        told = [self.overall(m) for m in self.maps]
        passed, may = (float(np.mean([v in kinds for v in told])) for kinds in (("pass",), ("pass", "cannot tell")))
        return Measure(
            name=HEADLINE,
            value=passed,
            low=passed,
            high=may,
            unit="%",
            better="higher",
            about="the interval goes from the maps that pass to those that do not fail",
            beside=(Beside("maps blind to the model", 0.0),),
        )

    def measures(self, seed: int) -> list[Measure]:
        found = []
        for m in self.maps:
            for trial in (*STARTS, *self.shuffled):
                signs = f"with its signs, {self.signed(m, trial):.2f}"
                if self.shuffled:
                    signs += f" (another seed {self.signed(m, TARGETS[0]):.2f})"
                beside = [Beside(CALLED[name], float(self.left(m, name).mean())) for name in self.blind]
                if self.shuffled:
                    beside.insert(0, Beside("another seed", float(self.left(m, TARGETS[0]).mean())))
                found.append(
                    Measure.mean(
                        _named(m, trial),
                        self.left(m, trial),
                        better="lower",
                        seed=seed,
                        column=_named(m, trial),
                        about=f"rank correlation with the own map; {signs}. {self._why(m, trial)}",
                        beside=(*beside, Beside("a random map", 0.0)),
                    )
                )
        return found

    def _why(self, name: str, trial: str) -> str:
        says = self.verdict(name, trial).capitalize()
        if trial in STARTS:
            draws = [(s.layer, s.absolute.mean(1)) for s in self.found(name, trial)]
            parts = [f"{layer} {float(d.mean()):.2f} (spread {float(d.std(correction=0)):.2f})" for layer, d in draws]
            return f"{says}: must be below half at each layer drawn anew, {', '.join(parts)}"
        v = self.labels(name, trial)
        return (
            f"{says}: minus another seed's, {v.excess:+.2f} ({v.low:+.2f} to {v.high:+.2f}), and below 0 if it passes"
        )

    def columns(self) -> dict[str, NDArray[np.float64]]:
        kept = {_named(m, t): self.left(m, t) for m in self.maps for t in (*STARTS, *self.shuffled)}
        seeds = {f"{m}, another seed": self.left(m, TARGETS[0]) for m in self.maps if self.shuffled}
        return kept | seeds

    def says(self) -> str:
        told = {m: self.overall(m) for m in self.maps}
        parts = []
        for m, says in told.items():
            why = [f"{self.verdict(m, t)} {CALLED[t]}" for t in (*STARTS, *self.shuffled)]
            parts.append(f"{m.capitalize()}: {says} ({', '.join(why)}).")
        return " ".join(parts)

    def curves(self) -> list[Curve]:
        curves = []
        for start, layers in self.order.items():
            along = tuple(map(float, range(len(layers) + 1)))
            lines = []
            for m in (*self.maps, self.control):
                means = [s.absolute.mean(1) for s in self.found(m, start)]  # one number a draw
                lines.append(
                    Line(
                        label=m,
                        x=along,
                        y=(1.0, *(float(v.mean()) for v in means)),
                        low=(1.0, *(float(v.min()) for v in means)),
                        high=(1.0, *(float(v.max()) for v in means)),
                    )
                )
            curves.append(
                Curve(
                    name=f"cascade-{start}",
                    title=f"What a map keeps while layers turn random, from the {CALLED_START[start]}",
                    x_label="layers that are random",
                    y_label="likeness to the own map",
                    lines=tuple(lines),
                    says=f"Lower is better; bands go from the lowest draw to the highest. Layers in order: "
                    f"{', '.join(layers)}.",
                )
            )
        return curves

    def bars(self, seed: int) -> Bars:
        trials = [*STARTS, *self.shuffled, *([TARGETS[0]] if self.shuffled else []), *self.blind]
        left = [Measure.mean(t, self.left(CHANGE, t), better="lower", seed=seed) for t in trials]
        return Bars(
            name="likeness",
            title="What is left of the change that turns a comparison",
            y_label="likeness to the own map",
            labels=tuple(CALLED.get(t, t) for t in trials),
            values=tuple(m.value or 0.0 for m in left),
            low=tuple(m.low or 0.0 for m in left),
            high=tuple(m.high or 0.0 for m in left),
            marks=(Beside("half of the own map", HALF), Beside("a random map", 0.0)),
            says="What chance leaves must lie clearly below what another seed keeps: two good models may agree little.",
        )

    def alarms(self) -> list[Alarm]:
        alarms = []
        if needs_the_model(torch.from_numpy(self.left(self.control, "branch"))).says != "does not need the model":
            says = (
                f"The control {self.control}, which never sees the model, was not found out: the trial is blind here."
            )
            alarms.append(Alarm(says, doubts=(HEADLINE,)))
        for trial in (*STARTS, *self.shuffled):
            still = [s.layer for s in self.found(CHANGE, trial) if movable(s) < HALF]
            if still:
                says = f"Most comparisons no longer move {CALLED[trial]} ({', '.join(still)}): there is no map there."
                alarms.append(Alarm(says, doubts=(HEADLINE,)))
        return alarms


CALLED_START: dict[str, str] = {"branch": "end of the branch", "output": "output"}
CALLED = {
    "branch": "under random weights of the branch",
    "output": "under random weights",
    "shuffled pairs": "under targets shuffled among pairs",
    "shuffled images": "under values shuffled among inputs",
    "true": "another seed",
    "intensity": "the input itself",
    "edges": "its edges",
}


def _error(name: str) -> str:
    return f"mean absolute error, {CALLED.get(name, name).removeprefix('under ')}"


def _named(name: str, trial: str) -> str:
    return f"{name}, likeness {CALLED[trial]}"


def _errors(
    subject: Subject, nets: Mapping[Targets, Sequence[nn.Module]], run: Run
) -> tuple[list[Measure], list[Alarm]]:
    """How far each network is from the right comparison, on pairs that none saw; and which know what they cannot."""
    if not nets:
        return [], []
    pairs, task = subject.pairs["test"], subject.task
    assert isinstance(task, Ranking)
    index = run.pick(pairs)

    def answer(shard: Shard) -> Mapping[str, Tensor]:
        with torch.no_grad():
            every: dict[str, Tensor] = {
                name: torch.stack([net(shard.x) for net in models], 1) for name, models in nets.items()
            }
            return {"subject": subject.model(shard.x)[:, None], **every}

    rows = run.map(answer, subject, "test", index, "what was learnt anew")
    t = task.target(pairs.gaps[index])
    constant = Beside("always 0.5", float(np.abs(t - 0.5).mean()))
    errors = [
        Measure.mean(
            _error(name),
            np.abs(rows[name] - t[:, None]).mean(1),
            better="neither",
            seed=run.seed,
            beside=(constant,),
        )
        for name in ("subject", *nets)
    ]
    leaked = [
        Alarm(
            f"Trained {CALLED[name]}, a network is nearer to the truth than always 0.5, on pairs it never saw: "
            "what was shuffled has leaked.",
            doubts=(HEADLINE,),
        )
        for name in TARGETS[1:]
        if any(leaks(torch.from_numpy(c), torch.from_numpy(t)) for c in rows[name].T)
    ]
    return errors, leaked


def _unequal(errors: Sequence[Measure]) -> list[Alarm]:
    """Where another seed learnt less than the subject, its maps are no measure of how alike good models are."""
    if not errors or (errors[1].value or 0.0) <= WORSE * (errors[0].value or 0.0):
        return []
    says = (
        f"Trained anew on true targets, a network errs by {errors[1].value:.3f} and the subject by "
        f"{errors[0].value:.3f}: it is no equal, so raise `learn`."
    )
    return [Alarm(says, doubts=(HEADLINE,))]


def _gallery(
    subject: Subject, nets: Mapping[Targets, Sequence[nn.Module]], index: NDArray[np.int64], run: Run
) -> tuple[Gallery, ...]:
    """The change of some pairs, as it is and with chance in more and more of the model."""
    if not subject.inputs.is_picture:
        return ()
    few = index[np.unique(np.linspace(0, len(index) - 1, min(run.budget.shown, len(index)), dtype=int))]
    pair = subject.pairs["test"].take(few)[0].to(run.device)
    explain, n = _explain(subject, run, pair), len(few)
    models = {"own": subject.model}
    models |= {f"{s.layer} random": s.model for s in cascade(subject.model, pair, start="branch", rng=run.rng())}
    models |= {CALLED[name]: each[0] for name, each in nets.items()}
    drawn = {}
    for name, model in models.items():
        change = explain(model, pair).map[:n]
        drawn[name] = grey(change, torch.zeros_like(change))[:, None].cpu().numpy()
    bounds = {"low": subject.inputs.low, "high": subject.inputs.high}
    exhibits = tuple(
        Exhibit(
            index=int(at),
            caption=f"Pair {at}",
            panels=(
                Panel.of("pair", f"The two inputs of pair {at}", pair[k].cpu().numpy(), **bounds),
                *(Panel.of(name, f"Change of pair {at}, {name}", m[k]) for name, m in drawn.items()),
            ),
        )
        for k, at in enumerate(few)
    )
    title = "Where the first of a pair changes, as chance goes deeper into the model"
    return (Gallery(name="maps", title=title, exhibits=exhibits, says="White where it changes most."),)


SHELVED = DoesThePairMapNeedTheModel
