"""Li, Poon & Yang 2021: zeros padded early in runs of convolutions (RIAP), and answers at the border of a window."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Published
from assay.claims import _over_seeds as over
from assay.claims._elsewhere import RULE, elsewhere
from assay.data.whole import Whole
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = "Li, Poon & Yang, 'RIAP: A Method for Effective Receptive Field Rectification', ICANN 2021"
Arm = Literal["zero padding", "RIAP"]
ARMS: tuple[Arm, ...] = ("zero padding", "RIAP")
SEEDS, WIDTH, LEVELS = 5, 16, 3
WORLDS, TESTED = 1500, 300
EPOCHS, BATCH, LR = 40, 64, 3e-3
WINDOW = 32
STEP = 2  # pixels between the windows that are looked at
TOGETHER = 10  # windows of one offset whose Dice is averaged, as in print
EDGE, INSIDE = 2, 12  # pixels from the border of a window: up to here it is the border, from here on the middle
DEPTHS = (5, 10, 20, 40)  # of toy networks
LEARNT = 0.6  # Dice of either network, in every seed, below which nothing is concluded
Array = NDArray[np.float64]


def _worlds(count: int, seed: int, device: str) -> Whole:
    """Pictures of four scenes each, larger than a window, with the kind of each pixel."""
    from assay.data.scenes import make_scenes

    scenes = make_scenes(4 * count, np.random.default_rng(seed))
    x, kind = torch.from_numpy(scenes.x).float() / 255, torch.from_numpy(scenes.kind)
    rows = [torch.cat([part[i::4] for i in pair], -1) for part in (x[:, 0], kind) for pair in ((0, 1), (2, 3))]
    return Whole(torch.cat(rows[:2], 1)[:, None].to(device), torch.cat(rows[2:], 1).to(device))


@cache
def _data(device: str) -> dict[str, Whole]:
    return {"train": _worlds(WORLDS, 0, device), "test": _worlds(TESTED, 1, device)}


def _anywhere(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n 1 H W, n H W -> n 1 h w, n h w
    """A window at a random place of each world, so that things are cut wherever its border lies."""
    n, room = len(x), x.shape[-1] - WINDOW + 1
    down, right = torch.randint(room, (2, n, 1), generator=rng, device=x.device) + torch.arange(WINDOW, device=x.device)
    which = torch.arange(n, device=x.device)[:, None, None]
    return x[:, 0][which, down[..., None], right[:, None]][:, None], y[which, down[..., None], right[:, None]]


@cache  # both studies are about the same networks
def _trained(arm: Arm, seed: int, device: str) -> nn.Module:
    from assay.data.scenes import KINDS
    from assay.methods.train.fit import fit
    from assay.nn.riap import with_riap
    from assay.nn.unet import UNet

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net: nn.Module = UNet(1, 1 + len(KINDS), width=WIDTH, levels=LEVELS)
    if arm == "RIAP":
        net = with_riap(net)
    fit(
        net, _data(device)["train"], epochs=EPOCHS, lr=LR, batch=BATCH, optimiser="adam", augment=_anywhere,
        loss=F.cross_entropy, rng=torch.Generator(device).manual_seed(seed), device=device,
    )  # fmt: skip
    return net.eval().requires_grad_(False)


class _Seen(NamedTuple):
    """Of each test world, as the window moves along it."""

    dice: Array  # n offsets
    border: Array  # n: share of the things' pixels in the middle columns that are right while these lie at the border
    inside: Array  # n: and while the same columns lie in the middle of the window
    drawn: NDArray[np.bool_]  # n: whether there are such pixels


@cache
def _seen(arm: Arm, seed: int, device: str) -> _Seen:
    return _moved_along(_trained(arm, seed, device), _data(device)["test"])


@torch.no_grad()
def _moved_along(net: nn.Module, test: Whole) -> _Seen:
    room = test.x.shape[-1] - WINDOW
    top = room // 2
    middle = slice(test.x.shape[-1] // 2 - 2, test.x.shape[-1] // 2 + 2)  # in the world: seen from border to border
    dice, sums = [], torch.zeros(4, len(test), device=test.x.device)
    for right in range(0, room + 1):
        x, y = (part[..., top : top + WINDOW, right : right + WINDOW] for part in (test.x, test.y))
        said = torch.cat([net(some).argmax(1) for some in torch.split(x, 500)])
        hit = (said == y) & (y > 0)
        if right % STEP == 0:
            dice.append((2 * hit.sum((1, 2)) + 1) / ((said > 0).sum((1, 2)) + (y > 0).sum((1, 2)) + 1))
        for column in range(middle.start, middle.stop):
            at = column - right
            if not 0 <= at < WINDOW:
                continue
            away = min(at, WINDOW - 1 - at)
            if away < EDGE or away >= INSIDE:
                place = 0 if away < EDGE else 2
                sums[place] += hit[..., at].sum(1)
                sums[place + 1] += (y[..., at] > 0).sum(1)
    right_at, all_at, right_in, all_in = sums.double().cpu().numpy()
    there = (all_at > 0) & (all_in > 0)
    return _Seen(
        torch.stack(dice, 1).double().cpu().numpy(),
        right_at / all_at.clip(1),
        right_in / all_in.clip(1),
        there,
    )


def _all(run: Run) -> dict[Arm, list[_Seen]]:
    with run.progress("training small U-Nets", len(ARMS) * SEEDS) as tick:
        seen: dict[Arm, list[_Seen]] = {arm: [] for arm in ARMS}
        for arm in ARMS:
            for seed in range(run.seed, run.seed + SEEDS):
                seen[arm].append(_seen(arm, seed, run.device))
                tick(1)
    return seen


def _unsteady(seen: _Seen) -> Array:
    """The standard deviation over the offsets of the mean Dice of ten windows, for each ten."""
    whole = len(seen.dice) // TOGETHER * TOGETHER
    tens: Array = seen.dice[:whole].reshape(-1, TOGETHER, seen.dice.shape[1]).mean(1).std(1)
    return tens


def _gate(seen: dict[Arm, list[_Seen]], arm: Arm) -> Gate:
    """Print's Dice, of kidneys, is 88 and 89 %: no number that scenes could be near."""
    return over.gate(f"The Dice with {arm}", [s.dice for s in seen[arm]], None, LEARNT)


