r"""Is a robust accuracy real? Attacks that ought to agree run side by side; where they do not, the lower one counts.

An attack that fails may fail for bad reasons: a gradient that rounds to 0, a loss that points away from the boundary, a
model that rolls dice. Each of these leaves a sign, a pair of numbers in the wrong order:

    usual > margin          the model's own cross-entropy misleads: huge logits, a softmax inside, a flat tail
    steps > more steps      more steps must not help the model, and in the end must not change the number
    one start > restarts    the surface is rough
    seeing > blind          Square asks for no gradient, a substitute's gradients are another's, the step between class
                            means is fixed in advance: none of them may break what the attacks that see leave standing
    any size > 0            with the whole box to move in, everything must break; of an Aim, whatever some other input
                            of the batch breaks, for the change may lead there

`examine` runs the attacks, `read` finds the signs, `vital_signs` are those that a few passes show. Where a sign says
that gradients mislead, `go_through` follows others (through.py), and what breaks counts as any other attack does.

Sources: Wang, TU Delft 2024 (dissertation), sec. 5.4.2 and Table 5.2 (steps, white, black and average-sample side by
    side); Athalye, Carlini & Wagner, ICML 2018, arXiv:1802.00420, sec. 3 (the signs); Carlini et al., arXiv:1902.06705.
Of a random model each number is the mean chance of a right answer on fresh draws (chance.py). Two of them differ only
beyond the noise of these draws, and an input falls to an attack only if it breaks most answers and so many more than
any before that luck does not explain it: an honest noisy model has nothing to hide.

Departs from print: an attack that is free to do more is run on what another one left, so that "beats" is counted input
    by input; the margin attack is added, because it removes most of what the others would call robustness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.methods.attack.aim import Aim, Truth
from assay.methods.attack.apgd import apgd
from assay.methods.attack.as_printed import pgd_as_printed
from assay.methods.attack.attacked import Model, Slope, sparing
from assay.methods.attack.average_sample import average_sample
from assay.methods.attack.cells import masked
from assay.methods.attack.chance import answers, chance
from assay.methods.attack.loss import Goal, LossName
from assay.methods.attack.pgd import pgd
from assay.methods.attack.square import square
from assay.methods.attack.through import THROUGH, Way

if TYPE_CHECKING:
    from assay.inputs.reach import Reach

GAP = 0.02  # two accuracies closer than this are taken as equal
MORE, RESTARTS, DRAWS = 5, 3, 16  # times the steps; starts; passes of a model that turns out to be random
NOISE = 3.0  # standard errors of fresh draws that two numbers of a random model may differ by
STILL = 1e-4  # of the spread of the logits: answers closer than this are the same up to rounding
NEXT = 16  # inputs of the batch that each could be changed into
TINY = 1e-5  # of the range of the inputs: far below any budget, far above float32's rounding
LARGE = 0.1  # of the range, which a model that is not still answers
ULPS = 2.0  # units in the last place that rounding leaves in a difference
LEADS = 2.0  # times that is what a slope must make of a tiny change, if its absence is to tell anything

ATTACKS = (
    "none", "usual", "1 step", "few steps", "margin", "more steps", "restarts", "square", "average-sample", "transfer",
    *THROUGH,
)  # fmt: skip
"""In the order in which they are run; what `Examined.by` counts in."""
BLIND = {
    "square": "Square, which sees no gradients,",
    "average-sample": "One step between class means, fixed in advance,",
    "transfer": "A change made against a substitute",
}
VITAL = {
    "dice": (
        "Two passes over the same input differ for {}: the model is random although draws=1 says otherwise; its "
        f"answers here are means of {DRAWS} passes. Give draws=, or find the layer that ignores eval mode.",
        True,
    ),
    "company": (
        "For {} the answer depends on the other inputs of the batch: a layer uses batch statistics in eval mode, and "
        "an attack on one batch says little about another.",
        True,
    ),
    "stairs": (
        "No change of the inputs below 1e-5 of their range shows: the model rounds them or its answer saturates, and "
        "gradients are 0 or made up. Only attacks without gradients are to be believed here.",
        True,
    ),
    "saturated": (
        "The gradient of the plain cross-entropy is exactly 0 for {}, so attacks that use it stand still; those here "
        "use scale-free losses.",
        False,
    ),
    "flat": ("The gradient of the margin is exactly 0 for {}: an attack that sees gradients sees nothing there.", True),
    "standardised": (
        "The inputs have mean 0 and spread 1, so they seem to be normalised before the model: a radius counts in "
        "standard deviations and not in pixel values. Give natural inputs, and --mean and --std.",
        True,
    ),
}
"""What each vital sign says, with the share of inputs that show it, and whether it stays open."""
MISLED = frozenset(
    ("dice", "stairs", "flat", "steps", "restarts", "any size", *(f"{name} beats gradients" for name in BLIND))
)
"""Signs that gradients mislead, so that others are to be followed."""
MANY = 0.05  # of the inputs: from here on a flat gradient is a sign


class Sign(NamedTuple):
    """Two numbers that should agree. `open` says that no cure settled the matter, so that no pass can rest on it."""

    name: str
    says: str
    expected: float
    seen: float
    open: bool


def vital_signs(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    random: bool = False,
    reach: Reach | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> dict[str, Tensor]:
    """What a few passes show of each input: n *d, n -> n bool each. `random`: the model is known to roll dice.

    dice            two passes over the same input differ
    company         the answer depends on the other inputs of the batch, as with batch statistics in use
    stairs          no change below 1e-5 of the range shows, a larger one does: inputs are rounded inside the model,
                    and not because they are whole numbers, or the answer saturates. Nothing shows where the answer is
                    the same to the bit, or moves by no more than ULPS units in the last place of scores and inputs
                    make it, while a model as steep as the larger change shows it would move by LEADS times that
    saturated       the gradient of the plain float32 cross-entropy is exactly 0
    flat            the gradient of the margin is exactly 0
    standardised    inputs with mean about 0 and spread about 1, on both sides of 0: normalised before the model

    Class scores are compared less their mean: what is added to all of them alike changes no answer.
    Where the truth is an Aim the outputs themselves are compared, against their spread over all inputs: a margin
    that counts stands still where the model does not.
    """
    x, n = x.detach(), len(x)

    def said(at: Tensor) -> Tensor:
        return model(at).reshape(len(at), -1) if isinstance(y, Aim) else model(at)

    def size(change: Tensor) -> Tensor:  # n o -> n
        return (change if isinstance(y, Aim) else change - change.mean(1, keepdim=True)).abs().amax(1)

    with torch.no_grad():
        first = said(x)
        spread = (first.std(correction=0) if isinstance(y, Aim) else first.std(1)).clamp_min(1e-30)  # n, or one for all

        def moved(other: Tensor) -> Tensor:
            return size(other - first) > STILL * spread

        dice = moved(said(x))
        alone = torch.cat([said(part) for part in x.tensor_split(1 if n < 4 else 2)])  # statistics of one row fail
        # alternating signs: the same for everyone, and no generator is needed
        push = (torch.arange(x[0].numel(), device=x.device) % 2 * 2 - 1).reshape(x.shape[1:]).to(x)
        push = push if reach is None else push * (reach.step == 0)
        span = bounds[1] - bounds[0]
        far = said((x + LARGE * span * push).clamp(*bounds))
        slope = size(far - first) / LARGE  # n, for the whole range
        noise = ULPS * torch.finfo(first.dtype).eps * (first.abs().amax(1) + slope)  # of scores, and of inputs
        tells = TINY * slope > LEADS * noise

        def stays(other: Tensor) -> Tensor:
            return (other == first).all(1) | (tells & (size(other - first) <= noise))

        same = stays(said((x + TINY * span * push).clamp(*bounds)))
        steps = same & moved(far)
        if bool(steps.any()):
            # two inputs that are compared were pushed alike, which their difference need not show: push them apart too
            drawn = torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(0))
            apart = (2 * drawn - 1).to(x)
            steps &= stays(said((x + TINY * span * apart).clamp(*bounds)))
    wobbles = bool(dice.any()) or random
    centred = x.mean().abs() < 0.5 and 0.5 < x.std() < 2 and bool(x.min() < -0.5) and bool(x.max() > 0.5)
    return {
        "dice": torch.zeros_like(dice) if random else dice,
        "company": torch.zeros_like(dice) if wobbles else moved(alone),
        "stairs": torch.zeros_like(dice) if wobbles else steps,
        "saturated": _still(model, x, Goal(y, None, "ce", as_published=True)),
        "flat": _still(model, x, Goal(y, None, "margin")),
        "standardised": torch.full_like(dice, bool(centred)),
    }


def _still(model: Model, x: Tensor, goal: Goal) -> Tensor:
    """Where the gradient with respect to the input is 0 in every feature: n *d -> n bool."""
    return (Slope(model, goal).at(x).gradient == 0).flatten(1).all(1)


class Examined(NamedTuple):
    """What came of each input. `columns`: the vital signs, and `held <attack>` for each attack that met all inputs."""

    right: Tensor  # n bool, before anyone touched it; of a random model, in most answers
    by: Tensor  # n: the attack that broke it first, an index into ATTACKS; 0 was wrong before, -1 holds
    worst: Tensor  # n *d, the point that broke it; of a random model, the worst one
    any_size: Tensor  # n bool: holds although the whole box is open
    columns: dict[str, Tensor]  # n bool each; `held` ones of a random model are chances
    held: Tensor  # n: right at the worst point; of a random model, the chance of it on answers drawn afterwards
    via: Tensor  # n: the attack that made the worst point, an index into ATTACKS; 0 where it is the input itself
    sick: Tensor  # n bool: NaN stopped an attack on it
    said: Tensor  # n: the answer at the worst point
    wrong: Tensor  # n: the wrong answers by which the worst point was chosen


def examine(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    radius: float,
    steps: int = 20,
    queries: int = 200,
    means: Tensor | None = None,
    substitute: Model | None = None,
    draws: int = 1,
    ladder: Sequence[int] = (),
    eots: Sequence[int] = (),
    reach: Reach | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    rng: torch.Generator,
) -> Examined:
    """Run the attacks side by side in l_inf, n *d, n -> Examined.

    "usual" is what libraries run: PGD on the model's own cross-entropy, last point. `means` are the class means for the
    average-sample attack, `substitute` a network that was taught the model's answers; without them those two are left
    out. A model that is found to roll dice is one of DRAWS draws from there on. `ladder` are more numbers of steps, and
    `eots` numbers of draws in a gradient, for which the margin attack is run on all inputs: does it level off?
    `reach` says what may change, where not everything may: points are what the attacks' come to there, and an input of
    which nothing may change need not break at any size.
    """
    x = x.detach()
    vitals = vital_signs(model, x, y, random=draws > 1, reach=reach, bounds=bounds)
    eot = DRAWS if bool(vitals["dice"].any()) else draws
    count = answers(eot)
    clean = chance(model, x, y, draws=eot)
    right, best, sick = 2 * clean.wrong <= count, clean.wrong.clone(), clean.sick
    by, via, worst = torch.where(right, -1, 0), torch.zeros_like(right, dtype=torch.long), x.clone()
    columns = {**vitals, "held none": _held(clean.wrong, count)}
    slack = 0.0 if count == 1 else NOISE * (count / 2) ** 0.5  # wrong answers of `count` that luck may add
    span = bounds[1] - bounds[0]

    def climb(
        rows: Tensor,
        loss: LossName = "margin",
        steps: int = steps,
        size: float = radius,
        restarts: int = 1,
        eot: int = eot,
    ) -> Tensor:
        return pgd(
            model, x[rows], y[rows], radius=size, steps=steps, loss=loss, restarts=restarts, eot=eot, bounds=bounds,
            random_start=steps > 1, as_published=loss == "ce", mask=masked(reach, rows), rng=rng,
        ).x  # fmt: skip

    def blind(rows: Tensor, size: float = radius) -> Tensor:
        return square(
            model, x[rows], y[rows], radius=size, queries=queries, mask=masked(reach, rows), eot=eot, bounds=bounds,
            rng=rng,
        ).x  # fmt: skip

    def longer(rows: Tensor) -> Tensor:
        return apgd(
            model, x[rows], y[rows], radius=radius, steps=MORE * steps, mask=masked(reach, rows), eot=eot,
            bounds=bounds, rng=rng,
        ).x  # fmt: skip

    def between_means(rows: Tensor) -> Tensor:
        assert means is not None
        return average_sample(
            model, x[rows], y[rows], means=means, radius=radius, mask=masked(reach, rows), eot=eot, bounds=bounds
        ).x

    def transferred(rows: Tensor) -> Tensor:
        assert substitute is not None
        return pgd(
            substitute, x[rows], y[rows], radius=radius, steps=steps, mask=masked(reach, rows), bounds=bounds,
            leave=False, rng=rng,
        ).x  # fmt: skip

    def judge(attack: Callable[[Tensor], Tensor], held: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """An attack on those that `held`: whom it met, its points, the wrong answers there: n -> k, k *d, k."""
        parts = list(sparing(attack, held.nonzero()[:, 0], sick))
        rows = torch.cat([part for part, _ in parts]) if parts else by[:0]
        found = torch.cat([at for _, at in parts]) if parts else x[:0]
        found = found if reach is None else reach.take(rows).settled(found, x[rows])
        return rows, found, chance(model, found, y[rows], draws=eot).wrong if parts else rows

    def trial(name: str, attack: Callable[[Tensor], Tensor], *, all_inputs: bool = False) -> None:
        rows, found, wrong = judge(attack, right if all_inputs else by == -1)
        if all_inputs:
            columns[f"held {name}"] = _held(clean.wrong.index_copy(0, rows, wrong), count)
        if name not in ATTACKS:
            return
        fell = (2 * wrong > count) & (wrong - best[rows] > slack) & (by[rows] == -1)
        by[rows[fell]] = ATTACKS.index(name)
        more = wrong > best[rows]
        worst[rows[more]], best[rows[more]], via[rows[more]] = found[more], wrong[more], ATTACKS.index(name)

    trial("usual", partial(climb, loss="ce"), all_inputs=True)
    trial("1 step", partial(climb, steps=1), all_inputs=True)
    trial("few steps", partial(climb, steps=max(2, steps // 4)), all_inputs=True)
    trial("margin", climb, all_inputs=True)
    for k in ladder:
        trial(f"{k} steps", partial(climb, steps=k), all_inputs=True)
    for k in eots:
        trial(f"{k} draws", partial(climb, eot=k), all_inputs=True)
    trial("more steps", longer)
    trial("restarts", partial(climb, restarts=RESTARTS))
    trial("square", blind)
    if means is not None:
        trial("average-sample", between_means, all_inputs=True)
    if substitute is not None:
        trial("transfer", transferred, all_inputs=True)
    any_size = (by == -1) & (True if reach is None else reach.movable())
    for attack in (partial(climb, steps=max(2, steps // 2), size=span), partial(blind, size=span)):
        rows, _, wrong = judge(attack, any_size)
        any_size = any_size.index_fill(0, rows[2 * wrong > count], False)
    if isinstance(y, Aim):
        any_size &= _elsewhere(model, x, y)
    last = chance(model, worst, y, draws=eot)
    return Examined(right, by, worst, any_size & ~sick, columns, _held(last.wrong, count), via, sick, last.said, best)


class Through(NamedTuple):
    """What became of each input on the ways through. `columns`: `held <way>` for each."""

    worst: Tensor  # n *d, the point that broke it, or the input
    wrong: Tensor  # n: the wrong answers by which that point was chosen
    held: Tensor  # n: right there; of a random model, the chance of it on answers drawn afterwards
    said: Tensor  # n: the answer there
    via: Tensor  # n: the way, an index into ATTACKS; 0 where it is the input itself
    columns: dict[str, Tensor]
    sick: Tensor  # n bool


def go_through(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    ways: Sequence[Way],
    radius: float,
    steps: int = 20,
    draws: int = 1,
    reach: Reach | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    rng: torch.Generator,
) -> Through:
    """Follow each way's gradients in l_inf from every input that is right, judged on the model: n *d, n -> Through.

    PGD on the margin, and where the way's answers are the model's own, APGD with twice the steps on what that leaves.
    Of a random model the attack as print has it is run beside (as_printed.py): column "held as printed".
    """
    x = x.detach()
    count = answers(draws)
    clean = chance(model, x, y, draws=draws)
    right, sick = 2 * clean.wrong <= count, clean.sick.clone()
    best, via, worst = clean.wrong.clone(), torch.zeros_like(clean.wrong), x.clone()
    columns = {}

    def keep(name: str, attack: Callable[[Tensor], Tensor], among: Tensor, alone: Tensor) -> None:
        for rows, found in sparing(attack, among.nonzero()[:, 0], sick):
            at = found if reach is None else reach.take(rows).settled(found, x[rows])
            wrong = chance(model, at, y[rows], draws=draws).wrong
            alone[rows] = torch.maximum(alone[rows], wrong)
            more = wrong > best[rows]
            there = rows[more]
            if name in ATTACKS:
                worst[there], best[there], via[there] = at[more], wrong[more], ATTACKS.index(name)

    for way in ways:
        alone = clean.wrong.clone()  # n: wrong answers at the worst point of this way

        def climb(rows: Tensor, way: Way = way) -> Tensor:
            return pgd(
                way.model, x[rows], y[rows], radius=radius, steps=steps, loss="margin", eot=way.draws, bounds=bounds,
                leave=way.own, mask=masked(reach, rows), rng=rng,
            ).x  # fmt: skip

        def longer(rows: Tensor, way: Way = way) -> Tensor:
            return apgd(
                way.model, x[rows], y[rows], radius=radius, steps=2 * steps, eot=way.draws, bounds=bounds,
                mask=masked(reach, rows), rng=rng,
            ).x  # fmt: skip

        keep(way.name, climb, right, alone)
        if way.own and draws == 1:
            keep(way.name, longer, right & (alone == 0), alone)
        columns[f"held {way.name}"] = _held(alone, count)
    if draws > 1:
        alone = clean.wrong.clone()

        def printed(rows: Tensor) -> Tensor:
            return pgd_as_printed(model, x[rows], y[rows], radius=radius)

        keep("as printed", printed, right, alone)
        columns["held as printed"] = _held(alone, count)
    last = chance(model, worst, y, draws=draws)
    return Through(worst, best, _held(last.wrong, count), last.said, via, columns, sick)


@torch.no_grad()
def _elsewhere(model: Model, x: Tensor, y: Aim) -> Tensor:
    """Whether the answer to one of the next inputs of the batch would not do for each: n *d -> n bool."""
    out, found = model(x), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for k in range(1, min(len(x), NEXT + 1)):
        found |= y.read(out.roll(k, 0)).argmax(1) == 0
    return found


def _held(wrong: Tensor, count: int) -> Tensor:
    """The chance of a right answer; of one answer, whether it is: n -> n."""
    return wrong == 0 if count == 1 else 1 - wrong.double() / count


def read(
    by: NDArray[np.int64],
    any_size: NDArray[np.bool_],
    columns: Mapping[str, NDArray[Any]],
    *,
    steps: int,
    draws: int = 1,
    classes: bool = True,
    limited: bool = False,
) -> tuple[Sign, ...]:
    """The signs in what `examine` found of all inputs: n, n, n each -> signs, none where everything agrees.

    `classes` says whether the truth was labels, and `limited` whether only some values may change: matters of words.
    """

    def held(name: str) -> float:
        return float(columns[f"held {name}"].mean())

    def differ(high: str, low: str) -> bool:
        """Whether one number lies above another by more than GAP and, of a random model, than its draws vary."""
        chances = [columns[f"held {name}"].astype(np.float64) for name in (high, low)]
        spread = sum(float((c * (1 - c)).sum()) / answers(draws) for c in chances) ** 0.5 / len(by)
        return bool(held(high) - held(low) > GAP + NOISE * spread)

    def gain(name: str) -> float:
        """What an attack broke of what all before it had left standing."""
        return float((by == ATTACKS.index(name)).mean())

    def left(name: str) -> float:
        """The accuracy after this attack and all before it."""
        return float(((by == -1) | (by > ATTACKS.index(name))).mean())

    def percent(value: float) -> str:
        return f"{100 * value:.1f} %"

    signs = read_vitals(columns)

    def sign(name: str, says: str, *, expected: float, seen: float, open_: bool) -> None:
        signs.append(Sign(name, says, expected, seen, open_))

    usual, margin = held("usual"), held("margin")
    if differ("usual", "margin"):
        says = (
            f"PGD on the model's own cross-entropy, as libraries run it, leaves {percent(usual)} right; on the margin "
            f"of the logits {percent(margin)}. The lower one is kept."
            if classes
            else f"PGD on the cross-entropy of good against bad leaves {percent(usual)} right; on the margin itself "
            f"{percent(margin)}. The lower one is kept."
        )
        sign("loss", says, expected=margin, seen=usual, open_=False)
    ladder = [("1 step", 1), ("few steps", max(2, steps // 4)), ("margin", steps)]
    for (short, a), (long, b) in pairwise(ladder):
        if differ(long, short):
            says = (
                f"More steps make the attack weaker: {percent(held(short))} right after {a}, {percent(held(long))} "
                f"after {b}."
            )
            sign("steps", says, expected=held(short), seen=held(long), open_=True)
    for name, how in (("more steps", f"{MORE} times the steps"), ("restarts", f"{RESTARTS} random starts")):
        if gain(name) > GAP:
            before, level = left(name) + gain(name), name == "more steps" and gain("restarts") == 0
            says = (
                f"The attack had not levelled off: {how} take the accuracy from {percent(before)} to "
                f"{percent(left(name))}; " + ("new starts find no more." if level else "still more might take more.")
            )
            sign(name, says, expected=left(name), seen=before, open_=not level)
    for name, who in BLIND.items():
        if f"held {name}" in columns and differ("usual", name):
            says = (
                f"{who} leaves {percent(held(name))} right, the usual attack, which sees gradients, {percent(usual)}: "
                "the loss leads that one astray."
            )
            sign(name, says, expected=held(name), seen=usual, open_=False)
        if gain(name) > GAP:
            says = (
                f"{who} breaks {percent(gain(name))} of the inputs that hold against every attack that sees gradients; "
                "the gradients may be masked."
            )
            sign(f"{name} beats gradients", says, expected=0.0, seen=gain(name), open_=True)
    if any_size.any():
        free = float(any_size.mean())
        says = (
            f"{percent(free)} stay right although the attack may change every value that can change by any size; what "
            "cannot may hold them, or the attacks are blind to something."
            if limited
            else f"{percent(free)} stay right although the attack may change every value at will, where nothing can"
            + ("" if classes else " whose answer another input would spoil")
            + "; the attacks are blind to something."
        )
        sign("any size", says, expected=0.0, seen=free, open_=True)
    return tuple(signs)


def read_vitals(columns: Mapping[str, NDArray[Any]]) -> list[Sign]:
    """The signs among the vital ones: n each -> signs."""
    found = []
    for name, (says, open_) in VITAL.items():
        seen = float(columns[name].mean())
        if seen > (0 if name in ("dice", "company") else MANY):
            found.append(Sign(name, says.format(f"{100 * seen:.0f} %"), 0.0, seen, open_))
    return found
