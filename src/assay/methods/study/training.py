"""One try: the network of the study trained anew with what a tuner chose, from the seed that all share.

    w_0 and the order of the inputs in each epoch are functions of the seed alone;
    w_{t+1} = step(w_t, grad loss(w_t; batch t)),   t = 0 .. epochs * ceil(n / batch size) - 1

Nothing that a tuner chooses reaches the seed, the split or the order: of two batch sizes the same order is cut into
other pieces, and of two numbers of epochs one is the beginning of the other.

Source: Anand, Wang, Loog and van Gemert, BMVC 2020, sec. 7.2 (one task, one network, one seed for everybody).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.study.hyperparameters import Value
from assay.methods.train.fit import into_training, reset

Ended = Literal["done", "diverged", "cancelled", "out of time"]
STEPS = 200_000
"""The most steps of one training: a batch size of 1 in a thousand epochs would keep the machine for a day."""


class Rows(NamedTuple):
    """Inputs and their classes, whole on a device."""

    x: Tensor  # n *d
    y: Tensor  # n


class Trained(NamedTuple):
    """What came of it; `losses` and `accuracies` have an entry for each whole epoch."""

    ended: Ended
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    """On the rows that it was judged by, after each epoch."""

    @property
    def accuracy(self) -> float | None:
        """Of the network at the end. None where it was stopped before; 0 where it answers no numbers."""
        if self.ended == "diverged":
            return 0.0
        return self.accuracies[-1] if self.ended == "done" else None


def train(
    network: nn.Module,
    learnt: Rows,
    judged: Rows,
    configuration: Mapping[str, Value],
    *,
    seed: int,
    on_batch: Callable[[int, int, float], None] | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
    stop: Callable[[], Ended | None] | None = None,
) -> Trained:
    """Train a fresh copy of `network` on `learnt`; after each epoch its accuracy on `judged` is taken.

    `on_batch(epoch, batch, loss)` and `on_epoch(epochs done, mean loss)` tell how it goes, `stop()` is asked before
    each step and says why it ends. A loss that is no number ends it too. The global generator is left as found.
    """
    n, size = len(learnt.y), int(configuration["batch-size"])
    epochs, steps = int(configuration["epochs"]), math.ceil(n / size)
    if epochs * steps > STEPS:
        raise AssayError(
            f"epochs {epochs} with batch-size {size} are {epochs * steps:,} steps, where at most {STEPS:,} are made; "
            "take larger batches or fewer epochs."
        )
    device = learnt.x.device
    streams = [3 * seed + stream for stream in range(3)]  # weights, order, layers: no two seeds share one
    model = reset(network, torch.Generator().manual_seed(streams[0])).to(device).requires_grad_(True)
    order = torch.Generator().manual_seed(streams[1])
    optimiser, loss = _optimiser(_one_vector(model), configuration), _loss(str(configuration["loss"]))
    losses: list[float] = []
    accuracies: list[float] = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(streams[2])  # of layers that draw
        for epoch in range(epochs):
            into_training(model)
            total = 0.0
            for number, rows in enumerate(torch.split(torch.randperm(n, generator=order).to(device), size)):
                if stop is not None and (why := stop()) is not None:
                    return Trained(why, tuple(losses), tuple(accuracies))
                cost = loss(model(learnt.x[rows]), learnt.y[rows])
                value = float(cost.detach())
                if not math.isfinite(value):
                    return Trained("diverged", tuple(losses), tuple(accuracies))
                optimiser.zero_grad(set_to_none=False)
                cost.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                total += value * len(rows)
                if on_batch is not None:
                    on_batch(epoch + 1, number + 1, value)
            answers = _answers(model, judged.x)
            if not bool(answers.isfinite().all()):
                return Trained("diverged", tuple(losses), tuple(accuracies))
            losses.append(total / n)
            accuracies.append(float((answers.argmax(1) == judged.y).double().mean()))
            if on_epoch is not None:
                on_epoch(epoch + 1, losses[-1])
    return Trained("done", tuple(losses), tuple(accuracies))


def _answers(model: nn.Module, x: Tensor) -> Tensor:  # n *d -> n k
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part) for part in torch.split(x, 1024)])


def _loss(name: str) -> Callable[[Tensor, Tensor], Tensor]:  # n k, n -> ()
    def whole(out: Tensor, y: Tensor) -> Tensor:
        return F.one_hot(y, out.shape[1]).to(out.dtype)

    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cross-entropy": F.cross_entropy,
        "margin": F.multi_margin_loss,
        "squared": lambda out, y: F.mse_loss(out.softmax(1), whole(out, y)),
        "absolute": lambda out, y: F.l1_loss(out.softmax(1), whole(out, y)),
    }
    return losses[name]


def _one_vector(model: nn.Module) -> nn.Parameter:
    """All weights as one vector that they are views of, and so their gradients.

    Every optimiser here works entry by entry, and takes a sixth of the time for one tensor that it takes for six.
    """
    weights = list(model.parameters())
    whole = nn.Parameter(torch.cat([w.detach().flatten() for w in weights]))
    whole.grad = torch.zeros_like(whole)
    at = 0
    for w in weights:
        part = slice(at, at + w.numel())
        w.data, w.grad = whole.data[part].view_as(w), whole.grad[part].view_as(w)
        at = part.stop
    return whole


def _optimiser(whole: nn.Parameter, c: Mapping[str, Value]) -> torch.optim.Optimizer:
    def of(name: str) -> float:
        return float(c[name])

    weights, kind = [whole], c["optimiser"]
    lr, decay = of("learning-rate"), of("weight-decay")
    if kind == "sgd":
        return torch.optim.SGD(weights, lr, momentum=of("momentum"), weight_decay=decay)
    if kind == "asgd":
        return torch.optim.ASGD(weights, lr, alpha=of("lambda"), weight_decay=decay)
    if kind == "rmsprop":
        return torch.optim.RMSprop(
            weights, lr, alpha=of("alpha"), eps=of("epsilon"), momentum=of("momentum"), weight_decay=decay
        )
    if kind == "adadelta":
        return torch.optim.Adadelta(weights, lr, rho=of("rho"), eps=of("epsilon"), weight_decay=decay)
    if kind == "adagrad":
        return torch.optim.Adagrad(
            weights, lr, lr_decay=of("learning-rate-decay"), eps=of("epsilon"), weight_decay=decay,
            initial_accumulator_value=of("initial-accumulator"),
        )  # fmt: skip
    adam = torch.optim.Adam if kind == "adam" else torch.optim.Adamax
    return adam(weights, lr, betas=(of("beta1"), of("beta2")), eps=of("epsilon"), weight_decay=decay)
