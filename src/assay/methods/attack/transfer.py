r"""Transfer: attack a substitute that was taught the victim's answers, and see whether the victim falls too.

The victim is asked for labels only, O(x) = argmax f(x). The substitute F learns them, and asks for more where its own
answers change fastest (Jacobian-based augmentation):

    D_{r+1} = D_r  u  { P_box( x + lambda sign(grad_x F(x)_{O(x)}) ) : x in D_r },    F_{r+1} = F_r trained on (D, O(D))

Where the answers are no classes, O(x) = f(x) is the whole answer, in units of its spread over the seeds; F learns it
by least squares, and asks for more along sign(grad_x |F(x)|^2 / 2), away from what is answered on average.

Source: Papernot et al., ASIACCS 2017, arXiv:1602.02697, Algorithm 1; answers that are no classes are Assay's own.
Departs from print: new points are cut to the box; F's score is the log of its softmax, which has the sign of the
    softmax's own gradient and does not vanish where F is sure; Adam, where the paper has SGD with momentum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.attack.aim import Truth
from assay.methods.attack.attacked import Attacked, Model, Slope, refuse_nan
from assay.methods.attack.loss import Goal, own
from assay.methods.attack.rows import Rows, taken

Attack = Callable[[Model, Tensor, Truth], Attacked]  # (model, n *d, n); such as partial(pgd, radius=r, leave=False)
Kind = Literal["cnn", "mlp"]


class Learned(NamedTuple):
    model: nn.Module  # in eval mode, its parameters frozen
    asked: int  # how many labels the victim was asked for


def learn_substitute(
    victim: Model,
    seeds: Tensor | Rows,
    *,
    substitute: nn.Module,
    rounds: int = 2,
    reach: float = 0.1,
    epochs: int = 10,
    lr: float = 3e-3,
    batch: int = 64,
    bounds: tuple[float, float] = (0.0, 1.0),
    device: torch.device | str | None = None,
    answers: bool = False,
    rng: torch.Generator,
) -> Learned:
    """Train `substitute` in place on the victim's labels of `seeds` and of what it makes of them: n *d -> Learned.

    With `answers` it learns the whole answers, of whatever shape, and gives them in the victim's own units.

    Each of the `rounds` doubles the points; `reach` is lambda above, `epochs` are per round and one more set of them
    at the end. Seeds that are no tensor are taken a batch at a time, to `device`. The module's own random numbers, if
    it has any (dropout), come from torch's global generator.
    """
    if len(seeds) == 0 or rounds < 0 or epochs < 1 or batch < 1:
        raise AssayError(
            f"A substitute needs at least 1 seed, rounds >= 0, epochs >= 1, batch >= 1; got {len(seeds)} seeds, "
            f"{rounds=}, {epochs=}, {batch=}."
        )
    x = _Points(seeds, reach, bounds, seeds.device if isinstance(seeds, Tensor) else torch.device(device or "cpu"))
    labels = _labels(victim, x, range(len(x)), batch, answers)
    units = Units(labels) if answers else None
    substitute.to(x.device).requires_grad_(True)
    adam = torch.optim.Adam(substitute.parameters(), lr)
    for r in range(rounds + 1):
        substitute.train()
        for _ in range(epochs):
            for rows in _parts(torch.randperm(len(x), generator=rng, device=rng.device).to(x.device), batch):
                out = substitute(x.take(rows))
                cost = F.cross_entropy(out, labels[rows]) if units is None else F.mse_loss(out, units.of(labels[rows]))
                adam.zero_grad()
                torch.autograd.backward(cost)
                adam.step()
        substitute.eval()
        if r < rounds:
            x.steps.append(_directions(substitute, x, labels, batch, answers))
            labels = torch.cat([labels, _labels(victim, x, range(len(labels), len(x)), batch, answers)])
    adam.zero_grad()
    substitute.requires_grad_(False)
    return Learned(substitute if units is None else nn.Sequential(substitute, units).eval(), len(x))


def transfer(victim: Model, substitute: Model, x: Tensor, y: Truth, *, attack: Attack, draws: int = 1) -> Attacked:
    """Attack the substitute, judge on the victim: n *d, n -> Attacked, with the attack's own distances and heights.

    Success is any answer but y, of a fresh pass through the victim, or of the mean softmax over `draws` passes where
    the victim is random. An attack that stops at the substitute's boundary rarely crosses the victim's: give one that
    goes on, such as `partial(pgd, radius=8 / 255, leave=False)`.
    """
    crafted = attack(substitute, x, y)
    return crafted._replace(success=broken(victim, crafted.x, y, draws=draws))


def broken(victim: Model, x: Tensor, y: Truth, *, draws: int = 1, lost: bool = False) -> Tensor:
    """Whether the victim answers something other than y, asked afresh and without gradients: n *d, n -> n bool.

    NaN is refused, or with `lost` an answer that is not right.
    """
    # head="logits" keeps the look free of gradients, which a victim that only answers may not survive
    height, wrong = Slope(victim, Goal(y, loss="margin"), eot=draws, head="logits").look(x)
    if not lost:
        refuse_nan(height, "output")
    return wrong


def small_substitute(
    kind: Kind,
    shape: tuple[int, ...],
    classes: int,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    rng: torch.Generator,
) -> nn.Module:
    """A network that learns in seconds: "cnn", two convolutions for (channels, h, w); "mlp", two hidden layers."""
    if kind not in get_args(Kind) or (kind == "cnn" and len(shape) != 3) or not shape or classes < 2:
        raise AssayError(
            f"A substitute is a 'cnn' for inputs (channels, h, w) or an 'mlp' for any, with at least 2 classes; got "
            f"{kind=}, {shape=}, {classes=}."
        )
    return _network(kind, shape, classes, bounds, rng)


def answering_substitute(
    shape: tuple[int, ...], answer: tuple[int, ...], *, bounds: tuple[float, float] = (0.0, 1.0), rng: torch.Generator
) -> nn.Module:
    """One that answers in any shape: place by place where that is a map as large as the picture, else all at once.

    A map is made at half the size, four numbers for each place, for a quarter of the time; so its sides are even.
    """
    if len(shape) == 3 and len(answer) == 3 and answer[1:] == shape[1:] and not (shape[1] % 2 or shape[2] % 2):
        with _drawn(rng):
            return nn.Sequential(
                Centred(*bounds),
                nn.Conv2d(shape[0], 16, 5, stride=2, padding=2),
                nn.ReLU(),
                nn.Conv2d(16, 32, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(32, 4 * answer[0], 3, padding=1),
                nn.PixelShuffle(2),
            )
    kind: Kind = "cnn" if len(shape) == 3 and shape[0] in (1, 3) else "mlp"
    body = _network(kind, shape, torch.Size(answer).numel(), bounds, rng)
    return nn.Sequential(body, nn.Unflatten(1, answer)) if len(answer) > 1 else Flat(body) if not answer else body


def _network(
    kind: Kind, shape: tuple[int, ...], width: int, bounds: tuple[float, float], rng: torch.Generator
) -> nn.Module:
    with _drawn(rng):
        if kind == "mlp":
            return nn.Sequential(
                Centred(*bounds),
                nn.Flatten(),
                nn.Linear(torch.Size(shape).numel(), 128),
                nn.ReLU(),
                nn.Linear(128, 128),
                nn.ReLU(),
                nn.Linear(128, width),
            )
        s = max(1, round(min(shape[1:]) / 14))  # a map of about 14 x 14, whatever the picture's size
        cells = torch.Size(-(-side // (2 * s)) for side in shape[1:]).numel()  # ceil(ceil(side / s) / 2) per side
        return nn.Sequential(
            Centred(*bounds),
            nn.Conv2d(shape[0], 16, 2 * s + 1, stride=s, padding=s),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * cells, width),
        )


@contextmanager
def _drawn(rng: torch.Generator) -> Iterator[None]:
    """Layers draw their weights from the global generator as they are built: here it is seeded, and then put back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=rng, device=rng.device)))
        yield


