"""The plain supervised training loop, and a fresh start for an architecture that has been trained before."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from assay.errors import AssayError
from assay.methods.train.checkpoint import Checkpoint, Done

Optimiser = Literal["sgd", "adam", "adamw"]
Schedule = Literal["cosine", "constant", "one-cycle", "late-fall"]
RISE = 0.25  # of the steps of a one-cycle schedule, on the way up
LATE = 0.5  # of the steps of a late fall, before it
MOST_VARIANTS = 64  # of compiled passes in one process: sizes of batches times modes times networks
Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> scalar
Augment = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]  # (x, y, rng) -> x, y
Order = Callable[[torch.Generator], Sequence[Tensor]]  # rng -> the numbers of the inputs of each batch of an epoch


class Rows(Protocol):
    """Inputs with their labels, any part of which can be had by number."""

    def __len__(self) -> int: ...

    def take(self, index: NDArray[Any], /) -> tuple[Tensor | NDArray[Any], Tensor | NDArray[Any]]: ...


class Diverged(AssayError):
    """A loss or a weight became no number. `model` has the weights of the last epoch that ended well, the `epochs`-th;
    0: those it began with."""

    def __init__(self, says: str, model: nn.Module, epochs: int) -> None:
        super().__init__(says)
        self.model, self.epochs = model, epochs


class Curve(NamedTuple):
    """How the training loss went, in training mode and measured before each step."""

    epochs: tuple[float, ...]  # mean over the inputs of each epoch
    steps: tuple[float, ...]  # mean over the batch of each step


def fit(
    model: nn.Module,
    data: Rows,
    *,
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
    order: Order | None = None,
    after_backward: Callable[[], None] | None = None,
    after_step: Callable[[], None] | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
    device: torch.device | str = "cpu",
    swift: bool = False,
    keep: Path | None = None,
    keep_key: str = "",
) -> Curve:
    r"""Train `model` in place on `data`; return the loss curve.

        d_t = grad loss(w_t) + weight_decay w_t,   v_t = momentum v_{t-1} + d_t,
        w_{t+1} = w_t - lr_t (d_t + momentum v_t),   lr_t = lr (1 + cos(pi t / T)) / 2,   t = 0 .. T-1

    Source: Sutskever et al., ICML 2013 (Nesterov momentum, in PyTorch's form); Loshchilov and Hutter, ICLR 2017,
        arXiv:1608.03983, eq. 5 (cosine, one period). `optimiser="adam"`: Kingma and Ba, ICLR 2015, arXiv:1412.6980,
        with `momentum` as beta_1, beta_2 = 0.999, and the weight decay added to the gradient; "adamw" takes it off the
        weights apart, lr_t weight_decay w_t (Loshchilov and Hutter, ICLR 2019, arXiv:1711.05101, alg. 2, as PyTorch has
        it). `schedule="one-cycle"`: Smith and Topin 2017, arXiv:1708.07120: up to `lr` in a straight line over the
        first quarter, down to 0 after. "late-fall": constant for the first half, down to 0 in a straight line after, as
        Isola et al. (CVPR 2017, arXiv:1611.07004) train translators.

    Each step: take a batch, `augment(x, y, rng)`, loss, backward, `after_backward()`, optimiser, `after_step()`. After
    each epoch: `on_epoch(epochs done, mean loss)`. A loss that wants more than outputs and targets finds it in the
    targets, where `augment` can put it.

    Every epoch sees every input once, in ceil(n / batch) batches whose sizes differ by at most one, so that no rest of
    a single input reaches a batch normalisation; `order` gives the batches of an epoch instead, as many each time
    (curriculum.py), and `batch` is then not read. Parameters with `requires_grad=False` stay as they are. While it runs
    all modules are in training mode, but for normalisations that are frozen (`into_training`), and kernels lie
    channels-last; afterwards both are as before, and no gradients are left behind. The model ends on `device`. The
    random numbers of layers (dropout) come from `rng` too; the global generator is left as found. On the CPU a seed
    gives the same weights again; on CUDA some backward kernels add up in no fixed order. `swift`: passes are compiled
    and run in bf16, inputs lie channels-last, weights stay float32.

    A loss or a weight that is no number ends the training (`Diverged`); the model then has the weights of the last
    epoch that ended well. `keep`: a folder for the last whole epoch, from which a training that was stopped goes on to
    the very weights that it would have had (checkpoint.py). `augment` and the hooks must hold nothing from step to step
    for that, and `keep_key` tells what no number here does: the loss, the augmentation and the data. Whoever kept it
    deletes it.
    """
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise AssayError("fit found no parameter to train; call model.requires_grad_(True) first.")
    if len(data) == 0:
        raise AssayError("fit got a data set of 0 inputs; give it at least one.")
    if epochs < 1 or batch < 1 or not 0 < lr < math.inf:
        raise AssayError(f"fit got epochs={epochs}, batch={batch}, lr={lr}; it wants at least 1, at least 1, above 0.")
    if not 0 <= momentum < 1 or not 0 <= weight_decay < math.inf:
        raise AssayError(
            f"fit got momentum={momentum}, weight_decay={weight_decay}; it wants one from 0 to below 1, such as 0.9, "
            "and one of 0 or more, such as 5e-4."
        )
    if keep is not None and not keep_key:
        raise AssayError("fit got keep without keep_key; give words for its loss, its augmentation and its data.")
    if optimiser not in get_args(Optimiser) or schedule not in get_args(Schedule):
        known = f"{' or '.join(get_args(Optimiser))}, and {' or '.join(get_args(Schedule))}"
        raise AssayError(f"fit got optimiser={optimiser!r}, schedule={schedule!r}; it knows {known}.")

    device = torch.device(device)
    modes = [(module, module.training) for module in model.modules()]
    order = order or shuffled(len(data), batch)
    shuffle = torch.Generator().manual_seed(_draw(rng))  # its own stream: augment's draws do not move the order
    means: list[float] = []
    losses: list[float] = []
    model.to(device)
    kept = None
    if keep is not None:
        settings = {
            "epochs": epochs, "lr": lr, "batch": batch, "momentum": momentum, "weight_decay": weight_decay,
            "optimiser": optimiser, "schedule": schedule, "swift": swift, "inputs": len(data), "key": keep_key,
        }  # fmt: skip
        kept = Checkpoint(keep, model, rng, settings)
    kernels = [p for p in model.parameters() if p.dim() == 4 and p.is_contiguous()]
    _lay_out(kernels, torch.channels_last)  # a quarter less CPU time on a small CNN (measured)
    optim = _build(weights, optimiser, lr, momentum, weight_decay)
    ask = swiftly(model) if swift else model
    good = Weights(model)
    try:
        with _layers_draw_from(rng, device):
            generators = {"steps": rng, "order": shuffle, "layers": torch.default_generator}
            if device.type == "cuda":
                generators["device"] = torch.cuda.default_generators[device.index or 0]
            if kept is not None and (done := kept.load(model, optim, generators)) is not None:
                means, losses = list(done.epochs), list(done.steps)
                good = Weights(model)
            for epoch in range(len(means), epochs):
                into_training(model)  # again each epoch: on_epoch may have evaluated the model
                seen, inputs, batches = 0.0, 0, order(shuffle)
                for number, index in enumerate(batches):
                    for group in optim.param_groups:
                        group["lr"] = lr * _share(schedule, len(losses) / (epochs * len(batches)))
                    raw_x, raw_y = data.take(index.numpy())
                    x, y = torch.as_tensor(raw_x, device=device), torch.as_tensor(raw_y, device=device)
                    where = f"epoch {epoch + 1} of {epochs}, batch {number + 1} of {len(batches)}"
                    try:
                        if augment is not None:
                            x, y = augment(x, y, rng)
                    except AssayError as e:  # an attacker inside meets a net that answers no numbers
                        if not losses:
                            raise
                        says = f"Training broke off in {where} as its inputs were made ({e}); {_mend(x, model, lr)}"
                        raise Diverged(f"{says} {good.put_back(len(means))}", model, len(means)) from e
                    cost = loss(ask(x), y)
                    told = _on_its_way(cost.detach())
                    optim.zero_grad()  # as late as this, in case augment or loss called backward
                    torch.autograd.backward(cost)
                    value = told()
                    if not math.isfinite(value):
                        says = f"Training loss became {value} in {where}; {_mend(x, model, lr)}"
                        raise Diverged(f"{says} {good.put_back(len(means))}", model, len(means))
                    if after_backward is not None:
                        after_backward()
                    optim.step()
                    if after_step is not None:
                        after_step()
                    losses.append(value)
                    seen, inputs = seen + value * len(index), inputs + len(index)
                if spoilt := _not_finite(model):
                    left = f"the last of {len(losses)} training steps left NaN or inf in {spoilt}; try lr={lr / 10:g}."
                    says = f"At the end of epoch {epoch + 1} of {epochs} {left}"
                    raise Diverged(f"{says} {good.put_back(len(means))}", model, len(means))
                means.append(seen / inputs)
                good = Weights(model)
                if kept is not None:
                    kept.save(model, optim, generators, Done(tuple(means), tuple(losses)))
                if on_epoch is not None:
                    on_epoch(epoch + 1, means[-1])
    finally:
        optim.zero_grad()
        _lay_out(kernels, torch.contiguous_format)
        for module, training in modes:
            module.training = training
    return Curve(tuple(means), tuple(losses))


def into_training(model: nn.Module) -> nn.Module:
    """The model in training mode, but for normalisations of none but frozen parameters: their running means stay too.

    Where nothing takes a gradient, nothing counts as frozen.
    """
    model.train()
    still = {p: p for p in model.parameters() if not p.requires_grad}
    if any(p.requires_grad for p in model.parameters()):
        for module in model.modules():
            if isinstance(module, _NormBase) and _all_in(module, still):
                module.eval()
    return model


def shuffled(n: int, batch: int) -> Order:
    """Each input once, in an order that is new each epoch, in ceil(n / batch) batches as equal as can be."""
    return lambda rng: torch.randperm(n, generator=rng).tensor_split(math.ceil(n / batch))


class Weights:
    """A copy of what a model holds, to go back to."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.held = model, {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def put_back(self, epochs: int) -> str:
        """Give the model these weights again; says which they are."""
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(self.held[name])
        return f"It has the weights of epoch {epochs} again." if epochs else "It has the weights it began with again."


def swiftly(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The same model asked in compiled bf16 passes, channels-last; its weights and its answers are float32."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_VARIANTS)

    def ask(x: Tensor) -> Tensor:  # n *d -> n *o
        with torch.autocast(x.device.type, torch.bfloat16):
            out: Tensor = model(x)
        return out.float()

    compiled: Callable[[Tensor], Tensor] = torch.compile(ask, dynamic=False)
    return lambda x: compiled(laid_out(x))


def laid_out(x: Tensor) -> Tensor:
    """Inputs in the order that `swiftly` asks them in: images channels-last."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def reset(model: nn.Module, rng: torch.Generator, *, keep_frozen: bool = False) -> nn.Module:
    """Copy `model` and initialise the copy anew, each module by its own `reset_parameters`.

    Children come before their parents, so that what a parent does to its children's weights stands. Buffers that no
    `reset_parameters` touches (a built-in input normalisation) are kept. The random numbers come from `rng`; the global
    generator, which `reset_parameters` reads, is left as found. `keep_frozen`: parameters that take no gradient keep
    their values, and a module of none but such its buffers too.
    """
    fresh = copy.deepcopy(model)
    still = {p: p.detach().clone() for p in fresh.parameters() if keep_frozen and not p.requires_grad}
    modules = {name: module for name, module in fresh.named_modules() if not _all_in(module, still)}
    stuck = [
        f"{name or 'the model itself'} ({type(module).__name__})"
        for name, module in modules.items()
        if next(module.parameters(recurse=False), None) is not None and not _resets(module)
    ]
    if stuck:
        raise AssayError(
            f"Cannot re-initialise {', '.join(stuck)}: it holds parameters and has no reset_parameters(); "
            "add that method, or train from the present weights."
        )
    device = next((p.device for p in fresh.parameters()), torch.device("cpu"))
    with _layers_draw_from(rng, device):
        for module in reversed(modules.values()):
            if _resets(module):
                module.reset_parameters()  # type: ignore[operator]
    with torch.no_grad():
        for p, value in still.items():
            p.copy_(value)
    fresh.zero_grad()
    return fresh


def anew(model: nn.Module, rng: torch.Generator) -> nn.Module:
    """A copy to train from scratch: what `trainable` trains is drawn anew, what is frozen stays."""
    return reset(trainable(model), rng, keep_frozen=True)


def trainable(model: nn.Module) -> nn.Module:
    """A copy of which what takes a gradient is trained; where nothing does, all of it."""
    own = copy.deepcopy(model)
    return own if any(p.requires_grad for p in own.parameters()) else own.requires_grad_(True)


def _all_in(module: nn.Module, some: Mapping[nn.Parameter, Tensor]) -> bool:
    """Whether it has parameters of its own, and they are all among these."""
    own = list(module.parameters(recurse=False))
    return bool(own) and all(p in some for p in own)


def _resets(module: nn.Module) -> bool:
    return callable(getattr(module, "reset_parameters", None))


def _build(
    weights: list[nn.Parameter], optimiser: Optimiser, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    if optimiser != "sgd":
        kind = torch.optim.Adam if optimiser == "adam" else torch.optim.AdamW
        return kind(weights, lr, betas=(momentum, 0.999), weight_decay=weight_decay)
    return torch.optim.SGD(weights, lr, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0)


def _share(schedule: Schedule, done: float) -> float:
    """Of the learning rate, where so much of the training is done: 0 to 1."""
    if schedule == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    if schedule == "one-cycle":
        return min(done / RISE, (1 - done) / (1 - RISE))
    if schedule == "late-fall":
        return min(1.0, (1 - done) / (1 - LATE))
    return 1.0


def _lay_out(kernels: list[nn.Parameter], layout: torch.memory_format) -> None:
    """Reorder kernels in memory. A convolution answers in its kernel's order, so no batch need be reordered."""
    for kernel in kernels:
        kernel.data = kernel.data.to(memory_format=layout)  # contiguous() would skip kernels of one input channel


def _on_its_way(value: Tensor) -> Callable[[], float]:
    """Ask for a number now and read it later, so that a GPU has the backward pass to do while it is waited for."""
    if value.device.type != "cuda":
        return value.item
    there = torch.empty((), dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> float:
        copied.synchronize()
        return there.item()

    return read


def _draw(rng: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=rng, device=rng.device))


@contextmanager
def _layers_draw_from(rng: torch.Generator, device: torch.device) -> Iterator[None]:
    """Dropout and reset_parameters read torch's global generators: seed them from `rng`, and put them back after."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(_draw(rng))  # torch.manual_seed would reseed devices not put back
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(_draw(rng))
        yield


def _not_finite(model: nn.Module) -> str:
    return ", ".join(name for name, p in model.named_parameters() if not p.isfinite().all())


def _mend(x: Tensor, model: nn.Module, lr: float) -> str:
    bad = int((~x.isfinite()).reshape(len(x), -1).any(1).sum())
    if bad:
        return f"{bad} of its {len(x)} inputs hold NaN or inf: clean the data."
    if spoilt := _not_finite(model):
        return f"the weights of {spoilt} are no longer finite: try lr={lr / 10:g}."
    return f"its inputs and the weights are finite, so training diverges or the loss overflows: try lr={lr / 10:g}."
