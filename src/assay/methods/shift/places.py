r"""Train a network to recognise places from geo-tags alone, and to do so in a domain that has none.

For a query q with potential positives p_i (tags within `near` metres: the same place, though perhaps the other way) and
negatives n_j (further away), with d the Euclidean distance of descriptors,

    L_r = sum_j max(0, min_i d^2(q, p_i) + m - d^2(q, n_j)),                              m = 0.1
    L   = L_r + a MMD^2(features of a source batch, features of a target batch),          a = 0.99

with MK-MMD of five kernels (methods/shift/mk_mmd.py) between the maps before the aggregation, an image a row. The
gradient reaches the nearest positive alone: which of them shows the same thing nobody has said.

Negatives are mined: descriptors of all training images are kept, `drawn` random negatives are looked at for each
query, and the `kept` nearest go into its tuple, with the nearest potential positives. What is kept is described anew
after every `refresh` queries.

Source: Arandjelovic et al., CVPR 2016, arXiv:1511.07247, sec. 4 (L_r and the cache); Wang, Li, Khademi & van Gemert,
    "Attention-Aware Age-Agnostic Visual Place Recognition", ICCV Workshops 2019 (the sum, a, and all numbers).
Departs from print: print crops source images at random (0.3 to 1.0) and freezes early layers of a pretrained network;
    nothing is cropped or frozen here. Print's MMD is a sum of norms without a square; read as the squared distance.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.shift.mk_mmd import mk_mmd
from assay.nn.vlad import PlaceNet

NEAR = 25.0  # metres
MARGIN = 0.1
ADAPT = 0.99  # the weight of the MMD
AT_ONCE = 512  # images that are described together


class Tuples(NamedTuple):
    """Rows of the training images, for each of b queries."""

    query: Tensor  # b
    positive: Tensor  # b p, -1 where a query has no more
    negative: Tensor  # b m


def ranking_loss(
    query: Tensor, positive: Tensor, negative: Tensor, *, there: Tensor | None = None, margin: float = MARGIN
) -> Tensor:  # b s, b p s, b m s, b p -> b
    """L_r of each query; `there` is False where a positive is only padding."""
    if positive.shape[:1] + positive.shape[2:] != query.shape or negative.shape[:1] + negative.shape[2:] != query.shape:
        raise ShapeError(
            f"Descriptors of queries {tuple(query.shape)}, positives {tuple(positive.shape)} and negatives "
            f"{tuple(negative.shape)}; give (b, s), (b, p, s) and (b, m, s)."
        )
    near = (query[:, None] - positive).square().sum(2)
    if there is not None:
        near = near.masked_fill(~there, torch.inf)
    far = (query[:, None] - negative).square().sum(2)
    best = near.min(1).values  # one of several that are as near
    return (best[:, None] + margin - far).clamp_min(0).sum(1)


class Miner:
    """Draws tuples: hard ones by the descriptors that it was shown last."""

    def __init__(
        self, geo: Tensor, *, near: float = NEAR, drawn: int = 1000, kept: int = 10, positives: int = 1
    ) -> None:  # n 2, in metres
        if min(drawn, kept, positives) < 1 or kept > drawn:
            raise AssayError(
                f"Miner got drawn={drawn}, kept={kept}, positives={positives}; it wants at least 1 of each, and to "
                "draw as many as it keeps."
            )
        if geo.ndim != 2 or geo.shape[1] != 2:
            raise ShapeError(f"Miner got geo-tags of shape {tuple(geo.shape)}; give metres, shape (n, 2).")
        self.drawn, self.kept, self.positives = drawn, kept, positives
        close = torch.cdist(geo.double(), geo.double()) <= near
        self.negative = ~close
        self.positive = close.fill_diagonal_(False)
        fewest = int(self.negative.sum(1).min()) if len(geo) else 0
        if fewest < kept:
            raise AssayError(
                f"A query has only {fewest} negatives beyond {near:g} m, and {kept} are kept; keep fewer, or give "
                "images of more places."
            )
        self.queries = self.positive.any(1).nonzero()[:, 0]
        """The images that have a potential positive: all others can be negatives alone."""
        if not len(self.queries):
            raise AssayError(f"No image has another within {near:g} m; there is nothing to bring together.")
        self.seen: Tensor | None = None

    def refresh(self, descriptors: Tensor) -> None:  # n s
        """Keep these, of all training images, to mine by."""
        if len(descriptors) != len(self.negative):
            raise ShapeError(f"Descriptors of {len(descriptors)} images for {len(self.negative)} tags; give each one.")
        self.seen = descriptors.detach()

    def __call__(self, query: Tensor, rng: torch.Generator) -> Tuples:  # b
        """The tuples of these queries: their nearest potential positives, and the hardest of the negatives drawn."""
        if self.seen is None:
            raise AssayError("Miner has no descriptors to mine by; call refresh with those of all training images.")
        if not bool(self.positive[query].any(1).all()):
            raise AssayError("A query has no potential positive; draw queries from Miner.queries.")
        distance = torch.cdist(self.seen[query], self.seen)  # b n
        lots = torch.rand(distance.shape, generator=rng, device=rng.device).to(distance)
        most = min(self.drawn, distance.shape[1])
        drawn = lots.masked_fill(~self.negative[query], -1).topk(most, dim=1).indices
        far = distance.gather(1, drawn).masked_fill(~self.negative[query].gather(1, drawn), torch.inf)
        hardest = far.topk(self.kept, dim=1, largest=False).indices
        away = distance.masked_fill(~self.positive[query], torch.inf)
        found = away.topk(min(self.positives, distance.shape[1]), dim=1, largest=False)
        positive = found.indices.masked_fill(found.values.isinf(), -1)
        return Tuples(query, positive, drawn.gather(1, hardest))


def step_loss(
    model: PlaceNet, images: Tensor, tuples: Tuples, target: Tensor | None = None, *, a: float = ADAPT
) -> Tensor:  # n *d, target t *d
    """L of one batch: the mean of L_r over its queries, and the MMD of a target batch from the images of the tuples."""
    p = tuples.positive.shape[1]
    rows = torch.cat([tuples.query[:, None], tuples.positive.clamp_min(0), tuples.negative], 1)  # b 1+p+m
    maps = model.features(images[rows.flatten()])
    described = model.vlad(maps).view(*rows.shape, -1)
    loss = ranking_loss(
        described[:, 0], described[:, 1 : 1 + p], described[:, 1 + p :], there=tuples.positive >= 0
    ).mean()
    return loss if target is None else loss + a * mk_mmd(maps.flatten(1), model.features(target).flatten(1))


def fit_places(
    model: PlaceNet,
    images: Tensor,
    geo: Tensor,
    target: Tensor | None = None,
    *,
    steps: int,
    rng: torch.Generator,
    lr: float = 1e-5,
    tuples: int = 2,
    a: float = ADAPT,
    refresh: int = 1000,
    drawn: int = 1000,
    kept: int = 10,
    near: float = NEAR,
) -> list[float]:  # n *d, n 2, t *d
    """Train a `PlaceNet` in place by Adam on tuples of the source, adapted to `target` where there is one.

    A target batch is as large as the source's. Returns L of every step. `rng` is on the device of the images.
    """
    if steps < 1 or tuples < 1 or refresh < 1 or not lr > 0:
        raise AssayError(
            f"fit_places got steps={steps}, tuples={tuples}, refresh={refresh}, lr={lr}; it wants at least 1 of each "
            "and lr above 0."
        )
    miner = Miner(geo.to(images.device), near=near, drawn=drawn, kept=kept)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    losses, since = [], refresh
    for _ in range(steps):
        if since >= refresh:
            miner.refresh(describe(model, images))
            since = 0
        some = torch.randint(len(miner.queries), (tuples,), generator=rng, device=rng.device)
        batch = miner(miner.queries[some], rng)
        other = None
        if target is not None:
            size = tuples * (1 + batch.positive.shape[1] + batch.negative.shape[1])
            other = target[torch.randint(len(target), (size,), generator=rng, device=rng.device)]
        optimiser.zero_grad()
        loss = step_loss(model, images, batch, other, a=a)
        torch.autograd.backward(loss)
        optimiser.step()
        losses.append(loss.detach())
        since += tuples
    optimiser.zero_grad()
    return torch.stack(losses).tolist()


def describe(model: nn.Module, images: Tensor) -> Tensor:  # n *d -> n s
    """The descriptors of many images, a few at a time."""
    with torch.no_grad():
        return torch.cat([model(part) for part in torch.split(images, AT_ONCE)])
