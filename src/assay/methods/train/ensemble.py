r"""The naive ensemble: nets of one architecture, each trained by itself from its own random start.

    p(x) = (1/M) sum_m softmax f(x; w_m),    w_m from start m, in its own order of batches

Source: Lakshminarayanan, Pritzel and Blundell, NeurIPS 2017, arXiv:1612.01474, without its adversarial training; Liu,
    "Building Trustworthy Machine Learning Models", UCLA 2021, sec. 5.2.

The members do not know of each other, so that they may as well be trained together: `Stacked` holds every weight M
times in one tensor and answers for all members in one pass (torch.func), a linear layer by a batched product, a
convolution by a grouped one. `fit` trains that like any other net: the gradient of the sum of M losses is each member's
own, and SGD and Adam work number by number. This saves what a step costs apart from its arithmetic, for all members but
one. So it pays for small nets alone: a step of a larger one is nearly all arithmetic, and M nets have M times as much.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils.flop_counter import FlopCounterMode

from assay.errors import AssayError
from assay.methods.train.fit import Augment, Loss, Optimiser, Rows, Schedule, anew, fit

Apart = Callable[
    [Callable[[tuple[nn.Module, torch.Generator]], nn.Module], Sequence[tuple[nn.Module, torch.Generator]]],
    Iterable[nn.Module],
]
FEW = (
    200_000  # products in a pass of one input; eight nets of 5,000 took half the time together, of 120,000 a tenth less
)


def fit_ensemble(
    model: nn.Module,
    data: Rows,
    *,
    members: int,
    epochs: int,
    lr: float,
    rng: torch.Generator,
    batch: int = 128,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    optimiser: Optimiser = "sgd",
    schedule: Schedule = "cosine",
    loss: Loss = F.cross_entropy,
    augment: Augment | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
    device: torch.device | str = "cpu",
    vectorised: bool | None = None,
    apart: Apart | None = None,
) -> list[nn.Module]:
    """`members` trained nets like `model`, which itself stays as it was; the settings are those of `fit`.

    After each epoch: `on_epoch(nets that went through it, their mean loss)`. `vectorised` trains all members together,
    False one after the other, None together where that is faster (`is_faster_together`). Together, `augment` and `loss`
    get the rows of all members as one batch: the first must change each row by itself, the second be a mean over rows.
    Both ways every member has its own start and its own order of batches; the two ways draw them differently. `apart`
    trains those that are not trained together elsewhere, from where no epoch is told.
    """
    if members < 1:
        raise AssayError(f"fit_ensemble got members={members}; it wants at least 1.")
    if len(data) == 0:
        raise AssayError("fit_ensemble got a data set of 0 inputs; give it at least one.")
    streams = [torch.Generator(rng.device).manual_seed(_draw(rng)) for _ in range(members)]
    nets = [anew(model, stream) for stream in streams]

    def train(
        net: nn.Module,
        rows: Rows,
        stream: torch.Generator,
        loss: Loss,
        twist: Augment | None,
        told: Callable[[int, float], None] | None = None,
    ) -> None:
        fit(
            net,
            rows,
            epochs=epochs,
            lr=lr,
            rng=stream,
            batch=batch,
            momentum=momentum,
            weight_decay=weight_decay,
            optimiser=optimiser,
            schedule=schedule,
            loss=loss,
            augment=twist,
            on_epoch=told,
            device=device,
        )

    def told(count: int) -> Callable[[int, float], None] | None:
        return None if on_epoch is None else lambda _, mean: on_epoch(count, mean / count)

    together = None
    rows = SideBySide.of(data, streams)
    x, _ = rows.take(np.arange(min(2, len(data))))
    if vectorised or (vectorised is None and is_faster_together(model, x[:1, 0])):
        try:
            together = Stacked(nets).to(device)
            together.try_on(x)
        except AssayError:
            if vectorised:
                raise
            together = None
    if together is None:
        pairs = list(zip(nets, streams, strict=True))
        if apart is not None:

            def one(member: tuple[nn.Module, torch.Generator]) -> nn.Module:
                train(member[0], data, member[1], loss, augment)
                return member[0]

            return list(apart(one, pairs))
        for net, stream in pairs:
            train(net, data, stream, loss, augment, told(1))
    else:
        twist = None if augment is None else _flat(augment)
        every: Loss = lambda out, y: members * loss(out.flatten(0, 1), y.flatten(0, 1))  # noqa: E731
        train(together, rows, rng, every, twist, told(members))
        together.give_back(nets)
    return nets


def is_faster_together(model: nn.Module, x: Tensor) -> bool:  # 1 *d
    """Whether a pass of one input has few enough products that a step is mostly what surrounds them."""
    probe = copy.deepcopy(model).eval()
    device = next((p.device for p in probe.parameters()), torch.device("cpu"))
    with torch.no_grad(), _as_found(device), FlopCounterMode(display=False) as counter:
        probe(x.to(device))
    return bool(counter.get_total_flops() / 2 <= FEW)


class Stacked(nn.Module):
    """Several nets of one architecture as one: every parameter and buffer has the members as its first dimension.

    Layers with state are fine where the state is a buffer that changes in place (batch normalisation with a momentum).
    Nets that look at their numbers to decide what to do (`if x.sum() > 0`, batch normalisation with momentum None)
    cannot be stacked, nor can recurrent layers.
    """

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.net = copy.deepcopy(nets[0])
        weights, buffers = stack_module_state(list(nets))
        if len(weights) < len(list(self.net.named_parameters(remove_duplicate=False))):
            raise AssayError("Nets in which two layers share a parameter cannot be stacked; pass vectorised=False.")
        for name, stacked in (*weights.items(), *buffers.items()):
            place, _, last = name.rpartition(".")
            module = self.net.get_submodule(place)
            if name in weights:
                setattr(module, last, nn.Parameter(stacked.detach(), requires_grad=stacked.requires_grad))
            else:
                setattr(module, last, stacked)

    def forward(self, x: Tensor) -> Tensor:  # n m *d -> n m c
        def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = functional_call(self.net, (weights, buffers), (x,))
            return out

        weights: dict[str, Tensor] = dict(self.net.named_parameters())
        buffers = dict(self.net.named_buffers())
        return vmap(one, in_dims=(0, 0, 1), out_dims=1, randomness="different")(weights, buffers, x)

    def try_on(self, x: Tensor) -> None:  # n m *d
        """A pass whose outcome is thrown away, to find out whether the nets can be stacked at all."""
        device = next(self.parameters()).device
        try:
            with torch.no_grad(), _as_found(device):
                copy.deepcopy(self).train()(x.to(device))
        except RuntimeError as e:
            what = str(e).strip().splitlines()[0]
            raise AssayError(f"These nets cannot be trained together ({what}); pass vectorised=False.") from e

    def give_back(self, nets: Sequence[nn.Module]) -> None:
        """Write each member's weights and buffers into its own net."""
        state = self.net.state_dict()
        for number, net in enumerate(nets):
            net.to(next(self.parameters()).device)
            net.load_state_dict({name: tensor[number] for name, tensor in state.items()})


