"""How fast are the certificates, and how tight?

    python benchmarks/certificates.py lipschitz        exact Lipschitz constants of small networks, p = 1, 2 and inf

Run it on a quiet machine; everything that is compared is measured in the same run. `lipschitz` runs the authors'
program too where LIPBAB names a folder with their public repository (it needs cvxopt with GLPK); both then work on the
networks published there, and their answers must agree.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

NORMS = (1.0, 2.0, math.inf)
TRAINED = ((15, 10), (20, 15, 10), (30, 30, 30))
PUBLISHED = {  # file, and the side of the box
    "iris_net_(4,5,5,3)": 1.0,
    "SDnet_(10,15,10,3)": 0.1,
    "SDnet_(10,20,15,10,3)": 0.1,
    "SDnet_(10,30,30,30,3)": 0.1,
}


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


if __name__ == "__main__":
    known = {"lipschitz": lipschitz}
    if len(sys.argv) != 2 or sys.argv[1] not in known:
        sys.exit((__doc__ or "") + f"\nName one of {', '.join(known)}.")
    known[sys.argv[1]]()
