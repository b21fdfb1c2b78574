r"""Does the map of a pair need the model? Where chance replaces its weights or its targets, the map has to change.

    branch      initialise the deepest layer of the encoder anew, then the one before it too, ... down to the first;
                tail and decoder stay as trained
    output      the same from the last layer of the tail on, through the tail, then through the encoder
    targets     train the same network anew, on targets dealt to the pairs at random (no order exists) or on values
                dealt to the images once (an arbitrary order exists); and on the true ones, from another seed

Each time the map is compared, by Spearman's rank correlation over pixels, with the trained model's own. A correlation
means nothing alone: how alike the maps of two good models are says what there was to lose, an edge detector and the
input itself say what a map that never saw the model reaches, and a model that chance has made immovable has no map.

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 5.3.9 (the branch, and
    shuffled targets; correlation 0.127 on 12,544 pixels, called not significant), after Adebayo et al., NeurIPS 2018,
    arXiv:1810.03292.
Departs from print: it begins below the tail, so the output and the tail never change; here both ways are there. It
    draws once, and has no other seed, no edge detector and no rule: 0.127 has t = 14.3 and is small, not absent.
    Normalisations are not mentioned: their weights are drawn anew, their running statistics kept unless told otherwise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, cast

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.explain.maps import edges
from assay.methods.explain.sanity import CONFIDENCE, HALF, Needs, Randomised, Verdict, likeness, needs_the_model
from assay.methods.explain.sanity import randomised as randomise
from assay.methods.train.fit import reset
from assay.methods.train.ranker import COURSE, Course, Targets, fit_ranker
from assay.nn.siamese import Siamese

Start = Literal["branch", "output"]
Statistics = Literal["kept", "reset"]
NOTHING = "nothing"  # the stage at which no layer is random
MOVED = 1e-4  # a comparison that changes by less was not moved: a thousand times what float32 rounds


class Seen(NamedTuple):
    """The map of each pair, and how far its comparison went: without that there is nothing to see in the map."""

    map: Tensor  # n *d
    moved: Tensor  # n, |c after - c before|


Explain = Callable[[nn.Module, Tensor], Seen]  # (model, n 2 *d) -> Seen; the same draws at every call


class Stage(NamedTuple):
    """How alike the maps still are when layers down to this one are random, in each draw."""

    layer: str
    signed: Tensor  # draws n, Spearman's rank correlation
    absolute: Tensor  # draws n, the same of |values|
    moved: Tensor  # draws n


class _Branch(nn.Module):
    """The encoder as a network of its own, whatever the model calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n s
        e: Tensor = self.model.encode(x)  # type: ignore[operator]
        return e


def cascade(
    model: nn.Module, pair: Tensor, *, start: Start, rng: torch.Generator, statistics: Statistics = "kept"
) -> Iterator[Randomised]:  # pair: n 2 *d
    """Copies of a model of pairs with one more layer drawn anew in each; what has been drawn stays."""
    if start == "branch":
        branch = randomise(_Branch(model), pair[:, 0], rng=rng)
        steps = ((s.layer.removeprefix("model."), s.model.get_submodule("model")) for s in branch)
    elif start == "output":
        steps = ((s.layer, s.model) for s in randomise(model, pair, rng=rng))
    else:
        raise AssayError(f"A cascade starts at the branch or at the output, not at {start!r}; name one.")
    learnt = dict(model.named_buffers())
    for layer, changed in steps:
        if statistics == "kept":
            with torch.no_grad():
                for name, buffer in changed.named_buffers():
                    buffer.copy_(learnt[name])
        yield Randomised(layer, changed)


def stages(
    model: nn.Module,
    pair: Tensor,
    explain: Explain,
    *,
    start: Start,
    rng: torch.Generator,
    draws: int = 3,
    statistics: Statistics = "kept",
) -> list[Stage]:  # pair: n 2 *d
    """How alike the maps stay in `draws` cascades. The first stage is the model as it is: 1 unless maps are random."""
    if draws < 1:
        raise AssayError(f"stages got draws={draws}; it wants at least 1.")
    own = explain(model, pair)
    seen = {NOTHING: [explain(copy.deepcopy(model), pair)]}
    for _ in range(draws):
        for step in cascade(model, pair, start=start, rng=rng, statistics=statistics):
            seen.setdefault(step.layer, []).append(explain(step.model, pair))
    return [compare(layer, own, others) for layer, others in seen.items()]


