"""What a search finds where a query shows only a part of what is sought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.finding import Alarm, Beside, Curve, Exhibit, Finding, Gallery, Line, Measure, Panel, Table
from assay.methods.retrieve.measures import chance_of_recall
from assay.methods.retrieve.parts import covered, cropped
from assay.probe import Probe
from assay.standard import Standard
from assay.tasks import Retrieval, Search

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

HEADLINE = "recall at 1 in part"
WHOLE = "whole"


@dataclass(frozen=True)
class DoesItFindThemInPart(Probe):
    """Does it still find what belongs to a query that is cut off, or that something stands in front of?

    A query is cropped to a share of its height, which is stretched to the frame, or a grey block stands before it.
    Where the part lies is drawn once for each query, so that a smaller share of it lies about where a larger one did.
    The headline is the mean over all of these parts.
    """

    heights: tuple[float, ...] = (0.6, 0.5, 0.4)
    """Shares of the height that are left of a cropped query."""
    uncovered: tuple[float, ...] = (0.9, 0.7, 0.5)
    """Shares of the area that are left of one behind a block."""

    source: ClassVar[str] = (
        "Zheng et al., ICCV 2015 (partial queries); Zhong et al., AAAI 2020, arXiv:1708.04896 (blocks)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.5),)

    def __post_init__(self) -> None:
        for name in ("heights", "uncovered"):
            shares = getattr(self, name)
            if not all(0 < v < 1 for v in shares) or len(set(shares)) < len(shares):
                raise AssayError(
                    f"The setting {name}={shares} of {self.name()!r} must be different shares between 0 and 1."
                )
        if not self.heights and not self.uncovered:
            raise AssayError(f"{self.name()!r} has no parts to ask about; give heights or uncovered.")

    def why_not(self, subject: Subject) -> str | None:
        if not isinstance(subject.task, Search | Retrieval):
            return f"it asks what a search of a gallery finds, and the subject's task is {subject.task.name()}"
        if not subject.inputs.is_image:
            return f"it crops and covers images, and an input here has shape {subject.inputs.shape}"
        return super().why_not(subject)

    @property
    def parts(self) -> dict[str, tuple[str, float]]:
        """By name: how, and what share is visible."""
        return {
            **{f"cropped to {100 * v:g} %": ("cropped", v) for v in self.heights},
            **{f"{100 * (1 - v):g} % covered": ("covered", v) for v in self.uncovered},
        }

    def ask(self, subject: Subject, run: Run) -> Finding:
        task, index = subject.task, run.pick(subject.data["test"])
        assert isinstance(task, Search | Retrieval)
        rows = run.map(partial(self._seen, subject), subject, "test", index, "queries in part")
        found = {name: rows[name].astype(bool) for name in (WHOLE, *self.parts)}
        each = np.mean([found[name] for name in self.parts], axis=0)
        items = task.gallery.size if isinstance(task, Search) else len(task.items)
        blind = float(chance_of_recall(items, rows["relevant"], 1).mean())
        worst = min(self.parts, key=lambda name: float(found[name].mean()))
        whole = float(found[WHOLE].mean())
        return Finding(
            says=f"Where only a part of a query is seen it finds {100 * each.mean():.0f} %, of {100 * whole:.0f} % "
            f"where all of it is; {worst}, {100 * found[worst].mean():.0f} %.",
            measures=(
                Measure.mean(
                    HEADLINE,
                    each,
                    better="higher",
                    seed=run.seed,
                    unit="%",
                    column=HEADLINE,
                    beside=(Beside("whole queries", whole), Beside("a random order", blind)),
                    about="share of queries with a relevant item in the first place, mean over all parts",
                ),
                *(
                    Measure.proportion(
                        f"recall at 1, {name}", found[name], better="higher", column=name,
                        beside=(Beside("whole queries", whole),),
                    )
                    for name in self.parts
                ),
            ),
            samples=Table("test", {"index": index, HEADLINE: each, **found}),
            views=(
                self._curve(found),
                *self._shown(subject, index, rows["where"], found[WHOLE] & ~found[worst], worst, run.budget.shown),
            ),
            alarms=(Alarm(f"Only {len(index)} queries were asked; under 30, intervals are wide.", (HEADLINE,)),)
            if len(index) < 30
            else (),
        )  # fmt: skip

    def _views(self, subject: Subject, x: Tensor, where: Tensor) -> dict[str, Tensor]:  # n c h w, n 3
        grey = (subject.inputs.low + subject.inputs.high) / 2
        return {
            name: cropped(x, v, where[:, 0]) if how == "cropped" else covered(x, v, where[:, 1:], grey)
            for name, (how, v) in self.parts.items()
        }

    def _seen(self, subject: Subject, shard: Shard) -> Mapping[str, Tensor]:
        task = subject.task
        assert isinstance(task, Search | Retrieval)
        where = torch.rand(len(shard.x), 3, generator=shard.rng, device=shard.rng.device).to(shard.x.device)
        views = {WHOLE: shard.x, **self._views(subject, shard.x, where)}
        found = {name: task.right(subject.predict(x), shard.y) for name, x in views.items()}
        count = task.gallery.count(shard.y) if isinstance(task, Search) else shard.y.sum(1)
        return {"where": where, "relevant": count, **found}

    def _curve(self, found: Mapping[str, NDArray[np.bool_]]) -> Curve:
        lines = []
        for how in ("cropped", "covered"):
            shares = {1.0: WHOLE} | {v: name for name, (manner, v) in self.parts.items() if manner == how}
            if len(shares) > 1:
                grid = sorted(shares)
                hits = [found[shares[v]].sum() for v in grid]
                lines.append(Line.shares(how, grid, hits, len(found[WHOLE])))
        return Curve(
            name="visible",
            title="Queries that are found, against what is seen of them",
            x_label="visible share of the query",
            y_label="recall at 1",
            unit_y=True,
            lines=tuple(lines),
        )

    def _shown(
        self,
        subject: Subject,
        index: NDArray[np.int64],
        where: NDArray[np.float32],
        lost: NDArray[np.bool_],
        part: str,
        most: int,
    ) -> tuple[Gallery, ...]:
        """Queries that are found whole and lost in this part, as it shows them."""
        some = np.flatnonzero(lost)[:most]
        if not len(some):
            return ()
        low, high = subject.inputs.low, subject.inputs.high
        x, target = subject.data["test"].take(index[some])
        seen = self._views(subject, x, torch.from_numpy(where[some]))[part]
        exhibits = tuple(
            Exhibit(
                index=int(i),
                caption=f"Query {i}, which belongs to {subject.task.told(target[k])}",
                panels=(
                    Panel.of("whole", f"Query {i}", x[k].numpy(), low=low, high=high),
                    Panel.of(part, f"Query {i}, {part}", seen[k].numpy(), low=low, high=high),
                ),
            )
            for k, i in enumerate(index[some])
        )
        return (Gallery(name="lost", title=f"Found whole, lost {part}", exhibits=exhibits),)


SHELVED = DoesItFindThemInPart
