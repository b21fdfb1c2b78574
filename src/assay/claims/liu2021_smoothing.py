"""Liu & JaJa 2021: label smoothing by class similarity, and the normaliser of its output calibration error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.claims._elsewhere import RULE, elsewhere
from assay.data.whole import Whole, whole
from assay.finding import Measure
from assay.methods.train.recorded import fit_net
from assay.methods.train.well_trained import Half, moved

if TYPE_CHECKING:
    from assay.methods.train.fit import Augment, Loss
    from assay.run import Run

SOURCE = "Liu & JaJa, 'Class-Similarity Based Label Smoothing for Confidence Calibration', ICANN 2021"
Arm = Literal["one-hot", "uniform", "L2", "AE", "names", "equal"]
LISTED: tuple[Arm, ...] = ("one-hot", "uniform", "L2", "AE", "names")  # these are in print
SEARCHED: tuple[Arm, ...] = ("L2", "AE", "names")  # whose beta is chosen
ARMS: tuple[Arm, ...] = (*LISTED, "equal")
JUDGED: tuple[Arm, ...] = ("AE", "names")  # L1 and L2 are behind uniform smoothing in some rows of print, these in none
SEEDS, EPOCHS, BATCH, LR, DECAY, WIDTH = 5, 12, 500, 0.2, 5e-4, 32
LEAST = 0.85  # of accuracy; print's, of CIFAR-100, is no number that it could be near
ALPHA, CODE, ENCODER_EPOCHS = 0.1, 256, 5
BETAS = (0.5, 1.0, 2.0, 4.0, 6.0)  # print searches from 0.5 to 6
HELD_OUT = 5000  # training images that beta is chosen by
BINS, UNSEEN = 15, 1000
CLASSES = 10
Array = NDArray[np.float64]

# In the place of word vectors: what can be said of the classes of CIFAR-10 without looking at a picture.
SAID = ("machine", "animal", "flies", "on roads", "in water", "fur", "four legs", "hoofs", "pet", "carries people")
NAMES = {
    "airplane": ("machine", "flies", "carries people"),
    "automobile": ("machine", "on roads", "carries people"),
    "bird": ("animal", "flies"),
    "cat": ("animal", "fur", "four legs", "pet"),
    "deer": ("animal", "fur", "four legs", "hoofs"),
    "dog": ("animal", "fur", "four legs", "pet"),
    "frog": ("animal", "in water", "four legs"),
    "horse": ("animal", "fur", "four legs", "hoofs", "carries people"),
    "ship": ("machine", "in water", "carries people"),
    "truck": ("machine", "on roads"),
}


class _Answers(NamedTuple):
    """What a network says, as probabilities."""

    probabilities: Array  # n k, on the test images
    photographs: Array  # m, the largest one on each of other photographs
    noise: Array  # m, and on noise
    held: Array  # h k, on the held-out training images
    beta: float = 0.0


@cache
def _data(device: str) -> dict[str, Whole]:
    from assay.data.beyond import cifar10

    return whole(cifar10(), device)


@cache
def _split(device: str) -> tuple[Whole, Whole]:
    """Training images to learn from, and others to choose and fit by."""
    train = _data(device)["train"]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).to(train.x.device)
    held = min(HELD_OUT, len(train) // 3)
    return tuple(Whole(train.x[rows], train.y[rows]) for rows in (order[held:], order[:held]))  # type: ignore[return-value]


@cache
def _unseen(device: str) -> tuple[Tensor, Tensor]:
    """Photographs of other things, shrunk to 32 x 32, and uniform noise: m 3 32 32 each."""
    from assay.data.beyond import imagenet_sample

    data = imagenet_sample()
    parts = np.array_split(np.arange(min(UNSEEN, len(data))), 10)
    shrunk = [torch.nn.functional.adaptive_avg_pool2d(data.take(rows)[0], 32) for rows in parts if len(rows)]
    rng = torch.Generator().manual_seed(0)
    return torch.cat(shrunk).to(device), torch.rand(UNSEEN, 3, 32, 32, generator=rng).to(device)


@cache
def _distances(arm: Arm, seed: int, device: str) -> Tensor:  # -> k k
    """Of classes, by the images to learn from or by their names; the autoencoder is trained from the seed."""
    from assay.methods.train.class_similarity import class_distances, fit_encoder, word_distances

    if arm == "names":
        said = torch.tensor([[float(word in row) for word in SAID] for row in NAMES.values()], device=device)
        return word_distances(said)
    learn, _ = _split(device)
    x = learn.x
    if arm == "AE":
        rng = torch.Generator(device).manual_seed(seed)
        encoder = fit_encoder(learn, code=CODE, epochs=ENCODER_EPOCHS, rng=rng, device=device)
        x = torch.cat([encoder(part) for part in torch.split(x, 5000)])
    return class_distances(x, learn.y, classes=CLASSES)


def _labels(arm: Arm, beta: float, seed: int, device: str) -> Tensor:  # -> k k
    """The label of each class."""
    from assay.methods.train.class_similarity import similarity_labels, uniform_labels

    if arm in ("one-hot", "uniform"):
        return uniform_labels(CLASSES, alpha=ALPHA if arm == "uniform" else 0.0).to(device)
    if arm == "equal":
        return similarity_labels(torch.ones(CLASSES, CLASSES, device=device), alpha=ALPHA, beta=0)
    return similarity_labels(_distances(arm, seed, device), alpha=ALPHA, beta=beta)


def _fitted(train: Whole, loss: Loss, seed: int, device: str, then: Augment | None = None) -> nn.Module:
    """In eval mode, from the start and in the order that the seed names; `then` follows on the images' move."""
    from assay.methods.train.fit import fit
    from assay.nn.resnet import ResNet18

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = ResNet18(CLASSES, width=WIDTH).to(device)
    if then is None:
        fit_net(
            Half(net), train, epochs=EPOCHS, lr=LR, batch=BATCH, weight_decay=DECAY, augment=moved, loss=loss,
            seed=seed, device=device,
        )  # fmt: skip
    else:  # what follows may ask the host, which no recorded step can
        fit(
            Half(net), train, epochs=EPOCHS, lr=LR, batch=BATCH, weight_decay=DECAY, schedule="one-cycle",
            augment=lambda x, y, rng: then(*moved(x, y, rng), rng), loss=loss, device=device,
            rng=torch.Generator(device).manual_seed(seed),
        )  # fmt: skip
    return net.eval()


