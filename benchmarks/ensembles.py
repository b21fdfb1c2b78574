"""How fast are ensembles made?

    python benchmarks/ensembles.py vectorised     eight nets together beside one after the other, with their accuracy
    python benchmarks/ensembles.py cost           a FastEnsemble member as a share of a training, by the clock

Small nets on scikit-learn's digits, larger ones on the bundled sample of Fashion-MNIST: the larger the net, the less
there is to save. Run it on a quiet machine; what is compared is measured in the same run, in turns.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from named import named
from sklearn.datasets import load_digits
from torch import nn

from assay.data.arrays import Arrays
from assay.data.fashion import load_fashion
from assay.methods.train.ensemble import fit_ensemble, is_faster_together
from assay.methods.train.fast_ensemble import fast_ensemble
from assay.methods.train.fit import fit, reset
from assay.nn.lenet import LeNet
from assay.nn.members import Ensemble
from assay.nn.small_cnn import SmallCNN

THREADS, RUNS = 2, 3
MEMBERS, BATCH = 8, 128


class Task(NamedTuple):
    net: nn.Module
    data: Mapping[str, Arrays]
    epochs: int
    batch: int
    lr: float


def mlp(*widths: int) -> nn.Sequential:
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def digits() -> dict[str, Arrays]:
    x, y = load_digits(return_X_y=True)
    images = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return {"train": Arrays(images[:1300], y[:1300]), "test": Arrays(images[1300:], y[1300:])}


def tasks() -> dict[str, Task]:
    small, large = digits(), load_fashion()
    cnn = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    return {
        "digits, 64-32-10": Task(mlp(64, 32, 10), small, 10, 32, 0.05),
        "digits, a convolution": Task(cnn, small, 3, 32, 0.05),
        "fashion, 784-32-10": Task(mlp(784, 32, 10), large, 2, BATCH, 0.1),
        "fashion, 784-128-128-10": Task(mlp(784, 128, 128, 10), large, 2, BATCH, 0.1),
        "fashion, LeNet": Task(LeNet(), large, 1, BATCH, 0.05),
    }


def accuracy(model: nn.Module, test: Arrays) -> float:
    x, y = test.take(np.arange(len(test)))
    with torch.no_grad():
        return float((model.eval()(x).argmax(1) == y).float().mean())


def vectorised() -> None:
    fit_ensemble(mlp(64, 10), digits()["train"], members=2, epochs=1, lr=0.1, rng=torch.Generator())  # to warm up
    for name, (net, data, epochs, batch, lr) in tasks().items():
        taken: dict[bool, list[float]] = {True: [], False: []}
        told: dict[bool, list[float]] = {True: [], False: []}
        for seed in range(RUNS):
            for together in (True, False):
                rng = torch.Generator().manual_seed(seed)
                start = time.perf_counter()
                nets = fit_ensemble(
                    net, data["train"], members=MEMBERS, epochs=epochs, lr=lr, batch=batch, rng=rng, vectorised=together
                )
                taken[together].append(time.perf_counter() - start)
                told[together].append(statistics.mean(accuracy(each, data["test"]) for each in nets))
        both = {way: statistics.median(each) for way, each in taken.items()}
        means = {way: statistics.mean(each) for way, each in told.items()}
        chosen = "together" if is_faster_together(net, data["train"].take(np.arange(1))[0]) else "one after the other"
        print(
            f"{name:24s} {MEMBERS} nets, {epochs} epochs: together {both[True]:6.2f} s, one after the other "
            f"{both[False]:6.2f} s: {both[False] / both[True]:.2f} times; accuracy of a net {means[True]:.4f} and "
            f"{means[False]:.4f}; left to itself: {chosen}"
        )


def cost() -> None:
    data, share, epochs = load_fashion(), 0.06, 10
    train, test = data["train"], data["test"]
    k1 = epochs * math.ceil(len(train) / BATCH)
    steps = round(share * k1 / 2)
    rng = torch.Generator().manual_seed(0)
    seed = reset(SmallCNN(), rng)
    start = time.perf_counter()
    fit(seed, train, epochs=epochs, lr=0.1, weight_decay=5e-4, batch=BATCH, rng=rng)
    training = time.perf_counter() - start
    start = time.perf_counter()
    nets = fast_ensemble(seed, train, members=5, escape=steps, settle=steps, batch=BATCH, rng=rng)
    member = (time.perf_counter() - start) / (len(nets) - 1)
    print(
        f"SmallCNN: a training of {k1} steps {training:.1f} s; a further member of {2 * steps} steps {member:.2f} s, "
        f"{100 * member / training:.1f} % of it; accuracy {accuracy(seed, test):.4f}, together "
        f"{accuracy(Ensemble(nets), test):.4f}"
    )


if __name__ == "__main__":
    part = named(__doc__, {"vectorised": vectorised, "cost": cost})
    torch.set_num_threads(THREADS)
    part()
