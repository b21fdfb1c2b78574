"""Liu 2021: noise in the depth of a continuous network, against corruption and against an error that grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Published
from assay.claims import _over_seeds as over
from assay.data.whole import Whole, whole
from assay.finding import Measure
from assay.methods.train.recorded import fit_net
from assay.methods.train.well_trained import Half, moved
from assay.nn.solve import Kind

if TYPE_CHECKING:
    from assay.nn.continuous import ContinuousNet
    from assay.run import Run

SOURCE = (
    "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021 (dissertation), sec. 2.3, with its public code; "
    "also arXiv:1906.02355"
)
NOISY: tuple[Kind, ...] = ("additive", "multiplicative", "gaussian-dropout")
ARMS: tuple[Kind, ...] = ("none", *NOISY)
SIGMA: dict[Kind, float] = {"none": 0.0, "additive": 0.5, "multiplicative": 1.0, "gaussian-dropout": 0.7}
NAMES: dict[Kind, str] = {"none": "ODE", "additive": "additive", "multiplicative": "multiplicative"}
SEEDS, WIDTH, GRID = 5, 48, 0.5
EPOCHS, BATCH, LR, WEIGHT_DECAY = 8, 384, 0.1, 5e-4
DRAWS = 10  # passes that an answer with noise at test time averages
CLEAN, CORRUPTED = 5000, 250  # test images as they are, and under every corruption at every severity
TYPES = ("gaussian-noise", "impulse-noise", "gaussian-blur", "motion-blur", "fog", "contrast", "pixelate", "jpeg")
LEVELS = (1, 2, 3, 4, 5)
TRACED, RADIUS, STEPS, EOT, PATHS = 200, 0.1, 20, 4, 5  # of the error that is followed
LEAST = 0.85  # of accuracy: what the neural ODE must reach
Array = NDArray[np.float64]


def _name(arm: Kind) -> str:
    return NAMES.get(arm, "dropout")


class _Images(NamedTuple):
    train: Whole
    clean: Whole
    corrupted: Tensor  # levels types n *d
    labels: Tensor  # n


@cache
def _data(device: str) -> _Images:
    from assay.data.beyond import cifar10
    from assay.data.corruptions import corrupt

    splits = whole(cifar10(), device)
    test, rng = splits["test"], torch.Generator(device).manual_seed(0)
    some = test.x[:CORRUPTED]
    spoilt = [torch.stack([corrupt(some, name, level, rng=rng) for name in TYPES]) for level in LEVELS]
    clean = Whole(test.x[:CLEAN], test.y[:CLEAN])
    return _Images(splits["train"], clean, torch.stack(spoilt), test.y[:CORRUPTED])


@cache  # all claims are about the same networks
def _trained(arm: Kind, seed: int, device: str) -> ContinuousNet:
    """The same net and the same order of batches for every noise; in full precision and eval mode."""
    from assay.nn.continuous import ContinuousNet
    from assay.nn.solve import DepthNoise

    train = _data(device).train
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        noise = DepthNoise(arm, sigma=SIGMA[arm])
        net = ContinuousNet(tuple(train.x.shape[1:]), 10, noise, grid=GRID, width=WIDTH).to(device)
    fit_net(
        Half(net), train, epochs=EPOCHS, batch=BATCH, lr=LR, weight_decay=WEIGHT_DECAY, augment=moved,
        seed=seed, device=device,
    )  # fmt: skip
    return net.eval().requires_grad_(False)


@torch.no_grad()
def _right(net: nn.Module, x: Tensor, y: Tensor, draws: int) -> Array:  # n *d, n -> n
    """Whether the answer to each image is right: of one pass, or of the mean of so many."""
    from assay.nn.members import Drawn, log_mean, passes

    asked = Drawn(net, draws, rows_apart=True).eval()
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(0)
        said = [log_mean(passes(asked, part, draws)).argmax(-1) for part in torch.split(x, 500)]
    right: Array = (torch.cat(said) == y).double().cpu().numpy()
    return right


class _Seen(NamedTuple):
    """How often each image is right, with noise at test time and without."""

    clean: Array  # n
    clean_noisy: Array
    corrupted: Array  # levels n: over the types of corruption
    corrupted_noisy: Array


@cache
def _seen(arm: Kind, seed: int, device: str) -> _Seen:
    from assay.nn.continuous import quiet

    net, data = _trained(arm, seed, device), _data(device)
    levels, types, n = data.corrupted.shape[:3]
    told: list[Array] = []
    for each, draws in ((quiet(net).eval(), 1), (net, DRAWS if arm != "none" else 1)):
        clean = _right(each, data.clean.x, data.clean.y, draws)
        spoilt = _right(each, data.corrupted.flatten(0, 2), data.labels.repeat(levels * types), draws)
        told += [clean, spoilt.reshape(levels, types, n).mean(1)]
    return _Seen(told[0], told[2], told[1], told[3])


def _all(run: Run) -> dict[Kind, list[_Seen]]:
    with run.progress("training continuous networks", len(ARMS) * SEEDS) as tick:
        seen: dict[Kind, list[_Seen]] = {}
        for arm in ARMS:
            for seed in range(run.seed, run.seed + SEEDS):
                seen.setdefault(arm, []).append(_seen(arm, seed, run.device))
                tick(1)
    return seen


def _gate(ode: Sequence[Array]) -> Gate:
    return over.gate("The clean accuracy of the neural ODE", ode, TABLE_2_5["ODE"], LEAST)


def on_corrupted(run: Run) -> Evidence:
    """Judged by dropout, which is what is printed; the other noises stand beside it."""
    seen = _all(run)

    def at(arm: Kind, level: int, noisy: bool) -> list[Array]:
        return [(s.corrupted_noisy if noisy else s.corrupted)[level] for s in seen[arm]]

    def accuracies(*arms: Kind) -> Iterator[Measure]:
        for k, level in enumerate(LEVELS):
            for arm in arms:
                yield over.accuracy(f"accuracy, {_name(arm)}, level {level}", at(arm, k, False))
                if arm != "none":
                    yield over.accuracy(f"accuracy, {_name(arm)} with TTN, level {level}", at(arm, k, True))

    gaps: dict[tuple[Kind, int, bool], over.Gap] = {}
    for k, level in enumerate(LEVELS):
        for arm in NOISY:
            still, noisy = at(arm, k, False), at(arm, k, True)
            gaps[arm, level, False] = over.gap(f"{_name(arm)} less ODE, level {level}", still, at("none", k, False))
            gaps[arm, level, True] = over.gap(f"{_name(arm)} with TTN less without, level {level}", noisy, still)
    told = "; ".join(
        f"{_name(arm)} {', '.join(over.points(gaps[arm, level, False]) for level in LEVELS)}, noise at test time "
        f"adds {', '.join(over.points(gaps[arm, level, True]) for level in LEVELS)}"
        for arm in NOISY
    )
    return over.evidence(
        over.above(0.0, *(gaps["gaussian-dropout", level, ttn] for level in LEVELS for ttn in (False, True))),
        f"Points of accuracy ahead of the neural ODE at levels 1 to 5: {told}.",
        (_gate([s.clean for s in seen["none"]]),),
        *accuracies("none", "gaussian-dropout"),  # as printed, then the others
        *accuracies("additive", "multiplicative"),
        *(gap.measure for gap in gaps.values()),
    )


def on_clean(run: Run) -> Evidence:
    seen = _all(run)
    ode = [s.clean for s in seen["none"]]
    gaps = {}
    for arm in NOISY:
        still, noisy = [s.clean for s in seen[arm]], [s.clean_noisy for s in seen[arm]]
        gaps[arm, False] = over.gap(f"{_name(arm)} less ODE", still, ode)
        gaps[arm, True] = over.gap(f"{_name(arm)} with TTN less without", noisy, still)
    told = "; ".join(
        f"{_name(arm)} {over.points(gaps[arm, False])}, noise at test time adds {over.points(gaps[arm, True])}"
        for arm in NOISY
    )
    return over.evidence(
        over.above(0.0, *gaps.values()),
        f"Points of accuracy ahead of the neural ODE on clean images: {told}.",
        (_gate(ode),),
        *(over.accuracy(f"accuracy, {_name(arm)}", [s.clean for s in seen[arm]]) for arm in ARMS),
        *(over.accuracy(f"accuracy, {_name(arm)} with TTN", [s.clean_noisy for s in seen[arm]]) for arm in NOISY),
        *(gap.measure for gap in gaps.values()),
    )


class _Grown(NamedTuple):
    """log(||e_T|| / ||e_0||) over the depth of the equation, as it is and as a share of the state: n each."""

    bare: Array
    share: Array


@cache
def _grown(arm: Kind, noisy: bool, seed: int, device: str) -> _Grown:
    """An error made against the net as it answers, followed under the same noise; the middle of some paths."""
    from assay.methods.attack import pgd
    from assay.methods.attack.error_growth import norms, stages
    from assay.nn.continuous import quiet
    from assay.nn.members import Drawn

    net: nn.Module = _trained(arm, seed, device)
    net = net if noisy else quiet(net).eval().requires_grad_(False)
    test = _data(device).clean
    x, y = test.x[:TRACED], test.y[:TRACED]
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(seed)
        worst = pgd(
            Drawn(net, EOT, rows_apart=True).eval(), x, y, norm="l2", radius=RADIUS, steps=STEPS,
            eot=EOT if noisy else 1, leave=False, rng=torch.Generator(device).manual_seed(seed),
        ).x  # fmt: skip
    at = stages(net, x[:4])
    first, last = (next(k for k, s in enumerate(at) if s.name == name) + 1 for name in ("stem", "depth"))
    paths = []
    for path in range(PATHS if noisy else 1):
        got = norms(net, x, [worst], at, seed=path)
        logs = torch.stack([got.error[0].log(), (got.error[0] / got.state).log()])  # 2 n s
        paths.append(logs[..., last] - logs[..., first])
    bare, share = torch.stack(paths).median(0).values.cpu().numpy()
    return _Grown(bare, share)


def error_growth(run: Run) -> Evidence:
    kinds: dict[str, tuple[Kind, bool]] = {
        "ODE": ("none", False), "dropout with TTN": ("gaussian-dropout", True), "dropout": ("gaussian-dropout", False)
    }  # fmt: skip
    grown: dict[str, list[_Grown]] = {}
    with run.progress("following errors", len(kinds) * SEEDS) as tick:
        for name, (arm, noisy) in kinds.items():
            for seed in range(run.seed, run.seed + SEEDS):
                grown.setdefault(name, []).append(_grown(arm, noisy, seed, run.device))
                tick(1)
    ode, ours = grown["ODE"], grown["dropout with TTN"]
    slower = {
        part: over.mean(
            f"exponent of the ODE less that of dropout with TTN, {told}",
            [(getattr(a, part) - getattr(b, part))[None] for a, b in zip(ode, ours, strict=True)],
        )
        for part, told in (("share", "share of the state"), ("bare", "as it is"))
    }
    measures = [
        Measure.median(
            f"exponent, {name}, share of the state",
            np.median([each.share for each in of], axis=0),
            better="lower",
            seed=0,
        )
        for name, of in grown.items()
    ]
    said = ", ".join(f"{m.value:.2f} ({name})" for m, name in zip(measures, grown, strict=True) if m.value is not None)
    return over.evidence(
        over.above(0.0, *slower.values()),
        f"Exponent of an error of l2 size {RADIUS:g} over the depth, medians of ||e|| / ||h||: {said}.",
        (_gate([_seen("none", seed, run.device).clean for seed in range(run.seed, run.seed + SEEDS)]),),
        *measures,
        *(gap.measure for gap in slower.values()),
    )


TABLE_2_6 = {
    "ODE": (0.7589, 0.7059, 0.6652, 0.6091, 0.5302),
    "dropout": (0.7702, 0.7158, 0.6721, 0.6161, 0.5381),
    "dropout with TTN": (0.7907, 0.7398, 0.6974, 0.6419, 0.5599),
}
TABLE_2_5 = {
    "ODE": 0.8795, "additive": 0.8869, "multiplicative": 0.8906, "dropout": 0.8823,
    "additive with TTN": 0.8873, "multiplicative with TTN": 0.8977, "dropout with TTN": 0.8844,
}  # fmt: skip
NETS = (
    f"one equation in {round(1 / GRID)} steps (print: 10 or so) of {WIDTH} channels (print: 64 or more) on 16 x 16 "
    f"maps of CIFAR-10, images moved and mirrored, {EPOCHS} epochs of {BATCH} (print: 160 of 128), one cycle, {SEEDS} "
    "seeds; the same net, order of batches and schedule for every noise; sigma "
    f"{', '.join(f'{SIGMA[arm]:g} ({_name(arm)})' for arm in NOISY)}, where print searched; dropout is the Gaussian "
    "one"
)
GATED = (
    f"`cannot tell` unless the neural ODE has a clean accuracy of at least {100 * LEAST:g} % in every seed (printed: "
    "87.95)"
)
SHELVED = (
    Claim(
        name="sde-on-corrupted",
        source=SOURCE,
        says="On corrupted CIFAR-10 images of every level a network with dropout noise in its depth is more accurate "
        "than the neural ODE, and noise at test time makes it more accurate still.",
        published=tuple(
            Published(f"accuracy, {name}, level {level}", row[k], f"table 2.6, CIFAR10-C, {name}", "%")
            for k, level in enumerate(LEVELS)
            for name, row in TABLE_2_6.items()
        ),
        here=f"{NETS}; {len(TYPES)} corruptions of Assay's own strengths ({', '.join(TYPES)}) on {CORRUPTED} test "
        f"images, means of {DRAWS} passes (print: 100); holds if dropout is ahead of the ODE, and of itself without "
        f"noise at test time, at all five levels; {GATED}",
        minutes=220,
        test=on_corrupted,
        seeds=SEEDS,
    ),
    Claim(
        name="sde-on-clean",
        source=SOURCE,
        says="On clean CIFAR-10 images additive, multiplicative and dropout noise in the depth each make a network "
        "more accurate than the neural ODE, and noise at test time adds to it.",
        published=tuple(
            Published(f"accuracy, {name}", value, f"table 2.5, CIFAR-10, {name}", "%")
            for name, value in TABLE_2_5.items()
        ),
        here=f"{NETS}; the first {CLEAN} test images, means of {DRAWS} passes; {GATED}",
        minutes=220,
        test=on_clean,
        seeds=SEEDS,
    ),
    Claim(
        name="sde-error-growth",
        source=SOURCE,
        says="With dropout noise in the depth, the error that a small change of the input makes in the hidden state "
        "grows much more slowly than in the neural ODE.",
        published=(),
        here=f"{NETS}; {STEPS} steps of l2 PGD of radius {RADIUS:g} on {TRACED} test images, both inputs under the "
        f"same noise, the middle of {PATHS} paths for each image; holds if the exponent over the depth is smaller than "
        "the ODE's, as it is and as a share of the state (printed: one image, drawn, no numbers); the same net with "
        f"its noise turned off beside it; {GATED}",
        minutes=120,
        test=error_growth,
        seeds=SEEDS,
    ),
)
