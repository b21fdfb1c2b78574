"""What a search of a gallery finds, and how early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.finding import Alarm, Beside, Curve, Exhibit, Finding, Gallery, Line, Measure, Panel, Table, share
from assay.methods.retrieve.measures import average_precision, chance_of_precision, chance_of_recall, ranks
from assay.probe import Probe
from assay.standard import Standard
from assay.tasks import Retrieval, Search

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

HELD = 2**22  # similarities that are ranked at a time
LAST = 50  # ranks that the curve shows
FEW = 30


@dataclass(frozen=True)
class DoesItFindThem(Probe):
    """Asked with a query, does it put what belongs to it first, or at least early?

    Recall at k is the share of queries with a relevant item among the first k, as for places; persons call the same
    curve CMC. A copy of a query in the gallery counts as any item, and an alarm says how many there are. Proportions
    have Wilson's interval, which is honest where all queries are found; the mean average precision is resampled over
    queries.
    """

    at: tuple[int, ...] = (1, 5, 10, 20)
    """The k of recall at k; the first is the headline."""

    source: ClassVar[str] = "Arandjelovic et al., CVPR 2016, arXiv:1511.07247; Zheng et al., ICCV 2015 (CMC and mAP)"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.8),)

    def __post_init__(self) -> None:
        if not self.at or min(self.at) < 1 or len(set(self.at)) < len(self.at):
            raise AssayError(f"The setting at={self.at} of {self.name()!r} must be different whole numbers from 1.")

    def why_not(self, subject: Subject) -> str | None:
        if not isinstance(subject.task, Search | Retrieval):
            return f"it asks what a search of a gallery finds, and the subject's task is {subject.task.name()}"
        return super().why_not(subject)

    def ask(self, subject: Subject, run: Run) -> Finding:
        task, index = subject.task, run.pick(subject.data["test"])
        assert isinstance(task, Search | Retrieval)
        items = task.gallery.size if isinstance(task, Search) else len(task.items)
        rows = run.map(partial(_searched, subject), subject, "test", index, "searching")
        rank, precision, matches = rows["rank"], rows["average precision"], rows["relevant"]
        at = [k for k in self.at if k < items] or [1]
        chances = [float(chance_of_recall(items, matches, k).mean()) for k in at]
        measures = [
            Measure.proportion(
                f"recall at {k}",
                rank <= k,
                better="higher",
                column=f"found at {k}",
                beside=(Beside("a random order", chance),),
                about="share of queries with a relevant item "
                + ("in the first place" if k == 1 else f"among the first {k}"),
            )
            for k, chance in zip(at, chances, strict=True)
        ]
        measures.append(
            Measure.mean(
                "mean average precision",
                precision,
                better="higher",
                seed=run.seed,
                column="average precision",
                beside=(Beside("a random order", float(chance_of_precision(items, matches).mean())),),
                about="over queries; 1 where all relevant items come before all others",
            )
        )
        missed = rank > at[0]
        first, last = measures[0], measures[-2]
        return Finding(
            says=f"Of {items:,} items it puts a relevant one {_where(at[0])} for "
            f"{share(int((~missed).sum()), len(rank))} of the queries"
            + (f", and {_where(at[-1])} for {100 * (last.value or 0):.0f} %" if last is not first else "")
            + f"; by chance it would for {100 * chances[0]:.2g} %.",
            measures=tuple(measures),
            samples=Table("test", {"index": index, **rows, **{f"found at {k}": rank <= k for k in at}}),
            views=(_curve(rank, matches, items), *_failures(subject, index, rows, missed, run.budget.shown)),
            alarms=tuple(_alarms(rank, rows.get("copy"), [m.name for m in measures])),
        )


def _where(k: int) -> str:
    return "first" if k == 1 else f"among the first {k}"


def _searched(subject: Subject, shard: Shard) -> Mapping[str, Tensor]:
    """For each query: the rank of the first relevant item and which it is, what came first, the average precision."""
    task = subject.task
    assert isinstance(task, Search | Retrieval)
    out = task.checked(subject.predict(shard.x), len(shard.x))
    items = task.gallery.size if isinstance(task, Search) else len(task.items)
    parts = []
    for some in torch.split(torch.arange(len(out), device=out.device), max(1, HELD // items)):
        if isinstance(task, Search):
            similarity = task.gallery.compared(out[some].float(), 0, items)
            query, item = task.gallery.relevant(shard.y[some, 0], 0, items)
            count = task.gallery.count(shard.y[some])
        else:
            similarity, held = out[some], shard.y[some].bool()
            query, item = held.nonzero(as_tuple=True)
            count = held.sum(1)
        rank = ranks(similarity, query, item)
        own = torch.full_like(similarity, -torch.inf)
        own[query, item] = similarity[query, item]
        parts.append(
            {
                "rank": rank[:, 0].long(),
                "average precision": average_precision(rank),
                "relevant": count,
                "came first": similarity.argmax(1),
                "should have": own.argmax(1),
            }
        )
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if isinstance(task, Search):
        top, _ = task.gallery.items.take(found["came first"].cpu().numpy())
        found["copy"] = (top.to(shard.x) == shard.x).flatten(1).all(1)
    return found


def _curve(rank: NDArray[np.int64], matches: NDArray[np.int64], items: int) -> Curve:
    grid = np.arange(1, min(LAST, items) + 1)
    blind = tuple(float(chance_of_recall(items, matches, int(k)).mean()) for k in grid)
    return Curve(
        name="cmc",
        title="Queries that are answered by rank k",
        x_label="rank k",
        y_label="recall at k",
        unit_y=True,
        lines=(
            Line.shares("the model", grid, [(rank <= k).sum() for k in grid], len(rank)),
            Line(label="a random order", x=tuple(map(float, grid)), y=blind),
        ),
        says="The share of queries with a relevant item among the first k (the CMC curve), with 95 % intervals.",
    )


def _failures(
    subject: Subject, index: NDArray[np.int64], rows: Mapping[str, NDArray[Any]], missed: NDArray[np.bool_], most: int
) -> tuple[Gallery, ...]:
    """The queries whose relevant items come latest: what came first, and what should have."""
    worst = np.flatnonzero(missed)[np.argsort(-rows["rank"][missed], kind="stable")][:most]
    if not subject.inputs.is_image or not len(worst):
        return ()
    task, low, high = subject.task, subject.inputs.low, subject.inputs.high
    assert isinstance(task, Search | Retrieval)
    queries, _ = subject.data["test"].take(index[worst])
    name = task.gallery.name if isinstance(task, Search) else task.items.__getitem__
    exhibits = []
    for i, x in zip(worst.tolist(), queries.numpy(), strict=True):
        pair = [int(rows[column][i]) for column in ("came first", "should have")]
        panels = [Panel.of("query", f"Query {index[i]}", x, low=low, high=high)]
        if isinstance(task, Search):
            shown, _ = task.gallery.items.take(np.array(pair))
            panels += [
                Panel.of(label, f"{name(j)}", image, low=low, high=high)
                for label, j, image in zip(("came first", "should have"), pair, shown.numpy(), strict=True)
            ]
        caption = f"{name(pair[0])} came first, {name(pair[1])} at rank {rows['rank'][i]}"
        exhibits.append(Exhibit(index=int(index[i]), caption=caption, panels=tuple(panels)))
    return (
        Gallery(
            name="failures",
            title="Queries whose answer comes latest",
            exhibits=tuple(exhibits),
            says="The query, what came first, and the relevant item that came soonest.",
        ),
    )


def _alarms(rank: NDArray[np.int64], copy: NDArray[np.bool_] | None, measures: list[str]) -> list[Alarm]:
    alarms = []
    if len(rank) < FEW:
        alarms.append(
            Alarm(f"Only {len(rank)} queries were asked; under {FEW}, one of them moves every number.", tuple(measures))
        )
    if copy is not None and copy.any():
        alarms.append(
            Alarm(
                f"{share(int(copy.sum()), len(copy))} of the queries stand in the gallery to the bit; a search finds "
                "itself there, and that says nothing of new queries.",
                tuple(measures),
            )
        )
    return alarms


SHELVED = DoesItFindThem
