"""Wang 2024, sec. 8.2: the posterior of softRmax as an outlier score, suggested there and left open."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held
from assay.claims._four_convolutions import four_convolutions
from assay.claims._over_seeds import Gap, above
from assay.claims._student import of_seeds
from assay.data.whole import Whole, whole
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.methods.uncertainty.activations import Seen
    from assay.run import Run

SOURCE = "Wang, 'Sensitivities and where to find them', dissertation, TU Delft 2024, sec. 5.5 and 8.2"
HEADS: dict[str, float | None] = {"softmax": None, "softRmax": 1.0, "power 2": 2.0, "power 4": 4.0}  # the power
UNKNOWN, CLASSES = 9, 9  # the digit that no network has seen, and how many classes are left
SEEDS, EPOCHS, BATCH, LR, WIDTH = 5, 2, 128, 1e-3, 16
LEAST = 0.97  # of accuracy on known digits, which print does not give
TAUGHT, TESTED = 10_000, 2_000  # images that scores are fitted on, and that they are asked about, of each set
STARTS, WAYS = 20, 50  # test images, and random directions from each
DISTANCES = tuple(10 ** (i / 8) for i in range(49))  # from 1 to 10^6; an image of a digit is about 9 long
ROUNDED = 1e4  # beyond this distance float32 has too few digits left for the image itself
FLAT, CERTAIN = 0.01, 0.99  # from 1/k at most this far, and at least this sure
LEFT = (0.5, 0.1, 0.01)  # of the way from 1/k to 1: how far a posterior has fallen is asked at each of these
DRAWS = 1000  # of the bootstrap over trainings, sets and inputs
SETS = ("held-out digit", "glyphs", "Fashion-MNIST", "uniform noise")
EXTRA = ("energy", "Mahalanobis", "nearest neighbours", "ViM")
MEASURES = (*((head, "softmax") for head in EXTRA), *((head, "softRmax") for head in EXTRA[1:3]))
"""The extra measures, and the network that each is on: instead of softRmax, or beside it (no logits are needed)."""
Array = NDArray[np.float64]


class Area(NamedTuple):
    """An AUROC input by input: it is the mean of either."""

    inside: Array  # m: the share of outliers that score below each ordinary input
    outside: Array  # n: the share of ordinary inputs that score above each outlier

    @property
    def value(self) -> float:
        return float(self.inside.mean())


Areas = dict[str, Area]  # by set


class _Digits(NamedTuple):
    train: Whole
    inside: Tensor  # test images of the classes that are known
    known: Tensor  # their classes
    outside: dict[str, Tensor]


@cache
def _data(device: str) -> _Digits:
    from assay.data.beyond import fashion_mnist, mnist
    from assay.data.strangers import far_outliers

    data = whole(mnist(), device)
    train, test = data["train"], data["test"]
    known = train.y != UNKNOWN
    drawn = far_outliers((1, 28, 28), TESTED, rng=torch.Generator().manual_seed(0))
    clothes = fashion_mnist()["test"]
    return _Digits(
        Whole(train.x[known], train.y[known]),
        test.x[test.y != UNKNOWN][:TESTED],
        test.y[test.y != UNKNOWN][:TESTED],
        {
            "held-out digit": test.x[test.y == UNKNOWN][:TESTED],
            "glyphs": drawn["glyphs"].to(device),
            "Fashion-MNIST": clothes.take(np.arange(min(TESTED, len(clothes))))[0].to(device),
            "uniform noise": drawn["uniform noise"].to(device),
        },
    )


@cache  # all claims are about the same networks
def _trained(head: str, seed: int, device: str) -> nn.Module:
    """Four convolutions and a linear layer that give z, the same start for every head."""
    from assay.methods.train.fit import fit

    net = four_convolutions(WIDTH, CLASSES, seed)
    fit(
        _headed(net, head),
        _data(device).train,
        epochs=EPOCHS,
        lr=LR,
        batch=BATCH,
        optimiser="adam",
        schedule="constant",
        device=device,
        rng=torch.Generator(device).manual_seed(seed),
    )
    return net.eval().requires_grad_(False)


def _headed(net: nn.Module, head: str) -> nn.Module:
    from assay.nn.softrmax import SoftRmax

    power = HEADS[head]
    return net if power is None else nn.Sequential(net, SoftRmax(power))


class _Centred(nn.Module):
    """Takes the mean of each image away before the network, as preprocessing often does: brightness is not seen."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n k
        out: Tensor = self.net(x - x.mean((1, 2, 3), keepdim=True))
        return out


