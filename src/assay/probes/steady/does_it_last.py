"""What a policy earns over whole episodes, as it is, with noisy sensors, and with someone at its sensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.episodes import Best, Episodes, Policy, at_random, best_known, roll_out
from assay.errors import AssayError, SubjectError
from assay.finding import Alarm, Beside, Curve, Finding, Histogram, Line, Measure, share
from assay.methods.attack.pgd import pgd
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

SEVERITIES = (1, 2, 3, 4, 5)
SHARES = (0.5, 1.0, 2.0)
"""Where the attacker is tried, in radii."""
INPUTS = 16  # of the budget, for one episode: it is hundreds of observations
FEWEST, ALL = 8, 2000
BINS = 20
REACHED, EARNED, WELL = "return, of the best known", "mean return", "episodes that end well"
MET = "the best episode met here"
NOISY, ATTACKED = "return with noisy sensors", "return under attack"


@dataclass(frozen=True)
class DoesItLast(Probe):
    """Does it act well over whole episodes, also with noisy sensors and with someone at its sensors?

    An episode is a seed of the subject's environment. Returns are told as (return - random) / (best - random), where
    random is what a policy that looks at nothing earns on the same seeds, and best is `best`, or what the environment
    says of itself. One that is below random is below 0, and an episode ends well that comes `enough` of the way.

    Noise is what the subject's kind of input calls everyday: at each step one of its changes, in turn, drawn anew. The
    attacker moves each reading by at most `radius` of its range, at each step, so that the policy takes another action
    than it would: it is greedy, and one with a plan may do worse harm. Both show readings inside the bounds alone, as a
    sensor at its end does.
    """

    episodes: int | None = None
    longest: int = 1000
    best: float | None = None
    enough: float = 0.9
    radius: float = 0.05
    steps: int = 1

    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    source: ClassVar[str] = (
        "Huang et al. 2017, arXiv:1702.02284 (attacks on what a policy sees); Zhang et al., NeurIPS 2020, "
        "arXiv:2003.08938; Towers et al. 2024, arXiv:2407.17032 (the interface)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.8),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "episodes", "longest", "steps")
        self.refuse_below(0, "radius", "enough")
        self.refuse_beyond_the_range("radius")
        if self.best is not None and not math.isfinite(self.best):
            raise AssayError(f"The setting best={self.best} of {self.name()!r} must be a finite number: a return.")

    def why_not(self, subject: Subject) -> str | None:
        lacks = super().why_not(subject)
        if lacks is None and subject.environment is None:
            return "it needs an environment to act in; give Subject.of(..., environment=...) what makes a fresh one"
        return lacks

    def ask(self, subject: Subject, run: Run) -> Finding:
        make, n = subject.environment, self._count(run)
        assert make is not None  # why_not saw to it
        seeds = np.random.default_rng(run.seed).integers(2**31, size=n)
        actions, radii = len(subject.task.classes), tuple(self.radius * s for s in SHARES)

        def rolled(policy: Policy, times: int) -> Episodes:
            """The same seeds `times` over, with row r * n + i about seed i."""
            tiled = np.tile(seeds, times)
            return roll_out(make, policy, tiled, actions=actions, shape=subject.inputs.shape, longest=self.longest)

        with run.progress("episodes", 3) as tick:
            plain = rolled(_as_it_is(subject, run), 1)
            random = rolled(at_random(actions, np.random.default_rng([run.seed, 1])), 1)
            tick(1)
            noisy = rolled(_noisy(subject, run, n), len(SEVERITIES)) if subject.everyday() else None
            tick(1)
            fooled = rolled(self._fooled(subject, run, n, radii), len(radii)) if subject.differentiable else None
            tick(1)
        everything = [each for each in (plain, random, noisy, fooled) if each is not None]
        best = self._best(make, everything)
        floor = float(random.earned.mean())
        if not best.earned > floor:
            raise AssayError(
                f"A random policy earns {floor:.4g} and {best.says} is {best.earned:.4g}: nothing lies between them; "
                "give the best return that is known with best=."
            )

        def reached(earned: NDArray[np.float64]) -> NDArray[np.float64]:
            return (earned - floor) / (best.earned - floor)

        score = reached(plain.earned)
        beside = (Beside("a random policy", 0.0), Beside("as it is", float(score.mean())))
        scale = f"0 is a random policy ({floor:.4g}), 1 is {best.says} ({best.earned:.4g})"
        measures = [
            Measure.mean(
                REACHED, score, better="higher", seed=run.seed, unit="%", about=f"{n} episodes; {scale}",
                beside=(Beside("a random policy", 0.0),),
            ),
            Measure.mean(
                EARNED, plain.earned, better="higher", seed=run.seed, about="sum of rewards of an episode",
                beside=(Beside("a random policy", floor), Beside(best.says, best.earned)),
            ),
            Measure.proportion(
                WELL, score >= self.enough, better="higher",
                about=f"come at least {self.enough:g} of the way from a random policy to {best.says}",
                beside=(Beside("a random policy", float((reached(random.earned) >= self.enough).mean())),),
            ),
        ]  # fmt: skip
        views = []
        if noisy is not None:
            each = reached(noisy.earned).reshape(len(SEVERITIES), n)
            changes = ", ".join(subject.everyday()).replace("-", " ")
            measures.append(
                Measure.mean(
                    NOISY, each.mean(0), better="higher", seed=run.seed, unit="%", beside=beside,
                    about=f"mean over {len(SEVERITIES)} severities; step by step in turn: {changes}",
                )
            )  # fmt: skip
            line = _line("noisy sensors", (0.0, *map(float, SEVERITIES)), np.vstack([score, each]), run.seed)
            views.append(_curve("noise", "Return against the severity of noise", "severity (0: as it is)", line))
        if fooled is not None:
            each = reached(fooled.earned).reshape(len(radii), n)
            measures.append(
                Measure.mean(
                    ATTACKED, each[SHARES.index(1.0)], better="higher", seed=run.seed, unit="%", beside=beside,
                    about=f"each reading moved by at most {self.radius:g} of its range, at each step, by PGD (steps: "
                    f"{self.steps}) on the margin of the action that it would take; a plan may do worse harm",
                )
            )  # fmt: skip
            line = _line("under attack", (0.0, *radii), np.vstack([score, each]), run.seed)
            views.append(_curve("attack", "Return against the attacker's radius", "radius, share of the range", line))
        return Finding(
            says=_says(plain, score >= self.enough, floor, best, measures),
            measures=tuple(measures),
            views=(*views, _returns(plain, random)),
            alarms=self._alarms(everything, best, subject, [m.name for m in measures]),
        )

    def _count(self, run: Run) -> int:
        return self.episodes or max(FEWEST, (run.budget.dear or run.budget.samples or ALL) // INPUTS)

    def _best(self, make: Callable[[], Any], everything: list[Episodes]) -> Best:
        if self.best is not None:
            return Best(self.best, "the best that was given")
        return best_known(make) or Best(float(max(e.earned.max() for e in everything)), MET)

    def _fooled(self, subject: Subject, run: Run, n: int, radii: tuple[float, ...]) -> Policy:
        """The policy behind someone who shows it what makes it act otherwise; row r * n + i has the r-th radius."""
        shares = subject.in_shares()
        low, span = (edge.to(run.device, torch.float32) for edge in subject.inputs.edges())
        model = shares.model.to(run.device)
        rng, sizes = run.rng(), torch.tensor(radii, device=run.device)

        def act(seen: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
            x = torch.as_tensor(seen, device=run.device)
            would = _chosen(subject, x)
            u = torch.where(span > 0, (x - low) / torch.where(span > 0, span, 1), 0).clamp(0, 1)
            radius = sizes[torch.as_tensor(rows // n, device=run.device)]
            shown = pgd(
                model, u, would, radius=radius, steps=self.steps, random_start=False, loss="margin", eot=subject.draws,
                rng=rng,
            )  # fmt: skip
            return _chosen(shares, shown.x).cpu().numpy()

        return act

    def _alarms(self, everything: list[Episodes], best: Best, subject: Subject, names: list[str]) -> tuple[Alarm, ...]:
        cut, of = sum(int(e.cut.sum()) for e in everything), sum(len(e.cut) for e in everything)
        alarms = []
        if cut:
            says = f"{share(cut, of)} of the episodes had not ended after {self.longest} steps and were cut there; "
            alarms.append(Alarm(says + "what they earn later is not known: give a larger longest=.", tuple(names)))
        if best.says == MET:
            alarms.append(
                Alarm(
                    f"Nobody says what an episode can earn, so that the best one met here, {best.earned:.4g}, stands "
                    "for it, and the policy is measured against itself; give best=.",
                    tuple(name for name in names if name != EARNED),
                )
            )
        if not subject.everyday():
            alarms.append(Alarm("Nobody says what happens to such observations every day: noise was not tried."))
        if not subject.differentiable:
            alarms.append(Alarm("The policy gives answers and no gradients: nobody attacked what it sees."))
        return tuple(alarms)


def _chosen(subject: Subject, x: Tensor) -> Tensor:  # k *d -> k
    out = subject.predict(x)
    if not bool(out.isfinite().all()):
        raise SubjectError("The policy returned NaN or infinity for an observation; check its weights and its scaling.")
    return out.argmax(1)


def _as_it_is(subject: Subject, run: Run) -> Policy:
    return lambda seen, rows: _chosen(subject, torch.as_tensor(seen, device=run.device)).cpu().numpy()


def _noisy(subject: Subject, run: Run, n: int) -> Policy:
    """The policy behind noisy sensors: row r * n + i has the r-th severity, and each step has the next change."""
    changes, rng = itertools.cycle(subject.everyday().values()), run.rng()
    low, span = (edge.to(run.device, torch.float32) for edge in subject.inputs.edges())

    def act(seen: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        x = torch.minimum(torch.maximum(torch.as_tensor(seen, device=run.device), low), low + span)
        change = next(changes)
        for r, severity in enumerate(SEVERITIES):
            mine = torch.as_tensor(rows // n == r, device=run.device)
            x[mine] = change(x[mine], severity, rng)
        return _chosen(subject, x).cpu().numpy()

    return act


def _line(label: str, x: tuple[float, ...], each: NDArray[np.float64], seed: int) -> Line:  # len(x) n
    means = [Measure.mean(label, row, better="higher", seed=seed) for row in each]
    return Line(
        label=label,
        x=x,
        y=tuple(m.value or 0.0 for m in means),
        low=tuple(m.low or 0.0 for m in means),
        high=tuple(m.high or 0.0 for m in means),
    )


def _curve(name: str, title: str, x_label: str, line: Line) -> Curve:
    random = Line(label="a random policy", x=line.x, y=(0.0,) * len(line.x))
    return Curve(name=name, title=title, x_label=x_label, y_label="return, of the best known", lines=(line, random))


def _returns(plain: Episodes, random: Episodes) -> Histogram:
    edges = np.histogram_bin_edges(np.concatenate([plain.earned, random.earned]), BINS)
    counts = tuple(
        (label, tuple(np.histogram(each.earned, edges)[0].astype(float).tolist()))
        for label, each in (("the policy", plain), ("a random policy", random))
    )
    return Histogram(
        name="returns", title="What episodes earn", x_label="return", edges=tuple(edges.tolist()), counts=counts
    )


def _says(plain: Episodes, well: NDArray[np.bool_], floor: float, best: Best, measures: list[Measure]) -> str:
    said = (
        f"An episode earns {plain.earned.mean():.4g} on average, where a random policy earns {floor:.4g} and "
        f"{best.says} is {best.earned:.4g}; {share(int(well.sum()), len(well))} end well."
    )
    left = {m.name: f"{100 * (m.value or 0.0):.0f} %" for m in measures}
    hard = [(NOISY, "noisy sensors"), (ATTACKED, "an attacker at its sensors")]
    told = [f"{by} leave{'s' if by.startswith('an') else ''} {left[name]}" for name, by in hard if name in left]
    rest = " and ".join(told)
    return f"{said} Of the way from random to best, {rest}." if rest else said


SHELVED = DoesItLast
