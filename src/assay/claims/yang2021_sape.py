"""Yang et al. 2021: three branches for persons behind something, and weights of their losses that are learned."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Published
from assay.claims import _over_seeds as over
from assay.claims._elsewhere import RULE, elsewhere
from assay.claims._queries import above, found_first, over_queries, points
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.nn.sape import Branches
    from assay.run import Run

SOURCE = "Yang, Zhang, Li & Tang, 'Improved Occluded Person Re-Identification with Multi-feature Fusion', ICANN 2021"
Arm = Literal["the whole alone", "the whole and stripes", "equal weights", "learned weights"]
WEIGHTS: dict[Arm, tuple[float, float, float] | None] = {
    "the whole alone": (1.0, 0.0, 0.0),
    "the whole and stripes": (0.5, 0.5, 0.0),
    "equal weights": (1 / 3, 1 / 3, 1 / 3),
    "learned weights": None,
}
SEEDS, PEOPLE, IMAGES, ITEMS, QUERIES = 5, 60, 10, 2, 8  # persons, and images of each
WIDTHS, REDUCTION, STRIPES = (16, 32, 48), 8, 3
STEPS, EACH, LR = 250, 2, 3e-3
VISIBLE, GREY = 0.75, 0.5  # of the area of a query, and what covers the rest
LEARNT = 0.5  # of whole queries that are found under equal weights, below which nothing is concluded
Array = NDArray[np.float64]


def _network() -> nn.Module:
    from assay.nn.sape import Sape
    from assay.nn.small_cnn import conv

    layers: list[nn.Module] = []
    for before, after in zip((3, *WIDTHS), WIDTHS, strict=False):
        layers += [conv(before, after), nn.AvgPool2d(2)]
    shrunk = 2 ** (len(WIDTHS) - 1)
    return Sape(
        nn.Sequential(*layers[:-1]), WIDTHS[-1], (32 // shrunk, 16 // shrunk), count=STRIPES, reduction=REDUCTION
    )


def _drawn(people: range, each: int, seed: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    from assay.data.figures import figures

    data = figures(people, each, seed=seed)
    x, y, at = (torch.from_numpy(part).to(device) for part in (data.x, data.labels, data.points))
    return x, y, at


def _descriptor(seen: Branches, arm: Arm) -> Tensor:
    """Of the branches that were taught."""
    if arm == "the whole alone":
        return seen.spatial
    if arm == "the whole and stripes":
        return torch.cat([nn.functional.normalize(f, dim=1) for f in (seen.spatial, torch.cat(seen.stripes, 1))], 1)
    return seen.descriptor()


@cache
def _found(arm: Arm, seed: int, device: str) -> tuple[Array, Array, Array]:  # s q, s q, s 3
    """Where the first item found is the person: for queries behind a block, and for whole ones; and the weights."""
    from assay.methods.train.sape import SURE, behind, look, teach

    hidden, whole, weights = [], [], []
    for s in range(seed, seed + SEEDS):
        first = 2 * PEOPLE * s  # nobody is in two seeds, and nobody that is sought was taught
        x, y, at = _drawn(range(first, first + PEOPLE), IMAGES, s, device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s)
            net = _network().to(device)
        rng = torch.Generator().manual_seed(s)
        taught = teach(net, x, y, at, weights=WEIGHTS[arm], steps=STEPS, each=EACH, lr=LR, rng=rng)  # type: ignore[arg-type]
        weights.append(taught.double().cpu().numpy())
        sought = range(first + PEOPLE, first + 2 * PEOPLE)
        items, kinds, stand = _drawn(sought, ITEMS, 1000 + s, device)
        asked, true, there = _drawn(sought, QUERIES, 2000 + s, device)
        where = torch.rand(len(asked), 2, generator=torch.Generator().manual_seed(s)).to(device)
        covered, sure = behind(asked, there, VISIBLE, where, GREY)
        with torch.no_grad():
            clear = torch.full_like(stand[..., 0], SURE), torch.full_like(there[..., 0], SURE)
            described = [
                _descriptor(look(net, *each), arm)  # type: ignore[arg-type]
                for each in ((items, stand, clear[0]), (covered, there, sure), (asked, there, clear[1]))
            ]
        hidden.append(found_first(described[0], kinds, described[1], true))
        whole.append(found_first(described[0], kinds, described[2], true))
    return np.stack(hidden), np.stack(whole), np.stack(weights)


def learned(run: Run) -> Evidence:
    found = {}
    with run.progress(f"training {len(WEIGHTS)} x {SEEDS} networks", len(WEIGHTS)) as tick:
        for arm in WEIGHTS:
            found[arm] = _found(arm, run.seed, run.device)
            tick(1)
    gap = over_queries("rank 1 of learned weights less that of equal ones", _less(found, "equal weights", 0))
    clear = over_queries(
        "rank 1 of learned weights less that of equal ones, whole queries", _less(found, "equal weights", 1)
    )
    counts = found["learned weights"][2].mean(0)
    gate = over.gate(
        "The share of whole queries found under equal weights", list(found["equal weights"][1]), None, LEARNT
    )
    says = (
        f"Of queries behind a block learned weights find {points(gap)} points more first than equal ones, of whole "
        f"queries {points(clear)}; in the end the whole, the stripes and the pose count "
        f"{', '.join(f'{c:.2g}' for c in counts)}."
    )
    return elsewhere(
        above(gap),
        says,
        (
            *(over_queries(f"rank 1, {arm}", found[arm][0]) for arm in WEIGHTS),
            gap,
            clear,
            *(over_queries(f"rank 1, {arm}, whole queries", found[arm][1]) for arm in WEIGHTS),
            *(
                Measure(name=f"what {which} counts, learned", value=float(c), better="neither", n=SEEDS)
                for which, c in zip(("the whole", "each stripe", "the pose"), counts, strict=True)
            ),
        ),
        gates=(gate,),
        seeds=SEEDS,
    )


def _less(found: dict[Arm, tuple[Array, Array, Array]], arm: Arm, which: Literal[0, 1]) -> Array:
    return found["learned weights"][which] - found[arm][which]


SHELVED = (
    Claim(
        name="learned-weights-find-more",
        source=SOURCE,
        says="With weights of the three losses that are learned, more persons who are behind something are found than "
        "with equal ones.",
        published=(
            Published("rank 1, the whole alone", 0.449, "table 2, Occluded-DukeMTMC", "%"),
            Published("rank 1, the whole and stripes", 0.483, "table 2, Occluded-DukeMTMC", "%"),
            Published("rank 1, equal weights", 0.526, "table 2, Occluded-DukeMTMC", "%"),
            Published("rank 1, learned weights", 0.551, "table 2, Occluded-DukeMTMC", "%"),
        ),
        here=f"drawn figures of 32 x 16 with key points as they were drawn; {PEOPLE} persons with {IMAGES} images each "
        f"to learn from, {PEOPLE} others with {ITEMS} in the gallery and {QUERIES} queries, of which a block hides "
        f"{100 * (1 - VISIBLE):.0f} % and the key points under it; {len(WIDTHS)} convolutions in the place of a "
        f"ResNet-50, {STEPS} steps of Adam; {SEEDS} seeds, each with its own persons; intervals resample seeds and "
        f"queries; holds if the gain lies above 0; {RULE}",
        minutes=10,
        test=learned,
        seeds=SEEDS,
    ),
)