def _top(model: nn.Module, x: Tensor) -> Tensor:  # n *d -> n
    """The largest posterior probability; both heads give its logarithm, up to a shift."""
    with torch.no_grad():
        return torch.cat([model(part).double().softmax(1).amax(1) for part in torch.split(x, 5000)])


def _rays(model: nn.Module, seed: int, device: str, *, bright: bool = False) -> Array:  # rays distances
    """The largest posterior along random directions from test images; `bright`: along that of equal brightness."""
    from assay.methods.uncertainty.outliers import along_rays

    rng, at = torch.Generator(device).manual_seed(seed), torch.tensor(DISTANCES, device=device)
    found = []
    for start in _data(device).inside[:STARTS]:
        ways = torch.randn(WAYS, *start.shape, generator=rng, device=device)
        found.append(along_rays(lambda x: _top(model, x), start, torch.ones_like(ways[:1]) if bright else ways, at))
    return torch.cat(found).cpu().numpy()


def _over(run: Run, heads: tuple[str, ...], about: str) -> list[tuple[str, int, nn.Module]]:
    """Every network of these heads, trained."""
    with run.progress(f"training {len(heads) * SEEDS} networks, {about}", len(heads) * SEEDS) as tick:
        found = []
        for head in heads:
            for seed in range(run.seed, run.seed + SEEDS):
                found.append((head, seed, _trained(head, seed, run.device)))
                tick(1)
    return found


def far_away(run: Run) -> Evidence:
    heads = ("softmax", "softRmax")
    rays: dict[str, list[Array]] = {head: [] for head in heads}
    blind: dict[str, list[Array]] = {head: [] for head in heads}
    for head, seed, net in _over(run, heads, "far away"):
        rays[head].append(_rays(_headed(net, head), seed, run.device))
        blind[head].append(_rays(_headed(_Centred(net), head), seed, run.device, bright=True))
    ends = {head: np.stack([of[:, -1] for of in rays[head]]) for head in heads}  # seeds rays
    starts = {head: np.array([of[:, 0].mean() for of in rays[head]]) for head in heads}  # seeds
    flat, sure = ends["softRmax"].max(1) - 1 / CLASSES, ends["softmax"].min(1)
    verdict: Held = "cannot tell"
    if (flat <= FLAT).all() and (sure >= CERTAIN).all():
        verdict = "holds"
    elif (ends["softRmax"].mean(1) >= starts["softRmax"]).all() or (ends["softmax"].mean(1) < starts["softmax"]).all():
        verdict = "fails"  # it does not go that way at all; how near is near, print does not say
    exact = np.array(DISTANCES) <= ROUNDED
    still = {head: float(np.ptp(np.stack(blind[head])[..., exact], axis=2).max()) for head in heads}
    peak = np.stack(rays["softRmax"])  # seeds rays distances
    rises = float((np.diff(peak, axis=2) > 0.01).any(2).mean())
    return Evidence(
        verdict=verdict,
        gates=(_gate(run, heads),),
        seeds=SEEDS,
        says=f"At distance {DISTANCES[-1]:g} softRmax says {ends['softRmax'].mean():.4f} on average and "
        f"{ends['softRmax'].max():.4f} on its surest ray (1/k is {1 / CLASSES:.4f}); softmax says "
        f"{ends['softmax'].mean():.4f} and {ends['softmax'].min():.4f} on its least sure. On the way softRmax rises "
        f"somewhere on {100 * rises:.0f} % of the rays. Where the network takes each image's mean away first, "
        f"brightness up to {ROUNDED:g} moves the posterior by {still['softRmax']:.1g} (softRmax) and "
        f"{still['softmax']:.1g} (softmax): what a network ignores neither head can see.",
        measures=(
            *(
                of_seeds(
                    f"largest posterior at {DISTANCES[i]:g}, {head}", [of[:, i].mean() for of in rays[head]], share=True
                )
                for i in range(0, len(DISTANCES), 8)
                for head in heads
            ),
            of_seeds("surest ray at the end, softRmax", list(ends["softRmax"].max(1)), share=True),
            of_seeds("least sure ray at the end, softmax", list(ends["softmax"].min(1)), share=True),
            Measure(name="rays on which softRmax rises", value=rises, better="neither", unit="%"),
            *(
                Measure(name=f"largest move along an ignored direction, {head}", value=still[head], better="neither")
                for head in heads
            ),
        ),
    )


