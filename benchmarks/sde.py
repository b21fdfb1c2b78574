"""What does noise in the depth of a network cost: a step of each equation beside one of the ODE.

    python benchmarks/sde.py

A step is its share of a pass through the depth, forward and backward by weights and state, with fresh noise. All noises
are measured in the same run, in turns, and each turn is divided by the ODE's next to it. On a CPU what counts is the
processor's time, so that others on the machine do not.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from assay.nn.continuous import Continuous, TimedConvolutions
from assay.nn.solve import KINDS, DepthNoise, Kind

MOST = 1.05  # times the ODE's step


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def steps(
    device: str, *, width: int, side: int, batch: int, turns: int, grid: float = 0.1, compiled: bool = False
) -> dict[str, float]:
    """How many times as long as the ODE's a step of each noise takes: the median over the turns."""
    torch.manual_seed(0)
    depths = {
        kind: Continuous(TimedConvolutions(width), DepthNoise(kind, sigma=0.5), grid=grid).to(device) for kind in KINDS
    }
    asked = {kind: torch.compile(depth, dynamic=False) if compiled else depth for kind, depth in depths.items()}
    h = torch.randn(batch, width, side, side, device=device)

    def taken(kind: Kind) -> float:
        at = h.clone().requires_grad_()
        start = clock(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            end = asked[kind](at)
        end.float().square().mean().backward()
        return clock(device) - start

    ratios: dict[Kind, list[float]] = {kind: [] for kind in KINDS if kind != "none"}
    ode: list[float] = []
    for turn in range(turns + 1):
        for kind, of in ratios.items():
            before, ours, after = taken("none"), taken(kind), taken("none")
            if turn:  # the first is to warm up
                of.append(2 * ours / (before + after))
                ode += [before, after]
    count, how = depths["none"].steps, ", compiled" if compiled else ""
    print(
        f"{device}, {batch} states of {width} x {side} x {side}, {count} steps{how}: a step of the ODE takes "
        f"{1000 * statistics.median(ode) / count:.2f} ms; "
        + ", ".join(f"{kind} {statistics.median(of):.3f} times" for kind, of in ratios.items()),
        flush=True,
    )
    return {kind: statistics.median(of) for kind, of in ratios.items()}


if __name__ == "__main__":
    torch.set_num_threads(2)
    if torch.cuda.is_available():
        told = [steps("cuda", width=width, side=16, batch=512, turns=20) for width in (64, 256)]
        told.append(steps("cuda", width=64, side=16, batch=512, turns=20, grid=0.5, compiled=True))
    else:
        told = [steps("cpu", width=64, side=16, batch=32, turns=5, grid=0.5)]
    worst = max(max(each.values()) for each in told)
    print(f"The dearest step takes {worst:.3f} times as long as the ODE's; at most {MOST:g} is wanted.")
    sys.exit(worst > MOST)
