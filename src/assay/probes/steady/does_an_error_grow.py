"""What becomes of a small error of the input on its way through the network, stage by stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.finding import Alarm, Beside, Curve, Finding, Line, Measure, Table, bootstrap, share
from assay.methods.attack.aim import truth_of
from assay.methods.attack.error_growth import Stage, norms, repeats, stages
from assay.methods.attack.pgd import pgd
from assay.methods.attack.swift import searching
from assay.methods.attack.through import carries_gradient
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

Floats = NDArray[np.float64]
EACH = 3  # inputs for each step of the budget
LOOKED = 4  # inputs by which the stages are found
DRAWS = 5  # of the noise of a random model, the same for both inputs
ROOM = 64 * 2**20  # bytes of states that are held at a time
SEEN = 1e-7  # of the state: an error below this is lost in the rounding of float32
FEW = 10  # inputs below which an interval of a median is none
NAMED = 24  # stages whose names are told
HEADLINE, WORST = "exponent of a random error", "exponent of the worst error"


@dataclass(frozen=True)
class DoesAnErrorGrow(Probe):
    """Does a small error of the input grow on its way through the network?

    Two inputs that differ by an l2 change of `radius` (a share of the range) go through the network, under the same
    noise where it is random; at each place through which everything flows their distance is taken, as a share of the
    usual distance of two inputs there, so that no shift or scale of a layer counts. The exponent is the logarithm of
    how many times larger that share is at the answer than at the input. The change is random, or the worst that a
    search finds. A random error that dies passes, one that grows fails, and where the interval of the median holds 0
    nobody can tell. The worst one has no limit: a network must heed some direction, and how much is a diagnosis.

    What is measured is this network at these inputs; it is no guarantee, and no theorem about noise makes it one.
    """

    radius: float = 0.1
    inputs: int | None = None
    steps: int | None = None

    in_shares: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("gradients",)
    goes_through: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Liu, UCLA 2021 (dissertation), sec. 2.3.3-2.3.4; Liu et al. 2019, arXiv:1906.02355; Madry et al., ICLR 2018, "
        "arXiv:1706.06083 (the search)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.0),)

    def __post_init__(self) -> None:
        self.refuse_below(1e-6, "radius")
        self.refuse_below(1, "inputs", "steps")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and any(isinstance(m, torch.jit.ScriptModule) for m in subject.model.modules()):
            return "it watches what the layers inside hand on, and those of TorchScript cannot be watched"
        reach = subject.reach() if reason is None else None
        if reach is not None and not reach.gradient:
            return "it changes values by a little, and no value of an input here can change so"
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"], self.inputs or run.budget.few(EACH * run.budget.steps))
        if len(index) < 2:
            return _nothing(
                len(index),
                "No error could be followed: its size is a share of the usual distance of two inputs, and one input is "
                "asked about; give it another.",
            )
        few = subject.data["test"].take(index[:LOOKED])[0].to(run.device)
        if not repeats(subject.model, few, seed=run.seed):
            return _nothing(
                len(index),
                "No error could be followed: the model answers differently with the same seed, so that two inputs "
                "cannot have the same noise; draw it from torch's own generator.",
            )
        at = stages(subject.model, few, seed=run.seed)
        kinds = ("worst", "random") if carries_gradient(subject.model, few) else ("random",)
        rows = run.map(partial(self._trace, subject, run, at, kinds), subject, "test", index, "errors on their way")
        col = {name: np.asarray(rows[name], dtype=np.float64) for name in (*kinds, "apart", "state")}  # n s
        usual = np.array([_middle(of[of > 0]) for of in col["apart"].T])  # s
        lost = {name: np.maximum(col[name], SEEN * col["state"]) for name in kinds}
        with np.errstate(divide="ignore", invalid="ignore"):
            size = {name: np.log(of) - np.log(usual) for name, of in lost.items()}
            bare = np.log(lost[kinds[0]]) - np.log(col["state"])
        good = np.all([(col[n][:, 0] > 0) & np.isfinite(size[n]).all(1) for n in size], axis=0)
        path = {name: of[good] - of[good][:, :1] for name, of in size.items()}  # k s
        if not good.any():
            return _nothing(len(index))
        ends = {name: of[:, -1] for name, of in path.items()}
        told = f"from the input to the answer, as a share of the usual distance of two inputs; l2 {self.radius:g}"
        told += subject.inputs.aside(self.radius)
        apart = col["apart"]
        measures = [
            _median(
                HEADLINE,
                ends["random"],
                good,
                apart[:, [0, -1]],
                run.seed,
                about=f"log of how many times larger a random error is, {told}; 0: it keeps its size",
            )
        ]
        says = (
            f"A random error is {_times(ends['random'])} as large at the answer as at the input, against the usual "
            "distance of two inputs"
        )
        if "worst" in kinds:
            measures += [
                _median(
                    WORST,
                    ends["worst"],
                    good,
                    apart[:, [0, -1]],
                    run.seed,
                    about=f"the same for the worst error that {self.steps or run.budget.steps} steps of PGD find",
                    beside=(Beside("by the size of the states", _middle((bare[:, -1] - bare[:, 0])[good])),),
                ),
                Measure.proportion(
                    "worst errors that grow", ends["worst"] > 0, better="lower", about="share of the inputs asked"
                ),
            ]
            says += f"; the worst one found is {_times(ends['worst'])} as large{_where(path['worst'], at)}"
        return Finding(
            says=f"{says}.",
            measures=tuple(measures),
            samples=Table(
                "test",
                {
                    "index": index[good],
                    **({"label": rows["label"][good]} if "classes" in subject.task.gives else {}),
                    "random": ends["random"],
                    **(
                        {"worst": ends["worst"], "size of the worst": col["worst"][good][:, 0]}
                        if "worst" in kinds
                        else {}
                    ),
                },
            ),
            views=(_curve(path, good, apart, at, run.seed),),
            alarms=_alarms(at, good, ends),
        )

    def _trace(
        self, subject: Subject, run: Run, at: Sequence[Stage], kinds: Sequence[str], shard: Shard
    ) -> Mapping[str, Tensor]:
        """Sizes of states, errors and distances: the input, each stage, the answer; of noise the middle of some."""
        x, reach, bounds = shard.x, subject.reach(shard.x), (subject.inputs.low, subject.inputs.high)
        free = None if reach is None else reach.smooth.expand(x.shape)
        found = {}
        if "worst" in kinds:
            model, precision = searching(subject.model, x, draws=subject.draws)
            found["worst"] = pgd(
                model,
                x,
                truth_of(subject.task, shard.y),
                norm="l2",
                radius=self.radius,
                steps=self.steps or run.budget.steps,
                mask=free,
                eot=subject.draws,
                bounds=bounds,
                leave=False,
                precision=precision,
                rng=shard.rng,
            ).x
        found["random"] = _random_error(x, self.radius, free, bounds, shard.rng)
        order = torch.randperm(len(x), generator=shard.rng, device=x.device)
        partner = torch.empty_like(order)
        partner[order] = order.roll(1)
        held = 4 * (x[0].numel() + sum(stage.size for stage in at))
        draws = DRAWS if subject.draws > 1 else 1
        found["apart"] = x[partner]
        parts: dict[str, list[Tensor]] = {name: [] for name in ("state", *found)}
        for rows in torch.split(torch.arange(len(x), device=x.device), max(1, ROOM // held)):
            changed = [other[rows] for other in found.values()]
            each = [norms(subject.model, x[rows], changed, at, seed=run.seed + d) for d in range(draws)]
            parts["state"].append(torch.stack([one.state for one in each]).median(0).values)
            for k, name in enumerate(found):
                parts[name].append(torch.stack([one.error[k] for one in each]).median(0).values)
        return {"label": shard.y, **{name: torch.cat(of) for name, of in parts.items()}}


def _random_error(
    x: Tensor, radius: float, free: Tensor | None, bounds: tuple[float, float], rng: torch.Generator
) -> Tensor:  # n *d -> n *d
    """A change of that l2 size in a random direction; what would leave the box goes the other way."""
    way = torch.randn(x.shape, generator=rng, device=x.device)
    way = way if free is None else way * free
    tiny = torch.finfo(way.dtype).tiny
    way = way * (radius / way.flatten(1).norm(dim=1).clamp_min(tiny)).view(-1, *(1,) * (x.ndim - 1))
    beyond = (x + way < bounds[0]) | (x + way > bounds[1])
    return (x + torch.where(beyond, -way, way)).clamp(*bounds)


def _middle(values: Floats) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _median(
    name: str,
    grown: Floats,
    good: NDArray[np.bool_],
    apart: Floats,
    seed: int,
    about: str = "",
    beside: tuple[Beside, ...] = (),
) -> Measure:  # k, n with k good, n 2: usual distances at the input and there
    """The median over the inputs, with a bootstrap interval that draws what is usual anew with them."""
    value = Measure.median(name, grown, better="lower", seed=seed).value
    assert value is not None  # what is good is finite
    first, last = (_middle(of[of > 0]) for of in apart.T)
    raw = np.full(len(good), np.nan)
    raw[good] = grown + math.log(last) - math.log(first)

    def drawn(counts: Floats) -> Floats:  # draws n -> draws
        logs, begin, end = _middles(raw, good, counts), *(_middles(of, of > 0, counts) for of in apart.T)
        return logs - np.log(end) + np.log(begin)

    low, high = bootstrap(drawn, len(good), seed=seed)
    return Measure(
        name=name, value=value, low=min(low, value), high=max(high, value), n=len(grown), better="lower", about=about,
        beside=beside,
    )  # fmt: skip


def _middles(values: Floats, held: NDArray[np.bool_], counts: Floats) -> Floats:  # n, n, draws n -> draws
    """The median of those that are held, each so many times; a draw that has none of them has the plain one."""
    order = np.flatnonzero(held)[np.argsort(values[held])]
    reached = np.cumsum(counts[:, order], axis=1)
    total = reached[:, -1:]
    place = np.stack([(reached < total / 2).sum(1), (reached <= total / 2).sum(1)]).clip(max=len(order) - 1)
    middle: Floats = values[order][place].mean(0)
    return np.where(total[:, 0] > 0, middle, np.median(values[held]))


def _times(logs: Floats) -> str:
    return f"{math.exp(_middle(logs)):.3g} times"


def _where(path: Floats, at: Sequence[Stage]) -> str:
    """Where most of the growth is, if there is any."""
    gains = np.diff(np.median(path, axis=0))
    k = int(gains.argmax())
    if len(gains) < 2 or gains[k] <= 0:
        return ""
    place = f"at stage {k + 1} ({at[k]})" if k < len(at) else "at the answer"
    return f", and grows most {place}, {math.exp(gains[k]):.3g} times"


def _curve(path: Mapping[str, Floats], good: NDArray[np.bool_], apart: Floats, at: Sequence[Stage], seed: int) -> Curve:
    lines = []
    for name, label in (("worst", "worst error found"), ("random", "random error")):
        if name not in path:
            continue
        each = [_median(name, column, good, apart[:, [0, k]], seed) for k, column in enumerate(path[name].T)]
        y, low, high = (tuple(float(getattr(m, k) or 0.0) for m in each) for k in ("value", "low", "high"))
        lines.append(Line(label=label, x=tuple(map(float, range(len(each)))), y=y, low=low, high=high))
    names = ["0 the input", *(f"{k + 1} {stage}" for k, stage in enumerate(at))]
    names[NAMED:] = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    listed = f"Stages: {', '.join(names)}, {len(at) + 1} the answer. "
    return Curve(
        name="depth",
        title="How an error grows over the depth",
        x_label="stage",
        y_label="log of its size, 0 at the input",
        lines=tuple(lines),
        says=f"{listed}Medians over the inputs with their intervals; sizes are shares of the usual distance of two "
        "inputs at each stage. A line that falls below 0 is an error that dies.",
    )


def _nothing(
    n: int,
    says: str = "No error could be followed: at every input the change is nought or what the network gives is no "
    "number.",
) -> Finding:
    blank = tuple(Measure(name=name, value=None, better="lower", n=n) for name in (HEADLINE, WORST))
    return Finding(says=says, measures=blank, alarms=(Alarm(says, doubts=(HEADLINE, WORST)),))


def _alarms(at: Sequence[Stage], good: NDArray[np.bool_], ends: Mapping[str, Floats]) -> tuple[Alarm, ...]:
    alarms = []
    if not at:
        alarms.append(
            Alarm("No place inside was found through which everything flows: only input and answer are compared.")
        )
    if not good.all():
        lost = share(int((~good).sum()), len(good))
        alarms.append(
            Alarm(
                f"For {lost} of the inputs the change is nought or a state is no number; they are left out.",
                doubts=(HEADLINE, WORST),
            )
        )
    if good.sum() < FEW:
        alarms.append(
            Alarm(
                f"Errors were followed at {int(good.sum())} inputs alone, too few to judge by: {FEW} or more would do.",
                doubts=(HEADLINE, WORST),
            )
        )
    if "worst" not in ends:
        alarms.append(
            Alarm("No gradient leads from the answer to the input, so that the worst error could not be searched for.")
        )
    elif _middle(ends["worst"]) <= _middle(ends["random"]):
        alarms.append(
            Alarm(
                "The search finds no direction in which an error grows more than in a random one; its gradients may be "
                "masked.",
                doubts=(WORST,),
            )
        )
    return tuple(alarms)


SHELVED = DoesAnErrorGrow