def _gate(run: Run, heads: tuple[str, ...]) -> Gate:
    """In each seed the least of the heads."""
    data = _data(run.device)
    values = []
    for seed in range(run.seed, run.seed + SEEDS):
        with torch.no_grad():
            said = [_trained(head, seed, run.device)(data.inside).argmax(1) for head in heads]
        values.append(min(float((each == data.known).double().mean()) for each in said))
    return Gate(what="The accuracy on known digits", values=tuple(values), printed=None, low=LEAST)


def no_extra_measure(run: Run) -> Evidence:
    areas: dict[tuple[str, str], list[Areas]] = {}  # score, head -> of each seed
    for head, _, net in _over(run, ("softmax", "softRmax"), "outliers"):
        for score, of in _areas(net, head, run.device).items():
            areas.setdefault((score, head), []).append(of)
    own, plain = areas["posterior", "softRmax"], areas["posterior", "softmax"]
    gaps = {of: _gain(f"gain over {' on '.join(of)}", own, areas[of], SETS, run.seed) for of in MEASURES}
    single = {
        name: [_gain(f"gain over {' on '.join(of)}, {name}", own, areas[of], (name,), run.seed) for of in MEASURES]
        for name in SETS
    }
    ahead = [name for name, of in single.items() if all(gap.low > 0 for gap in of)]
    behind = [name for name, of in single.items() if any(gap.high < 0 for gap in of)]
    from_plain = _gain("gain over softmax's posterior", own, plain, SETS, run.seed).measure
    values = {of: {name: np.array([a[name].value for a in found]) for name in SETS} for of, found in areas.items()}
    chosen = {
        name: values["posterior", "softRmax"][name] - np.stack([values[m, "softmax"][name] for m in EXTRA]).max(0)
        for name in SETS
    }
    return Evidence(
        verdict=above(0.0, *gaps.values()),
        gates=(_gate(run, ("softmax", "softRmax")),),
        seeds=SEEDS,
        says="AUROC of the posterior of softRmax over all sets, less that of each extra measure by itself: "
        + ", ".join(f"{' on '.join(of)} {_told(gap.measure)}" for of, gap in gaps.items())
        + f"; less that of the softmax posterior: {_told(from_plain)}. It is clearly ahead of all of them on "
        f"{', '.join(ahead) or 'no set'} and clearly behind one at least on {', '.join(behind) or 'no set'}. Less that "
        "of whichever of the four on softmax is the best on a set, which the outliers themselves choose and from which "
        "nothing is concluded: " + ", ".join(f"{name} {gap.mean():+.3f}" for name, gap in chosen.items()) + ".",
        measures=(
            *(gap.measure for gap in gaps.values()),
            from_plain,
            *(gap.measure for of in single.values() for gap in of),
            *(_gain(f"gain over softmax's posterior, {name}", own, plain, (name,), run.seed).measure for name in SETS),
            *(of_seeds(f"gain over the best of four, chosen on the set, {name}", list(chosen[name])) for name in SETS),
            *(
                of_seeds(f"{score}, {head}, {name}", list(each), share=True)
                for (score, head), of in values.items()
                for name, each in of.items()
            ),
        ),
    )


def _told(measure: Measure) -> str:
    return f"{measure.value:+.3f} ({measure.low:+.3f} to {measure.high:+.3f})"


