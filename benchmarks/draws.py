"""Draws of a random net: as one batch against one after the other, and what the noise itself costs.

    python benchmarks/draws.py              on a GPU where there is one, else on the CPU

`draws`: 50 draws of 1, 8 and on a GPU 64 inputs through a net with noise in front of its convolutions, forward, and as
an attack asks (forward and backward by the inputs, the mean of the gradients). `forward`: a pass with noise beside one
without, of the same net. Each time is the median of several, taken in turns.

Wanted: on a GPU one batch at least 5 times as fast as the loop at 50 draws of one input; on a CPU at least as fast; a
pass with noise at most 1.15 times the plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from clock import seconds
from torch import Tensor, nn

from assay.methods.attack.attacked import Slope
from assay.methods.attack.loss import Goal
from assay.methods.train.fit import laid_out, swiftly
from assay.nn.members import Drawn, passes
from assay.nn.noisy import with_noise
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN

DRAWS, TURNS = 50, 5


def row(what: str, times: dict[str, float]) -> None:
    (first, a), (second, b) = times.items()
    print(f"{what:<44} {first} {1000 * a:9.2f} ms   {second} {1000 * b:9.2f} ms   {a / b:6.2f} times")


@torch.no_grad()
def draws(name: str, batched: Drawn, loop: Drawn, shape: tuple[int, ...], device: str) -> None:
    for n in (1, 8, 64) if device == "cuda" else (1, 8):
        x, y = torch.rand(n, *shape, device=device), torch.zeros(n, dtype=torch.long, device=device)

        def told(model: Drawn, x: Tensor = x) -> Callable[[], object]:
            return lambda: passes(model, x, DRAWS)

        def climbed(model: Drawn, x: Tensor = x, y: Tensor = y) -> Callable[[], object]:
            slope = Slope(model, Goal(y, None, "margin"), eot=DRAWS)
            return lambda: slope.at(x)

        for what, of in (("forward", told), ("gradient", climbed)):
            row(f"{name}, {DRAWS} draws of {n}, {what}", seconds(TURNS, device, loop=of(loop), batch=of(batched)))


@torch.no_grad()
def forward(name: str, noisy: nn.Module, plain: nn.Module, shape: tuple[int, ...], device: str, batch: int) -> None:
    x = torch.rand(batch, *shape, device=device)
    row(f"{name}, a pass of {batch}", seconds(TURNS, device, noisy=lambda: noisy(x), plain=lambda: plain(x)))
    if device == "cuda":  # as trainings and searches pass
        fast = {"noisy": swiftly(noisy), "plain": swiftly(plain)}
        x = laid_out(x)
        row(
            f"{name}, a pass of {batch}, compiled",
            seconds(TURNS, device, **{k: partial(f, x) for k, f in fast.items()}),
        )


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(where)
    nets: list[tuple[str, nn.Module, tuple[int, int, int], int]] = [("SmallCNN", SmallCNN(), (1, 28, 28), 128)]
    if device == "cuda":
        nets.append(("ResNet-18", ResNet18(), (3, 32, 32), 512))
    for name, net, shape, batch in nets:
        net = net.eval().requires_grad_(False).to(device)
        x = torch.rand(2, *shape, device=device)
        noisy = with_noise(net, x, first=0.2, inner=0.1, draws=DRAWS).eval().requires_grad_(False).to(device)
        loop = Drawn(noisy.net, DRAWS).eval()  # the same net, and nobody says that its rows draw apart
        draws(name, noisy, loop, shape, device)
        forward(name, noisy, net, shape, device, batch)


if __name__ == "__main__":
    main()
