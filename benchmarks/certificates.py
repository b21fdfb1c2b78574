"""How fast are the certificates, and how tight?

    python benchmarks/certificates.py lipschitz        exact Lipschitz constants of small networks, p = 1, 2 and inf
    python benchmarks/certificates.py nearest          exact 1-NN in l2 and the bounds around it (needs ASSAY_DATA)
    python benchmarks/certificates.py arml             learning a metric, and what it certifies (needs ASSAY_DATA)
    python benchmarks/certificates.py growth           how the cost grows with neurons, points and dimensions

Run it on a quiet machine; everything that is compared is measured in the same run, seconds as the median of three
except for `lipschitz`. The authors' programs are run beside ours, on the same inputs, where they are found:
- `lipschitz`: LIPBAB names a folder with their public repository (it needs cvxopt with GLPK); both then work on the
  networks published there, and their answers must agree.
- `nearest`: `knn_robustness` is importable, from a checkout of wangwllu/knn_robustness on PYTHONPATH.
- `arml`: `metric_robustness` is importable, from a checkout of wangwllu/provably_robust_metric_learning.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import math
import os
import statistics
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from named import named
from numpy.typing import NDArray
from torch import nn

RUNS = 3
NORMS = (1.0, 2.0, math.inf)
TRAINED = ((15, 10), (20, 15, 10), (30, 30, 30))
PUBLISHED = {  # file, and the side of the box
    "iris_net_(4,5,5,3)": 1.0,
    "SDnet_(10,15,10,3)": 0.1,
    "SDnet_(10,20,15,10,3)": 0.1,
    "SDnet_(10,30,30,30,3)": 0.1,
}
ASKED = {"Pendigits": (100, 20), "Letter": (100, 10), "MNIST": (100, 2)}  # inputs, and of them for the authors' code
POINTS, EPOCHS, METRIC_ASKED = 1000, 1000, 1000
RADII = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
WIDTHS = (5, 10, 20, 30)
GROWING, SIZE, DIMENSIONS = (1000, 4000, 16_000, 64_000), 4000, (4, 16, 64, 256)
GROWTH_ASKED = 20

Floats = NDArray[np.float64]


def median_of(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` gives, and the seconds it takes."""
    out, taken = None, []
    for _ in range(RUNS):
        start = time.perf_counter()
        out = work()
        taken.append(time.perf_counter() - start)
    return out, statistics.median(taken)


def lipschitz() -> None:
    """Seconds to the exact constant on a box, and nodes, ours beside the authors'."""
    from assay.claims.bhowmick2021 import synthetic
    from assay.methods.certify import lipschitz as constant

    folder = os.environ.get("LIPBAB")
    nets: dict[str, tuple[nn.Module, float]]
    if folder:
        nets = {name: (published(Path(folder), name), side) for name, side in PUBLISHED.items()}
    else:
        print("LIPBAB is not set: networks trained here, and ours alone")
        nets = {f"(10, {', '.join(map(str, hidden))}, 3)": (synthetic(hidden, 0), 0.1) for hidden in TRAINED}
    constant(next(iter(nets.values()))[0], (0.0, 0.01))  # the first call loads the solver
    for name, (net, side) in nets.items():
        for p in NORMS:
            start = time.perf_counter()
            ours = constant(net, (0.0, side), p=p, seconds=600)
            taken = time.perf_counter() - start
            print(
                f"{name:24s} p = {p:<4g} first {ours.first:9.4f}  exact {ours.upper:9.4f}  {ours.nodes:5d} nodes "
                f"{taken:8.3f} s",
                end="" if folder else "\n",
                flush=True,
            )
            if not ours.exact:
                raise SystemExit(f"\nstopped at {ours}")
            if folder:
                value, nodes, spent = authors(Path(folder), name, side, p)
                print(f"   theirs {value:9.4f}  {nodes:5d} nodes {spent:8.3f} s: {spent / taken:.1f} times", flush=True)
                np.testing.assert_allclose(ours.upper, value, rtol=1e-6)


def published(folder: Path, name: str) -> nn.Module:
    from assay.claims.bhowmick2021 import sequential

    weights, biases = (
        np.load(folder / "saved_networks" / f"{name}_{part}.npy", allow_pickle=True) for part in ("weights", "biases")
    )
    return sequential([(w.T.tolist(), b.tolist()) for w, b in zip(weights, biases, strict=True)])


