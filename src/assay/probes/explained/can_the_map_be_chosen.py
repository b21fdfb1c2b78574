"""How small a change of the input puts another input's heat map on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError
from assay.finding import (
    Alarm,
    Beside,
    Curve,
    Exhibit,
    Finding,
    Gallery,
    Line,
    Measure,
    Panel,
    Table,
    share,
)
from assay.methods.attack.aim import Aim
from assay.methods.explain.chosen_by_input import Live, LiveMap, Numbers, choose_map, choose_map_at_once
from assay.methods.explain.maps import explain
from assay.methods.explain.softly import kinks_left
from assay.methods.explain.spoken import is_class, spoken_of, weighed
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

EACH = 1 / 2  # inputs for each step of the budget: every one is attacked at each radius, for each map
PARTS = (0.25, 0.5, 1.0, 2.0)  # of the radius
ASKED = PARTS.index(1.0)
STUCK = 0.05  # of the inputs, on which an attack may fail to do better than noise
STILL = 1e-5  # a map that noise moves by less stands still
HEADLINE = "maps that were chosen"
AT_ONCE = "maps that were chosen in one step"
SUCCESS = "{} and the new map is nearer to the wished one than to the input's own"
STAYS = {True: "the class stays", False: "the answer stays good enough"}


@dataclass(frozen=True)
class CanTheMapBeChosen(Probe):
    """Can an attacker choose the map?

    Every input is changed by at most `radius` per value (l_inf, a share of the range) so that its map becomes that
    of an input of another class. The map is chosen if the class stays and the new map, as it is shown, is nearer to the
    wished one than to the one that was there (Euclidean distance of |map| with length 1).

    Of an answer that is no class it is the map of the number that the task names, becoming the next input's, while the
    answer stays good enough by the task; inputs whose answer is not have none to keep, and are left out.
    """

    radius: float = 8 / 255
    methods: tuple[str, ...] = ("gradient", "gradcam")
    steps: int | None = None
    inputs: int | None = None

    in_quick: ClassVar[bool] = False
    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Dombrowski et al., NeurIPS 2019, arXiv:1906.07983; Wang, TU Delft 2024 (dissertation), sec. 8.3, eq. 8.2"
    )
    needs: ClassVar[tuple[Need, ...]] = ("focus", "gradients")
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.1),)

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius")
        self.refuse_beyond_the_range("radius")
        self.refuse_below(1, "steps")
        self.refuse_below(2, "inputs")
        strange = [m for m in self.methods if m not in get_args(Live)]
        if strange or not self.methods:
            given = repr(strange[0]) if strange else "no map"
            raise AssayError(f"{self.name()!r} got {given} in methods; choose from {', '.join(get_args(Live))}.")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and not self._methods(subject):
            return "a gradcam map needs a convolutional layer (Conv2d), and this model has none"
        if reason is None and subject.draws > 1:
            return "the model's answers are random, and so are its maps; the attack follows one fixed map"
        return reason

    def _methods(self, subject: Subject) -> list[Live]:
        convolutional = any(isinstance(m, nn.Conv2d) for m in subject.model.modules())
        return [m for m in get_args(Live) if m in self.methods and (m != "gradcam" or convolutional)]

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"], self.inputs or run.budget.few(max(2, int(EACH * run.budget.steps))))
        classes = "classes" in subject.task.gives
        drawn = len(index)
        if not classes:
            out, target = run.predict(subject, "test", index, "answers to keep")
            index = index[subject.task.right(torch.from_numpy(out), torch.from_numpy(target)).numpy()]
        if len(index) < 2:
            raise AssayError(
                "The wished map is another input's, and the split 'test' has only one; give it more."
                if classes or drawn < 2
                else f"Of {drawn} answers {len(index)} are good enough to be kept, and it takes two; ask more inputs."
            )
        given = run.map(lambda s: {"x": s.x, "y": s.y}, subject, "test", index, "inputs and wishes")
        wish = _others(given["y"]) if classes else np.roll(np.arange(len(index)), -1)
        label = {"label": given["y"].astype(np.int64)} if classes else {}
        success = _success(subject)
        methods = self._methods(subject)
        rows = {
            m: run.map(
                partial(self._attack, subject, m, self.steps or run.budget.steps, given["x"][wish], index),
                subject, "test", index, f"choosing the {m} map",
            )
            for m in methods
        }  # fmt: skip
        chosen = {m: rows[m]["chosen"] for m in methods}  # n radii
        order = sorted(methods, key=lambda m: -chosen[m][:, ASKED].mean())
        measures = [self._share(subject, HEADLINE, order[0], rows[order[0]])]
        for m in order:
            measures += [self._share(subject, f"{HEADLINE}, {m}", m, rows[m]), self._left(m, rows[m], run.seed)]
            measures.append(self._share(subject, f"{AT_ONCE}, {m}", m, rows[m], "at once"))
        told = [f"the {m} map of {share(int(chosen[m][:, ASKED].sum()), len(index))} inputs" for m in order]
        left = [m for m in self.methods if m not in methods]
        alarms = [_missed(m, rows[m], classes) for m in methods if not rows[m]["kept"].all()]
        alarms += [_stuck(m, rows[m]) for m in methods if rows[m]["stuck"].mean() > STUCK]
        alarms += _kinked(kinks_left(subject.model, torch.as_tensor(given["x"][:1], device=run.device)), methods)
        return Finding(
            says=f"Within {subject.inputs.size(self.radius, 4)} per value an attacker chooses {' and '.join(told)}: "
            f"{success}."
            + (f" Without a convolutional layer there is no {left[0]} map." if left else "")
            + (f" Left out are {drawn - len(index)} inputs with no good answer to keep." if drawn > len(index) else ""),
            measures=tuple(measures),
            samples=Table("test", {"index": index, **label, "wished from": index[wish], **self._columns(rows)}),
            views=(
                self._curve(subject, chosen),
                *self._pictures(subject, given["x"], index, wish, rows, run.budget.shown),
            ),
            alarms=tuple(alarms),
        )

    def _attack(
        self,
        subject: Subject,
        method: Live,
        steps: int,
        wishes: NDArray[np.float32],
        index: NDArray[np.int64],
        shard: Shard,
    ) -> Mapping[str, Tensor]:
        """One attack for each radius, all in one batch; then every point is judged by code that no attack shares."""
        n, k, x, task = len(shard.x), len(PARTS), shard.x, subject.task
        wish = torch.as_tensor(wishes[np.searchsorted(index, shard.index)], device=x.device)
        radius = self.radius * x.new_tensor(PARTS).repeat(n)  # n * k
        bounds = (subject.inputs.low, subject.inputs.high)
        out, other = subject.predict(x), subject.predict(wish)
        says, wanted = spoken_of(task, out), spoken_of(task, other)
        classes = "classes" in task.gives
        numbers = None
        if not (is_class(says) and is_class(wanted)):
            aim = None if classes else Aim(task.margin, shard.y, task.average)
            says, wanted = (weighed(each, like) for each, like in ((says, out), (wanted, other)))
            numbers = Numbers(says, wanted, aim)
        many = torch.arange(n, device=x.device).repeat_interleave(k)
        found = choose_map(
            subject.model,
            x[many],
            wish[many],
            explainer=LiveMap(method),
            numbers=None if numbers is None else numbers.take(many),
            radius=radius,
            steps=steps,
            bounds=bounds,
            rng=shard.rng,
        ).x
        once = choose_map_at_once(
            subject.model, x, wish, explainer=LiveMap(method), numbers=numbers, radius=self.radius, bounds=bounds
        ).x
        own, goal = _heat(subject, x, says, method), _heat(subject, wish, wanted, method)  # n f
        new = _heat(subject, found, says[many], method).view(n, k, -1)
        stays = out.argmax(1) if classes else shard.y
        kept = _kept(subject, found, x[many], stays[many], radius)
        after, drift = _apart(new, goal[:, None]), _apart(new, own[:, None])  # n k
        taken = kept.view(n, k) & (after < drift)
        at = _at(taken)  # n: of the points within the radius, the one that counts
        pick = torch.arange(n, device=x.device)
        sign = torch.randint(0, 2, x.shape, generator=shard.rng, device=shard.rng.device).to(x) * 2 - 1
        noisy = (x + self.radius * sign).clamp(subject.inputs.low, subject.inputs.high)
        noise, single = _heat(subject, noisy, says, method), _heat(subject, once, says, method)
        fair = _kept(subject, noisy, x, stays, radius.view(n, k)[:, ASKED])
        nearer = fair & (_apart(noise, goal) < after[pick, at] - STILL)
        unmoved = (drift[:, ASKED] == 0) & (_apart(noise, own) > STILL)
        return {
            "chosen": taken.cummax(1).values,  # a larger ball holds the smaller ones
            "kept": kept.view(n, k),
            "before": _apart(own, goal),
            "after": after[pick, at],
            "drift": drift[pick, at],
            "at once": _kept(subject, once, x, stays, radius.view(n, k)[:, ASKED])
            & (_apart(single, goal) < _apart(single, own)),
            "stuck": nearer | unmoved,
            "noise": _apart(noise, goal) < _apart(noise, own),
            "noise left": _apart(noise, goal),
            "own map": own,
            "wished map": goal,
            "new map": new[pick, at],
            "changed": found.view(n, k, *x.shape[1:])[pick, at],
        }

    def _share(
        self, subject: Subject, name: str, method: str, rows: Mapping[str, NDArray[Any]], how: str = "chosen"
    ) -> Measure:
        return Measure.proportion(
            name,
            rows["chosen"][:, ASKED] if how == "chosen" else rows[how],
            better="lower",
            column=f"{method}, {how}",
            about=f"{method}, at most {subject.inputs.size(self.radius, 4)} per value: {_success(subject)}",
            beside=(Beside("random noise of that size", float(rows["noise"].mean())),),
        )

    def _left(self, method: str, rows: Mapping[str, NDArray[Any]], seed: int) -> Measure:
        return Measure.mean(
            f"way to the wish that is left, {method}",
            _left(rows["after"], rows["before"]),
            better="higher",
            seed=seed,
            unit="%",
            about="distance to the wished map after the change, of that before it",
            column=f"{method}, way left",
            beside=(Beside("random noise of that size", float(_left(rows["noise left"], rows["before"]).mean())),),
        )

    def _columns(self, rows: Mapping[Live, Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        columns = {}
        for m, got in rows.items():
            first = np.where(got["chosen"].any(1), got["chosen"].argmax(1), len(PARTS))
            radii = np.array([*(self.radius * p for p in PARTS), np.inf])
            columns[f"{m}, chosen"] = got["chosen"][:, ASKED]
            columns[f"{m}, at once"] = got["at once"]
            columns[f"{m}, no better than noise"] = got["stuck"]
            columns[f"{m}, smallest radius tried that does"] = radii[first]
            columns[f"{m}, way left"] = _left(got["after"], got["before"])
            columns |= {f"{m}, {k}": got[k] for k in ("before", "after", "drift")}
        return columns

    def _curve(self, subject: Subject, chosen: Mapping[Live, NDArray[np.bool_]]) -> Curve:
        radii = (0.0, *(self.radius * p for p in PARTS))
        lines = [Line.shares(m, radii, [0, *hits.sum(0)], len(hits)) for m, hits in chosen.items()]
        return Curve(
            name="radii",
            title="Maps that were chosen, against the size of the change",
            x_label=subject.inputs.axis("largest change of a value"),
            y_label="share of the inputs",
            unit_y=True,
            lines=tuple(lines),
            marks=(Beside("asked about", self.radius),),
            says=f"Chosen: {_success(subject)}. Lower is better; a stronger attack can only raise the lines.",
        )

    def _pictures(
        self,
        subject: Subject,
        x: NDArray[np.float32],
        index: NDArray[np.int64],
        wish: NDArray[np.int64],
        rows: Mapping[Live, Mapping[str, NDArray[Any]]],
        shown: int,
    ) -> tuple[Gallery, ...]:
        if not subject.inputs.is_image:
            return ()
        exhibits = []
        for i in range(min(len(index), max(1, shown // 2))):
            for m, got in rows.items():
                verdict = "chosen" if got["chosen"][i, ASKED] else "not chosen"
                images = {"input": x[i], "changed": got["changed"][i], "wished from": x[wish[i]]}
                low, high = subject.inputs.low, subject.inputs.high
                drawn = {k: Panel.of(k, f"Input {index[i]}, {k}", v, low=low, high=high) for k, v in images.items()}
                for k in ("own map", "new map", "wished map"):
                    heat = got[k][i].reshape(1, *subject.inputs.shape[1:])
                    drawn[k] = Panel.of(k, f"Input {index[i]}, {m}, {k}", heat, high=max(float(heat.max()), 1e-12))
                order = ("input", "own map", "changed", "new map", "wished from", "wished map")
                exhibits.append(
                    Exhibit(
                        index=int(index[i]),
                        caption=f"{m}, {verdict} within {subject.inputs.size(self.radius)}: {got['after'][i]:.2f} "
                        f"from the wished map ({got['before'][i]:.2f} before), {got['drift'][i]:.2f} from its own",
                        panels=tuple(drawn[k] for k in order),
                    )
                )
        title = "The input and its map, after the change, and the input whose map was wished for"
        return (Gallery(name="chosen", title=title, exhibits=tuple(exhibits)),)


def _success(subject: Subject) -> str:
    return SUCCESS.format(STAYS["classes" in subject.task.gives])


def _others(label: NDArray[np.int64]) -> NDArray[np.int64]:  # n -> n
    """For each input the next one of another class, round and round; just the next where there is one class only."""
    n = len(label)
    ahead = (np.arange(n)[:, None] + np.arange(1, n)) % n  # n n-1
    place = (label[ahead] != label[:, None]).argmax(1)
    other: NDArray[np.int64] = ahead[np.arange(n), place]
    return other


def _heat(subject: Subject, x: Tensor, target: Tensor, method: str) -> Tensor:  # n *d, n -> n f
    """The map as it is shown: |values|, summed over channels, of length 1."""
    values = explain(subject.model, x, target, method).values.abs()
    flat = (values.sum(1) if values.ndim == 4 else values.sum(2) if values.ndim == 3 else values).flatten(1)
    length = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    unit: Tensor = flat / length.clamp_min(torch.finfo(flat.dtype).tiny)
    return unit


def _apart(a: Tensor, b: Tensor) -> Tensor:  # ... f, ... f -> ...
    length: Tensor = torch.linalg.vector_norm(a - b, dim=-1)
    return length


def _at(taken: Tensor) -> Tensor:  # n radii -> n
    """The place of the radius asked about, or of a smaller one where only that one succeeded."""
    upto = taken[:, : ASKED + 1]
    return ASKED - upto.flip(1).int().argmax(1)  # the largest that succeeded, ASKED where none did


def _left(after: NDArray[np.float32], before: NDArray[np.float32]) -> NDArray[np.float32]:  # n, n -> n
    """The part of the way to the wish that is left; all of it where there was none to go."""
    return np.where(before > 0, after / np.where(before > 0, before, 1), 1)


def _missed(method: str, rows: Mapping[str, NDArray[Any]], classes: bool) -> Alarm:
    bad, what = int((~rows["kept"]).any(1).sum()), "class" if classes else "good answer"
    return Alarm(
        f"For {share(bad, len(rows['kept']))} inputs the attack on {method} left the ball or the {what} when judged "
        "afresh; these points do not count.",
        doubts=(HEADLINE, f"{HEADLINE}, {method}"),
    )


def _kept(subject: Subject, at: Tensor, x: Tensor, stays: Tensor, radius: Tensor) -> Tensor:  # -> n bool
    """Whether a point lies in the ball and has the class, or an answer good enough for its target, judged afresh."""
    change = (at - x).double().abs().flatten(1).amax(1)
    out = subject.predict(at)
    held = out.argmax(1) == stays if "classes" in subject.task.gives else subject.task.right(out, stays)
    return (change <= radius.double() + 1e-6) & held


def _stuck(method: str, rows: Mapping[str, NDArray[Any]]) -> Alarm:
    bad = rows["stuck"]
    return Alarm(
        f"On {share(int(bad.sum()), len(bad))} inputs the attack on {method} found no way, where random noise of that "
        "size moves the map or comes nearer to the wish: what it did not choose may be chosen all the same.",
        doubts=(HEADLINE, f"{HEADLINE}, {method}", f"{AT_ONCE}, {method}", f"way to the wish that is left, {method}"),
    )


def _kinked(left: tuple[str, ...], methods: Sequence[str]) -> list[Alarm]:
    """What the network does that the search cannot round: there its slope does not tell where maps change."""
    if not left:
        return []
    every = [
        f"{name}, {m}" for name in (HEADLINE, AT_ONCE, "way to the wish that is left") for m in methods
    ]  # fmt: skip
    return [
        Alarm(
            f"Between input and answer the model uses {', '.join(left)}, whose kinks or jumps the attack cannot round: "
            "it does not see how maps change there, and may miss a change that chooses them.",
            doubts=(HEADLINE, *every),
        )
    ]


SHELVED = CanTheMapBeChosen
