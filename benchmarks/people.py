"""How fast is what Assay says about harm to people?

    python benchmarks/people.py poison      the exact change of targets on a graph of 8,000 nodes with 1,000 labels
    python benchmarks/people.py moel        50 networks trained together, beside one after the other
    python benchmarks/people.py membership  membership inference for 10,000 inputs, in passes of the model

Run it on a quiet machine with OMP_NUM_THREADS at the number of cores that are meant (limits are for two). What is
compared is measured in the same run, in turns, as the median of three. Each limit stands beside its line.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from clock import at_least, at_most, seconds
from named import named
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.methods.fair.population import Population, drawn

RUNS = 3


Array = NDArray[np.float64]
NODES, LABELS, WIDTH, GAMMA = 8000, 1000, 8, 1.0  # the size and the gamma of cadata
RADIUS = 0.1 * LABELS**0.5
STEPS, STEP = 2000, 1e-3  # of the authors' public solver


def poison() -> None:
    from assay.methods.poison.label_attack import known_truth
    from assay.methods.poison.propagation import propagate
    from assay.methods.poison.trust_region import Extreme, descend, extremes

    rng = np.random.default_rng(0)
    x = rng.normal(size=(NODES, WIDTH))
    y = 1 / (1 + np.exp(-x @ rng.normal(size=WIDTH) - np.sin(3 * x[:, 0]) - 0.3 * rng.normal(size=NODES)))
    labels, truth = y[:LABELS], y[LABELS:]

    def whole() -> None:
        known_truth(propagate(x[:LABELS], x[LABELS:], GAMMA).K, labels, truth, RADIUS)

    K = propagate(x[:LABELS], x[LABELS:], GAMMA).K
    bend, pull = K.T @ K, K.T @ (K @ labels - truth)  # what both solvers are given

    def exact() -> Array:
        r2, ends = RADIUS * RADIUS, extremes(-bend)
        ends = Extreme(r2 * ends.norm, r2 * ends.value, ends.vector)
        return np.asarray(RADIUS * descend(-r2 * bend, -RADIUS * pull, known=ends).z)

    def projected() -> Array:
        """Gradient steps of one length, each put back on the sphere, from the slope at rest."""
        delta: Array = RADIUS * pull / np.linalg.norm(pull)
        for _ in range(STEPS):
            delta = delta + STEP * (bend @ delta + pull)
            delta *= RADIUS / np.linalg.norm(delta)
        return delta

    def gained(delta: Array) -> float:
        return float(delta @ bend @ delta / 2 + pull @ delta)

    ours, theirs = gained(exact()), gained(projected())
    taken = seconds(RUNS, whole=whole, exact=exact, projected=projected)
    print(f"The exact change of targets, {NODES:,} nodes with {LABELS:,} labels, {WIDTH} features")
    at_most("  graph, solve and attack", taken["whole"], 20, "s")
    print(f"{'  the attack alone, given K':72s} {taken['exact']:8.3f} s")
    print(f"{f'  {STEPS:,} projected-gradient steps, given K':72s} {taken['projected']:8.3f} s")
    at_least("  the attack over projected-gradient steps", taken["projected"] / taken["exact"], 5, "times as fast")
    at_least("  what it gains, as a share of what they gain", ours / theirs, 1 - 1e-9, "times it")


NETWORKS, ROWS, FEATURES, HIDDEN, EPOCHS, BATCH, LR = 50, 3703, 7, 128, 2, 500, 0.01  # COMPAS in size, two generations


def moel() -> None:
    """50 networks trained together against torch's modules one after the other: same weights, batches and schedule."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1, ROWS, FEATURES, generator=rng)
    y = (x[..., 0] + torch.randn(1, ROWS, generator=rng) > 0).long()
    begun = drawn(1, NETWORKS, FEATURES, HIDDEN, rng)

    def together() -> Population:
        return begun.trained(x, y, epochs=EPOCHS, lr=LR, batch=BATCH, rng=torch.Generator().manual_seed(1))

    def one_by_one() -> list[nn.Sequential]:
        return [_alone(begun, i, x[0], y[0].float()) for i in range(NETWORKS)]

    taken, nets = seconds(RUNS, together=together, apart=one_by_one), one_by_one()
    losses = F.binary_cross_entropy(together().scores(x)[0], y.float().expand(NETWORKS, -1), reduction="none").mean(1)
    with torch.no_grad():
        theirs = torch.stack([F.binary_cross_entropy_with_logits(net(x[0])[:, 0], y[0].float()) for net in nets])
    gap = float((losses - theirs).abs().max())
    print(f"{NETWORKS} networks {FEATURES}-{HIDDEN}-1, {ROWS:,} rows, {EPOCHS} epochs")
    print(f"{'  together':72s} {taken['together']:8.3f} s")
    print(f"{'  one after the other':72s} {taken['apart']:8.3f} s")
    at_least("  together", taken["apart"] / taken["together"], 5, "times as fast")
    at_most("  largest difference of their losses", gap, 1e-4, "nats")


def _alone(begun: Population, i: int, x: Tensor, y: Tensor) -> nn.Sequential:
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


INPUTS, SHADOWS = 10_000, 4


def membership() -> None:
    from assay.data.fashion import load_fashion
    from assay.methods.private.lira import confidences, halves, lira
    from assay.nn.lenet import LeNet

    rng = torch.Generator().manual_seed(0)
    data = load_fashion()["train"]
    x, y = data.take(torch.arange(INPUTS).numpy())
    models = [LeNet().eval() for _ in range(1 + SHADOWS)]  # weights that are drawn take as long as trained ones
    inside = halves(INPUTS, SHADOWS, rng)

    def plain() -> None:
        with torch.no_grad():
            for model in models:
                for part in torch.split(x, 512):
                    model(part)

    def whole() -> None:
        observed, *shadows = (confidences(model, x, y) for model in models)
        lira(observed, torch.stack(shadows), inside)

    taken = seconds(RUNS, plain=plain, whole=whole)
    print(f"Membership of {INPUTS:,} inputs, with {SHADOWS} shadows and the model: a pass over each")
    print(f"{'  plain passes over the same inputs':72s} {taken['plain']:8.3f} s")
    print(f"{'  confidences and both likelihood ratios':72s} {taken['whole']:8.3f} s")
    at_most("  in plain passes over each", taken["whole"] / taken["plain"], 1.1, "passes")


if __name__ == "__main__":
    named(__doc__, {"poison": poison, "moel": moel, "membership": membership})()