def authors(folder: Path, name: str, side: float, p: float) -> tuple[float, int, float]:
    """The authors' script with network, box and norm put in: -> constant, nodes, seconds."""
    text = (folder / "LipBaB.py").read_text()
    for old, new in {
        "SDnet_(10,20,15,10,3)_": f"{name}_",
        "\nbnds=[[0.,0.1] for i": f"\nbnds=[[0.,{side}] for i",
        "\npnorm=2 ": f"\npnorm={'np.inf' if p == math.inf else int(p)} ",
    }.items():
        if old not in text:
            raise SystemExit(f"{folder / 'LipBaB.py'} has no {old!r}; this benchmark was written for another version.")
        text = text.replace(old, new)
    names: dict[str, Any] = {}
    program = compile(text, "LipBaB.py", "exec")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        exec(program, names)
        spent = time.perf_counter() - start
    return float(names["tp"].Lub), int(names["pcnt"]), spent


def nearest() -> None:
    """Exact 1-NN in l2, seconds a point with all preparation, beside the authors' code, and the bounds around it."""
    from assay.claims import wang2019
    from assay.methods.certify.nearest import attack, certified_radius, exact_radius

    theirs = authors_exact()
    name: wang2019.Name
    for name in ("Pendigits", "Letter", "MNIST"):
        count, few = ASKED[name]
        x, y, z, c = wang2019._data(name)
        order = np.random.default_rng(0).permutation(len(z))[: 2 * count]
        z, c = z[order], c[order]
        right = np.flatnonzero(exact_radius(x, y, z, c, top=1).ended == "solved")[:count]
        z, c = z[right], c[right]
        print(f"{name}, {len(x):,} training points, {len(z)} inputs, {torch.get_num_threads()} threads")
        got, taken = median_of(partial(exact_radius, x, y, z, c))
        each, programs = taken / len(z), got.programs.mean()
        print(
            f"  exact          {each:8.4f} s/point  mean {got.radius.mean():.4f}  programmes {programs:.2f}", flush=True
        )
        if theirs is not None:
            changes, spent = median_of(partial(np.apply_along_axis, theirs(x, y), 1, z[:few]))
            gap, slow = np.abs(np.linalg.norm(changes, axis=1) - got.radius[:few]).max(), spent / len(changes)
            print(f"  authors' exact {slow:8.4f} s/point  {slow / each:.1f} times; gap {gap:.1e} of {len(changes)}")
        rows: dict[str, Callable[[], Any]] = {
            "bound, K = 1": partial(certified_radius, x, y, z, c, 1),
            "bound, K = 15": partial(certified_radius, x, y, z, c, 15),
            "QP-top-1": partial(attack, x, y, z, c, top=1),
            "Naive-1": partial(attack, x, y, z, c, method="naive", top=1),
        }
        for what, work in rows.items():
            out, taken = median_of(work)
            mean = getattr(out, "radius", out).mean()
            print(f"  {what:14s} {taken / len(z):8.4f} s/point  mean {mean:.4f}", flush=True)


def authors_exact() -> Callable[[Floats, NDArray[np.int64]], Callable[[Floats], Floats]] | None:
    """Their exact solver for a training set, or None. Their loaders, unused here, import torchvision."""
    if importlib.util.find_spec("knn_robustness") is None:
        return None
    if importlib.util.find_spec("torchvision") is None:
        empty = {name: types.ModuleType(name) for name in ("torchvision", "torchvision.datasets")}
        vars(empty["torchvision"]).update(transforms=None)
        vars(empty["torchvision.datasets"]).update(MNIST=None, FashionMNIST=None)
        sys.modules.update(empty)
    solver = importlib.import_module("knn_robustness.nn_only").ExactSolver
    ascent = importlib.import_module("knn_robustness.utils").QpSolverFactory().create("gcd")
    return lambda x, y: solver(x, y, ascent, 8, False)  # type: ignore[no-any-return]