class Centred(nn.Module):
    """From the bounds to [-1, 1]."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *d
        return (2 * x - self.low - self.high) / (self.high - self.low)


class Flat(nn.Module):
    """A network of one number, without the axis for it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n
        out: Tensor = self.body(x)
        return out[:, 0]


class Units(nn.Module):
    """From units of the spread of some answers around their mean to those of the answers."""

    def __init__(self, answers: Tensor) -> None:  # n *o
        super().__init__()
        self.middle: Tensor
        self.spread: Tensor
        self.register_buffer("middle", answers.mean(0))
        apart = answers.std(0, correction=0)
        self.register_buffer("spread", torch.where(apart > 0, apart, 1.0))

    def of(self, answers: Tensor) -> Tensor:  # n *o -> n *o
        return (answers - self.middle) / self.spread

    def forward(self, x: Tensor) -> Tensor:  # n *o -> n *o
        return self.middle + self.spread * x


class _Signs(NamedTuple):
    """Where a step goes up and where it goes down, eight values in a byte: n f/8."""

    up: NDArray[np.uint8]
    down: NDArray[np.uint8]

    def of(self, rows: Tensor, like: Tensor) -> Tensor:  # k, k *d -> k *d of -1, 0 and 1
        up, down = (np.unpackbits(bits[rows.cpu().numpy()], axis=1, count=like[0].numel()) for bits in self)
        return torch.from_numpy(up.astype(np.int8) - down.astype(np.int8)).view(like.shape).to(like)


