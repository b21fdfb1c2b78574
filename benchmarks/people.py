"""How long what is about people takes: `python benchmarks/people.py moel`."""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from assay.methods.fair.population import Population, drawn

NETWORKS, ROWS, FEATURES, HIDDEN, EPOCHS, BATCH, LR = 50, 3703, 7, 128, 2, 500, 0.01  # COMPAS in size, two generations


def moel() -> None:
    """50 networks trained together against torch's modules one after the other: same weights, batches and schedule."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1, ROWS, FEATURES, generator=rng)
    y = (x[..., 0] + torch.randn(1, ROWS, generator=rng) > 0).long()
    begun = drawn(1, NETWORKS, FEATURES, HIDDEN, rng)
    begun.trained(x, y, epochs=1, lr=LR, batch=BATCH, rng=torch.Generator())  # warm
    start = time.perf_counter()
    together = begun.trained(x, y, epochs=EPOCHS, lr=LR, batch=BATCH, rng=torch.Generator().manual_seed(1))
    at_once = time.perf_counter() - start
    start = time.perf_counter()
    nets = [_alone(begun, i, x[0], y[0].float()) for i in range(NETWORKS)]
    one_by_one = time.perf_counter() - start
    losses = F.binary_cross_entropy(together.scores(x)[0], y.float().expand(NETWORKS, -1), reduction="none").mean(1)
    with torch.no_grad():
        theirs = torch.stack([F.binary_cross_entropy_with_logits(net(x[0])[:, 0], y[0].float()) for net in nets])
    gap = float((losses - theirs).abs().max())
    print(
        f"{NETWORKS} networks {FEATURES}-{HIDDEN}-1, {ROWS} rows, {EPOCHS} epochs: together {at_once:.2f} s, one by "
        f"one {one_by_one:.2f} s, {one_by_one / at_once:.1f} times; losses differ by at most {gap:.1g}"
    )


def _alone(begun: Population, i: int, x: torch.Tensor, y: torch.Tensor) -> nn.Sequential:
    first, last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, 1)
    with torch.no_grad():
        first.weight.copy_(begun.inner[0, :-1, i].T)
        first.bias.copy_(begun.inner[0, -1, i])
        last.weight.copy_(begun.outer[0, i][None])
        last.bias.copy_(begun.shift[0, i][None])
    net, rng = nn.Sequential(first, nn.ReLU(), last), torch.Generator().manual_seed(1)
    adam = torch.optim.Adam(net.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for seen in torch.rand(1, len(y), generator=rng).argsort(1)[0].split(BATCH):
            adam.zero_grad()
            F.binary_cross_entropy_with_logits(net(x[seen])[:, 0], y[seen]).backward()
            adam.step()
    return net


if __name__ == "__main__":
    {"moel": moel}[sys.argv[1]]()