@dataclass(frozen=True)
class SideBySide:
    """A data set whose i-th row holds a row for each member: each has the whole of the data, in an order of its own."""

    data: Rows
    orders: NDArray[np.int64]  # n m

    @classmethod
    def of(cls, data: Rows, streams: Sequence[torch.Generator]) -> SideBySide:
        orders = [torch.randperm(len(data), generator=s, device=s.device).cpu().numpy() for s in streams]
        return cls(data, np.stack(orders, 1))

    def __len__(self) -> int:
        return len(self.orders)

    def take(self, index: NDArray[Any]) -> tuple[Tensor, Tensor]:  # k -> k m *d, k m
        rows = self.orders[index]
        x, y = (torch.as_tensor(part) for part in self.data.take(rows.ravel()))
        return x.reshape(*rows.shape, *x.shape[1:]), y.reshape(*rows.shape, *y.shape[1:])


def _flat(augment: Augment) -> Augment:
    """Augment n m *d as n m rows."""

    def flat(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        twisted, target = augment(x.flatten(0, 1), y.flatten(0, 1), rng)
        members = x.shape[:2]
        return twisted.reshape(*members, *twisted.shape[1:]), target.reshape(*members, *target.shape[1:])

    return flat


def _as_found(device: torch.device) -> AbstractContextManager[None]:
    """Nets may draw random numbers; the global generators are put back."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _draw(rng: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=rng, device=rng.device))
