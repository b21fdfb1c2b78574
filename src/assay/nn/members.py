"""Predictors that answer many times: one interface, whether the answers come from several nets or several draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.read_as import Rescaled

AT_ONCE = 512  # rows of a batch of draws: three times as fast as a loop for one input, as fast from here on
AT_ONCE_GPU = 8192  # a GPU wants to be filled


Average = Literal["probabilities", "logits", "answers"]
"""Of what members give the mean: of a classifier's probabilities or logits, or of answers as they are, as images."""


class Members(nn.Module, ABC):
    """A net with several opinions. `members` gives the answer of each; what they say together is their mean.

    Of a classifier the mean is one of probabilities, not of logits: its negative log-likelihood is never above the
    members' mean one (Jensen), on any data. Spread, entropies and mutual information:
    methods/uncertainty/disagreement.py; of images, pixel by pixel, methods/uncertainty/pixel_spread.py.
    """

    @abstractmethod
    def members(self, x: Tensor) -> Tensor:  # n *d -> m n *o
        """The answer of each member, of a classifier its logits."""


class Ensemble(Members):
    """Several nets of the same task. It is deterministic, and its logits are the log of the mean probability.

    With average="logits" they are the mean of the nets' logits: the geometric mean of the probabilities, divided by its
    sum. Its negative log-likelihood is never above the members' mean one either (log-sum-exp is convex). Nets that are
    no classifiers give the mean of their "answers".
    """

    def __init__(self, nets: Sequence[nn.Module], *, average: Average = "probabilities") -> None:
        super().__init__()
        if not nets:
            raise AssayError("An ensemble needs at least one net, got none.")
        if average not in get_args(Average):
            raise AssayError(
                f"An ensemble averages probabilities or logits, got {average=}; name one of them, or answers that are "
                "no classes."
            )
        self.nets, self.average = nn.ModuleList(nets), average

    def members(self, x: Tensor) -> Tensor:  # n *d -> m n *o
        return torch.stack([net(x) for net in self.nets])

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        return mean_of(self.members(x), self.average)


class Drawn(Members):
    """A net whose pass is random in eval mode; `draws` passes make its opinion, one pass is one draw.

    A subject with such a model has `draws` set to the same number, and everything that asks it averages.
    `rows_apart` says that in eval mode each row of a batch has random numbers of its own, and no other random ones: an
    input that stands in a batch k times is then answered by k draws, and `passes` asks for them at once.
    """

    def __init__(self, net: nn.Module, draws: int, *, rows_apart: bool = False) -> None:
        super().__init__()
        if draws < 1:
            raise AssayError(f"A random net needs draws >= 1, got {draws}; 15 is usual.")
        self.net, self.draws, self.rows_apart = net, draws, rows_apart

    def members(self, x: Tensor) -> Tensor:  # n *d -> m n *o
        return passes(self, x, self.draws)

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o, one draw
        out: Tensor = self.net(x)
        return out


def draws_apart(model: Callable[[Tensor], Tensor]) -> bool:
    """Whether an input that stands in a batch k times is answered by k draws of this model."""
    while isinstance(model, Rescaled):  # shares of the range or natural units, row by row
        model = model.model
    return isinstance(model, Drawn) and model.rows_apart and not model.training


def at_once(draws: int, x: Tensor) -> list[int]:
    """How many of so many draws of these inputs go into each batch: n *d -> counts that sum to `draws`."""
    most = max(1, (AT_ONCE_GPU if x.is_cuda else AT_ONCE) // max(1, len(x)))
    return [min(most, draws - done) for done in range(0, draws, most)]


def repeated(x: Tensor, times: int) -> Tensor:  # n *d -> (times n) *d
    """All inputs so many times, one round after the other."""
    return x.repeat(times, *(1,) * (x.ndim - 1))


def in_rounds(out: Tensor, times: int) -> Tensor:  # (times n) *o -> times n *o
    """What came of `repeated`, each round by itself."""
    return out.reshape(times, len(out) // times, *out.shape[1:])


def passes(model: Callable[[Tensor], Tensor], x: Tensor, draws: int) -> Tensor:  # n *d -> m n *o
    """What so many passes say; where rows draw apart, several of them as one batch of at most AT_ONCE rows."""
    if not draws_apart(model):
        return torch.stack([model(x) for _ in range(draws)])
    return torch.cat([in_rounds(model(repeated(x, k)), k) for k in at_once(draws, x)])


def mean_of(each: Tensor, average: Average) -> Tensor:  # m n *o -> n *o
    """What members say together: logits whose softmax is the mean probability, or the mean of what they give."""
    return log_mean(each) if average == "probabilities" else each.mean(0)


def log_mean(logits: Tensor) -> Tensor:  # m n c -> n c
    """log( mean_m softmax(z_m) ): logits whose softmax is the mean probability."""
    mean: Tensor = logits.log_softmax(-1).logsumexp(0)
    return mean - torch.tensor(float(len(logits)), device=logits.device, dtype=logits.dtype).log()


def averaged(model: nn.Module, draws: int) -> Callable[[Tensor], Tensor]:
    """The model, or for one whose pass is random the mean of so many, as logits and with their gradient."""
    if draws == 1:
        return model
    return lambda x: log_mean(torch.stack([model(x) for _ in range(draws)]))
