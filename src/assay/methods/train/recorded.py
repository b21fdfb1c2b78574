"""Trainings on a GPU, in steps that are recorded once and played again.

A step of a small network is hundreds of kernels of a few microseconds each, so that the GPU waits for whoever starts
them, and the more so where several studies share it. Recorded as one graph (torch.cuda.CUDAGraph) they are started at
once. What `fit` offers beside (a rest of an epoch that fills no batch, a look at the loss in each step, going back and
going on) would each ask the host, and no study asks for it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.data.whole import Whole
from assay.methods.train.fit import RISE, Diverged, into_training

if TYPE_CHECKING:
    from assay.methods.train.fit import Augment, Loss, Optimiser

FIRST = 3  # steps before the one that is recorded: they load, plan and set aside whatever is needed later too


def fit_recorded(
    model: nn.Module,
    weights: list[Tensor],
    loss: Callable[[Tensor], Tensor],
    n: int,
    *,
    epochs: int,
    batch: int,
    lr: float,
    seed: int,
    device: str,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    optimiser: Optimiser = "sgd",
    on_epoch: Callable[[int], None] | None = None,
) -> None:
    """Make `loss` small in `weights`, in place; it is given the numbers of `batch` of the `n` inputs, on `device`.

    As `fit` with its one-cycle schedule, but for these: an epoch has floor(n / batch) batches, all of one size, and
    what is left over waits for the next order. `loss` draws from torch's global generators and copies nothing from the
    host. `on_epoch(epochs done)` may ask the model; the modules are in training mode again afterwards.
    """
    cuda = torch.device(device).type == "cuda"
    batch = min(batch, n)
    order = torch.Generator(device).manual_seed(seed)  # its own stream: what a loss draws does not move the order
    rows = torch.zeros(batch, dtype=torch.int64, device=device)
    total = torch.zeros((), device=device)
    rate = torch.zeros((), device=device)
    update = (_adam if optimiser == "adam" else _nesterov)(weights, rate, momentum, weight_decay)

    def step() -> None:
        cost = loss(rows)
        gradients = torch.autograd.grad(cost, weights)
        with torch.no_grad():
            total.add_(cost.detach())
            update(gradients)

    play: Callable[[], None] = step
    steps, done = n // batch, 0
    aside = torch.cuda.Stream() if cuda else None  # type: ignore[no-untyped-call]
    if aside is not None:
        aside.wait_stream(torch.cuda.current_stream())
    with (
        torch.random.fork_rng(devices=[device] if cuda else []),
        torch.cuda.stream(aside),
        _fast_kernels(),
    ):
        torch.manual_seed(seed)
        for epoch in range(epochs):
            into_training(model)
            for index in torch.randperm(n, generator=order, device=device)[: steps * batch].view(steps, batch):
                share = done / (epochs * steps)
                rate.fill_(lr * min(share / RISE, (1 - share) / (1 - RISE)))
                rows.copy_(index)
                if cuda and done == FIRST:
                    play = _recorded(step)
                play()
                done += 1
            mean = float(total) / steps
            if not math.isfinite(mean):
                raise Diverged(f"Training loss became {mean} in epoch {epoch + 1} of {epochs}.", model, epoch)
            total.zero_()
            if on_epoch is not None:
                on_epoch(epoch + 1)
    if aside is not None:
        torch.cuda.current_stream().wait_stream(aside)


@contextmanager
def _fast_kernels() -> Iterator[None]:
    """The fastest way of each convolution is found out when it is first met, and float32 products run in TF32."""
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(precision)


def fit_net(
    model: nn.Module,
    data: Whole,
    *,
    seed: int,
    device: str,
    augment: Augment | None = None,
    loss: Loss = F.cross_entropy,
    epochs: int,
    batch: int,
    lr: float,
    weight_decay: float = 0.0,
    on_epoch: Callable[[int], None] | None = None,
) -> None:
    """Train a network in place by `fit_recorded` on batches of `data`, as `fit` does with `augment` and `loss`.

    Its kernels lie channels-last from then on.
    """
    for p in model.parameters():
        if p.dim() == 4:
            p.data = p.data.to(memory_format=torch.channels_last)

    def cost(rows: Tensor) -> Tensor:
        x, y = data.rows(rows)
        if augment is not None:
            x, y = augment(x, y, generator(device))
        return loss(model(x), y)

    fit_recorded(
        model, [p for p in model.parameters() if p.requires_grad], cost, len(data), epochs=epochs, batch=batch, lr=lr,
        seed=seed, device=device, weight_decay=weight_decay, on_epoch=on_epoch,
    )  # fmt: skip


def generator(device: str) -> torch.Generator:
    """Torch's global generator of a device: the one whose draws a recorded step makes anew each time."""
    where = torch.device(device)
    return torch.cuda.default_generators[where.index or 0] if where.type == "cuda" else torch.default_generator


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as e:  # it asks the host between its kernels
        warnings.warn(f"A training step cannot be recorded and is slow ({e}).", stacklevel=2)
        return step
    return graph.replay


Update = Callable[[tuple[Tensor, ...]], None]


def _nesterov(weights: list[Tensor], rate: Tensor, momentum: float, weight_decay: float) -> Update:
    speeds = [torch.zeros_like(w) for w in weights]

    def update(gradients: tuple[Tensor, ...]) -> None:
        slopes = list(torch._foreach_add(gradients, weights, alpha=weight_decay))
        torch._foreach_mul_(speeds, momentum)
        torch._foreach_add_(speeds, slopes)
        torch._foreach_add_(slopes, speeds, alpha=momentum)
        torch._foreach_mul_(slopes, -rate)
        torch._foreach_add_(weights, slopes)

    return update


def _adam(weights: list[Tensor], rate: Tensor, momentum: float, weight_decay: float) -> Update:
    cuda = rate.is_cuda
    optim = torch.optim.Adam(
        weights, rate, betas=(momentum, 0.999), weight_decay=weight_decay, capturable=cuda, fused=cuda or None,
        foreach=None if cuda else False,
    )  # fmt: skip
    optim.param_groups[0]["lr"] = rate  # this very tensor: a recorded step reads it where it lies
    return partial(_adam_step, optim, weights)


def _adam_step(optim: torch.optim.Adam, weights: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    optim.step()
    optim.zero_grad()
