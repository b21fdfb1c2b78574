"""Meng et al. 2021: feature excitation, and the region that most channels look at, for queries that show a part."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.claim import Claim, Evidence, Published
from assay.claims import _over_seeds as over
from assay.claims._elsewhere import RULE, elsewhere
from assay.claims._queries import above, found_first, over_queries, points

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = (
    "Meng, Li, Ji, Zhu & Gu, 'Interesting Receptive Region and Feature Excitation for Partial Person "
    "Re-identification', ICANN 2021"
)
Arm = Literal["baseline", "FE", "FE and IRR"]
ARMS: tuple[Arm, ...] = ("baseline", "FE", "FE and IRR")
SEEDS, IMAGES, ITEMS, QUERIES = 5, 100, 10, 100  # of each digit: trained on, in the gallery, queries
WIDTHS, GATHERS, ALPHA = (16, 32, 48), (4, 2, 1), 0.02
STEPS, EACH, LR = 200, 8, 3e-3
SHARES = (0.4, 0.5, 0.6)  # of the height of a query that is seen, each as often
LEARNT = 0.9  # of whole queries that the baseline finds, below which nothing is concluded
Array = NDArray[np.float64]


def _drawn(part: str, each: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """So many digits of each class of a part of MNIST, class by class."""
    from assay.data.beyond import mnist

    data, draw = mnist()[part], np.random.default_rng(seed)
    labels = np.asarray(data.labels)
    rows = np.concatenate([draw.permutation(np.flatnonzero(labels == c))[:each] for c in range(10)])
    x, y = data.take(rows)
    return x.to(device), y.to(device)


def _in_part(x: Tensor, seed: int) -> Tensor:  # n c h w -> n c h w
    from assay.methods.retrieve.parts import cropped

    where = torch.rand(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    turn = torch.arange(len(x), device=x.device) % len(SHARES)
    out = x
    for k, share in enumerate(SHARES):
        out = torch.where((turn == k)[:, None, None, None], cropped(x, share, where), out)
    return out


@cache  # both claims are about the same trainings
def _found(arm: Arm, seed: int, device: str) -> tuple[Array, Array]:  # s q, s q
    """Where the first item found is of the query's digit: for queries in part, and for whole ones."""
    from assay.methods.train.reid import teach
    from assay.nn.parts_net import PartsNet

    in_part, whole = [], []
    for s in range(seed, seed + SEEDS):
        x, y = _drawn("train", IMAGES + ITEMS, s, device)
        item = torch.arange(len(x), device=device) % (len(x) // 10) < len(x) // 10 * ITEMS // (IMAGES + ITEMS)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s)
            net = PartsNet(
                1,
                WIDTHS,
                (0,) * len(WIDTHS) if arm == "baseline" else GATHERS,
                alpha=ALPHA if arm == "FE and IRR" else 0.0,
            ).to(device)
        teach(net, x[~item], y[~item], steps=STEPS, each=EACH, lr=LR, rng=torch.Generator().manual_seed(s))
        asked, true = _drawn("test", QUERIES, s, device)
        with torch.no_grad():
            items = net(x[item])
            in_part.append(found_first(items, y[item], net(_in_part(asked, s)), true))
            whole.append(found_first(items, y[item], net(asked), true))
    return np.stack(in_part), np.stack(whole)


def _judged(run: Run, ours: Arm, other: Arm) -> Evidence:
    found = {}
    with run.progress(f"training {len(ARMS)} x {SEEDS} networks", len(ARMS)) as tick:
        for arm in ARMS:
            found[arm] = _found(arm, run.seed, run.device)
            tick(1)
    gap = over_queries(f"rank 1 of {ours} less that of {other}, queries in part", found[ours][0] - found[other][0])
    beside = over_queries(f"rank 1 of {ours} less that of {other}, whole queries", found[ours][1] - found[other][1])
    each = (found[ours][0] - found[other][0]).mean(1)
    gate = over.gate("The share of whole queries that the baseline finds", list(found["baseline"][1]), None, LEARNT)
    says = (
        f"Of queries that show 40 to 60 % of the height {ours} finds {points(gap)} points more first than {other}; by "
        f"seed {', '.join(f'{100 * e:+.1f}' for e in each)}. Of whole queries it is {points(beside)}."
    )
    return elsewhere(
        above(gap),
        says,
        (
            *(over_queries(f"rank 1, {arm}, queries in part", found[arm][0]) for arm in (other, ours)),
            gap,
            beside,
            *(over_queries(f"rank 1, {arm}, whole queries", found[arm][1]) for arm in ARMS),
        ),
        gates=(gate,),
        seeds=SEEDS,
    )


def excitation(run: Run) -> Evidence:
    return _judged(run, "FE", "baseline")


def region(run: Run) -> Evidence:
    return _judged(run, "FE and IRR", "FE")


HERE = (
    f"digits of MNIST, {IMAGES} of each to learn from and {ITEMS} others of each in the gallery, whole; {QUERIES} "
    "queries of each, of which 40, 50 or 60 % of the height is seen, stretched; networks of "
    f"{len(WIDTHS)} stages with {GATHERS} gathering convolutions, alpha {ALPHA:g}, L_cla and L_tri alone, as digits "
    f"have no body parts; {SEEDS} seeds, each with its own images; intervals resample seeds and queries. Print rests "
    f"on 300 queries of Partial-REID, where the gains of 2 and 1.7 points are six and five queries: {RULE}"
)
SHELVED = (
    Claim(
        name="excitation-finds-more",
        source=SOURCE,
        says="Feature excitation finds more persons of whom a part is seen than the same network without it.",
        published=(
            Published("rank 1, baseline, queries in part", 0.82, "table 3, Partial-REID, first row", "%"),
            Published("rank 1, FE, queries in part", 0.84, "table 3, Partial-REID, FE (8, 4, 2, 2)", "%"),
        ),
        here=f"{HERE}; holds if the gain lies above 0",
        minutes=8,
        test=excitation,
        seeds=SEEDS,
    ),
    Claim(
        name="region-finds-more",
        source=SOURCE,
        says="With the interesting region blended in during training, at alpha 0.02, still more are found.",
        published=(
            Published("rank 1, FE, queries in part", 0.84, "table 3, Partial-REID, alpha 0", "%"),
            Published("rank 1, FE and IRR, queries in part", 0.857, "table 3, Partial-REID, alpha 0.02", "%"),
        ),
        here=f"{HERE}; holds if the gain lies above 0",
        minutes=8,
        test=region,
        seeds=SEEDS,
    ),
)
