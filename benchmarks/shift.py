"""How fast is what Assay says about shifts?

    python benchmarks/shift.py mmd          MK-MMD with 500 permutations of 2 x 5,000 features of 512 dimensions
    python benchmarks/shift.py search       retrieval_search.py, and its options: 10,000 queries of a million items

Run it on a quiet machine with OMP_NUM_THREADS at the number of cores that are meant (limits are for two). What is
compared is measured in the same run, in turns, as the median of three. Each limit stands beside its line.
"""

from __future__ import annotations

import resource
import sys
import time

import torch
from clock import at_most, seconds
from named import named
from torch import Tensor

from assay.methods.shift.mk_mmd import kernel, median_distance, mmd_test
from assay.methods.shift.two_samples import classifier_auc

RUNS = 3
ROWS, WIDTH, DEALS = 5000, 512, 500
FEW = 3  # permutations that are made one by one, to tell what all of them would take


def held() -> float:
    """The most memory that this process has held, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def one_by_one(pool: Tensor) -> None:
    """The kernel matrix once and whole, and each permutation by picking its rows and columns."""
    alike = kernel(pool, pool, median_distance(pool))
    for _ in range(FEW):
        order = torch.randperm(len(pool))
        first, second = order[: len(pool) // 2], order[len(pool) // 2 :]
        _ = alike[first][:, first].mean() + alike[second][:, second].mean() - 2 * alike[first][:, second].mean()


def mmd() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(ROWS, WIDTH, generator=rng), 0.02 + torch.randn(ROWS, WIDTH, generator=rng)
    pool, before = torch.cat([a, b]), held()
    mmd_test(a, b, rng=rng, deals=DEALS)
    grown = held() - before
    taken = seconds(
        RUNS,
        test=lambda: mmd_test(a, b, rng=rng, deals=DEALS),
        half=lambda: pool @ pool[: len(pool) // 2].T,
        told=lambda: classifier_auc(a, b, rng=rng),
    )
    print(f"MK-MMD, 2 x {ROWS:,} x {WIDTH}, {DEALS} permutations, {torch.get_num_threads()} threads")
    at_most("  the test", taken["test"], 2, "s")
    at_most("  beside half of the products of all pairs alone", taken["test"] / taken["half"], 3, "times it")
    at_most("  memory above the data", grown, 300, "MB")
    print(f"{'  the classifier between the same samples':62s} {taken['told']:7.2f} s")
    start = time.perf_counter()
    one_by_one(pool)
    first = time.perf_counter() - start
    start = time.perf_counter()
    kernel(pool, pool, 1.0)
    whole = time.perf_counter() - start
    print(f"{'  permutations one by one':62s} {whole + DEALS / FEW * (first - whole):7.2f} s")


def search() -> None:
    from retrieval_search import main

    del sys.argv[1]
    main()


if __name__ == "__main__":
    named(__doc__, {"mmd": mmd, "search": search}, alone=False)()