def _gain(name: str, ours: list[Areas], others: list[Areas], sets: tuple[str, ...], seed: int) -> Gap:
    """How much larger our AUROC is, the mean over these sets, paired by training, set and input.

    A resample draws trainings, sets, ordinary inputs and the outliers of each set. To first order an AUROC moves by
    the means of what its inputs have in it.
    """
    pairs = list(zip(ours, others, strict=True))
    inside = np.array([[a[of].inside - b[of].inside for of in sets] for a, b in pairs])  # t s m
    means = inside.mean(2)  # t s
    t, s, m = inside.shape
    moved = inside @ _drawn(m, DRAWS, seed, "inside").T - means[..., None]  # t s draws
    for i, of in enumerate(sets):
        outside = np.array([a[of].outside - b[of].outside for a, b in pairs])  # t n
        moved[:, i] += outside @ _drawn(outside.shape[1], DRAWS, seed, of).T
    drawn = np.einsum("dt,tsd,ds->d", _drawn(t, DRAWS, seed, "t"), moved, _drawn(s, DRAWS, seed, "s"))
    value = float(means.mean())
    low, high = map(float, np.quantile(drawn, [0.025, 0.975]))
    measure = Measure(name=name, value=value, low=min(low, value), high=max(high, value), n=t * s, better="higher")
    return Gap(measure, means.mean(1))


@lru_cache(maxsize=8)  # the same for every comparison
def _drawn(n: int, draws: int, seed: int, of: str) -> Array:  # -> draws n
    """The share that each of n has of a resample."""
    found: Array = np.random.default_rng([seed, *of.encode()]).multinomial(n, np.full(n, 1 / n), draws) / n
    return found


def _first_below(rays: Array, level: float) -> float:  # rays distances
    """The distance at which a posterior is first below, the geometric mean over the rays; or else the last."""
    below = np.concatenate([rays < level, np.ones((len(rays), 1), dtype=bool)], 1)
    return float(np.exp(np.log(np.array([*DISTANCES, DISTANCES[-1]])[below.argmax(1)]).mean()))


def power_drops(run: Run) -> Evidence:
    heads = tuple(head for head, power in HEADS.items() if power is not None)
    reach: dict[tuple[float, str], list[float]] = {}
    rest: dict[str, list[float]] = {head: [] for head in heads}
    named = {head: f"power {HEADS[head]:g}" for head in heads}
    for head, seed, net in _over(run, heads, "powers"):
        rays = _rays(_headed(net, head), seed, run.device)  # rays distances
        for left in LEFT:
            reach.setdefault((left, head), []).append(_first_below(rays, 1 / CLASSES + left * (1 - 1 / CLASSES)))
        rest[head].append(float(rays[:, -1].mean() - 1 / CLASSES))

    def shorter(left: float, low: str, high: str) -> Gap:
        """By how many tenfolds the way of the higher power is shorter."""
        each = np.log10(reach[left, low]) - np.log10(reach[left, high])
        return Gap(of_seeds(f"tenfolds sooner, {named[high]} than {named[low]}, {left:g} left", list(each)), each)

    steps = [shorter(left, a, b) for left in LEFT for a, b in pairwise(heads)]
    whole = [shorter(left, heads[0], heads[-1]) for left in LEFT]
    verdict: Held = "cannot tell"  # how far down is dropped, print does not say: all of these must agree
    if above(0.0, *steps) == "holds":
        verdict = "holds"
    elif all(above(0.0, gap) == "fails" for gap in whole):
        verdict = "fails"
    return Evidence(
        verdict=verdict,
        gates=(_gate(run, heads),),
        seeds=SEEDS,
        says="Of the way from 1/k to 1, these shares are left of the largest posterior at these distances (geometric "
        "means): "
        + "; ".join(
            f"{left:g} at " + ", ".join(f"{np.mean(reach[left, head]):.3g} ({named[head]})" for head in heads)
            for left in LEFT
        )
        + f"; at {DISTANCES[-1]:g} it is above 1/k by "
        + ", ".join(f"{np.mean(rest[head]):.2g}" for head in heads)
        + ". For z of a given length the excess is the power times larger, to first order.",
        measures=(
            *(of_seeds(f"distance at which {left:g} is left, {named[head]}", of) for (left, head), of in reach.items()),
            *(gap.measure for gap in (*steps, *whole)),
            *(of_seeds(f"excess over 1/k at the end, {named[head]}", rest[head]) for head in heads),
        ),
    )