@cache  # all studies are about the same networks
def _tried(arm: Arm, beta: float, seed: int, device: str) -> _Answers:
    """What a network says that was trained on these labels, from the start and in the order that the seed names."""
    from assay.methods.train.class_similarity import smoothed

    learn, held = _split(device)
    net = _fitted(learn, smoothed(_labels(arm, beta, seed, device).float()), seed, device)

    def said(x: Tensor) -> Array:  # n 3 32 32 -> n k
        with torch.no_grad():
            return torch.cat([net(part).double().softmax(1) for part in torch.split(x, 1000)]).cpu().numpy()

    photographs, noise = _unseen(device)
    return _Answers(
        said(_data(device)["test"].x), said(photographs).max(1), said(noise).max(1), said(held.x), beta
    )  # fmt: skip


def _betas(arm: Arm) -> tuple[float, ...]:
    return BETAS if arm in SEARCHED else (0.0,)


def _answers(arm: Arm, seed: int, device: str) -> _Answers:
    """With the beta whose largest score has the least calibration error on the held-out images."""
    from assay.methods.uncertainty.calibration import ece

    y = _split(device)[1].y.cpu().numpy()
    return min((_tried(arm, beta, seed, device) for beta in _betas(arm)), key=lambda a: ece(a.held, y, bins=BINS))


def _all(run: Run) -> dict[Arm, list[_Answers]]:
    number = SEEDS * sum(len(_betas(arm)) for arm in ARMS)
    with run.progress(f"training {number} networks", number) as tick:

        def one(arm: Arm, seed: int) -> _Answers:
            for beta in _betas(arm):
                _tried(arm, beta, seed, run.device)
                tick(1)
            return _answers(arm, seed, run.device)

        return {arm: [one(arm, run.seed + s) for s in range(SEEDS)] for arm in ARMS}


def _chosen(told: Mapping[Arm, Sequence[_Answers]], *arms: Arm) -> str:
    return ", ".join(f"{arm} {'/'.join(f'{a.beta:g}' for a in told[arm])}" for arm in arms)