def arml() -> None:
    """Seconds to learn a metric on Pendigits, all points in every step, and the exact radii of 1-NN under it."""
    from assay.claims.wang2019 import _data
    from assay.methods.certify.nearest import exact_radius
    from assay.methods.train.arml import arml as learn

    x, y, z, c = _data("Pendigits")
    x, y, z, c = x[:POINTS].astype(np.float32), y[:POINTS], z[:METRIC_ASKED], c[:METRIC_ASKED]
    learned, taken = median_of(lambda: learn(x, y, rng=torch.Generator().manual_seed(42), epochs=EPOCHS))
    rows = {"Euclid": (np.eye(x.shape[1]), 0.0), "ARML": (learned.metric.double().numpy(), taken)}
    if importlib.util.find_spec("metric_robustness") is not None:
        learner = importlib.import_module("metric_robustness.learning.verifier_based_learners").TripleLearner
        theirs = learner(
            optimizer="adam",
            optimizer_params={},
            criterion="neg",
            criterion_params={},
            n_epochs=EPOCHS,
            batch_size=None,
            random_initialization=False,
            update_triple=True,
            device="cpu",
            seed=42,
            verbose=False,
        )
        metric, spent = median_of(lambda: theirs(x, y, n_candidate_mins=10))
        rows["ARML, authors' code"] = (np.asarray(metric, dtype=np.float64), spent)
    print(f"Pendigits, {len(x)} training points, {EPOCHS} epochs, {len(z)} inputs, {torch.get_num_threads()} threads")
    print(f"{'metric':20s} {'seconds':>8s}  mean radius  certified error of 1-NN at {', '.join(map(str, RADII))}")
    for name, (metric, seconds) in rows.items():
        radius = exact_radius(x, y, z, c, metric=(metric + metric.T) / 2).radius
        errors = "  ".join(f"{(radius <= r).mean():.3f}" for r in RADII)
        print(f"{name:20s} {seconds:8.2f}  {radius.mean():11.4f}  {errors}")


def growth() -> None:
    """Seconds against neurons, points and dimensions on synthetic data, and the power between the two ends."""
    from assay.claims.bhowmick2021 import synthetic
    from assay.methods.certify import lipschitz as constant
    from assay.methods.certify.nearest import certified_radius, exact_radius

    def grown(what: str, sizes: tuple[int, ...], work: Callable[[int], Callable[[], tuple[int, str]]]) -> None:
        """Each size's seconds, for as much work as `work` counts; its words stand behind."""
        print(what)
        each = []
        for size in sizes:
            (count, words), taken = median_of(work(size))
            each.append(taken / count)
            print(f"  {size:7,d} {each[-1]:10.5f} s  {words}", flush=True)
        power = math.log(each[-1] / each[0]) / math.log(sizes[-1] / sizes[0])
        print(f"  from {sizes[0]:,} to {sizes[-1]:,} as the power {power:.2f}")

    def network(width: int) -> Callable[[], tuple[int, str]]:
        net = synthetic((width, width), 0)

        def work() -> tuple[int, str]:
            got = constant(net, (0.0, 0.1), p=2, seconds=60)
            return 1, f"{got.nodes} nodes, {'exact' if got.exact else 'stopped'}"

        return work

    def neighbours(certify: Callable[..., Any], n: int, d: int) -> Callable[[], tuple[int, str]]:
        x, y, z, c = clouds(n, d)

        def work() -> tuple[int, str]:
            out = certify(x, y, z, c)
            words = f"{out.programs.mean():.1f} programmes" if hasattr(out, "programs") else ""
            return len(z), words

        return work

    constant(nn.Linear(2, 2), (0.0, 1.0))  # the first call loads the solver
    grown("exact Lipschitz constant, l2, two hidden layers of this width", WIDTHS, network)
    bound = partial(certified_radius, k=1)
    for what, certify in (("exact 1-NN", exact_radius), ("bound for 1-NN", bound)):
        grown(f"{what}, a point, by training points (16 dimensions)", GROWING, partial(neighbours, certify, d=16))
        grown(f"{what}, a point, by dimensions ({SIZE:,} points)", DIMENSIONS, partial(neighbours, certify, SIZE))


def clouds(n: int, d: int) -> tuple[Floats, NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Training points of ten classes, normal around centres about 3 apart in every dimension d; inputs that 1-NN gets
    right."""
    from sklearn.neighbors import KNeighborsClassifier

    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, n)
    centre = rng.normal(size=(10, d)) * 3 / math.sqrt(2 * d)
    x = rng.normal(size=(n, d)) + centre[y]
    z = rng.normal(size=(GROWTH_ASKED, d)) + centre[rng.integers(0, 10, GROWTH_ASKED)]
    return x, y, z, KNeighborsClassifier(1, algorithm="brute").fit(x, y).predict(z)


if __name__ == "__main__":
    named(__doc__, {"lipschitz": lipschitz, "nearest": nearest, "arml": arml, "growth": growth})()
