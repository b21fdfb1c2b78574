r"""How often a random model is wrong at a point, by answers that no search has seen.

A model that rolls dice has no answer at x but a chance. With f_e one pass and m passes (`draws`) to an answer,

    answer    a = argmax_c sum_{j <= m} softmax f_{e_j}(x)_c
    chance    q(x) = P( a is not the label )

and of r fresh answers with h wrong ones follow, the points being chosen before any of these answers was drawn:

    one try against a fresh answer       q^ = h / r, with its Clopper-Pearson interval
    an attacker who may ask k times      P(some answer is wrong) = 1 - (1 - q)^k, without bias 1 - C(r - h, k) / C(r, k)
    accuracy                             the mean over inputs of 1 - q^

The protocol of every attack and probe here: gradients are means over m draws, or over `climb` of them where many steps
follow (attacked.py); an input leaves an attack only when SURE fresh answers in a row are wrong, since a lucky one says
nothing; between two points the one that more of TALLY fresh answers call wrong is kept; and what is counted is q^ at
the point kept, on answers drawn afterwards.
Nothing is selected by the draws that count it, so an input whose chance is near 1/2 counts as one half, and not as
broken on the days when luck says so. A point is called broken where more than half of the answers are wrong.

Every probe of an attack states both threats (`threats`): how often a point holds in one fresh answer, and in all of the
k = ASKED that an attacker may ask for. Where the size of a change is measured, the second threat has a smaller one: a
point where whoever asks k times meets a wrong answer more often than not, q > 1 - 2^(-1/k), on the way from the input
to the point that was found (`nearer`).

For a model that is not random, m = 1, and one answer says it all.

Sources: Athalye et al., ICML 2018, arXiv:1802.00420, sec. 4.2 and 5.3 (randomised defences want the expectation);
    Clopper & Pearson, Biometrika 1934; the unbiased estimate of (1 - q)^k: Hoeffding, Ann. Math. Stat. 1948.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.aim import Aim, Truth, label_of
from assay.methods.attack.ball import wide
from assay.nn.members import passes

SURE = 8  # wrong answers in a row before an input leaves: at q = 1/2 luck does that once in 256 times
TALLY = 8  # fresh answers with which a search compares two points
FEWEST, MOST, PASSES = 16, 64, 256  # fresh answers that count a point; passes that pay for them
ASKED = 10  # times that the attacker who may try again asks
HALVINGS = 5  # of the way to a point that is broken

Model = Callable[[Tensor], Tensor]  # n *d -> n c: the logits of one pass; for an Aim n *o
Counts = NDArray[np.int64]


class Chance(NamedTuple):
    """What fresh answers said of each point."""

    wrong: Tensor  # n: how many of the answers were wrong
    said: Tensor  # n: the class that all passes together give; where most answers are wrong, the likeliest wrong one;
    # of an Aim 1 where the answer is good enough, else 0
    by_size: Tensor  # n s: how many were wrong of answers that are means over 1, 2, 4, ... passes
    sick: Tensor  # n bool: some pass was NaN, which is no right answer


class Threat(NamedTuple):
    """An attacker of a random model, and how its inputs fare."""

    asked: int
    right: NDArray[np.float64]  # n: the chance that each answer that it gets is right
    name: str  # what a measure of it adds to its name
    times: str  # in words: right ... , wrong ...


def answers(draws: int) -> int:
    """How many fresh answers count a point: one says it all where nothing is random."""
    return 1 if draws == 1 else max(FEWEST, min(MOST, PASSES // draws))


def sizes(draws: int) -> tuple[int, ...]:
    """How many passes go to an answer in the curve over draws, with at least eight answers of each: 1, 2, 4, ...

    Of size s there are draws * answers(draws) // s.
    """
    total = draws * answers(draws)
    return tuple(2**k for k in range(total.bit_length()) if 2**k * 8 <= total) if draws > 1 else ()


@torch.no_grad()
def chance(model: Model, x: Tensor, y: Truth, *, draws: int, count: int | None = None) -> Chance:
    """Ask afresh at every point: n *d, n -> Chance of `count` answers, `answers(draws)` of them unless told.

    `model` gives one pass. Where nothing is random one of them is all that is asked for. An answer to an Aim is wrong
    where its margin is 0 or below, and of several draws the Aim says what their answer is (aim.py).
    """
    r = answers(draws) if count is None else count
    if draws < 1 or r < 1:
        raise AssayError(f"chance needs draws >= 1 and count >= 1; got {draws=}, {count=}.")
    aim, y = y, label_of(y)
    average = aim.average if isinstance(aim, Aim) and draws > 1 else None
    widths = sizes(draws) if count is None else ()
    wrong, by_size = torch.zeros_like(y), y.new_zeros(len(y), len(widths))
    total, sums, done = torch.zeros((), device=y.device), [torch.zeros((), device=y.device)] * len(widths), 0
    held: list[list[Tensor]] = [[] for _ in widths]
    for _ in range(r):
        outs = list(passes(model, x, draws))
        each = torch.stack([_logits(out, aim) for out in outs])  # m n c
        each = each.softmax(-1) if draws > 1 else each  # one output is its own answer, ties and all
        mean = each.mean(0) if average is None else _logits(average(torch.stack(outs)), aim).softmax(-1)
        total = total + mean
        wrong += _not(mean, y)
        for out, p in zip(outs, each, strict=True) if widths else ():
            done += 1
            for s, w in enumerate(widths):
                if average is not None:
                    held[s].append(out)
                    if done % w == 0:
                        by_size[:, s] += _not(_logits(average(torch.stack(held[s])), aim), y)
                        held[s] = []
                    continue
                sums[s] = sums[s] + p
                if done % w == 0:
                    by_size[:, s] += _not(sums[s], y)
                    sums[s] = torch.zeros_like(p)
    sick = total.isnan().any(1)
    said = total.nan_to_num(0.0).argmax(1)
    likeliest = total.nan_to_num(0.0).scatter(1, y[:, None], -torch.inf).argmax(1)
    return Chance(wrong, torch.where(2 * wrong > r, likeliest, said), by_size, sick)


def _logits(out: Tensor, y: Truth) -> Tensor:  # n *o -> n c
    return y.read(out) if isinstance(y, Aim) else out


def _not(p: Tensor, y: Tensor) -> Tensor:
    """Whether an answer is not the label; NaN is no answer: *g n c, n -> *g n."""
    return (p.argmax(-1) != y) | p.isnan().any(-1)


def interval(wrong: Counts, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The Clopper-Pearson interval of each chance, which holds it 95 times of 100 or more: n -> n, n."""
    h = np.asarray(wrong, dtype=np.float64)
    low = np.where(h > 0, betaincinv(np.maximum(h, 1), count - h + 1, 0.025), 0.0)
    high = np.where(h < count, betaincinv(h + 1, np.maximum(count - h, 1), 0.975), 1.0)
    return low, high