def _gaps(p: Array, y: NDArray[np.int64], every: bool) -> Array:  # n k, n -> n b
    """What each image adds to outcome less score in each bin: of its largest score, or of all of them."""
    from assay.methods.uncertainty.calibration import bin_weights

    came = np.eye(p.shape[1])[y]
    if not every:
        top = p.argmax(1)[:, None]
        p, came = np.take_along_axis(p, top, 1), np.take_along_axis(came, top, 1)
    flat = bin_weights(p.ravel(), bins=BINS) * (came - p).ravel()[:, None]
    summed: Array = flat.reshape(*p.shape, BINS).sum(1)
    return summed


def _error(gaps: Array, counts: Array) -> Array:  # n b, draws n -> draws
    """The calibration error of resampled images; of all scores it is the sum over the classes."""
    return np.asarray(np.abs(counts @ gaps).sum(1) / len(gaps))


def _compare(name: str, ours: list[Array], theirs: list[Array], seed: int) -> over.Gap:  # seeds of n b
    n = len(ours[0])

    def gap(counts: Array) -> Array:  # draws n -> seeds draws
        return np.stack([_error(a, counts) - _error(b, counts) for a, b in zip(ours, theirs, strict=True)])

    each = gap(np.ones((1, n)))[:, 0]
    low, high = over.resampled(gap, n, seed=seed)
    value = float(each.mean())
    return over.Gap(
        Measure(name=name, value=value, low=min(low, value), high=max(high, value), better="lower", n=n, unit="%"), each
    )


def _below(gaps: list[over.Gap]) -> Held:
    """holds: every interval, and every seed, lies below 0. fails: one interval, with its seeds, lies above."""
    if all(_ends(g)[1] < 0 and (g.seeds < 0).all() for g in gaps):
        return "holds"
    if any(_ends(g)[0] > 0 and (g.seeds > 0).all() for g in gaps):
        return "fails"
    return "cannot tell"


def _ends(gap: over.Gap) -> tuple[float, float]:
    assert gap.measure.low is not None  # all that come here have both
    assert gap.measure.high is not None
    return gap.measure.low, gap.measure.high


def _points(gap: over.Gap) -> str:
    low, high = _ends(gap)
    return f"{100 * (gap.measure.value or 0):+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"


def _calibrates(run: Run, rival: Arm) -> Evidence:
    told, y = _all(run), _data(run.device)["test"].y.cpu().numpy()
    gaps = {(arm, kind): [_gaps(a.probabilities, y, kind == "O") for a in told[arm]] for arm in ARMS for kind in "PO"}
    ones = np.ones((1, len(y)))
    errors = [
        Measure(
            name=f"{arm}, {kind}",
            value=float(np.mean([_error(g, ones)[0] for g in gaps[arm, kind]])),
            better="lower",
            n=len(y),
            unit="%",
        )
        for arms in (LISTED, ARMS[len(LISTED) :])
        for kind in "PO"
        for arm in arms
    ]
    judged = [
        _compare(f"{arm} less {rival}, {kind}", gaps[arm, kind], gaps[rival, kind], run.seed)
        for arm in JUDGED
        for kind in "PO"
    ]
    beside = [
        _compare(f"{arm} less equal, {kind}", gaps[arm, kind], gaps["equal", kind], run.seed)
        for arm in (*JUDGED, "uniform")
        for kind in "PO"
        if rival == "uniform"
    ]
    right = {arm: np.mean([(a.probabilities.argmax(1) == y).mean() for a in told[arm]]) for arm in ARMS}
    changes = ", ".join(f"{g.measure.name} {_points(g)}" for g in judged)
    return elsewhere(
        _below(judged),
        says=f"Over {SEEDS} paired seeds the errors differ, in points, by: {changes} (95 % intervals over the images). "
        f"Accuracies are {100 * min(right.values()):.1f} to {100 * max(right.values()):.1f} %. The betas chosen: "
        f"{_chosen(told, *SEARCHED)}.",
        measures=(
            *errors,
            *(g.measure for g in (*judged, *beside)),
            *(
                Measure(name=f"accuracy, {arm}", value=float(right[arm]), better="higher", n=len(y), unit="%")
                for arm in ARMS
            ),
        ),
        gates=(_gate([a.probabilities.argmax(1) == y for a in told["one-hot"]]),),
        seeds=SEEDS,
    )


