"""Whether heat maps stay when the network is rebuilt and its answers are not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError
from assay.finding import Alarm, Beside, Exhibit, Finding, Gallery, Matrix, Measure, Panel, Table, share
from assay.methods.explain.gradcam import last_maps, normalise
from assay.methods.explain.maps import METHODS, explain
from assay.methods.explain.spoken import spoken_of
from assay.methods.explain.surgery import paste, smiley
from assay.methods.explain.twins import (
    SMALL,
    TOL,
    Gaps,
    Twin,
    fold_batch_norm,
    invariant,
    map_distance,
    permute_channels,
    rescale,
    twins,
)
from assay.nn.inner import inner_points
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject
    from assay.tasks import Task

EACH = 2 / 5  # inputs for each step of the budget: occlusion hides every patch of each, in every twin
STICKERED = "T4, sticker on"
LIES = ("T1 flat map", "T2 chosen map", "T3 random map", "T4 triggered map")
HARMLESS = ("channels permuted", "layers rescaled", "batch normalisation folded", "dead channel added")
HEADLINE = "largest explanation gap"
SAID = {True: "survives", False: "does not survive", None: "cannot be told"}


@dataclass(frozen=True)
class DoesTheMapSurvive(Probe):
    """Does the map survive an edit that changes nothing?

    Copies of the network are built that answer as it does, some to deceive (T1 to T4) and some harmless, and `methods`
    explain both: the class that is said, or the number of the answer that its task names. P is the largest change of a
    score (of any entry of an answer), Q the mean distance between the maps, the fooling ratio
    Q / max(P, 1e-6). A map that moves where no score does is no evidence of why the model decides as it does.
    """

    methods: tuple[str, ...] = ("gradcam", "gradient", "occlusion")
    inputs: int | None = None

    in_quick: ClassVar[bool] = False
    source: ClassVar[str] = (
        "Viering, Wang, Loog & Eisemann, BMVC workshops 2019; Wang, TU Delft 2024 (dissertation), sec. 6.6 and 6.7"
    )
    needs: ClassVar[tuple[Need, ...]] = ("focus", "gradients", "images")
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=SMALL),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "inputs")
        strange = [m for m in self.methods if m not in METHODS]
        if strange or not self.methods:
            given = repr(strange[0]) if strange else "no map"
            raise AssayError(f"{self.name()!r} got {given} in methods; choose from {', '.join(METHODS)}.")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and not any(isinstance(m, nn.Conv2d) for _, m in inner_points(subject.model)):
            return "its edits are made on convolutions, and this model has no convolutional layer (Conv2d)"
        if reason is None and subject.draws > 1:
            return "the model's answers are random, so that no edit can be told to leave them as they are"
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"], self.inputs or run.budget.few(max(2, int(EACH * run.budget.steps))))
        examples = run.map(lambda s: {"x": s.x}, subject, "test", index, "examples")["x"]
        # In float64 a gap of the scores is the edit's, and not rounding.
        net, x = copy.deepcopy(subject.model).double(), torch.as_tensor(examples, device=run.device).double()
        layer = last_maps(net, x)
        side = [max(7, s // 3) for s in subject.inputs.shape[1:]]
        sticker = smiley(*side).to(x)
        edited, why = _edited(net, layer, x, sticker, run.rng())
        missing = [name for name in (*LIES, *HARMLESS) if name not in {t.name for t in edited}]
        if not edited:
            return Finding(
                says=f"No edit could be made that changes nothing, so nothing is known: {why}",
                measures=(Measure(name=HEADLINE, value=None, better="lower"),),
                alarms=(Alarm(f"No twin of the network could be built: {why}", doubts=(HEADLINE,)),),
            )
        # T4 sleeps until it sees its sticker, and stickers are for images between 0 and 1.
        wake = (subject.inputs.low, subject.inputs.high) == (0, 1) and all(
            a <= b for a, b in zip(side, subject.inputs.shape[1:], strict=True)
        )
        rows = run.map(
            partial(self._tried, subject.task, net, edited, layer, sticker if wake else None),
            subject, "test", index, "maps before and after an edit",
        )  # fmt: skip
        names = [t.name for t in edited] + [STICKERED] * (f"P {STICKERED}" in rows)
        gaps = {m: {t: _gaps(rows, m, t) for t in names} for m in self.methods}
        exact = [t for t in names if rows[f"P {t}"].max() <= TOL]
        verdict = {m: SAID[invariant(gaps[m].values())] for m in self.methods}
        because = f" ({why.rstrip('.')})" if why else " (this network has no place for it)"
        left = f" Not built: {', '.join(missing)}{because}." if missing else ""
        alarms = [
            Alarm(f"{name} could not be built, so that no map was tried on it: {why}", doubts=(HEADLINE,))
            for name in missing
            if name in LIES
        ]
        if not exact:
            alarms.append(Alarm(f"Every edit moved a score by more than {TOL:g}: none of them changes nothing."))
        return Finding(
            says=" ".join(_sentence(m, verdict[m], gaps[m], exact) for m in self.methods) + left,
            measures=tuple(self._measures(rows, gaps, names, exact, run.seed)),
            samples=Table("test", {"index": index, **rows}),
            views=(
                _matrix("explanation-gap", "How far each map moves (Q)", gaps, lambda g: round(g.explanation, 6), left),
                _matrix("fooling-ratio", "Fooling ratio Q / max(P, 1e-6), its decimal logarithm", gaps, _orders, left),
                self._pictures(subject, run, net, edited, layer, sticker if wake else None, index, gaps, verdict),
            ),
            alarms=tuple(alarms),
        )

    def _tried(
        self, task: Task, net: nn.Module, edited: Sequence[Twin], layer: str, sticker: Tensor | None, shard: Shard
    ) -> Mapping[str, Tensor]:
        x = shard.x.double()
        rows = self._moved(task, net, [(t.name, t.model) for t in edited], layer, x)
        triggered = [(STICKERED, t.model) for t in edited if t.name == LIES[3]]
        if sticker is not None and triggered:
            rows = self._moved(task, net, triggered, layer, paste(x, sticker, rng=shard.rng, count=1).x) | rows
        return rows

    def _moved(
        self, task: Task, net: nn.Module, edited: Sequence[tuple[str, nn.Module]], layer: str, x: Tensor
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            y: Tensor = net(x)
        target, rows = spoken_of(task, y), {}
        own = {m: _heat(net, x, target, m, layer) for m in self.methods}
        noise = _heat(net, x, target, "random", layer)
        for m, heat in own.items():
            rows[f"{m}, a random map"] = map_distance(heat, noise if bool((heat < 0).any()) else noise.abs())
        for name, twin in edited:
            with torch.no_grad():
                other: Tensor = twin(x)
            gap = (y - other).abs()
            if "classes" in task.gives:
                rows[f"P {name}"] = gap.amax(1)
                rows[f"total variation {name}"] = (y.softmax(1) - other.softmax(1)).abs().sum(1) / 2
            else:
                rows[f"P {name}"] = gap.flatten(1).amax(1)
                rows[f"mean change {name}"] = gap.flatten(1).mean(1)
            for m, heat in own.items():
                rows[f"{m}, {name}"] = map_distance(heat, _heat(twin, x, target, m, layer))
        return rows

    def _measures(
        self,
        rows: Mapping[str, NDArray[Any]],
        gaps: Mapping[str, Mapping[str, Gaps]],
        names: Sequence[str],
        exact: Sequence[str],
        seed: int,
    ) -> list[Measure]:
        def gap(name: str, m: str, twin: str, about: str) -> Measure:
            noise = Beside("a random map", float(rows[f"{m}, a random map"].mean()))
            column = f"{m}, {twin}"
            return Measure.mean(
                name, rows[column], better="lower", seed=seed, about=about, column=column, beside=(noise,)
            )

        worst = {m: max(exact, key=lambda t: gaps[m][t].explanation) for m in self.methods if exact}
        if not worst:
            return [Measure(name=HEADLINE, value=None, better="lower")]
        first = max(worst, key=lambda m: gaps[m][worst[m]].explanation)
        about = "mean distance of two maps, each divided by its maximum (0: the same)"
        found = [gap(HEADLINE, first, worst[first], f"{first} under {worst[first]}: {about}; no score moves")]
        for m, twin in worst.items():
            found.append(gap(f"explanation gap, {m}", m, twin, f"under the worst edit that moves no score, {twin}"))
        for m in self.methods:
            most = max(names, key=lambda t: gaps[m][t].fooling_ratio)
            found.append(
                Measure(
                    name=f"fooling ratio, {m}",
                    value=gaps[m][most].fooling_ratio,
                    n=len(rows[f"P {most}"]),
                    better="lower",
                    about=f"Q / max(P, 1e-6), the largest: {most}",
                )
            )
        for twin in names:
            moved = rows[f"P {twin}"]
            apart = float(_apart(rows, twin).mean())
            what = "probabilities" if f"total variation {twin}" in rows else "answers"
            how = "total variation" if what == "probabilities" else "mean over their entries"
            found.append(
                Measure(
                    name=f"prediction gap, {twin}",
                    value=float(moved.max()),
                    n=len(moved),
                    better="neither",
                    about=f"largest change of a score; {what} differ by {apart:.2g} ({how})",
                )
            )
        found += [gap(f"explanation gap, {m}, {twin}", m, twin, "") for twin in names for m in self.methods]
        return found

    def _pictures(
        self,
        subject: Subject,
        run: Run,
        net: nn.Module,
        edited: Sequence[Twin],
        layer: str,
        sticker: Tensor | None,
        index: NDArray[np.int64],
        gaps: Mapping[str, Mapping[str, Gaps]],
        verdict: Mapping[str, str],
    ) -> Gallery:
        """Some inputs with each of their maps: as it is, under the edits that deceive, under T4 with its sticker."""
        on_show = [t for t in edited if t.name in LIES[:3]] or list(edited[:3])
        asleep = [t.model for t in edited if t.name == LIES[3]]

        def maps(shard: Shard) -> Mapping[str, Tensor]:
            x = shard.x.double()
            shown = {"label": shard.y, "input": shard.x}
            with torch.no_grad():
                target = spoken_of(subject.task, net(x))
            for m in self.methods:
                shown[f"{m}/its map"] = _heat(net, x, target, m, layer)
                shown |= {f"{m}/{t.name}": _heat(t.model, x, target, m, layer) for t in on_show}
            if sticker is not None and asleep:
                shown["sticker on"] = pasted = paste(x, sticker, rng=shard.rng, count=1).x
                with torch.no_grad():
                    target = spoken_of(subject.task, net(pasted))
                for m in self.methods:
                    shown[f"{m}/its map then"] = _heat(net, pasted, target, m, layer)
                    shown[f"{m}/{STICKERED}"] = _heat(asleep[0], pasted, target, m, layer)
            return {k: normalise(v) if "/" in k else v for k, v in shown.items()}

        few = index[: max(1, run.budget.shown // 4)]
        rows = run.map(maps, subject, "test", few, "maps to show")
        exhibits = []
        for i, place in enumerate(few):
            label = torch.as_tensor(rows["label"][i])
            for m in self.methods:
                panels = [_picture("input", rows, i, place, subject)]
                panels += [_panel(k.split("/")[1], rows[k][i], m, place) for k in rows if k.startswith(f"{m}/")]
                if "sticker on" in rows:
                    panels.insert(-2, _picture("sticker on", rows, i, place, subject))
                moved = ", ".join(f"{g.explanation:.2g} ({t})" for t, g in gaps[m].items() if g.explanation > SMALL)
                exhibits.append(
                    Exhibit(
                        index=int(place),
                        caption=f"{subject.task.told(label)}. The {m} map {verdict[m]}; over all inputs "
                        f"it moves by {moved or f'less than {SMALL:g}, whatever the edit'}",
                        panels=tuple(panels),
                    )
                )
        return Gallery(
            name="before-and-after",
            title="The same input, the same answer, another map",
            exhibits=tuple(exhibits),
            says="T1, T2 and the harmless edits keep every score; T3 and T4 add one small number to all scores alike, "
            "so that probabilities stay. Where a map has both signs, grey is zero.",
        )


def _edited(net: nn.Module, layer: str, x: Tensor, sticker: Tensor, rng: torch.Generator) -> tuple[list[Twin], str]:
    """The twins that can be built, and why another could not; the harmless ones do not wait for the others."""
    made: list[Twin] = []
    why = ""
    try:
        for twin in twins(net, layer, x, rng=rng, sticker=sticker):
            made.append(twin)
    except AssayError as e:
        why = str(e)
    alone = (
        (HARMLESS[0], partial(permute_channels, rng=rng)),
        (HARMLESS[1], partial(rescale, rng=rng)),
        (HARMLESS[2], fold_batch_norm),
    )
    for name, build in alone if why else ():
        try:
            if name not in {t.name for t in made}:
                made.append(Twin(name, build(net), "scores", True))
        except AssayError:
            continue
    return made, why


def _heat(model: nn.Module, x: Tensor, target: Tensor, method: str, layer: str) -> Tensor:  # n c h w, n -> n h w
    return explain(model, x, target, method, layer=layer, background=x).values.sum(1)


def _gaps(rows: Mapping[str, NDArray[Any]], method: str, twin: str) -> Gaps:
    moved, apart = rows[f"P {twin}"], _apart(rows, twin)
    return Gaps(float(moved.max()), float(apart.mean()), torch.from_numpy(rows[f"{method}, {twin}"]), TOL)


def _apart(rows: Mapping[str, NDArray[Any]], twin: str) -> NDArray[Any]:  # -> n
    """How far the answers are apart: the probabilities of a classifier, else the mean of the entries."""
    return rows[f"total variation {twin}" if f"total variation {twin}" in rows else f"mean change {twin}"]


def _orders(gaps: Gaps) -> float | None:
    """The decimal logarithm of the fooling ratio; None where no map moved by more than rounding."""
    return round(float(np.log10(gaps.fooling_ratio)), 2) if gaps.fooling_ratio > TOL else None


def _sentence(method: str, verdict: str, gaps: Mapping[str, Gaps], exact: Sequence[str]) -> str:
    if not exact:
        return f"Whether the {method} map survives cannot be told: every edit moved a score."
    worst = max(exact, key=lambda t: gaps[t].explanation)
    if verdict == SAID[False]:
        count = share(int((gaps[worst].maps > SMALL).sum()), len(gaps[worst].maps))
        return f"The {method} map {verdict}: {worst} moves no score and changes the map of {count} inputs."
    loose = [t for t in gaps if t not in exact and gaps[t].explanation > SMALL]
    but = f", but not {' and '.join(loose)}, where all scores move a little, and alike" if loose else ""
    return f"The {method} map {verdict} every edit that moves no score{but}."


def _matrix(
    name: str,
    title: str,
    gaps: Mapping[str, Mapping[str, Gaps]],
    value: Callable[[Gaps], float | None],
    left: str,
) -> Matrix:
    edits = next(iter(gaps.values()))
    return Matrix(
        name=name,
        title=title,
        row_label="edit",
        column_label="map",
        rows=tuple(edits),
        columns=tuple(gaps),
        values=tuple(tuple(value(gaps[m][t]) for m in gaps) for t in edits),
        says=f"Lower is better: an edit that moves no score should leave every map where it is.{left}",
    )


def _picture(name: str, rows: Mapping[str, NDArray[Any]], i: int, place: int, subject: Subject) -> Panel:
    return Panel.of(name, f"Input {place}, {name}", rows[name][i], low=subject.inputs.low, high=subject.inputs.high)


def _panel(label: str, heat: NDArray[Any], method: str, place: int) -> Panel:  # h w
    low = -1.0 if (heat < 0).any() else 0.0
    return Panel.of(label, f"{method} of input {place}: {label}", heat[None], low=low, high=1.0)


SHELVED = DoesTheMapSurvive
