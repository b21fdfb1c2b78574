"""Heese et al. 2021: layers that know a mesh (CupNet) against dense ones of equal weights, and where they collapse."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims._elsewhere import RULE, elsewhere
from assay.claims._student import of_seeds
from assay.finding import Measure
from assay.nn.mesh_linear import MeshLinear, Start

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = "Heese, Morand, Helm & Bortz, 'CupNet - Pruning a Network for Geometric Data', ICANN 2021"
SEEDS, SIDE = 5, 20
TRAINED, TESTED = 3000, 500
EPOCHS, BATCH, LR = 60, 128, 2e-3
EPSILON = 1e-7  # of Adam, as in TensorFlow, with which print was made: a slope below it is hardly followed
CELLS = ((1, 3.5), (2, 1.8), (2, 3.5), (3, 3.5))  # layers and reach, in steps of the grid
BEST = (2, 3.5)  # 37 neighbours, as print's best has 38
TIGHT, SHALLOW, DEEP = 1.1, 2, 6  # a point, itself and the four around
DROPOUT = 0.2
LEARNT = 0.5  # R^2 of networks that ought to have learnt, below which nothing is concluded
COLLAPSED = 0.1  # R^2 of one that has not
Array = NDArray[np.float64]


class _Fields(NamedTuple):
    """For each seed its own: s n k, s n d, s t k, s t d; standardised by what is trained on."""

    x: Tensor
    y: Tensor
    new: Tensor
    truth: Tensor


@cache
def _fields(side: int, seed: int, seeds: int, device: str) -> _Fields:
    from assay.data.fields import make_fields

    made = [make_fields(TRAINED + TESTED, np.random.default_rng(seed + s), side=side) for s in range(seeds)]
    x, y = (torch.from_numpy(np.stack(part)).to(device) for part in zip(*made, strict=True))
    parts = []
    for each in (x, y):
        train = each[:, :TRAINED]
        mean, std = train.mean(1, keepdim=True), train.std(1, keepdim=True) + 1e-9
        parts += [(train - mean) / std, (each[:, TRAINED:] - mean) / std]
    return _Fields(parts[0], parts[2], parts[1], parts[3])


def train_side_by_side(build: Callable[[], nn.Module], data: _Fields, seed: int) -> Array:
    """R^2, the mean over coordinates, of one network for each seed, by Adam on the squared error, all at once: s."""
    from torch.func import functional_call, vmap

    s, n = data.x.shape[:2]
    device = data.x.device
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        nets = []
        for i in range(s):
            torch.manual_seed(seed + i)
            nets.append(build().to(device))
        own = nets[0]
        weights = {
            name: torch.stack([dict(net.named_parameters())[name].detach() for net in nets]).requires_grad_()
            for name, _ in own.named_parameters()
        }

        def answer(some: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = functional_call(own, some, (x,))
            return out

        ask = vmap(answer, randomness="different")
        adam = torch.optim.Adam(weights.values(), LR, eps=EPSILON)
        batches = -(-n // BATCH)
        steps = EPOCHS * batches
        down = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
        rows = torch.arange(s, device=device)[:, None]
        own.train()
        orders = rows
        for step in range(steps):
            place = step % batches * BATCH
            if place == 0:
                orders = torch.rand(s, n, device=device).argsort(1)
            index = orders[:, place : place + BATCH]
            loss = (ask(weights, data.x[rows, index]) - data.y[rows, index]).square().mean((1, 2)).sum()
            adam.zero_grad()
            torch.autograd.backward(loss)
            adam.step()
            down.step()
        own.eval()
        with torch.no_grad():
            left = (ask(weights, data.new) - data.truth).square().sum(1)  # s d
    spread = (data.truth - data.truth.mean(1, keepdim=True)).square().sum(1).clamp_min(1e-9)
    found: Array = (1 - left / spread).mean(1).double().cpu().numpy()
    return found


@cache
def _cup(hidden: int, reach: float, start: Start, dropout: float, seed: int, device: str) -> Array:
    from assay.data.fields import sheet
    from assay.nn.cupnet import CupNet

    def build() -> nn.Module:
        net = CupNet(_inputs(), sheet(SIDE), hidden=hidden, reach=reach / (SIDE - 1), start=start, dropout=dropout)
        for layer in net.modules():
            if isinstance(layer, MeshLinear):
                layer.sparse = False  # the other way is not for several networks at once
        return net

    return train_side_by_side(build, _fields(SIDE, seed, SEEDS, device), seed)


@cache
def _ref(hidden: int, reach: float, dropout: float, seed: int, device: str) -> Array:
    from assay.nn.cupnet import RefNet

    size = _matched(hidden, reach)
    return train_side_by_side(
        lambda: RefNet(_inputs(), 3 * SIDE**2, hidden=hidden, size=size, dropout=dropout),
        _fields(SIDE, seed, SEEDS, device),
        seed,
    )


def _inputs() -> int:
    from assay.data.fields import PARAMETERS

    return len(PARAMETERS)


def _matched(hidden: int, reach: float) -> int:
    from assay.data.fields import sheet
    from assay.nn.cupnet import cup_size, matched_size
    from assay.nn.mesh_linear import within_reach

    pairs = within_reach(sheet(SIDE), reach / (SIDE - 1)).shape[1]
    return matched_size(_inputs(), 3 * SIDE**2, hidden, cup_size(_inputs(), SIDE**2, hidden, pairs))


def _sign(gap: Measure) -> Held:
    if (gap.low or 0) > 0:
        return "holds"
    return "fails" if (gap.high or 0) < 0 else "cannot tell"


def _told(measure: Measure) -> str:
    return f"{measure.value or 0:.3f} ({measure.low or 0:.3f} to {measure.high or 0:.3f})"


def above_matched(run: Run) -> Evidence:
    cup, ref = {}, {}
    dry = []
    with run.progress("training networks on fields", 2 * len(CELLS) + 2) as tick:
        for hidden, reach in CELLS:
            cup[hidden, reach] = _cup(hidden, reach, "kept", DROPOUT, run.seed, run.device)
            tick(1)
            ref[hidden, reach] = _ref(hidden, reach, DROPOUT, run.seed, run.device)
            tick(1)
        dry.append(_cup(*BEST, "kept", 0.0, run.seed, run.device))
        tick(1)
        dry.append(_ref(*BEST, 0.0, run.seed, run.device))
        tick(1)
    best = [
        of_seeds(f"R2 of {name}, h = 2, best reach", of[BEST].tolist())
        for name, of in (("CupNet", cup), ("RefNet", ref))
    ]
    gap = of_seeds("R2 of CupNet less RefNet, h = 2, best reach", (cup[BEST] - ref[BEST]).tolist())
    cells = [
        of_seeds(f"R2 of CupNet less RefNet, h = {h}, reach {r:g}", (cup[h, r] - ref[h, r]).tolist())
        for h, r in CELLS if (h, r) != BEST
    ]  # fmt: skip
    without = of_seeds("R2 of CupNet less RefNet without dropout, h = 2, best reach", (dry[0] - dry[1]).tolist())
    ahead = sum(float((cup[cell] - ref[cell]).mean()) > 0 for cell in CELLS)
    return elsewhere(
        _sign(gap),
        says=f"With 2 layers and 37 neighbours CupNet's R2 is {_told(best[0])}, that of a dense network with as many "
        f"weights {_told(best[1])}: {_told(gap)} apart. CupNet is ahead in {ahead} of {len(CELLS)} cells. Without "
        f"dropout the two are {_told(without)} apart, at {dry[0].mean():.3f} and {dry[1].mean():.3f}.",
        measures=(*best, gap, *cells, without),
        gates=[
            Gate(what=f"The R2 of {name}, h = 2, best reach", values=tuple(of[BEST]), printed=printed, low=LEARNT)
            for name, of, printed in (("CupNet", cup, 0.862), ("RefNet", ref, 0.809))
        ],
        seeds=SEEDS,
    )


def collapses(run: Run) -> Evidence:
    arms: list[tuple[Start, int]] = [(start, h) for start in ("dense", "kept") for h in (SHALLOW, DEEP)]
    found = {}
    with run.progress("training tight networks", len(arms) + 1) as tick:
        for start, hidden in arms:
            found[start, hidden] = _cup(hidden, TIGHT, start, DROPOUT, run.seed, run.device)
            tick(1)
        ref = _ref(DEEP, TIGHT, DROPOUT, run.seed, run.device)
        tick(1)
    deep, shallow = (_tight(found["dense", h], h, "dense") for h in (DEEP, SHALLOW))
    kept = [_tight(found["kept", h], h, "kept") for h in (DEEP, SHALLOW)]
    of_ref = of_seeds(f"R2 of RefNet, h = {DEEP}", ref.tolist())
    saved = of_seeds(f"R2 gained by a kept start, h = {DEEP}", (found["kept", DEEP] - found["dense", DEEP]).tolist())
    held: Held = "holds" if (deep.high or 0) < COLLAPSED else "cannot tell"
    if (deep.low or 0) > (shallow.high or 0):  # how little is no longer learning, print does not say
        held = "fails"
    return elsewhere(
        held,
        says=f"Where a point hears itself and the four around it, CupNet's R2 goes from {_told(shallow)} with "
        f"{SHALLOW} layers to {_told(deep)} with {DEEP} if they start as dense layers do, and from {_told(kept[1])} to "
        f"{_told(kept[0])} if their start counts only the weights that are kept; a dense network with {DEEP} has "
        f"{_told(of_ref)}.",
        measures=(deep, shallow, of_ref, saved, *kept),
        gates=[
            Gate(
                what=f"The R2 of CupNet, tightest, h = {SHALLOW}",
                values=tuple(found["dense", SHALLOW]),
                printed=0.821,
                low=LEARNT,
            )
        ],
        seeds=SEEDS,
    )


def _tight(found: Array, hidden: int, start: Start) -> Measure:
    return of_seeds(f"R2 of CupNet, tightest, h = {hidden}, {start} start", found.tolist())


HERE = (
    f"generated displacement fields of a sheet of {SIDE} x {SIDE} points under a stamp, from 6 parameters; {TRAINED} "
    f"trained on and {TESTED} tested, new ones for each of {SEEDS} seeds; {EPOCHS} epochs of Adam from {LR:g} down, "
    f"dropout of {DROPOUT:g}, R2 the mean over coordinates; print has 10,000 simulated cups of 1,979 points, and gives "
    f"no rate nor epochs: {RULE}"
)
SHELVED = (
    Claim(
        name="above-matched",
        source=SOURCE,
        says="With 2 layers and a reach of 5 CupNet has a higher R2 than a dense network with as many weights.",
        published=(
            Published("R2 of CupNet, h = 2, best reach", 0.862, "table 1, CupNet h = 2, alpha = 5"),
            Published("R2 of RefNet, h = 2, best reach", 0.809, "table 1, RefNet h = 2, alpha = 5"),
        ),
        here=f"{HERE}; holds if it is ahead in every interval of the best cell; nothing is concluded unless both "
        f"reach {LEARNT:g} there",
        minutes=60,
        test=above_matched,
        seeds=SEEDS,
    ),
    Claim(
        name="collapses-deep-and-tight",
        source=SOURCE,
        says="With the strongest pruning CupNet no longer learns when it is deep.",
        published=(
            Published(f"R2 of CupNet, tightest, h = {DEEP}, dense start", 0.052, "table 1, CupNet h = 6, alpha = 1"),
            Published(f"R2 of CupNet, tightest, h = {SHALLOW}, dense start", 0.821, "table 1, CupNet h = 2, alpha = 1"),
            Published(f"R2 of RefNet, h = {DEEP}", 0.780, "table 1, RefNet h = 6, alpha = 1"),
        ),
        here=f"{HERE}; layers that start as dense ones of TensorFlow do (print does not say), and such as count only "
        f"what is kept; holds if the deep one of the first has an R2 below {COLLAPSED:g}, where the shallow one "
        f"reaches {LEARNT:g}, fails if it has more than that",
        minutes=60,
        test=collapses,
        seeds=SEEDS,
    ),
)