def steadier(run: Run) -> Evidence:
    seen = _all(run)
    pairs = list(zip(seen["zero padding"], seen["RIAP"], strict=True))
    printed = over.mean(
        "spread of the Dice over offsets, zero padding less RIAP",
        [(_unsteady(z) - _unsteady(r))[None] for z, r in pairs],
    )
    lost = {
        arm: over.mean(
            f"accuracy of the same pixels of things in the middle less at the border, {arm}",
            [(s.inside - s.border)[None, s.drawn] for s in seen[arm]],
            "%",
        )
        for arm in ARMS
    }
    same = over.mean(
        "what the same pixels lose at the border, zero padding less RIAP",
        [((z.inside - z.border) - (r.inside - r.border))[None, z.drawn] for z, r in pairs],
        "%",
    )
    spread = {arm: float(np.mean([_unsteady(s).mean() for s in seen[arm]])) for arm in ARMS}
    return elsewhere(
        over.above(0.0, printed, same),
        says="As a window moves, the mean Dice of ten of them has a standard deviation of "
        f"{spread['zero padding']:.4f} with zero padding and {spread['RIAP']:.4f} with RIAP. The same pixels of things "
        f"lose {100 * (lost['zero padding'].measure.value or 0):.2f} and "
        f"{100 * (lost['RIAP'].measure.value or 0):.2f} points of accuracy at the border of the window.",
        measures=(printed.measure, same.measure, *(gap.measure for gap in lost.values())),
        gates=[_gate(seen, arm) for arm in ARMS],
        seeds=SEEDS,
    )


def dice(run: Run) -> Evidence:
    seen = _all(run)
    accuracies = [over.mean(f"Dice, {arm}", [s.dice.mean(1)[None] for s in seen[arm]], "%").measure for arm in ARMS]
    gain = over.mean(
        "gain",
        [(r.dice.mean(1) - z.dice.mean(1))[None] for z, r in zip(seen["zero padding"], seen["RIAP"], strict=True)],
        "%",
    )
    return elsewhere(
        over.above(0.0, gain),
        says=f"RIAP changes the Dice of things by {100 * (gain.measure.value or 0):+.2f} points over {SEEDS} seeds, "
        f"from {100 * (accuracies[0].value or 0):.2f} %.",
        measures=(*accuracies, gain.measure),
        gates=[_gate(seen, arm) for arm in ARMS],
        seeds=SEEDS,
    )


