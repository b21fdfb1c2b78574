"""Liu 2021: the baselines that random networks are compared with, under the printed attack and under stronger ones."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.claims import liu2021_random as study
from assay.claims._networks import SHORTER, narrow
from assay.claims.liu2021_random import Array
from assay.methods.train.fit import into_training
from assay.methods.train.recorded import fit_net
from assay.methods.train.well_trained import Half, inside, moved

if TYPE_CHECKING:
    from assay.methods.train.fit import Augment, Loss
    from assay.run import Run

SOURCE = (
    "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021 (dissertation), sec. 2.1.2 and 2.1.6; also ECCV "
    "2018, arXiv:1712.00673"
)
Arm = Literal["none", "plain retraining", "FGSM retraining", "distillation", "bounded ReLU"]
ARMS: tuple[Arm, ...] = ("none", "FGSM retraining", "distillation", "bounded ReLU")
Way = Literal["one step", "cross-entropy", "margin"]
SEEDS, WIDTH, BATCH, WEIGHT_DECAY = 5, 32, 512, 5e-4
EPOCHS, AGAIN, LR = 12, 3, 0.2  # of a training, and of the retraining after it, at a tenth of the rate
TEMPERATURE, BOUND, SIGMA, LEAST, LARGEST = 40.0, 1.0, 0.05, 0.1, 0.3  # as printed
IMAGES, CLEAN = 256, 2000  # test images that are attacked, and that are not
CS = (0.01, 0.03, 0.1)
STEPS, PRINTED_STEPS, PGD_STEPS = 60, 300, 20
STEP = 0.1  # the radius of the attacks on FGSM retraining, the least that it trains on
RADIUS = 8 / 255  # of those on distillation
MUCH, NO_MORE = 0.2, 0.05  # of accuracy: a gain that impresses, and what counts as none
LOW = 0.3  # of accuracy: what print says that the others fall below at c = 0.06
USUAL = 0.88  # of accuracy: what the undefended net must reach


@cache  # all studies are about the same networks
def _trained(arm: Arm, seed: int, device: str) -> nn.Module:
    """VGG16 of half the width, defended as its arm says; in full precision and eval mode."""
    from assay.methods.train.distillation import Distillation
    from assay.methods.train.gaussian_training import GaussianTraining
    from assay.nn.bounded_relu import with_bounded_relus
    from assay.nn.vgg import Vgg16

    if arm == "none":
        return narrow(seed, device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net: nn.Module = Vgg16(width=WIDTH).to(device)
    if arm in ("plain retraining", "FGSM retraining"):
        half = Half(copy.deepcopy(_trained("none", seed, device)).requires_grad_(True))
        augment = moved if arm == "plain retraining" else study._then(moved, partial(_stepped, half))
        return _fit(half, seed, device, epochs=AGAIN, lr=LR / 10, augment=augment)
    if arm == "distillation":
        teacher = _fit(Half(copy.deepcopy(net)), seed, device, loss=Distillation(TEMPERATURE).loss)
        taught = Distillation(TEMPERATURE, Half(teacher).eval())
        augment = study._then(moved, taught.augment)
        return _fit(Half(net), seed, device, loss=taught.loss, augment=augment)
    if arm == "bounded ReLU":
        noise = GaussianTraining(SIGMA, span=torch.ones((), device=device))
        half = Half(with_bounded_relus(net, BOUND))
        return _fit(half, seed, device, augment=study._then(moved, noise.augment))
    raise ValueError(arm)


def _stepped(half: nn.Module, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """What FgsmTraining does, without a question to the host: the step is taken, and a coin keeps it."""
    coin, size = torch.rand(2, generator=rng, device=rng.device).to(x.device)
    half.eval()
    at = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(nn.functional.cross_entropy(half(at), y, reduction="sum"), at)
    into_training(half)
    moved = (x + (LEAST + size * (LARGEST - LEAST)) * slope.sign()).clamp(0, 1)
    return torch.where(coin < 0.5, x, moved), y


def _fit(
    half: nn.Module,
    seed: int,
    device: str,
    *,
    epochs: int | None = None,
    lr: float | None = None,
    loss: Loss = nn.functional.cross_entropy,
    augment: Augment = moved,
) -> nn.Module:
    fit_net(
        half, study._data(device)["train"], epochs=EPOCHS if epochs is None else epochs, batch=BATCH,
        lr=LR if lr is None else lr, weight_decay=WEIGHT_DECAY, loss=loss, augment=augment, seed=seed, device=device,
    )  # fmt: skip
    return inside(half).eval().requires_grad_(False)


class _Swept(NamedTuple):
    """Whether each image is right: n each, at each c."""

    clean: Array
    printed: tuple[Array, ...]
    adaptive: tuple[Array, ...]


@cache
def _swept(arm: Arm, seed: int, device: str) -> _Swept:
    """Carlini-Wagner at every c, all in one batch."""
    from assay.methods.attack import carlini_wagner

    model, (x, y) = _trained(arm, seed, device), _test(device)
    clean = _right(model, x, y)
    xs, ys = x.repeat(len(CS), 1, 1, 1), y.repeat(len(CS))
    c = torch.tensor(CS, device=x.device).repeat_interleave(len(x))
    last = carlini_wagner(model, xs, ys, c=c, steps=PRINTED_STEPS, as_published=True).x
    best = carlini_wagner(model, xs, ys, c=c, steps=STEPS).x
    printed, adaptive = (
        tuple(clean * each for each in _right(model, at, ys).reshape(len(CS), -1)) for at in (last, best)
    )
    return _Swept(clean, printed, adaptive)


@cache
def _under(arm: Arm, way: Way, radius: float, seed: int, device: str) -> Array:
    """Whether each image is right under l_inf attacks: n. The cross-entropy is climbed as printed, from the image."""
    from assay.methods.attack import pgd
    from assay.methods.attack.fgsm import fgsm

    model, (x, y) = _trained(arm, seed, device), _test(device)
    if way == "one step":
        at = fgsm(model, x, y, radius=radius, as_published=True).x
    elif way == "cross-entropy":
        at = pgd(model, x, y, radius=radius, steps=PGD_STEPS, random_start=False, leave=False, as_published=True).x
    else:
        rng = torch.Generator(device).manual_seed(seed)
        at = pgd(model, x, y, radius=radius, steps=PGD_STEPS, loss="margin", rng=rng).x
    right: Array = _right(model, x, y) * _right(model, at, y)
    return right


def _test(device: str) -> tuple[Tensor, Tensor]:
    test = study._data(device)["test"]
    return test.x[:IMAGES], test.y[:IMAGES]


@torch.no_grad()
def _right(model: nn.Module, x: Tensor, y: Tensor) -> Array:  # n c h w, n -> n
    right: Array = (
        torch.cat([model(part).argmax(1) for part in x.tensor_split(-(-len(x) // 512))]).eq(y).double().cpu().numpy()
    )
    return right


def _seeds(run: Run) -> range:
    return range(run.seed, run.seed + SEEDS)


def _all(arms: Sequence[Arm], run: Run) -> dict[Arm, list[_Swept]]:
    with run.progress(f"training and attacking {len(arms)} kinds of networks", len(arms) * SEEDS) as tick:
        seen: dict[Arm, list[_Swept]] = {}
        for arm in arms:
            for seed in _seeds(run):
                seen.setdefault(arm, []).append(_swept(arm, seed, run.device))
                tick(1)
    return seen


def _usual(run: Run) -> Gate:
    """On more images than are attacked, where a point of accuracy is not a matter of luck."""
    test = study._data(run.device)["test"]
    clean = [_right(_trained("none", seed, run.device), test.x[:CLEAN], test.y[:CLEAN]) for seed in _seeds(run)]
    return over.gate("The clean accuracy of the undefended net", clean, None, USUAL)


def against_c(run: Run) -> Evidence:
    seen = _all(ARMS, run)
    rows = {
        (arm, c, protocol): [getattr(s, protocol)[i] for s in seen[arm]]
        for protocol in study.PROTOCOLS
        for arm in ARMS
        for i, c in enumerate(CS)
    }
    measures = {key: over.accuracy(f"accuracy, {key[0]}, c = {key[1]:g}, {key[2]}", rows[key]) for key in rows}
    last = CS[-1]
    highs = [measures[arm, last, "adaptive"] for arm in ARMS]
    if all((m.high or 0.0) < LOW for m in highs):
        held: Held = "holds"
    else:
        held = "fails" if any((m.low or 0.0) > LOW for m in highs) else "cannot tell"
    told = "; ".join(
        f"{protocol} attack: "
        + ", ".join(
            f"{arm} " + "/".join(f"{100 * (measures[arm, c, protocol].value or 0.0):.0f}" for c in CS) for arm in ARMS
        )
        for protocol in study.PROTOCOLS
    )
    return over.evidence(
        held,
        f"Accuracies in % at c = {'/'.join(f'{c:g}' for c in CS)}: {told}.",
        (_usual(run),),
        *measures.values(),
    )


def _told_apart(
    arm: Arm, base: Arm, weak: Way, strong: Way, radius: float, run: Run
) -> tuple[Held, str, list[over.Gap]]:
    """Whether what a weak attack leaves of a defence is taken by a strong one at the same radius."""
    with run.progress(f"training and attacking {arm} and {base}", 2 * SEEDS + 2) as tick:
        for each in (base, arm):
            for seed in _seeds(run):
                _trained(each, seed, run.device)
                tick(1)
        right: dict[tuple[Arm, Way], list[Array]] = {}
        for way in (weak, strong):
            for each in (arm, base):
                right[each, way] = [_under(each, way, radius, seed, run.device) for seed in _seeds(run)]
            tick(1)
    ways = (weak, strong)
    gaps = [
        over.gap(f"accuracy of {arm} less that of {base}, {radius:.2g}, {way}", right[arm, way], right[base, way])
        for way in ways
    ]
    first, second = gaps
    taken = [
        a - b - (c - d) for a, b, c, d in zip(*(right[who, way] for way in ways for who in (arm, base)), strict=True)
    ]
    shrunk = over.mean(f"what an attack on the {strong} takes of that", taken, "%")
    impresses = over.above(MUCH, first) == "holds"
    nothing = second.high < NO_MORE and bool((second.seeds < NO_MORE).all())
    held: Held = "holds" if impresses and nothing else "cannot tell"
    if over.above(0.0, first) == "fails" or over.above(0.0, shrunk) == "fails":  # the rest our thresholds would decide
        held = "fails"
    says = (
        f"At {radius:.2g} {arm} is {over.points(first)} points ahead of {base} under an attack by "
        f"{weak} and {over.points(second)} under one on the {strong}"
    )
    return held, says, [*gaps, shrunk]


def single_steps_fail(run: Run) -> Evidence:
    held, says, gaps = _told_apart("FGSM retraining", "plain retraining", "one step", "margin", STEP, run)
    return over.evidence(held, f"{says} with {PGD_STEPS} steps.", (_usual(run),), *(gap.measure for gap in gaps))


def distillation_fails(run: Run) -> Evidence:
    held, says, gaps = _told_apart("distillation", "none", "cross-entropy", "margin", RADIUS, run)
    return over.evidence(held, f"{says}, {PGD_STEPS} steps each.", (_usual(run),), *(gap.measure for gap in gaps))


NETS = (
    f"VGG16 of width {WIDTH} without input normalisation on CIFAR-10, {SEEDS} seeds, {EPOCHS} epochs of SGD with one "
    f"cycle up to {LR:g} ({SHORTER.epochs} of the undefended net), in bfloat16; the first {IMAGES} test images, clean "
    "mistakes counted; intervals over seeds and images, and every seed must agree; `cannot tell` unless the "
    f"undefended net has a clean accuracy of at least {100 * USUAL:g} % on the first {CLEAN:,} in every seed"
)
HOLDS = (
    f"holds if it is over {100 * MUCH:g} points ahead of the undefended net under the first and under "
    f"{100 * NO_MORE:g} under the second, which print does not give; fails if the first leaves it no lead, or the "
    "second takes nothing of that"
)
DEFENCES = (
    f"FGSM retraining: {AGAIN} further epochs at {LR / 10:g}, every second batch one step of {LEAST:g} to {LARGEST:g} "
    f"up its loss; distillation: T = {TEMPERATURE:g}, both losses times T; bounded ReLU: bound {BOUND:g}, noise "
    f"{SIGMA:g} in training"
)
TABLE_2_2: dict[Arm, tuple[str, tuple[float, ...]]] = {
    "none": ("No defense", (0.3038, 0.0893, 0.0356)),
    "FGSM retraining": ("Adv retraining", (0.2700, 0.0981, 0.0369)),
    "distillation": ("Distill", (0.4988, 0.1769, 0.0313)),
    "bounded ReLU": ("Robust Opt+BReLU", (0.7506, 0.4793, 0.2069)),
}
SHELVED = (
    Claim(
        name="single-steps-fail",
        source=SOURCE,
        says="Retraining with single steps helps against such steps and has little effect on a stronger attack.",
        published=(),
        here=f"{NETS}; {DEFENCES}; l_inf at {STEP:g}: one step as printed, and {PGD_STEPS} steps up the margin from a "
        f"random point; {HOLDS}; the undefended net has the same further epochs, of plain batches",
        minutes=230,
        test=single_steps_fail,
        seeds=SEEDS,
    ),
    Claim(
        name="distillation-fails",
        source=SOURCE,
        says="Defensive distillation does not hold against attacks that do not rely on the gradient of the loss "
        "(Carlini & Wagner 2017).",
        published=(),
        here=f"{NETS}; {DEFENCES}; l_inf at 8/255: {PGD_STEPS} steps up the cross-entropy as printed, and up the "
        f"margin of the logits from a random point; {HOLDS}",
        minutes=420,
        test=distillation_fails,
        seeds=SEEDS,
    ),
    Claim(
        name="baselines-against-c",
        source=SOURCE,
        says="Under untargeted Carlini-Wagner attacks the earlier defences fall below 30 %.",
        published=tuple(
            Published(
                f"accuracy, {arm}, c = {c:g}", value, f"table 2.2, {row}", "%", f"accuracy, {arm}, c = {c:g}, printed"
            )
            for arm, (row, values) in TABLE_2_2.items()
            for c, value in zip(CS, values, strict=True)
        ),
        here=f"{NETS}; {DEFENCES}; Carlini-Wagner at a fixed c: printed {PRINTED_STEPS} steps of Adam at 0.001, "
        f"adaptive {STEPS} at 0.1 fading to 0; holds if all of them are below {100 * LOW:g} % at c = {CS[-1]:g} under "
        "the adaptive attack; random self-ensemble itself is in liu2021-random/rse-against-c",
        minutes=870,
        test=against_c,
        seeds=SEEDS,
    ),
)
