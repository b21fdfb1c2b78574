"""What do smaller networks cost to make, and what do they gain?

    python benchmarks/deployment.py surgery     edges and cut of a ResNet-50 at full width, half of its channels dropped

Times are wall clock, medians where several are taken.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn

from assay.methods.compress.price import cost
from assay.methods.compress.surgery import cut, edges, masked
from assay.nn.resnet import Bottleneck, ResNet

ROUNDS = 3
AIM = 5.0  # seconds


def surgery() -> None:
    """The hypergraph and a random half of all channels gone, under 5 s on two cores; equal to the masked network."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model, x = ResNet(1000, blocks=(3, 4, 6, 3), kind=Bottleneck).eval(), torch.rand(2, 3, 32, 32)
    taken: dict[str, list[float]] = {"edges": [], "cut": []}
    found, keep = edges(model, x), {}  # torch loads what it needs with the first
    small: nn.Module = model
    for _ in range(ROUNDS):
        start = time.perf_counter()
        found = edges(model, x)
        between = time.perf_counter()
        keep = {edge.name: torch.rand(edge.size).argsort() < edge.size // 2 for edge in found}
        small = cut(model, found, keep)
        taken["edges"].append(between - start)
        taken["cut"].append(time.perf_counter() - between)
    with torch.no_grad():
        said, wanted = small(x), masked(model, found, keep)(x)
    gap = float((said - wanted).abs().max() / wanted.abs().max())
    total = sum(map(statistics.median, taken.values()))
    print(
        f"ResNet-50, {cost('parameters', model, x):,} parameters, {len(found)} edges: read and proved in "
        f"{statistics.median(taken['edges']):.2f} s, cut in {statistics.median(taken['cut']):.2f} s; together "
        f"{total:.2f} s, the aim is {AIM:g} s: {'met' if total <= AIM else 'missed'}"
    )
    for kind in ("flops", "parameters"):
        print(f"{kind} left: {cost(kind, small, x) / cost(kind, model, x):.3f}")
    print(f"largest gap to the masked network, relative: {gap:.1e}")
    if gap > 1e-4 or total > AIM:
        sys.exit(1)


if __name__ == "__main__":
    parts = {"surgery": surgery}
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        sys.exit(__doc__)
    parts[sys.argv[1]]()
