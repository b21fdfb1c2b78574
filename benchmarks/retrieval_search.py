"""How long the exact search of a gallery takes, and what memory it needs above the data.

    python benchmarks/retrieval_search.py [--items 1000000] [--queries 10000] [--threads 2]

Recall at 20 of random descriptors of 128 numbers. Beside it a flat index on the same cores: faiss's IndexFlatL2 where
faiss is installed; else what a flat index has to do at the least, one product of single precision for each block and
the k best of it by torch.topk, which says so. The product alone is a floor for both. Processor time is told beside wall
time, because a machine that does other things too makes the second longer.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from assay.data.nearest import nearest, offsets

WIDTH, FIRST = 128, 20
BLOCK = 4096


def product(queries: Tensor, gallery: Tensor) -> Tensor:
    """Every product and nothing else."""
    room = torch.empty(len(queries) if len(queries) < 1024 else 1024, 1024)
    for part in torch.split(queries, 1024):
        for block in torch.split(gallery, 1024):
            torch.mm(part, block.T, out=room[: len(part), : len(block)])
    return torch.zeros(0)


def flat(queries: Tensor, gallery: Tensor) -> Tensor:
    """The k best of each block by topk, and then of those."""
    half = gallery.square().sum(1) / 2
    found = []
    for part in torch.split(queries, 1024):
        best, rows = [], []
        for start in range(0, len(gallery), BLOCK):
            block = gallery[start : start + BLOCK]
            top = torch.addmm(-half[start : start + BLOCK], part, block.T).topk(FIRST, dim=1)
            best.append(top.values)
            rows.append(top.indices + start)
        found.append(torch.cat(rows, 1).gather(1, torch.cat(best, 1).topk(FIRST, dim=1).indices))
    return torch.cat(found)


def ours(queries: Tensor, gallery: Tensor) -> Tensor:
    return nearest(queries, gallery, FIRST, offsets(gallery, "euclidean")).rows


def faiss_flat(queries: Tensor, gallery: Tensor) -> Tensor:
    import faiss

    index = faiss.IndexFlatL2(WIDTH)
    index.add(gallery.numpy())
    return torch.from_numpy(index.search(queries.numpy(), FIRST)[1])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--items", type=int, default=1_000_000)
    options.add_argument("--queries", type=int, default=10_000)
    options.add_argument("--threads", type=int, default=2)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    try:
        import faiss

        faiss.omp_set_num_threads(given.threads)
        other, beside = "faiss, IndexFlatL2", faiss_flat
    except ImportError:
        other, beside = "flat by torch.topk (faiss is not installed)", flat
    rng = torch.Generator().manual_seed(0)
    gallery, queries = (torch.randn(n, WIDTH, generator=rng) for n in (given.items, given.queries))
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows: dict[str, tuple[float, float, float]] = {}
    answers: dict[str, Tensor] = {}
    searches: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "nearest": ours, "the product alone": product, other: beside,
    }  # fmt: skip
    for name, search in searches.items():
        wall, spent = time.perf_counter(), time.process_time()
        answers[name] = search(queries, gallery)
        took = time.perf_counter() - wall, time.process_time() - spent
        rows[name] = (*took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 2**20)
    print(f"{given.queries:,} queries, {given.items:,} x {WIDTH} items, first {FIRST}, {given.threads} threads")
    for name, (wall, spent, memory) in rows.items():
        print(f"{name:45} {wall:8.2f} s wall {spent:8.2f} s processor, at most {memory:5.2f} GB above the data so far")
    same = float((answers["nearest"] == answers[other]).double().mean())
    ratio = rows["nearest"][1] / rows[other][1]
    print(f"processor time {ratio:.2f} times that of {other}; {100 * same:.3f} % of the rows in the same place")
    assert np.isfinite(ratio)
    assert same > 0.999


if __name__ == "__main__":
    main()