def equal_influence(run: Run) -> Evidence:
    from assay.nn.riap import with_riap

    own, total, moved = [], [], []
    for depth in DEPTHS:
        size = 2 * depth + 1
        net = nn.Sequential(*(nn.Conv1d(1, 1, 3, padding=1, bias=False) for _ in range(depth))).double()
        for layer in net:
            assert isinstance(layer, nn.Conv1d)
            nn.init.constant_(layer.weight, 1 / 3)  # as ones, up to a factor, and 3^40 has no place in float64
        with torch.no_grad():
            for each in (net, with_riap(net)):
                columns = each(torch.eye(size, dtype=torch.float64)[:, None])[:, 0]  # inputs outputs
                own.append(float(columns[0, 0] / columns[depth, depth]))
                total.append(float(columns[0].sum() / columns[depth].sum()))
                moved.append(int(columns[:, 0].argmax()))
    plain, ours = own[::2], own[1::2]
    level = all(abs(share - 1) < 1e-9 for share in ours) and not any(moved[1::2])
    return Evidence(
        verdict="holds" if level and max(plain) < 0.9 and min(moved[::2]) > 0 else "fails",
        says=f"In chains of {', '.join(map(str, DEPTHS))} convolutions a border pixel has "
        f"{', '.join(f'{s:.3f}' for s in plain)} of the centre's influence on the answer at its own place with zero "
        f"padding and {', '.join(f'{s:.3f}' for s in ours)} with RIAP, and the pixel with most influence on the "
        f"border's answer is {', '.join(map(str, moved[::2]))} and {', '.join(map(str, moved[1::2]))} away. Summed "
        f"over all answers a border pixel still counts less with RIAP: {', '.join(f'{s:.3f}' for s in total[1::2])}.",
        measures=tuple(
            Measure(name=f"influence of the border, of the centre, {depth} layers, {arm}", value=value, better="higher")
            for values, arm in ((plain, "zero padding"), (ours, "RIAP"))
            for depth, value in zip(DEPTHS, values, strict=True)
        ),
    )


HERE = (
    f"U-Nets of {LEVELS} levels and width {WIDTH}, two convolutions a level, on windows of {WINDOW} x {WINDOW} anywhere"
    f" in {WORLDS:,} generated worlds of four scenes (discs, squares and triangles on noise), {EPOCHS} epochs of Adam,"
    f" {SEEDS} seeds, the same start for both; RIAP at each level by itself; {TESTED} further worlds, windows moved"
    f" from left to right; nothing is concluded unless the Dice is {LEARNT:g} in every seed; {RULE} (kidneys)"
)
SHELVED = (
    Claim(
        name="steadier-under-shift",
        source=SOURCE,
        says="Segmentation with RIAP is steadier as the window moves than with zero padding.",
        published=(),
        here=f"{HERE}; holds if the standard deviation over offsets of the mean Dice of {TOGETHER} windows (printed: "
        f"curves without numbers, fig. 7) and what the same pixels of things lose within {EDGE} pixels of the border, "
        f"of what they have from {INSIDE} pixels on, are both smaller with RIAP, in every seed",
        minutes=25,
        test=steadier,
        seeds=SEEDS,
    ),
    Claim(
        name="dice",
        source=SOURCE,
        says="A U-Net segments better with RIAP than with zero padding.",
        published=(
            Published("Dice, U-Net, zero padding", 0.8828, "table 1, average", "%", "Dice, zero padding"),
            Published("Dice, U-Net, RIAP", 0.8920, "table 1, average", "%", "Dice, RIAP"),
            Published("gain", 0.0092, "table 1, difference of the two", "%"),
        ),
        here=f"{HERE}; the Dice of pixels whose thing is right",
        minutes=25,
        test=dice,
        seeds=SEEDS,
    ),
    Claim(
        name="equal-influence",
        source=SOURCE,
        says="With RIAP every pixel has the same influence on the answer at its own place, and the largest there.",
        published=(),
        here=f"chains of {', '.join(map(str, DEPTHS))} convolutions of equal weights along one axis, in float64, on as "
        "many pixels as the last one sees",
        minutes=0.1,
        test=equal_influence,
    ),
)
