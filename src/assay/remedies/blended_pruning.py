"""Take out channels by a blend of criteria that was evolved for what is left after it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.held_out import Part
from assay.errors import AssayError
from assay.finding import Curve, Line, Matrix
from assay.methods.compress.agreement import SAME, Clusters, clusters, matrix
from assay.methods.compress.blend import Candidate, Keep, blend
from assay.methods.compress.criteria import CRITERIA, Criterion, sample, scaled, scores, usable
from assay.methods.compress.price import affordable
from assay.methods.compress.surgery import Edge, cut
from assay.remedies._retraining import EPOCHS
from assay.remedies._shrinking import Shrinking, refuse_without_norms, timed
from assay.remedy import Cost
from assay.run import silent

if TYPE_CHECKING:
    from assay.finding import View
    from assay.run import Run
    from assay.subject import Data, Subject

BATCH = 500  # held-out inputs asked at once
STORY = LAYERS, RHO, WHICH, BEST, FACTORS, PICKED, JUDGED = tuple(
    f"blend_{name}" for name in ("layers", "agreement", "criteria", "best", "factors", "picked", "judged")
)
"""Buffers of the cured network that no pass reads: how its blend was found, kept with its weights."""


@dataclass(frozen=True)
class BlendedPruning(Shrinking):
    """Takes out the channels that matter least by a blend of criteria, evolved for accuracy after a little training.

    In each layer the criteria of `prune` are put into `clusters` by how alike they rank its channels. A gene has one
    criterion of each cluster and a factor for it; its blend cuts the same share of every layer. It is judged by the
    share `held` of the training data, after `short` epochs on the share `part` of the others. `population` genes
    evolve for `iterations` (print: 20 and 50, which takes days without a GPU); the best `top` are trained for all
    `epochs` on the training data without `held`, and the best of these on `held` is it. `criteria` are all that the
    network has, unless some are named.
    """

    clusters: int = field(default=3, kw_only=True)
    population: int = field(default=6, kw_only=True)
    iterations: int = field(default=4, kw_only=True)
    short: int = field(default=1, kw_only=True)
    part: float = field(default=0.2, kw_only=True)
    top: int = field(default=2, kw_only=True)
    held: float = field(default=0.1, kw_only=True)
    cross: float = field(default=0.8, kw_only=True)
    mutate: float = field(default=0.1, kw_only=True)
    drop: float = field(default=0.08, kw_only=True)
    sample: int = field(default=1024, kw_only=True)
    criteria: tuple[Criterion, ...] = field(default=(), kw_only=True)

    needs: ClassVar[tuple[str, ...]] = ("classes",)
    source: ClassVar[str] = "He, Huang, Liang, Liang & Yang, ICANN 2021, 'Blending Pruning Criteria'"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("clusters", 1), ("population", 2), ("iterations", 0), ("short", 1), ("top", 1),
                            ("sample", 1)):  # fmt: skip
            if getattr(self, name) < least:
                raise AssayError(f"{name}={getattr(self, name)} is too few; give a whole number of at least {least}.")
        for name in ("part", "held"):
            if not 0 < getattr(self, name) < (1 if name == "held" else 1.0001):
                raise AssayError(f"{name}={getattr(self, name):g} is no part of the training data; give one as 0.1.")
        for name in ("cross", "mutate", "drop"):
            if not 0 <= getattr(self, name) <= (0.99 if name == "drop" else 1):
                raise AssayError(f"{name}={getattr(self, name):g} is no share; give one from 0 to 1, drop less than 1.")
        if self.criteria and self.clusters > len(set(self.criteria)):
            raise AssayError(
                f"{len(set(self.criteria))} criteria cannot be put into clusters={self.clusters}; name more of them, "
                "or ask for fewer clusters."
            )

    def cost(self) -> Cost | None:
        plain = super().cost()
        assert plain is not None
        judged = self.population * (self.iterations + 1) * self.short * self.part / (self.epochs or EPOCHS)
        return Cost(judged + self.top, plain.inference)

    def foresee(self, subject: Subject) -> None:
        found = self._blended(subject)
        refuse_without_norms(subject.model, found, self.criteria)
        which = self.criteria or usable(subject.model, found)
        if self.clusters > len(which):
            raise AssayError(
                f"The {len(which)} criteria that the network has cannot be put into clusters={self.clusters}; ask for "
                "fewer clusters."
            )
        self._count_held(subject)
        self.refuse_dear(subject.model, found, subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        found = self._blended(subject)
        taught, held = self._parted(subject, run)
        which = self.criteria or usable(subject.model, found)
        told = self._scored(subject, found, which, taught, run)
        rho = {name: matrix(of.numpy()) for name, of in told.items()}
        layers = [clusters(each, self.clusters, seed=run.seed) for each in rho.values()]
        keep = affordable(
            subject.model, found, {name: of[0] for name, of in told.items()}, self.priced, timed(subject),
            per="layer", device=run.device,
        )  # fmt: skip
        best, shown, judged = self._searched(subject, found, told, keep, layers, taught, held, run)
        model = best.model
        modules = [name for name, _ in model.named_modules()]  # a cut changes none of them
        story: dict[str, Tensor] = {
            LAYERS: torch.tensor([modules.index(edge.name) for edge in found]),
            RHO: torch.from_numpy(np.stack(list(rho.values()))).float(),
            WHICH: torch.tensor([CRITERIA.index(name) for name in which]),
            BEST: torch.tensor(shown),
            FACTORS: best.gene.factors,
            PICKED: best.gene.criteria,
            JUDGED: torch.tensor(judged),
        }
        for name, value in story.items():
            model.register_buffer(name, value)
        return subject.cured(model.cpu(), self.name())

    def _blended(self, subject: Subject) -> tuple[Edge, ...]:
        """The edges in which there is a choice."""
        found = tuple(edge for edge in self.prunable(subject) if edge.size > 1)
        if not found:
            raise AssayError("Each layer that can be cut has one channel, of which none can go; widen one.")
        return found

    def _count_held(self, subject: Subject) -> int:
        """How many of the training data judge."""
        data = subject.data["train"]
        held = max(1, round(self.held * len(data)))
        if held >= len(data):
            raise AssayError(f"{len(data)} training inputs are too few to hold {self.held:g} of them; give it more.")
        return held

    def _parted(self, subject: Subject, run: Run) -> tuple[Data, Data]:
        """The training data without those that judge, and those, in an order that the seed gives."""
        data = subject.data["train"]
        order = np.random.default_rng(run.seed).permutation(len(data))
        held = self._count_held(subject)
        return Part(data, order[held:]), Part(data, order[:held])

    def _scored(
        self, subject: Subject, found: tuple[Edge, ...], which: tuple[Criterion, ...], taught: Data, run: Run
    ) -> dict[str, Tensor]:  # of each edge: i m
        x, y = sample(taught, self.sample)
        model = copy.deepcopy(subject.model).to(run.device)
        told = scores(model, found, x.to(run.device), y.to(run.device), criteria=which)
        return {name: scaled(of).cpu() for name, of in told.items()}

    def _searched(
        self, subject: Subject, found: tuple[Edge, ...], told: Mapping[str, Tensor], keep: Keep,
        layers: list[Clusters], taught: Data, held: Data, run: Run,
    ) -> tuple[Candidate, tuple[float, ...], int]:  # fmt: skip
        few = Part(taught, np.arange(max(1, round(self.part * len(taught)))))
        quiet = replace(run, progress=silent, keep=None)  # nothing of one gene may be gone on with by another

        def given(on: Data) -> Subject:
            return replace(subject, data={**subject.data, "train": on})

        def short(model: nn.Module) -> float:
            briefly = replace(self, epochs=self.short)
            briefly.train(model, given(few), quiet, run.rng())  # never compiled, which takes longer than it saves here
            return _accuracy(model, held, run.device)

        def full(model: nn.Module) -> float:
            about = "training what a blend left"
            self.finetuned(model, given(taught), replace(run, keep=None), run.rng(), about=about)
            return _accuracy(model, held, run.device)

        with run.progress("judging blends of criteria", self.population * (self.iterations + 1)) as tick:

            def after(iteration: int, best: float) -> None:
                tick(self.population)

            result = blend(
                told, {name: int(of.sum()) for name, of in keep.items()}, layers,
                make=lambda keep: self.begun(cut(subject.model, found, keep), run.rng()),
                short=short, full=full, top=self.top, rng=torch.Generator().manual_seed(run.seed), after=after,
                size=self.population, iterations=self.iterations, cross=self.cross, mutate=self.mutate, drop=self.drop,
            )  # fmt: skip
        return result.candidates[0], result.evolved.best, result.judged

    def framed(self, subject: Subject, tensors: Mapping[str, Tensor]) -> Subject:
        cured = super().framed(subject, tensors)
        for name in STORY:
            if name in tensors:
                cured.model.register_buffer(name, torch.zeros_like(tensors[name]))
        return cured

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        story = _story(cured.model)
        names = _names(cured.model)
        which = [CRITERIA[i] for i in story[WHICH].tolist()]
        first, last = float(story[BEST][0]), float(story[BEST][-1])
        blends = "; ".join(
            f"{name}: " + " + ".join(f"{p:.2f} {which[i]}" for p, i in zip(factors, picked, strict=True))
            for name, factors, picked in zip(names, story[FACTORS].tolist(), story[PICKED].tolist(), strict=True)
        )
        rho = story[RHO].numpy()
        alike = np.array([_pairs(each) > SAME for each in rho])
        return (
            f"{int(story[JUDGED])} blends were judged by {100 * self.held:g} % of the training data, held back from "
            f"every training after the cut; the best was right on {100 * first:.1f} % of them at the start and on "
            f"{100 * last:.1f} % at the end of the search, after a short training on {100 * self.part:g} % of the "
            "rest. The uncut network has learnt from them, as from all others; a control is trained on all of them.",
            f"The blend by layer: {blends}.",
            f"Of all pairs of the {len(which)} criteria, {100 * alike.mean():.0f} % rank a layer's channels alike "
            f"(Spearman above {SAME:g}). l1, l2, fpgm and fermat do so on random filters already.",
        )

    def figures(self, cured: Subject, run: Run) -> tuple[View, ...]:
        story = _story(cured.model)
        names = _names(cured.model)
        which = tuple(CRITERIA[i] for i in story[WHICH].tolist())
        rho = story[RHO].numpy()
        least = int(np.argmin([_pairs(each).mean() for each in rho]))
        best = tuple(story[BEST].tolist())

        def shown(name: str, title: str, values: NDArray[np.float32], says: str) -> Matrix:
            rows = tuple(tuple(round(float(v), 3) for v in row) for row in values)
            return Matrix(
                name=name, title=title, row_label="criterion", column_label="criterion", rows=which, columns=which,
                values=rows, says=says,
            )  # fmt: skip

        said = f"Spearman's rank correlation of the scores of the uncut network; above {SAME:g} rankings are the same."
        return (
            shown("agreement", f"How alike criteria rank channels, mean of {len(rho)} layers", rho.mean(0), said),
            shown(
                "agreement-least", f"How alike they rank those of {names[least]}, where they agree least", rho[least],
                f"{said} Clusters are of such rows, layer by layer.",
            ),
            Curve(
                name="evolution", title="The best blend by iteration", x_label="iteration",
                y_label="accuracy on held-out training data",
                lines=(Line(label="best so far", x=tuple(map(float, range(len(best)))), y=best),), unit_y=True,
                says="After the short training; the best gene is never lost, so this cannot fall.",
            ),
        )  # fmt: skip


def _names(model: nn.Module) -> list[str]:
    """Of the layers that the blend is told of; the smaller network may have other edges than the whole one had."""
    modules = [name for name, _ in model.named_modules()]
    return [modules[i] for i in model.get_buffer(LAYERS).tolist()]


def _story(model: nn.Module) -> dict[str, Tensor]:
    return {name: model.get_buffer(name).cpu() for name in STORY}


def _pairs(rho: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of every two different criteria."""
    pairs: NDArray[np.float32] = rho[np.triu_indices(len(rho), 1)]
    return pairs


@torch.no_grad()
def _accuracy(model: nn.Module, data: Data, device: str) -> float:
    right = 0
    for rows in np.array_split(np.arange(len(data)), -(-len(data) // BATCH)):
        x, y = data.take(rows)
        said = model(torch.as_tensor(x, device=device)).argmax(-1).cpu()
        right += int((said == torch.as_tensor(y)).sum())
    return right / len(data)


SHELVED = BlendedPruning
