r"""How often a random model is wrong at a point, by answers that no search has seen.

A model that rolls dice has no answer at x but a chance. With f_e one pass and m passes (`draws`) to an answer,

    answer    a = argmax_c sum_{j <= m} softmax f_{e_j}(x)_c
    chance    q(x) = P( a is not the label )

and of r fresh answers with h wrong ones follow, the points being chosen before any of these answers was drawn:

    one try against a fresh answer       q^ = h / r, with its Clopper-Pearson interval
    an attacker who may ask k times      P(some answer is wrong) = 1 - (1 - q)^k, without bias 1 - C(r - h, k) / C(r, k)
    accuracy                             the mean over inputs of 1 - q^

The protocol of every attack and probe here: gradients are means over m draws (attacked.py); an input leaves an attack
only when SURE fresh answers in a row are wrong, since a lucky one says nothing; between two points the one that more
of TALLY fresh answers call wrong is kept; and what is counted is q^ at the point kept, on answers drawn afterwards.
Nothing is selected by the draws that count it, so an input whose chance is near 1/2 counts as one half, and not as
broken on the days when luck says so. A point is called broken where more than half of the answers are wrong.

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

SURE = 8  # wrong answers in a row before an input leaves: at q = 1/2 luck does that once in 256 times
TALLY = 8  # fresh answers with which a search compares two points
FEWEST, MOST, PASSES = 16, 64, 256  # fresh answers that count a point; passes that pay for them
ASKED = 10  # times that the attacker who may try again asks

Model = Callable[[Tensor], Tensor]  # n *d -> n c: the logits of one pass; for an Aim n *o
Counts = NDArray[np.int64]


class Chance(NamedTuple):
    """What fresh answers said of each point."""

    wrong: Tensor  # n: how many of the answers were wrong
    said: Tensor  # n: the class that all passes together give; where most answers are wrong, the likeliest wrong one;
    # of an Aim 1 where the answer is good enough, else 0
    by_size: Tensor  # n s: how many were wrong of answers that are means over 1, 2, 4, ... passes
    sick: Tensor  # n bool: some pass was NaN, which is no right answer


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
    where its margin is 0 or below, and a mean over draws is that of the softmax of what it reads (aim.py).
    """
    r = answers(draws) if count is None else count
    if draws < 1 or r < 1:
        raise AssayError(f"chance needs draws >= 1 and count >= 1; got {draws=}, {count=}.")
    widths = sizes(draws) if count is None else ()
    aim, y = y, label_of(y)
    wrong, by_size = torch.zeros_like(y), y.new_zeros(len(y), len(widths))
    total, sums, done = torch.zeros((), device=y.device), [torch.zeros((), device=y.device)] * len(widths), 0
    for _ in range(r):
        each = torch.stack([_logits(model(x), aim) for _ in range(draws)])  # m n c
        each = each.softmax(-1) if draws > 1 else each  # one output is its own answer, ties and all
        mean = each.mean(0)
        total = total + mean
        wrong += _not(mean, y)
        for p in each if widths else ():
            done += 1
            for s, w in enumerate(widths):
                sums[s] = sums[s] + p
                if done % w == 0:
                    by_size[:, s] += _not(sums[s], y)
                    sums[s] = torch.zeros_like(p)
    sick = total.isnan().any(1)
    said = total.nan_to_num(0.0).argmax(1)
    likeliest = total.nan_to_num(0.0).scatter(1, y[:, None], -torch.inf).argmax(1)
    return Chance(wrong, torch.where(2 * wrong > r, likeliest, said), by_size, sick)


def chance_of(one: Model, whole: Model, x: Tensor, y: Truth, *, draws: int) -> Chance:
    """The same of a subject, which gives `one` pass or a `whole` answer: n *d, n -> Chance.

    A whole answer of a random model to an Aim is what its task makes of the passes (numbers are averaged, say), which
    `draws` single margins do not tell; there is no curve over draws then.
    """
    if isinstance(y, Aim):
        return chance(whole, x, y, draws=1, count=answers(draws))
    return chance(one, x, y, draws=draws)


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


def confirmed(wrong: Tensor, count: int) -> Tensor:
    """Whether a point breaks its input beyond luck: the interval of its chance lies above 1/2: n -> n bool.

    Of one answer of a model that is not random, whether it is wrong.
    """
    if count == 1:
        return wrong > 0
    return torch.as_tensor(interval(wrong.cpu().numpy(), count)[0] > 0.5, device=wrong.device)
