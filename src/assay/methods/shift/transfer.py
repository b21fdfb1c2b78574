"""Does it help to have learnt elsewhere first? One training on a target, from four starts.

    scratch          weights drawn anew
    source           the weights as they are
    shuffled source  weights that learnt the source with its labels shuffled: what the inputs alone have taught
    random features  weights drawn anew, of which only the last layer learns: what the architecture alone gives

What one training gives is a draw: another seed has other weights and other answers. The interval of a mean therefore
joins what differs from seed to seed with what differs from input to input (`over_seeds`); one of inputs alone would
find a gain of scratch over scratch.

All four see the same target inputs in the same batches, for as many steps, so that what differs is where they start.

Source: Wang, TU Delft 2024, ch. 8 ("does transfer help?"); the shuffled labels are those of Maennel et al., NeurIPS
2020, arXiv:2006.10455, the random features those of Rahimi and Recht, NeurIPS 2007.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.train.fit import Rows, fit, reset

Start = Literal["scratch", "source", "shuffled source", "random features"]
STARTS: tuple[Start, ...] = get_args(Start)


@dataclass(frozen=True)
class Held:
    """Inputs with their labels at hand."""

    x: Tensor  # n *d
    y: Tensor  # n

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        rows = torch.as_tensor(np.asarray(indices))
        return self.x[rows], self.y[rows]

    def first(self, n: int) -> Held:
        return Held(self.x[:n], self.y[:n])


def shuffled(data: Held, rng: torch.Generator) -> Held:
    """The same inputs, each with the label of another."""
    return Held(data.x, data.y[torch.randperm(len(data), generator=rng)])


def started(
    model: nn.Module, start: Start, source: Held, head: str, *, epochs: int, lr: float, batch: int, seed: int,
    device: str = "cpu",
) -> nn.Module:  # fmt: skip
    """A copy of `model` as this start has it, of which what may learn takes gradients."""
    rng = torch.Generator().manual_seed(seed)
    if start == "source":
        return copy.deepcopy(model).requires_grad_(True)
    made = reset(model, rng).requires_grad_(True)
    if start == "shuffled source":
        fit(made, shuffled(source, rng), epochs=epochs, lr=lr, batch=batch, optimiser="adam", rng=rng, device=device)
    if start == "random features":
        last = made.get_submodule(head)
        if not any(True for _ in last.parameters()):
            raise AssayError(f"The layer {head!r} has no weights to learn by; name the last one that has.")
        made.requires_grad_(False)
        last.requires_grad_(True)
    return made


def learnt(
    begun: nn.Module, target: Rows, test: Held, *, epochs: int, lr: float, batch: int, seed: int, device: str = "cpu"
) -> NDArray[np.bool_]:  # -> n
    """Which test inputs a copy of `begun` is right on after learning the target."""
    model = copy.deepcopy(begun)
    rng = torch.Generator().manual_seed(seed)
    fit(model, target, epochs=epochs, lr=lr, batch=batch, optimiser="adam", rng=rng, device=device)
    model.eval()
    with torch.no_grad():
        said = [model(part.to(device)).argmax(1).cpu() for part in torch.split(test.x, 512)]
    return (torch.cat(said) == test.y).numpy()


def compared(
    model: nn.Module,
    source: Held,
    target: Held,
    test: Held,
    head: str,
    *,
    sizes: tuple[int, ...],
    epochs: int,
    lr: float,
    batch: int = 32,
    seeds: tuple[int, ...],
    device: str = "cpu",
    done: Callable[[], None] = lambda: None,
) -> dict[tuple[Start, int], NDArray[np.float64]]:
    """For each start and number of target inputs, which test inputs each seed is right on, 1 or 0: seeds n.

    `epochs` are those of the largest size; a smaller one gets as many steps. `done` is called after each training.
    """
    largest = -(-max(sizes) // batch) * epochs
    found: dict[tuple[Start, int], NDArray[np.float64]] = {}
    for start in STARTS:
        hits: dict[int, list[NDArray[np.bool_]]] = {n: [] for n in sizes}
        for seed in seeds:
            begun = started(model, start, source, head, epochs=epochs, lr=lr, batch=batch, seed=seed, device=device)
            for n in sizes:
                rounds = max(1, round(largest / -(-n // batch)))
                hits[n].append(
                    learnt(begun, target.first(n), test, epochs=rounds, lr=lr, batch=batch, seed=seed, device=device)
                )
                done()
        found |= {(start, n): np.array(each, dtype=np.float64) for n, each in hits.items()}
    return found


def over_seeds(values: NDArray[np.float64]) -> tuple[float, float]:  # s n
    r"""The 95 % interval of the mean of `values`, of each of s trainings and n test inputs, from -1 to 1.

        mean -+ t_{s-1} sqrt( B / s + W / n ),
        B  the variance of the s means over inputs,   W = ( 1 + sum_i (m_i - mean)^2 ) / n, m_i the mean over seeds

    With Student's quantile of s - 1 degrees of freedom: B is known from s trainings alone. Both parts hold some of what
    a training does to single inputs, so that the interval is rather too wide than too narrow. The 1 stands for one
    input that differs: n equal ones are not sure, and their interval ends about 3 / n away.
    """
    from scipy.stats import t as student

    s, n = values.shape
    if s < 2:
        raise AssayError(f"over_seeds got {s} training; how they differ needs at least 2.")
    mean, inputs = float(values.mean()), values.mean(0)
    between = float(values.mean(1).var(ddof=1)) / s
    within = (1 + float(((inputs - mean) ** 2).sum())) / n**2
    reach = float(student.ppf(0.975, s - 1)) * (between + within) ** 0.5
    return max(-1.0, mean - reach), min(1.0, mean + reach)
