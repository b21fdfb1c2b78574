"""The manipulation agent: learns, by reward alone, which inner features of an image to switch off.

State: the image I. Action: the set a of features that are switched off. Reward, with what the attackers say of the
image decoded from what is left (masks.py):

    R = (correctness on what is to be kept) - (correctness on what is to be hidden)      in [-1, 1]

There is no next state: it is a bandit with a context. The network has one output o_j for each feature and one more, v:

    Q(I, a) = v(I) + sum_{j in a} (o_j(I) - 1/2),        loss (Q1(I, a) - [R + y max_b Q2(I, b)])^2

so that the best action is print's rule: a feature is switched off where o_j >= 1/2. Q2 is a frozen copy; it also says
which actions are tried next, with random features flipped, and is refreshed every ten runs. What was tried is kept in a
memory and learned from again and again.

Source: Fuhl, Bozkir and Kasneci, ICANN 2021, sec. 2 and fig. 3.
Departs from print: (1) Print regresses "the result of DQL1" to R + y DQL2 and does not say which outputs. With each of
    the deactivated outputs regressed to the scaled reward, as `as_published` does, a feature takes the credit of
    whatever was switched off beside it, and since a constant image earns a little, all end up off. A sum over the
    features shares the credit out. (2) `y` has no meaning without a next state: it moves v alone; 0 unless told.
    (3) The rewards in the memory are taken anew when the attackers have changed; print keeps what they were.
    (4) Correctness is the probability of the right class; `hard` counts right and wrong, as print seems to.
    (5) Adam, and as many steps as are told; print has SGD at 1e-4, ten epochs over its memory, a thousand times.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from assay.errors import AssayError
from assay.methods.private.masks import deactivations

AT_ONCE = 512
Judge = Callable[[Tensor, Tensor], Tensor]  # codes under their masks n f, rows n -> rewards n


def correctness(logits: Tensor, truth: Tensor, *, hard: bool = False) -> Tensor:  # n k, n -> n in [0, 1]
    """The probability of the right class, or whether that is the answer."""
    if hard:
        return (logits.argmax(1) == truth).float()
    return logits.float().softmax(1).gather(1, truth[:, None])[:, 0]


def reward(keep: Tensor, hide: Tensor) -> Tensor:  # n, n in [0, 1] -> n in [-1, 1]
    """What is kept less what is not hidden."""
    return keep - hide


@dataclass(frozen=True)
class Training:
    """How an agent learns: `runs` of trying and learning, `batch` images each, `lessons` steps after each run."""

    runs: int = 200
    batch: int = 100
    lessons: int = 2
    lr: float = 1e-3
    explore: float = 0.1  # at most this share of the features is flipped in a try
    refresh: int = 10  # runs after which the copy is made anew
    discount: float = 0.0
    remembers: int = 20_000

    def __post_init__(self) -> None:
        if min(self.runs, self.batch, self.lessons, self.refresh, self.remembers) < 1 or self.lr <= 0:
            raise AssayError(f"{self} needs at least 1 of everything that is counted, and lr above 0.")
        if not 0 < self.explore <= 1 or not 0 <= self.discount < 1:
            raise AssayError(
                f"explore={self.explore} is a share above 0 and at most 1, discount={self.discount} from 0 to below 1."
            )


class MaskAgent:
    """One agent with its network, copy and memory. `images` (n *d) and `codes` (n f) are those of the training set."""

    def __init__(
        self,
        chooser: nn.Module,
        images: Tensor,
        codes: Tensor,
        judge: Judge,
        rng: Generator,
        training: Training,
        *,
        starts: int = 2000,
        as_published: bool = False,
    ) -> None:
        self.chooser, self.images, self.codes, self.rng = chooser, images, codes, rng
        self.training, self.as_published = training, as_published
        self.copy = copy.deepcopy(chooser).eval()
        self.steps = torch.optim.Adam(chooser.parameters(), training.lr)
        masks = deactivations(codes.shape[1], starts, rng)
        self.rows = torch.randint(len(images), (starts,), generator=rng, device=rng.device)
        self.off = masks < 0.5  # m f
        self.judge = judge
        self.rewards = self._judged(self.rows, self.off)

    def against(self, judge: Judge) -> None:
        """The attackers have changed: what the memory holds earns what it earns with these."""
        self.judge = judge
        self.rewards = self._judged(self.rows, self.off)

    def learn(self, tick: Callable[[int], None] = lambda n: None) -> None:
        """Try and learn, `training.runs` times."""
        plan = self.training
        for run in range(plan.runs):
            self._try()
            self.chooser.train()
            for _ in range(plan.lessons):
                self._lesson()
            self.chooser.eval()
            if (run + 1) % plan.refresh == 0:
                self.copy.load_state_dict(self.chooser.state_dict())
            tick(1)
        self.copy.load_state_dict(self.chooser.state_dict())

    def _judged(self, rows: Tensor, off: Tensor) -> Tensor:  # m, m f -> m
        """What the images decoded with these features off earn, a few at a time."""
        with torch.no_grad():
            parts = zip(torch.split(rows, AT_ONCE), torch.split(off, AT_ONCE), strict=True)
            return torch.cat([self.judge(self.codes[r].masked_fill(o, 0), r) for r, o in parts])

    def _try(self) -> None:
        """Ask the copy, flip a few features, see what that earns, remember it."""
        plan, rng = self.training, self.rng
        rows = torch.randint(len(self.images), (plan.batch,), generator=rng, device=rng.device)
        with torch.no_grad():
            off = self.copy(self.images[rows])[:, 1:] >= 0.5
        rate = plan.explore * torch.rand(len(rows), 1, generator=rng, device=rng.device)
        off ^= torch.rand(off.shape, generator=rng, device=rng.device) < rate
        held = (
            torch.cat([self.rows, rows]),
            torch.cat([self.off, off]),
            torch.cat([self.rewards, self._judged(rows, off)]),
        )
        self.rows, self.off, self.rewards = (each[-plan.remembers :] for each in held)

    def _lesson(self) -> None:
        plan = self.training
        pick = torch.randint(len(self.rows), (plan.batch,), generator=self.rng, device=self.rng.device)
        rows, off, earned = self.rows[pick], self.off[pick].float(), self.rewards[pick]
        out = self.chooser(self.images[rows])
        later = torch.zeros((), device=out.device)
        if plan.discount:
            with torch.no_grad():
                ahead = self.copy(self.images[rows])
            later = plan.discount * (ahead[:, 1:] if self.as_published else best(ahead))
        if self.as_published:
            gap = out[:, 1:] - ((earned[:, None] + 1) / 2 + later)
            loss = (off * gap * gap).sum() / off.sum().clamp(min=1)
        else:
            loss = (value(out, off) - (earned + later)).square().mean()
        self.steps.zero_grad()
        torch.autograd.backward(loss)
        self.steps.step()


def value(out: Tensor, off: Tensor) -> Tensor:  # n 1+f, n f -> n
    """Q(I, a) of the network's outputs and the features that are off."""
    return out[:, 0] + (off * (out[:, 1:] - 0.5)).sum(1)


def best(out: Tensor) -> Tensor:  # n 1+f -> n
    """The largest Q over all actions: everything off that is better off."""
    return out[:, 0] + (out[:, 1:] - 0.5).clamp(min=0).sum(1)