def right_every_time(wrong: Counts, count: int, asked: int) -> NDArray[np.float64]:
    """(1 - q)^k, the chance that k answers are all right, without bias: n -> n."""
    if not 1 <= asked <= count:
        raise AssayError(f"{asked} questions cannot be judged on {count} answers; ask between 1 and {count} times.")
    right = count - np.asarray(wrong, dtype=np.float64)
    k = np.arange(asked)
    return np.asarray(np.prod(np.clip(right[:, None] - k, 0, None) / (count - k), axis=1))


def threats(wrong: Counts, count: int) -> tuple[Threat, Threat]:
    """Both threats, from how many of `count` fresh answers were wrong at each point: n."""
    return (
        Threat(1, right_every_time(wrong, count, 1), "", "in one fresh answer"),
        Threat(
            ASKED,
            right_every_time(wrong, count, ASKED),
            f", asked {ASKED} times",
            f"in {ASKED} fresh answers: whoever may try again needs only one that is wrong",
        ),
    )


def mostly(wrong: Tensor, count: int, asked: int) -> Tensor:
    """Whether one who asks `asked` times meets a wrong answer more often than not: n -> n bool."""
    held = right_every_time(wrong.cpu().numpy(), count, asked)
    return torch.as_tensor(held < 0.5, device=wrong.device)


@torch.no_grad()
def nearer(model: Model, x: Tensor, far: Tensor, y: Truth, *, draws: int, asked: int) -> tuple[Tensor, Tensor]:
    """From `far` back to x, as near as one who asks `asked` times still wins: n *d, n *d, n -> n *d, n bool.

    Halving keeps a point only where such an attacker wins three times of four, so that luck does not lead it to x; what
    it comes to is judged on MOST fresh answers, where these refute it so is the point halfway to `far`, and then `far`
    itself. The bool says whether the point that is returned was confirmed.
    """
    near, out = torch.zeros(len(x), device=x.device), torch.ones(len(x), device=x.device)

    def at(share: Tensor) -> Tensor:
        return torch.where(wide(share < 1, x), torch.lerp(x, far, wide(share, x).to(x)), far)

    for _ in range(HALVINGS):
        middle = (near + out) / 2
        hits = chance(model, at(middle), y, draws=draws, count=FEWEST).wrong
        won = torch.as_tensor(right_every_time(hits.cpu().numpy(), FEWEST, asked) < 0.25, device=x.device)
        near, out = torch.where(won, near, middle), torch.where(won, middle, out)
    held = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for back in (0.0, 0.5, 1.0):
        out = torch.where(held, out, out + back * (1 - out))
        held |= mostly(chance(model, at(out), y, draws=draws, count=MOST).wrong, MOST, asked)
    return at(out), held


def confirmed(wrong: Tensor, count: int) -> Tensor:
    """Whether a point breaks its input beyond luck: the interval of its chance lies above 1/2: n -> n bool.

    Of one answer of a model that is not random, whether it is wrong.
    """
    if count == 1:
        return wrong > 0
    return torch.as_tensor(interval(wrong.cpu().numpy(), count)[0] > 0.5, device=wrong.device)