def compare(layer: str, own: Seen, others: Sequence[Seen]) -> Stage:
    """How alike the own map and each of the others are."""
    alike = [likeness(own.map, other.map) for other in others]
    return Stage(
        layer,
        torch.stack([a.signed for a in alike]),
        torch.stack([a.absolute for a in alike]),
        torch.stack([other.moved for other in others]),
    )


def trained_anew(
    model: Siamese,
    x: Tensor,
    values: ArrayLike | Tensor,
    *,
    low: float,
    high: float,
    targets: Targets,
    rng: torch.Generator,
    course: Course = COURSE,
) -> Siamese:  # x: n *d;  values: n
    """The same network from new weights, its decoder with it if it has one. On true targets: another seed."""
    fresh = cast(Siamese, reset(model, rng)).requires_grad_(True)
    fit_ranker(
        fresh, x, values, low=low, high=high, rng=rng, targets=targets, comparison_only=fresh.decoder is None,
        course=course,
    )  # fmt: skip
    return fresh.eval().requires_grad_(False)


def blind(a: Tensor) -> dict[str, Tensor]:  # n *d -> each n *d
    """Maps that never see the model: the input itself, and of images its edges."""
    return {"intensity": a, **({"edges": edges(a)} if a.ndim == 4 else {})}


def movable(stage: Stage) -> float:
    """The share of pairs and draws whose comparison still moves."""
    return float((stage.moved >= MOVED).double().mean())


def needs_the_weights(found: Sequence[Stage]) -> Needs:
    """Whether a map needs the weights, from the stages of a cascade: less than half of it may be left at each.

    It does not if more than half is left when all are random. A map of what cannot be moved proves nothing.
    """
    random = [stage for stage in found if stage.layer != NOTHING]
    if not random:
        raise AssayError("There is no stage with a random layer to judge; give those of `stages`.")
    told = [needs_the_model(stage.absolute.mean(0)).says for stage in random]
    if told[-1] == "does not need the model":
        return told[-1]
    moved = all(movable(stage) >= HALF for stage in random)
    return "needs the model" if moved and set(told) == {"needs the model"} else "cannot tell"


def needs_the_labels(after: Stage, seed: Stage, *, confidence: float = CONFIDENCE) -> Verdict:
    r"""Whether a map needs the labels: `after` of models trained on targets without meaning, `seed` on the true ones.

    With e_i = after_i - seed_i, each averaged over the models, and Student's interval of its mean over pairs,

        needs the model           e < 0, every model without meaning is less alike than every good one, and it moves
        does not need the model   more than half of the own map is left without meaning
        cannot tell               else: above all where both are as alike, however little that is
    """
    a, b = after.absolute.double(), seed.absolute.double()  # r n, s n
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or a.shape[1] < 2:
        raise ShapeError(
            f"needs_the_labels takes models x pairs, two pairs at least, got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    excess, low, high = _interval(a.mean(0) - b.mean(0), confidence)
    says: Needs = "cannot tell"
    if _interval(a.mean(0), confidence)[1] > HALF:
        says = "does not need the model"
    elif high < 0 and a.mean(1).max() < b.mean(1).min() and movable(after) >= HALF:
        says = "needs the model"
    return Verdict(says, excess, low, high, a.shape[1])


def leaks(c: Tensor, t: Tensor, *, confidence: float = CONFIDENCE) -> bool:  # n, n
    """Whether a model trained on targets without meaning compares better than always 1/2, on pairs it never saw."""
    better = (c.double() - t).abs() - (t.double() - 0.5).abs()
    return _interval(better, confidence)[2] < 0


def _interval(values: Tensor, confidence: float) -> tuple[float, float, float]:
    """Mean, and Student's interval of it."""

    from scipy.stats import t as student

    n, mean = len(values), float(values.mean())
    reach = float(student.ppf((1 + confidence) / 2, n - 1)) * float(values.std()) / n**0.5
    return mean, mean - reach, mean + reach