def _areas(net: nn.Module, head: str, device: str) -> dict[str, Areas]:
    """Score -> set -> AUROC against test images of known classes."""
    from assay.methods.uncertainty.activations import look
    from assay.methods.uncertainty.outliers import Energy, Mahalanobis, MaxSoftmax, Neighbours, OutlierScore, Vim
    from assay.methods.uncertainty.outliers import SoftRmaxTail as Tail

    data, last = _data(device), net[-1] if isinstance(net, nn.Sequential) else None
    assert isinstance(last, nn.Linear)
    x, y = data.train.x[:TAUGHT], data.train.y[:TAUGHT]
    name = str(len(list(net.children())) - 1)

    def see(images: Tensor) -> Seen:
        return look(net, images, name, entering=True, batch=1000)

    taught = see(x)
    scores: dict[str, OutlierScore] = (
        {"posterior": MaxSoftmax()}
        if head == "softmax"
        else {
            "posterior": Tail.fit(taught, y),
            "distance": Tail.fit(taught, y, by="distance"),
        }
    )
    if head == "softmax":
        scores["energy"] = Energy()
        scores["ViM"] = Vim.fit(taught, y, head=last)
    scores["Mahalanobis"] = Mahalanobis.fit(taught, y)
    scores["nearest neighbours"] = Neighbours.fit(taught, y, k=min(50, len(y)))
    inside, outside = see(data.inside), {kind: see(images) for kind, images in data.outside.items()}
    marks = {score: of.score(inside) for score, of in scores.items()}
    return {s: {kind: _area(marks[s], of.score(seen)) for kind, seen in outside.items()} for s, of in scores.items()}


def _area(inside: Tensor, outside: Tensor) -> Area:  # m, n, high = familiar
    def below(of: Tensor, those: Tensor) -> Array:
        """For each of these the share of those that lie below it; ties count half."""
        sorted_ = those.double().sort().values
        places = torch.searchsorted(sorted_, of.double()) + torch.searchsorted(sorted_, of.double(), right=True)
        return (places.double() / (2 * len(those))).cpu().numpy()

    return Area(below(inside, outside), 1 - below(outside, inside))


TRAINED = (
    f"four convolutions and a linear layer ({WIDTH} to {2 * WIDTH} channels) on MNIST without the digit {UNKNOWN}, "
    f"{EPOCHS} epochs of Adam (rate {LR:g}, batches of {BATCH}), every head from the same start, {SEEDS} seeds; "
    f"intervals over the seeds (Student) where no others are named; `cannot tell` unless each is right "
    f"on {100 * LEAST:g} % of known digits"
)

SHELVED = (
    Claim(
        name="far-away",
        source=SOURCE,
        says="Far from the data the posterior of softRmax is that of a random guess, where softmax is certain.",
        published=(),
        here=f"{TRAINED}; {WAYS} random directions from each of {STARTS} test images, to distance {DISTANCES[-1]:g}; "
        f"holds if on every ray within {FLAT:g} of 1/k and at least {CERTAIN:g}, fails if softRmax is no less sure "
        "there than at the start or softmax less sure",
        minutes=15,
        test=far_away,
        seeds=SEEDS,
    ),
    Claim(
        name="no-extra-measure",
        source=SOURCE,
        says="A network trained with softRmax needs no extra measure against outliers: its posterior tells them.",
        published=(),
        here=f"{TRAINED}; up to {TESTED} images of each set; extra measures ({', '.join(EXTRA)}) on a softmax network, "
        f"fitted on {TAUGHT} training images, and on the softRmax network those of them that need no logits. Each is "
        "asked by itself over all sets, paired by seed, set and input, with an interval over trainings, sets and "
        "inputs: holds if the posterior is ahead of each, fails if one is ahead of the posterior, in every seed and "
        "beyond the interval",
        minutes=10,
        test=no_extra_measure,
        seeds=SEEDS,
    ),
    Claim(
        name="power",
        source=SOURCE,
        says="A larger power makes the posterior of softRmax drop faster to a random guess.",
        published=(),
        here=f"{TRAINED}; powers {', '.join(f'{p:g}' for p in HEADS.values() if p)}; how far down is dropped "
        f"print does not say, so that three marks are asked: {', '.join(f'{left:g}' for left in LEFT)} of the way from "
        "1/k to 1 is left. Holds if at each a higher power is there at a shorter distance along the same rays; fails "
        "if at each the highest is there at a longer one than the lowest; in every seed and beyond the interval",
        minutes=20,
        test=power_drops,
        seeds=SEEDS,
    ),
)