class _Points:
    """The seeds, and in each round as many more as there were: a step away from each.

    Of the new ones only the signs of their steps are held, a sixteenth of what the points themselves would take.
    """

    def __init__(self, seeds: Tensor | Rows, reach: float, bounds: tuple[float, float], device: torch.device) -> None:
        self.seeds, self.reach, self.bounds, self.device = seeds, reach, bounds, device
        self.steps: list[_Signs] = []

    def __len__(self) -> int:
        return len(self.seeds) << len(self.steps)

    def take(self, rows: Tensor, rounds: int | None = None) -> Tensor:  # k -> k *d
        rounds = len(self.steps) if rounds is None else rounds
        if not rounds:
            return taken(self.seeds, rows).detach()
        before = len(self.seeds) << (rounds - 1)
        x, new = self.take(rows % before, rounds - 1), rows >= before
        if bool(new.any()):
            x, at = x.clone(), x[new]
            x[new] = (at + self.reach * self.steps[rounds - 1].of(rows[new] - before, at)).clamp_(*self.bounds)
        return x


def _labels(victim: Model, x: _Points, which: range, batch: int, answers: bool) -> Tensor:
    """All that the victim gives away: n, or with `answers` n *o."""
    rows = torch.arange(which.start, which.stop, device=x.device)
    with torch.no_grad():
        told = [victim(x.take(part)) for part in _parts(rows, batch)]
        return torch.cat([out.float() if answers else out.argmax(1) for out in told])


def _directions(substitute: nn.Module, x: _Points, labels: Tensor, batch: int, answers: bool) -> _Signs:
    """sign(grad F_label) of every point, or where F gives answers sign(grad |F|^2 / 2)."""
    parts = []
    for rows, label in zip(_parts(torch.arange(len(x), device=x.device), batch), _parts(labels, batch), strict=True):
        at = x.take(rows).requires_grad_()
        out = substitute(at)
        pull = out.square().sum() / 2 if answers else own(out.log_softmax(1), label).sum()
        (g,) = torch.autograd.grad(pull, at)
        flat = g.flatten(1).cpu().numpy()
        parts.append(_Signs(np.packbits(flat > 0, axis=1), np.packbits(flat < 0, axis=1)))
    return _Signs(*(np.concatenate(bits) for bits in zip(*parts, strict=True)))


def _parts(rows: Tensor, batch: int) -> tuple[Tensor, ...]:
    """Batches whose sizes differ by at most one: a rest of a single input would upset a batch normalisation."""
    return rows.tensor_split(-(-len(rows) // batch))