def _gate(right: Sequence[NDArray[np.bool_]]) -> Gate:
    return over.gate("The accuracy of the one-hot network", [each.astype(np.float64) for each in right], None, LEAST)


def beats_uniform(run: Run) -> Evidence:
    return _calibrates(run, "uniform")


def beats_one_hot(run: Run) -> Evidence:
    return _calibrates(run, "one-hot")


def doubts_the_unseen(run: Run) -> Evidence:
    told = _all(run)
    places: dict[str, Callable[[_Answers], Array]] = {
        "photographs": lambda a: a.photographs,
        "noise": lambda a: a.noise,
    }
    judged, means = [], []
    for place, of in places.items():
        seen = {arm: np.stack([of(a) for a in told[arm]]) for arm in ARMS}  # seeds m
        means += [
            Measure.mean(f"confidence, {place}, {arm}", seen[arm].mean(0), better="lower", seed=run.seed, unit="%")
            for arm in ARMS
        ]
        for arm in JUDGED:
            gap = seen[arm] - seen["uniform"]
            name = f"{arm} less uniform, {place}"
            judged.append(
                over.Gap(Measure.mean(name, gap.mean(0), better="lower", seed=run.seed, unit="%"), gap.mean(1)),
            )
    changes = ", ".join(f"{g.measure.name} {_points(g)}" for g in judged)
    y = _data(run.device)["test"].y.cpu().numpy()
    return elsewhere(
        _below(judged),
        says=f"The mean confidence differs, in points, by: {changes} (95 % intervals over the images).",
        measures=(*(g.measure for g in judged), *means),
        gates=(_gate([a.probabilities.argmax(1) == y for a in told["one-hot"]]),),
        seeds=SEEDS,
    )


# Histogram ECE of all outputs, in %: table, K, rows DN, RN, WRN; one-hot first, the four of the paper last.
OUTPUT_ERRORS = {
    100: (
        (35.52, 3.55, 8.11, 8.81, 3.54, 3.48, 4.15, 4.74, 3.32, 2.98),
        (50.07, 3.13, 3.80, 5.03, 2.98, 2.90, 5.06, 5.10, 3.34, 2.47),
        (25.71, 5.11, 5.41, 5.02, 4.54, 3.91, 2.91, 2.60, 1.64, 1.55),
    ),
    200: (
        (29.76, 11.64, 13.27, 12.13, 10.57, 8.80, 9.94, 10.40, 7.74, 3.00),
        (58.01, 9.94, 10.92, 11.76, 10.07, 6.52, 5.78, 5.59, 5.05, 2.12),
        (52.14, 22.19, 25.10, 17.00, 19.17, 14.36, 16.87, 16.59, 13.82, 7.93),
    ),
}
TABLES = {100: "table 1, CIFAR-100", 200: "table 2, Tiny-ImageNet"}
ONE_HOT_TOP = (16.40, 22.96, 12.17, 13.98, 24.95, 22.39)  # Hist P of the same rows


def normaliser_fits(run: Run) -> Evidence:
    from assay.methods.uncertainty.calibration import ece
    from assay.methods.uncertainty.output_calibration import output_ece_mean, output_ece_sum

    rng = np.random.default_rng(run.seed)
    worst, above, cells = {}, 0, 0
    for k, rows in OUTPUT_ERRORS.items():
        y = np.arange(10 * k) % k
        worst[k] = output_ece_mean(np.eye(k)[(y + 1) % k], y)  # certain and always wrong: no gap can be larger
        printed = np.array(rows) / 100
        above, cells = above + int((printed > worst[k] + 1e-12).sum()), cells + printed.size
    logits = 2 * rng.normal(size=(10_000, 100))
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(1)  # labels with chances softmax(logits)
    sure = softmax(3 * logits, axis=1)
    ratio = output_ece_sum(sure, drawn) / ece(sure, drawn)
    one_hot = np.array([rows[0] for table in OUTPUT_ERRORS.values() for rows in table])
    said = one_hot / np.array(ONE_HOT_TOP)
    return Evidence(
        verdict="fails" if above else "holds",
        says=f"Eq. 4 gives at most {100 * worst[100]:.0f} % for 100 classes and {100 * worst[200]:.0f} % for 200, "
        f"reached where every answer is certain and wrong; {above} of the {cells} printed errors are larger. Divided "
        f"by n alone they are possible: over-confident outputs have then {ratio:.2f} times the error of their largest "
        f"score, where the printed one-hot rows have {said.min():.2f} to {said.max():.2f} times.",
        measures=(
            *(
                Measure(name=f"largest possible by eq. 4, K = {k}", value=worst[k], better="neither", unit="%")
                for k in OUTPUT_ERRORS
            ),
            Measure(name="printed above", value=float(above), better="neither", n=cells),
            Measure(name="all over largest score, divided by n", value=float(ratio), better="neither", n=len(sure)),
        ),
    )


PRINTED = {"P": (22.96, 2.35, 2.76, 2.02, 1.74), "O": (50.07, 3.80, 5.10, 3.34, 2.47)}  # in %; names: word vectors
TABLE_ONE = tuple(
    Published(f"{arm}, {kind}", round(value / 100, 4), f"table 1, CIFAR-100, RN, Hist {kind}", "%")
    for kind, row in PRINTED.items()
    for arm, value in zip(LISTED, row, strict=True)
)
TRAINED = (
    f"ResNet-18 ({WIDTH} channels at first) on CIFAR-10 less {HELD_OUT:,} held-out training images, {EPOCHS} epochs "
    f"with one cycle in batches of {BATCH}, images moved and mirrored, alpha {ALPHA:g}, {SEEDS} paired seeds; beta, "
    f"for each network anew, that of {', '.join(f'{b:g}' for b in BETAS)} with the least error of the largest score on "
    f"the held-out images (print searches from 0.5 to 6 and does not say by what). AE: codes of {CODE} numbers of an "
    "autoencoder. names: in the place of word vectors ten properties of the named things, by hand. equal: uniform "
    f"over the other classes alone, so of the strength of the others; {RULE} (CIFAR-100, with word vectors)"
)
JUDGING = (
    "histogram ECE with 15 bins; P of the largest score, O of all, divided by n; judged: AE and names, whose intervals "
    "and seeds must all agree"
)

SHELVED = (
    Claim(
        name="beats-uniform",
        source=SOURCE,
        says="Labels smoothed by class similarity calibrate a network better than uniformly smoothed ones.",
        published=TABLE_ONE,
        here=f"{TRAINED}; {JUDGING}",
        minutes=1500,
        test=beats_uniform,
        seeds=SEEDS,
    ),
    Claim(
        name="beats-one-hot",
        source=SOURCE,
        says="Labels smoothed by class similarity calibrate a network better than one-hot labels.",
        published=TABLE_ONE,
        here=f"{TRAINED}; {JUDGING}",
        minutes=1500,
        test=beats_one_hot,
        seeds=SEEDS,
    ),
    Claim(
        name="unseen",
        source=SOURCE,
        says="On images of other things and on noise, class-similarity smoothing leaves a network less confident than "
        "uniform smoothing does.",
        published=(),
        here=f"{TRAINED}; the mean largest score on {UNSEEN} photographs of ImageNet at 32 x 32 and on {UNSEEN} images "
        "of uniform noise (the paper shows histograms, no numbers); judged: AE and names",
        minutes=1500,
        test=doubts_the_unseen,
        seeds=SEEDS,
    ),
    Claim(
        name="output-normaliser",
        source=SOURCE,
        says="The printed histogram errors of all outputs are those of eq. 4, which divides by n K.",
        published=(
            Published("largest possible by eq. 4, K = 100", 0.5007, f"{TABLES[100]}, largest Hist O", "%"),
            Published("largest possible by eq. 4, K = 200", 0.5801, f"{TABLES[200]}, largest Hist O", "%"),
        ),
        here="the largest value that eq. 4 can take, beside the printed tables; and outputs three times too sharp with "
        "known chances, 10,000 inputs of 100 classes",
        minutes=0.1,
        test=normaliser_fits,
    ),
)
