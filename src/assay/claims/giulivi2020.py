"""Giulivi 2020: a siamese ranker that draws what it sees, and what attacks on it explain.

The copy that was read names neither author nor year. Both are inferred: the author from Giulivi, Carman & Boracchi,
'Perception Visualization: Seeing Through the Eyes of a DNN', arXiv:2204.09920, whose title and opening are the thesis'
own, and the year from the latest work that it cites.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.data.whole import Whole, whole
from assay.finding import Beside, Better, Measure

if TYPE_CHECKING:
    from assay.methods.rank.agreement import Agreement
    from assay.methods.rank.pair_sanity import Seen, Stage
    from assay.methods.rank.perception import Gate as Legible
    from assay.methods.rank.perception import Reader, Reading
    from assay.methods.rank.recycling import Recycled
    from assay.methods.rank.walk import Score
    from assay.methods.train.ranker import Likeness
    from assay.nn.siamese import Siamese
    from assay.run import Run

SOURCE = "'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano (Giulivi, 2020)"
Kind = Literal["joint", "comparison only", "random targets", "unit norm", "variational"]
FROZEN: tuple[Kind, ...] = ("unit norm", "variational")  # an autoencoder first, then the tail alone
SEEDS, SIZE = 5, 10  # SIZE numbers in an embedding
STEPS, BATCH = 3000, 256  # of training, and pairs in each
WEIGHT = 1.0  # of the norm and of the divergence, beside a squared error that is summed over pixels
PAIRS = 400  # test pairs that are attacked
CASCADED, REDRAWN = 100, 3  # test pairs of the cascade, and how often its layers are drawn
WALK, PACE = 200, 0.5  # steps of an attack, and the length of one in gradients
FAR, NEAR = 7.0, 0.01  # where steps have one length: all of them together, and what counts as arrived
READ = 20_000  # training images that the reader knows
LOW, HIGH, TIE = 0.0, 9.0, 0.5
BOX = (0.0, 1.0)
GOOD = 0.94  # 1 - MAE of a ranker that has learnt: print's, of faces, have at least 0.95
LITTLE = 0.01  # of the range [0, 1], or of the pairs: a cost below it is little, and so is a gain
MOST = 0.5  # of the way
Array = NDArray[np.float64]


class _Made(NamedTuple):
    model: Siamese
    seconds: float  # of its training


class _Asked(NamedTuple):
    """Test pairs, no image in two of them, so that they are independent."""

    a: Tensor  # m *d
    b: Tensor  # m *d
    values: Tensor  # m, of a
    gaps: Array  # m

    @property
    def t(self) -> Array:  # m
        return np.asarray(self.gaps / (2 * (HIGH - LOW)) + 0.5)

    @property
    def constant(self) -> Array:  # m
        """The error of always answering 1/2."""
        return np.abs(self.t - 0.5)


@lru_cache(maxsize=1)
def _data(device: str) -> dict[str, Whole]:
    from assay.data.beyond import mnist

    return whole(mnist(), device)


@cache
def _asked(device: str) -> _Asked:
    test = _data(device)["test"]
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0)).to(device)
    first, second = order[: len(test) // 2], order[len(test) // 2 :][: len(test) // 2]
    gaps = (test.y[first] - test.y[second]).double().cpu().numpy()
    return _Asked(test.x[first], test.x[second], test.y[first].double(), gaps)


@cache  # all claims are about the same networks
def _made(kind: Kind, seed: int, device: str) -> _Made:
    """Trained from the start that the seed names; on true targets with the same pairs in the same order, too."""
    from assay.methods.train.fit import reset
    from assay.methods.train.ranker import Course, Form, Targets, fit_autoencoder, fit_ranker, fit_tail
    from assay.nn.siamese import ARCHITECTURES, Siamese

    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        model = cast(Siamese, reset(ARCHITECTURES["grey"](SIZE), rng))
    x, y = _data(device)["train"].x, _data(device)["train"].y.cpu().float()
    start = time.perf_counter()
    course = Course(steps=STEPS, batch=BATCH, device=device)
    if kind in FROZEN:
        images = replace(course, batch=2 * BATCH)
        fit_autoencoder(model, x, rng=rng, form=cast(Form, kind), weight=WEIGHT, course=images)
        fit_tail(model, x, y, low=LOW, high=HIGH, rng=rng, course=course)
    else:
        targets: Targets = "shuffled pairs" if kind == "random targets" else "true"
        alone = kind == "comparison only"
        fit_ranker(model, x, y, low=LOW, high=HIGH, rng=rng, targets=targets, comparison_only=alone, course=course)
    return _Made(model.to(device).eval().requires_grad_(False), time.perf_counter() - start)


@cache
def _answers(kind: Kind, seed: int, device: str) -> Array:  # m
    from assay.methods.train.ranker import embed

    model, asked = _made(kind, seed, device).model, _asked(device)
    with torch.no_grad():
        c = model.compare(embed(model.encoder, asked.a), embed(model.encoder, asked.b))
    return c.double().cpu().numpy()


@cache
def _drawn(kind: Kind, seed: int, device: str) -> Likeness:
    """How near its pictures come to all test images."""
    from assay.methods.train.ranker import embed, likeness

    model, x = _made(kind, seed, device).model, _data(device)["test"].x
    assert model.decoder is not None  # each is built with one
    return likeness(model.decoder, embed(model.encoder, x), x)


class _Mean(NamedTuple):
    """A number with its interval over seeds and pairs, and the same number in each seed."""

    measure: Measure
    seeds: Array

    @property
    def value(self) -> float:
        return float("nan") if self.measure.value is None else self.measure.value

    def told(self, digits: int = 3) -> str:
        m = self.measure
        if m.low is None or m.high is None:
            return "not measured"
        return f"{m.value:.{digits}f} ({m.low:.{digits}f} to {m.high:.{digits}f})"


def _mean(name: str, rows: Array, better: Better = "neither", unit: str = "", *beside: Beside) -> _Mean:  # seeds m
    """The mean over seeds and pairs; a pair that has no number in one seed (NaN) is left out."""
    each = rows[:, np.isfinite(rows).all(0)]
    if not each.size:
        return _Mean(Measure(name=name, value=None, better=better, n=0, unit=unit, beside=beside), rows.mean(1))
    found = over.mean(name, list(each), unit, better)
    return _Mean(replace(found.measure, beside=beside), found.seeds)


def _above(mean: _Mean, limit: float) -> Held:
    """Holds if the interval and every seed lie above the limit, fails if they lie below."""
    low, high = mean.measure.low, mean.measure.high
    if low is None or high is None:
        return "cannot tell"
    if low > limit and (mean.seeds > limit).all():
        return "holds"
    return "fails" if high < limit and (mean.seeds < limit).all() else "cannot tell"


def _not(part: Held) -> Held:
    turned: dict[Held, Held] = {"holds": "fails", "fails": "holds"}
    return turned.get(part, part)


def _below(mean: _Mean, limit: float) -> Held:
    return _not(_above(mean, limit))


def _all(*parts: Held) -> Held:
    """Holds if all do, fails if one does."""
    return "fails" if "fails" in parts else "holds" if set(parts) == {"holds"} else "cannot tell"


def _train(run: Run, *kinds: Kind) -> range:
    """The seeds, once every network is there."""
    seeds = range(run.seed, run.seed + SEEDS)
    with run.progress("training rankers", SEEDS * len(kinds)) as tick:
        for seed in seeds:
            for kind in kinds:
                _made(kind, seed, run.device)
                tick(1)
    return seeds


def _compared(kind: Kind, seeds: range, device: str) -> tuple[Array, Array]:  # seeds m, seeds u
    """The errors on all pairs, and whether the order is right on those that have one."""
    from assay.methods.rank.order import right_order

    asked = _asked(device)
    c, untied = np.stack([_answers(kind, seed, device) for seed in seeds]), asked.gaps != 0
    right = [right_order(each[untied], asked.gaps[untied]) for each in c]
    return np.abs(c - asked.t), np.stack(right).astype(np.float64)


def _learnt(seeds: range, device: str) -> Gate:
    right = 1 - _compared("joint", seeds, device)[0]
    return over.gate("1 - MAE of the ranker", list(right), 0.95, GOOD)


def _constant(asked: _Asked) -> tuple[Beside, Beside]:
    """The error, and the order accuracy, of always answering 1/2, which puts the first over the second."""
    first = (asked.gaps > 0).sum() / (asked.gaps != 0).sum()
    return Beside("always 0.5", float(asked.constant.mean())), Beside("always 0.5", float(first))


def _pictures(kind: Kind, seeds: range, device: str) -> tuple[Measure, bool]:
    """The error of what it draws, and whether that shows enough in every seed."""
    drawn = [_drawn(kind, seed, device) for seed in seeds]
    error, blank = (float(np.mean([getattr(d, name) for d in drawn])) for name in ("error", "blank"))
    name, beside = f"mean squared error of pictures, {kind}", (Beside("the mean image", blank),)
    measure = Measure(name=name, value=error, better="lower", n=len(drawn), beside=beside)
    return measure, all(d.good_enough() for d in drawn)


def costs_little(run: Run) -> Evidence:
    seeds, asked = _train(run, "joint", "comparison only"), _asked(run.device)
    constant, first = _constant(asked)
    joint, right = _compared("joint", seeds, run.device)
    alone, alone_right = _compared("comparison only", seeds, run.device)
    accuracy = _mean("1 - MAE, joint", 1 - joint, "higher", "%", Beside("always 0.5", 1 - constant.value))
    error = _mean("MAE, joint", joint, "lower", "", constant)
    twin = _mean("MAE, comparison only", alone, "lower", "", constant)
    cost = _mean("MAE, joint less comparison only", joint - alone, "lower")
    order = _mean("order accuracy, joint", right, "higher", "%", first)
    twin_order = _mean("order accuracy, comparison only", alone_right, "higher", "%", first)
    lost = _mean("order accuracy, comparison only less joint", alone_right - right, "lower", "%")
    pictures, readable = _pictures("joint", seeds, run.device)
    seconds = float(np.mean([_made("joint", seed, run.device).seconds for seed in seeds]))
    return Evidence(
        verdict=over.by_ours(_all(_below(cost, LITTLE), _below(lost, LITTLE))) if readable else "cannot tell",
        gates=(_learnt(seeds, run.device),),
        seeds=len(seeds),
        says=f"Trained jointly the ranker is off by {error.told(4)}, its twin that only compares by {twin.told(4)} and "
        f"always 0.5 by {constant.value:.4f}; joint training costs {cost.told(4)}, {cost.value / twin.value:+.0%} of "
        f"the twin's error, and {100 * lost.value:+.2f} points of order accuracy. One joint training took "
        f"{seconds:.0f} s." + ("" if readable else " Its pictures do not show the images: nothing was bought."),
        measures=(
            *(m.measure for m in (accuracy, error, twin, cost, order, twin_order, lost)),
            pictures,
            Measure(name="time of one joint training", value=seconds, better="lower", n=len(seeds), unit="s"),
        ),
    )


def frozen_is_constant(run: Run) -> Evidence:
    seeds, asked = _train(run, *FROZEN, "joint"), _asked(run.device)
    constant, first = _constant(asked)
    joint = Beside("trained jointly", float(_compared("joint", seeds, run.device)[0].mean()))
    found = {kind: _compared(kind, seeds, run.device) for kind in FROZEN}
    errors = {kind: _mean(f"MAE, {kind}", wrong, "lower", "", constant, joint) for kind, (wrong, _) in found.items()}
    gains = [_mean(f"MAE, always 0.5 less {kind}", asked.constant - wrong) for kind, (wrong, _) in found.items()]
    orders = [_mean(f"order accuracy, {kind}", right, "higher", "%", first) for kind, (_, right) in found.items()]
    pictures = [_pictures(kind, seeds, run.device) for kind in FROZEN]
    readable = all(enough for _, enough in pictures)
    told = " and ".join(f"{error.told()} in the {kind} form" for kind, error in errors.items())
    return Evidence(
        verdict=_all(*(_below(gain, LITTLE) for gain in gains)) if readable else "cannot tell",
        gates=(_learnt(seeds, run.device),),
        seeds=len(seeds),
        says=f"On a frozen encoder the comparison is off by {told}, where always 0.5 is off by {constant.value:.3f} "
        f"and joint training by {joint.value:.3f}."
        + ("" if readable else " An autoencoder does not show the images, so that it is no fair trial."),
        measures=(*(m.measure for m in (*errors.values(), *gains, *orders)), *(measure for measure, _ in pictures)),
    )


def _score(model: Siamese, partner: Tensor) -> Score:
    """How an input compares with its partner."""
    with torch.no_grad():
        other = model.encode(partner)
    return lambda x: model.compare(model.encode(x), other)


def _rows(values: Iterable[Tensor]) -> Array:  # seeds of m -> seeds m
    return np.stack([each.double().cpu().numpy() for each in values])


@cache
def _agreed(seed: int, device: str, clipped: bool) -> Agreement:
    """Four attacks on each of the first pairs, towards 0."""
    from assay.methods.rank.agreement import agreement

    a, b = _asked(device).a[:PAIRS], _asked(device).b[:PAIRS]
    score = _score(_made("joint", seed, device).model, b)
    return agreement(score, a, target=0.0, tie=TIE, steps=WALK, step=PACE, box=BOX if clipped else None)


def one_step_agrees(run: Run) -> Evidence:
    from assay.methods.rank.agreement import LOCAL, Way

    seeds = _train(run, "joint")
    start = np.stack([_answers("joint", seed, run.device)[:PAIRS] for seed in seeds])
    free, cut = ([_agreed(seed, run.device, clipped) for seed in seeds] for clipped in (False, True))
    boundary: tuple[Way, Way] = ("b", "s")
    middle: tuple[Way, Way] = ("m", "m'")
    angle, cut_angle, mid_angle = (
        _rows(f.angle[ways] for f in found) for found, ways in ((free, boundary), (cut, boundary), (free, middle))
    )
    alike, cut_alike, mid_alike = (
        _rows(f.spearman[ways] for f in found) for found, ways in ((free, boundary), (cut, boundary), (free, middle))
    )
    many, one = (_rows(f.c[way] for f in free) for way in boundary)
    apart, near = Beside("by chance", 90.0), Beside("by chance", 0.0)
    angles = _mean("angle, target 0", angle, "lower", "degrees", apart)
    likes = _mean("rank correlation, target 0", alike, "higher", "", near)
    cut_angles = _mean("angle, target 0, clipped", cut_angle, "lower", "degrees", apart)
    cut_likes = _mean("rank correlation, target 0, clipped", cut_alike, "higher", "", near)
    wider = _mean("angle, clipped less free", cut_angle - angle, "lower", "degrees")
    lost = _mean("rank correlation, clipped less free", cut_alike - alike, "higher")
    nearer = _mean("c after one step less c after many", one - many)
    way = _mean("share of the way to 0 in many steps", (start - many) / start.mean(), unit="%")
    further = (
        _mean(f"pairs within {LOCAL:g} degrees", _rows(f.local() for f in free), "higher", "%"),
        _mean("L2 length of the change", _rows(f.length["b"] for f in free)),
        _mean("angle, mid-point", mid_angle, "lower", "degrees", apart),
        _mean("rank correlation, mid-point", mid_alike, "higher", "", near),
    )
    arrived = _above(way, MOST) == "holds"
    alike_at_all = _all(_below(angles, apart.value), _above(likes, near.value))  # how near is near, print does not say
    verdict = over.by_ours(_all(_below(angles, LOCAL), _above(likes, MOST))) if alike_at_all != "fails" else "fails"
    return Evidence(
        verdict=verdict if arrived else "cannot tell",
        gates=(_learnt(seeds, run.device),),
        seeds=len(seeds),
        says=f"Many steps to 0 and one of the same length differ by {angles.told(1)} degrees, their maps have a rank "
        f"correlation of {likes.told(2)}; clipped to [0, 1] it is {cut_angles.told(1)} degrees and "
        f"{cut_likes.told(2)}, a change of {wider.value:+.1f} degrees and {lost.value:+.2f}. Many steps went "
        f"{way.value:.0%} of the way; one step left c higher by {nearer.told(3)}."
        + ("" if arrived else " The walks did not go most of the way, so that their agreement may be owed to that."),
        measures=tuple(m.measure for m in (angles, likes, cut_angles, cut_likes, wider, lost, nearer, way, *further)),
    )


@cache
def _map(kind: Kind, seed: int, device: str) -> Seen:
    """The change of each first image towards 0, in steps of one length: without order in its targets c is flat."""
    from assay.methods.rank.pair_sanity import Seen
    from assay.methods.rank.walk import walk

    a, b = _asked(device).a[:PAIRS], _asked(device).b[:PAIRS]
    score = _score(_made(kind, seed, device).model, b)
    went = walk(score, a, target=0.0, steps=WALK, step=FAR / WALK, unit=True, tolerance=NEAR)
    return Seen(went.x - a, (went.c - went.trace[0]).abs())


def label_randomisation(run: Run) -> Evidence:
    from assay.methods.rank.pair_sanity import MOVED, Seen, blind, compare, needs_the_labels

    seeds, asked = _train(run, "joint", "random targets"), _asked(run.device)
    own = [_map("joint", seed, run.device) for seed in seeds]
    shuffled = [_map("random targets", seed, run.device) for seed in seeds]
    after = [compare("random targets", seen, shuffled) for seen in own]
    twins = [compare("another seed", seen, [o for o in own if o is not seen]) for seen in own] if SEEDS > 1 else []
    looks = {
        name: [compare(name, seen, [Seen(look, seen.moved)]) for seen in own]
        for name, look in blind(asked.a[:PAIRS]).items()
    }

    def alike(stages: Sequence[Stage]) -> Array:  # seeds p
        return _rows(stage.absolute.mean(0) for stage in stages)

    left = _mean("rank correlation, random targets", alike(after))
    against = {name: _mean(f"rank correlation, {name}", alike(stages)) for name, stages in looks.items()}
    wrong, _ = _compared("random targets", seeds, run.device)
    error = _mean("MAE, random targets", wrong, "neither", "", _constant(asked)[0])
    movable = _rows((stage.moved >= MOVED).double().mean(0) for stage in after)
    moved = _mean("comparisons that move, random targets", movable, "higher", "%")
    learnt = _mean("MAE, always 0.5 less random targets", asked.constant - wrong)
    leaked = _below(learnt, LITTLE) != "holds"
    others = tuple(m.measure for m in (*against.values(), error, learnt, moved))
    says = (
        f"Without order in the targets the maps have a rank correlation of {left.told()} with the ranker's ("
        + ", ".join(f"{name} {m.value:.3f}" for name, m in against.items())
        + ")"
    )
    if not twins:
        says += "; no other seed says how alike the maps of two good rankers are."
        return Evidence(verdict="cannot tell", says=says, measures=(left.measure, *others))
    twin = _mean("rank correlation, another seed", alike(twins))
    gap = _mean("rank correlation, random targets less another seed", alike(after) - alike(twins), "lower")
    found = {needs_the_labels(a, b).says for a, b in zip(after, twins, strict=True)}
    looked = np.max([alike(stages) for stages in looks.values()], axis=0)  # seeds p: the best that knows no ranker
    beyond = _mean("rank correlation, another seed less the best look that knows no ranker", alike(twins) - looked)
    below = _mean("rank correlation, random targets less the best look that knows no ranker", alike(after) - looked)
    verdict: Held = "cannot tell"
    if found == {"does not need the model"}:
        verdict = "fails"
    elif found == {"needs the model"} and not leaked and _above(beyond, 0.0) == _below(below, 0.0) == "holds":
        verdict = "holds"
    return Evidence(
        verdict=verdict,
        gates=(_learnt(seeds, run.device),),
        seeds=len(seeds),
        says=f"{says}, those of a ranker from another seed {twin.told()}; the difference is {gap.told()}. Against the "
        f"best look that knows no ranker they are {below.value:+.3f} and {beyond.value:+.3f}."
        + (" Networks without order in their targets may beat always 0.5: the targets have leaked." if leaked else ""),
        measures=(left.measure, twin.measure, gap.measure, beyond.measure, below.measure, *others),
    )


@cache
def _walked(seed: int, device: str, target: float, clipped: bool) -> Tensor:  # p *d
    """The first image of the first pairs, after many steps towards the target."""
    from assay.methods.rank.walk import walk

    a, b = _asked(device).a[:PAIRS], _asked(device).b[:PAIRS]
    score = _score(_made("joint", seed, device).model, b)
    return walk(score, a, target=target, steps=WALK, step=PACE, box=BOX if clipped else None).x


@lru_cache(maxsize=1)
def _reader(device: str) -> Reader:
    from assay.methods.rank.perception import nearest_reader

    train = _data(device)["train"]
    return nearest_reader(train.x[:READ], train.y[:READ])


@cache
def _read(seed: int, device: str, target: float, clipped: bool) -> tuple[Reading, Reading]:
    """What is read of the attacked images, and of images under noise of the same length."""
    from assay.methods.rank.perception import perceive, random_change, read

    a, model, reader = _asked(device).a[:PAIRS], _made("joint", seed, device).model, _reader(device)
    end, box = _walked(seed, device, target, clipped), BOX if clipped else None
    rng = torch.Generator(device).manual_seed(seed)
    noise = random_change(a, (end - a).flatten(1).norm(dim=1), rng=rng, box=box)
    toward = torch.full((len(a),), target - TIE, device=a.device, dtype=torch.float64)
    attacked, blind = (read(reader, a, x, perceive(model, a, x), toward=toward) for x in (end, noise))
    return attacked, blind


@cache
def _gate(seed: int, device: str) -> Legible:
    """Whether the reader reads unchanged images as well from what is seen of them."""
    from assay.methods.rank.perception import gate

    read, _ = _read(seed, device, 0.0, False)
    return gate(read.image[0], read.perception[0], _asked(device).values[:PAIRS])


def moves_further(run: Run) -> Evidence:
    seeds = _train(run, "joint")
    measures: list[Measure] = []
    parts: list[Held] = []
    meant: list[Held] = []
    told: list[str] = []
    for target, clipped in ((0.0, False), (1.0, False), (0.0, True), (1.0, True)):
        found = [_read(seed, run.device, target, clipped) for seed in seeds]
        seen, noise = (_rows(each[i].perception_moved for each in found) for i in (0, 1))
        image = _rows(read.image_moved for read, _ in found)
        name = f"target {target:g}{', clipped' if clipped else ''}"
        gap = _mean(f"movement of what is seen less the image's, {name}", seen - image, unit="digits")
        beside = Beside("random change", float(noise.mean()))
        beyond = _mean(f"movement of what is seen less that under noise, {name}", seen - noise, "higher", "digits")
        sees = _mean(f"movement of what is seen, {name}", seen, "higher", "digits", beside)
        moves = _mean(f"movement of the image, {name}", image, unit="digits")
        coherent = _mean(f"seen to move as was meant, {name}", (seen > 0).astype(np.float64), "higher", "%")
        same = _mean(f"images that read as before, {name}", (np.abs(image) < 0.5).astype(np.float64), unit="%")
        measures += [m.measure for m in (gap, sees, moves, beyond, coherent, same)]
        told.append(f"{name}: {sees.value:+.2f} and {moves.value:+.2f}, a difference of {gap.told(2)}")
        if not clipped:  # as in print
            parts.append(_above(gap, 0.0))
            meant.append(_above(beyond, 0.0))
    gates = [_gate(seed, run.device) for seed in seeds]
    readable, coherently = all(g.passes for g in gates), set(meant) == {"holds"}
    kept = [g.kept for g in gates if g.kept is not None]
    return Evidence(
        verdict=_all(*parts) if readable and coherently else "cannot tell",
        gates=(_learnt(seeds, run.device),),
        seeds=len(seeds),
        says=f"Digits by which the reading of what is seen, and of the image, moves as was meant; {'; '.join(told)}."
        + ("" if readable else " The reader cannot read what is seen even before a change.")
        + ("" if coherently else " Noise of the same length moves what is seen as well."),
        measures=(
            *measures,
            Measure(
                name="what the reader still knows of what is seen",
                value=float(np.mean(kept)) if len(kept) == len(gates) else None,
                better="higher",
                n=PAIRS,
                unit="%",
            ),
        ),
    )


@cache
def _recycled(seed: int, device: str, target: float) -> tuple[Recycled, Recycled]:
    """The perceived change put back, and noise as long as it."""
    from assay.methods.rank.perception import random_change
    from assay.methods.rank.recycling import recycle

    a, b, model = _asked(device).a[:PAIRS], _asked(device).b[:PAIRS], _made("joint", seed, device).model
    end = _walked(seed, device, target, False)
    found = recycle(model, a, end, b)
    noise = random_change(a, found.length[1], rng=torch.Generator(device).manual_seed(seed)) - a
    return found, recycle(model, a, end, b, instead=noise)


def recycled_change(run: Run) -> Evidence:
    seeds = _train(run, "joint")
    measures: list[Measure] = []
    sees: list[Held] = []
    decides: list[Held] = []
    told: list[str] = []
    for target in (0.0, 1.0):
        found = [_recycled(seed, run.device, target) for seed in seeds]
        name = f"target {target:g}"
        again, noise = (_rows(each[i].perception for each in found) for i in (0, 1))
        ratio, noise_ratio = (_rows(each[i].decision for each in found) for i in (0, 1))
        half, noise_half = (_where(r, r >= MOST) for r in (ratio, noise_ratio))
        back, noise_back = (_where(r, r < 0) for r in (ratio, noise_ratio))
        seen = _mean(f"cosine of the perceived changes, {name}", again, "neither", "", _noise(noise))
        beyond = _mean(f"cosine of the perceived changes less that of noise, {name}", again - noise)
        follows = _mean(f"decisions that go half the way, {name}", half, "neither", "%", _noise(noise_half))
        against = _mean(f"decisions that go the other way, {name}", back, "neither", "%", _noise(noise_back))
        middle = Measure.median(
            f"(c'' - c) / (c' - c), median, {name}", ratio[np.isfinite(ratio)], better="neither", seed=0
        )
        cosine = _mean(f"cosine of d and the attack, {name}", _rows(each.cosine for each, _ in found))
        alike = _mean(f"rank correlation of d and the attack, {name}", _rows(each.spearman for each, _ in found))
        measures += [*(m.measure for m in (seen, beyond, follows, against)), middle, cosine.measure, alike.measure]
        sees += [_above(seen, MOST), _above(beyond, 0.0)]
        decides.append(_above(follows, MOST))
        told.append(
            f"{name}: it is seen again with a cosine of {seen.told(2)}; the decision goes {middle.value:+.2f} of the "
            f"attack's way in the median, at least half of it for {follows.value:.0%} of the pairs, and the other way "
            f"for {against.value:.0%}"
        )
    words = {"holds": "follows", "fails": "does not follow", "cannot tell": "cannot be told to follow"}
    return Evidence(
        # the thresholds of half are ours: what they alone decide cannot be told
        verdict=_all(*map(over.by_ours, sees[::2]), *sees[1::2], *(over.by_ours(_not(each)) for each in decides)),
        gates=(_learnt(seeds, run.device),),
        seeds=len(seeds),
        says=f"Perception {words[_all(*sees)]}, the decision {words[_all(*decides)]}. {'; '.join(told)}.",
        measures=tuple(measures),
    )


def _where(ratio: Array, hit: NDArray[np.bool_]) -> Array:
    """1 or 0, NaN where there is no ratio."""
    return np.where(np.isfinite(ratio), hit, np.nan)


def _noise(values: Array) -> Beside:
    return Beside("random change", float(np.nanmean(values)))


@cache
def _cascaded(seed: int, device: str) -> tuple[list[Stage], Seen]:
    """How alike maps stay as the branch is drawn anew from its deepest layer on, and the ranker's own maps."""
    from assay.methods.rank.pair_sanity import Seen, stages
    from assay.methods.rank.walk import walk

    a, b = _asked(device).a[:CASCADED], _asked(device).b[:CASCADED]

    def explain(model: nn.Module, pair: Tensor) -> Seen:
        ranker = cast("Siamese", model)
        went = walk(
            _score(ranker, pair[:, 1]), pair[:, 0], target=0.0, steps=WALK, step=FAR / WALK, unit=True, tolerance=NEAR
        )
        return Seen(went.x - pair[:, 0], (went.c - went.trace[0]).abs())

    model = _made("joint", seed, device).model
    rng = torch.Generator().manual_seed(seed)
    pair = torch.stack([a, b], 1)
    return stages(model, pair, explain, start="branch", rng=rng, draws=REDRAWN), explain(model, pair)


def weight_cascade(run: Run) -> Evidence:
    from assay.methods.rank.pair_sanity import Seen, blind, compare

    seeds = _train(run, "joint")
    found = [_cascaded(seed, run.device) for seed in seeds]
    own = [maps for _, maps in found]
    layers = [stage.layer for stage in found[0][0]][1:]  # the first is the ranker as it is
    left = [
        _mean(f"rank correlation, down to {layer}", _rows(stages[i + 1].absolute.mean(0) for stages, _ in found))
        for i, layer in enumerate(layers)
    ]
    twins = _rows(compare("", maps, [o for o in own if o is not maps]).absolute.mean(0) for maps in own)
    looks = [
        _rows(compare(name, maps, [Seen(look, maps.moved)]).absolute.mean(0) for maps in own)
        for name, look in blind(_asked(run.device).a[:CASCADED]).items()
    ]
    twin, look = (
        _mean("rank correlation, another seed", twins),
        _mean("rank correlation, edges or brightness", np.max(looks, 0)),
    )
    first = _rows(stages[1].absolute.mean(0) for stages, _ in found)
    against = _mean("rank correlation, another seed less the deepest layer anew", twins - first)
    below = _mean("rank correlation, edges or brightness less the deepest layer anew", np.max(looks, 0) - first)
    told = ", ".join(f"{layer} {m.value:.3f}" for layer, m in zip(layers, left, strict=True))
    return Evidence(
        verdict=_all(_above(against, 0.0), over.by_ours(_above(below, 0.0))),
        gates=(_learnt(seeds, run.device),),
        seeds=len(seeds),
        says="With layers drawn anew from the deepest of the branch on, the maps have a rank correlation with the "
        f"ranker's of: {told}; those of a ranker from another seed {twin.told()}, edges or brightness {look.told()}.",
        measures=(*(m.measure for m in left), *(m.measure for m in (twin, look, against, below))),
    )


@cache
def _mirrored(seed: int, device: str) -> tuple[Likeness, Likeness]:
    """Of a mirror of a ranker that only compares: its pictures of its own embeddings, and of the ranker's."""
    from assay.methods.train.fit import reset
    from assay.methods.train.ranker import Course, embed, fit_mirror, likeness
    from assay.nn.siamese import ARCHITECTURES

    ranker = _made("comparison only", seed, device).model
    rng = torch.Generator().manual_seed(1000 + seed)
    with torch.random.fork_rng(devices=[]):
        mirror = cast("Siamese", reset(ARCHITECTURES["grey"](SIZE), rng))
    course = Course(steps=STEPS, batch=2 * BATCH, device=device)
    fit_mirror(ranker, mirror, _data(device)["train"].x, rng=rng, course=course)
    mirror.to(device).eval().requires_grad_(False)
    assert mirror.decoder is not None  # it is built with one
    x = _data(device)["test"].x
    own, theirs = (likeness(mirror.decoder, embed(of.encoder, x), x) for of in (mirror, ranker))
    return own, theirs


def mirror_decoder(run: Run) -> Evidence:
    seeds = _train(run, "comparison only", "joint")
    with run.progress("training mirrors", len(seeds)) as tick:
        found = []
        for seed in seeds:
            found.append(_mirrored(seed, run.device))
            tick(1)
    own, theirs = (np.array([each[i].share for each in found]) for i in (0, 1))
    joint = np.array([_drawn("joint", seed, run.device).share for seed in seeds])
    verdict: Held = "cannot tell"
    if (theirs < 0.5).all():
        verdict = "holds"
    elif (theirs >= 1).all():  # no better than the mean image
        verdict = "fails"
    return Evidence(
        verdict=verdict,
        gates=(_learnt(seeds, run.device),),
        seeds=len(seeds),
        says=f"Of what differs between images the mirror's pictures miss {own.mean():.0%} from its own embeddings and "
        f"{theirs.mean():.0%} from the ranker's ({theirs.min():.0%} to {theirs.max():.0%} in the seeds), which it is "
        f"there to explain; those of joint training miss {joint.mean():.0%}. 100 % is the mean image.",
        measures=tuple(
            Measure(
                name=f"missed by pictures of {what}", value=float(each.mean()), low=float(each.min()),
                high=float(each.max()), better="lower", n=len(each), unit="%",
            )
            for what, each in (
                ("the ranker's embeddings", theirs), ("its own embeddings", own), ("joint training", joint)
            )
        ),
    )  # fmt: skip


class _Strolled(NamedTuple):
    """Of one embedding walk, of each pair."""

    toward: Tensor  # m: digits by which what is drawn moves as was meant
    noise: Tensor  # m: the same after a random move of the same length
    aside: Tensor  # m: degrees between the walk and the line to the other embedding
    moved: Tensor  # m: the length of the move, of that of the embedding
    gone: Tensor  # m: share of the way to the target


@cache
def _strolled(seed: int, device: str, target: float) -> _Strolled:
    from assay.methods.rank.perception import random_change
    from assay.methods.rank.walk import degrees, relative_move, walk
    from assay.methods.train.ranker import embed

    model, reader = _made("joint", seed, device).model, _reader(device)
    asked = _asked(device)
    e1, e2 = (embed(model.encoder, x[:PAIRS]) for x in (asked.a, asked.b))
    went = walk(lambda e: model.compare(e, e2), e1, target=target, steps=WALK, step=PACE)
    rng = torch.Generator(device).manual_seed(seed)
    lost = random_change(e1, (went.x - e1).norm(dim=1), rng=rng)
    assert model.decoder is not None  # each is built with one
    with torch.no_grad():
        before, after, other = (reader(model.decoder(e)) for e in (e1, went.x, lost))
    sign = 1 if target > TIE else -1
    return _Strolled(
        sign * (after - before),
        sign * (other - before),
        degrees(went.x - e1, e2 - e1),
        relative_move(e1, went.x),
        (went.c - went.trace[0]) / (target - went.trace[0]),
    )


def embedding_walk(run: Run) -> Evidence:
    seeds = _train(run, "joint")
    measures: list[Measure] = []
    parts: list[Held] = []
    told: list[str] = []
    for target in (0.0, 1.0):
        found = [_strolled(seed, run.device, target) for seed in seeds]
        name = f"target {target:g}"
        toward, noise = _rows(f.toward for f in found), _rows(f.noise for f in found)
        sees = _mean(
            f"movement of what is drawn, {name}", toward, "higher", "digits", Beside("random move", float(noise.mean()))
        )
        beyond = _mean(
            f"movement of what is drawn less that of a random move, {name}", toward - noise, "higher", "digits"
        )
        wrong = _mean(f"drawn to move the wrong way, {name}", (toward < -0.5).astype(np.float64), "lower", "%")
        aside = _mean(f"angle to the line between the two, {name}", _rows(f.aside for f in found), "neither", "degrees")
        moved = _mean(f"length of the move, of the embedding's, {name}", _rows(f.moved for f in found))
        way = _mean(f"share of the way, {name}", _rows(f.gone for f in found), "higher", "%")
        measures += [m.measure for m in (sees, beyond, wrong, aside, moved, way)]
        parts += [_above(sees, 0.0), _above(beyond, 0.0)]
        told.append(
            f"{name}: by {sees.told(2)} digits, after a random move of the same length by {noise.mean():+.2f}, the "
            f"wrong way for {wrong.value:.0%}, after {way.value:.0%} of the way, {moved.value:.1f} times the "
            "embedding's length"
        )
    return Evidence(
        verdict=_all(*parts),
        gates=(_learnt(seeds, run.device),),
        seeds=len(seeds),
        says=f"What is drawn of a walked embedding moves as was meant; {'; '.join(told)}.",
        measures=tuple(measures),
    )


NETS = (
    f"the published networks for grey images of 28 x 28 (embeddings of {SIZE}), {STEPS:,} steps of Adam (rate 0.001 "
    f"with a cosine) on {BATCH} pairs each, drawn anew from the 60,000 training images of MNIST, where print "
    f"gives no setting; {SEEDS} seeds; k such that both terms of the loss start equal; intervals over seeds and test "
    "pairs that share no image, and every seed must agree"
)
RANKERS = f"{NETS}; `cannot tell` unless each ranker's 1 - MAE is at least {GOOD:g} (printed, of faces: 0.95)"
ATTACKED = (
    f"{RANKERS}; the first image of {PAIRS} test pairs, {WALK} steps of {PACE:g} gradients (print has faces, 20 pairs "
    "and no step)"
)
SHELVED = (
    Claim(
        name="joint-costs-little",
        source=SOURCE,
        says="Training the ranker together with its decoder costs the comparison little.",
        published=(
            Published("1 - MAE, joint, at least", 0.95, "sec. 5.3.3, Results, models of faces", "%", "1 - MAE, joint"),
        ),
        here=f"{RANKERS}; 5,000 pairs of all 10,000 test images; the twin that only compares has the same start and "
        f"the same pairs; little: less than {LITTLE:g} of the range and less than {100 * LITTLE:g} point of order "
        "accuracy; `cannot tell` if the pictures miss more than half of the variance",
        minutes=110,
        test=costs_little,
        seeds=SEEDS,
    ),
    Claim(
        name="frozen-is-constant",
        source=SOURCE,
        says="On the frozen encoder of an autoencoder, with its embeddings held near norm 1 or variational, the "
        "comparison is no better than a constant.",
        published=tuple(
            Published(f"MAE, {kind}, at least", 0.2, "sec. 5.2.2, average +-0.2 on [0, 1]", measured=f"MAE, {kind}")
            for kind in FROZEN
        ),
        here=f"{NETS}; as many steps for the autoencoder, on {2 * BATCH} images, and then for the tail alone; norm and "
        f"divergence weigh {WEIGHT:g} beside the squared error summed over pixels; 5,000 pairs of all 10,000 test "
        f"images; no better: by less than {LITTLE:g} of the range. Print does not compare with a constant, which is "
        "off by 0.18",
        minutes=290,
        test=frozen_is_constant,
        seeds=SEEDS,
    ),
    Claim(
        name="one-step-agrees",
        source=SOURCE,
        says="An attack of many steps and one of a single step of the same length go nearly the same way, and their "
        "maps are alike.",
        published=(
            Published("angle, target 0", 14, "sec. 5.3.4, mean of 20 trials", "degrees"),
            Published("rank correlation, target 0", 0.75, "sec. 5.3.4, mean of 20 trials"),
        ),
        here=f"{ATTACKED}; not clipped, as in print, and clipped to [0, 1] beside it; holds if the mean is below 30 "
        f"degrees and the rank correlation above {MOST:g}, which print does not give, fails if they are as by chance; "
        f"`cannot tell` unless many steps go more than {MOST:g} of the way to 0",
        minutes=100,
        test=one_step_agrees,
        seeds=SEEDS,
    ),
    Claim(
        name="label-randomisation",
        source=SOURCE,
        says="Maps of a ranker trained on random targets are not correlated with those of the ranker: they depend on "
        "the labels.",
        published=(Published("rank correlation, random targets", 0.127, "sec. 5.3.9, E 38"),),
        here=f"{RANKERS}; targets dealt anew to the pairs of each batch; the first image of {PAIRS} test pairs is "
        f"walked towards 0 in {WALK} steps of one length, {FAR:g} together, as c is flat where targets have no order; "
        "holds if the maps are less alike than those of two rankers from different seeds, which print lacks, and "
        "than the ranker's are to the edges and the brightness of the image, which two rankers' are not; fails if "
        "more than half is left, else `cannot tell`. Over the 12,544 pixels of print 0.127 has t = 14.3: small, not "
        "absent",
        minutes=190,
        test=label_randomisation,
        seeds=SEEDS,
    ),
    Claim(
        name="perception-moves-further",
        source=SOURCE,
        says="What the ranker sees of an attacked image changes as the attack meant, further than the image itself "
        "does.",
        published=(),
        here=f"{ATTACKED}; towards 0 and towards 1, not clipped as in print, and clipped beside it; in place of eyes "
        f"the 5 nearest of {READ:,} training images, which know nothing of the ranker; `cannot tell` if they cannot "
        "read what is seen of unchanged images, or if noise of the same length does as much. Print has no number",
        minutes=100,
        test=moves_further,
        seeds=SEEDS,
    ),
    Claim(
        name="recycled-change",
        source=SOURCE,
        says="A perceived change that is put back onto the image is seen as the attack was, but the decision often "
        "does not follow, and sometimes goes the other way.",
        published=(),
        here=f"{ATTACKED}; towards 0 and towards 1, nothing clipped; seen again: a mean cosine above {MOST:g} and "
        f"above that of noise as long; often not: the decision goes half the attack's way for less than {MOST:g} of "
        "the pairs. Print has no number",
        minutes=95,
        test=recycled_change,
        seeds=SEEDS,
    ),
    Claim(
        name="weight-cascade",
        source=SOURCE,
        says="Once the deepest layer of the ranker's branch is drawn anew, its attack maps are no longer correlated "
        "with those of the trained ranker.",
        published=(),
        here=f"{RANKERS}; the first image of {CASCADED} test pairs walked towards 0 in {WALK} steps of one length; "
        f"layers drawn anew from the deepest on, {REDRAWN} times, tail, decoder and running statistics as trained; "
        "holds if with the deepest anew the maps are less alike than those of another seed and than the image's "
        "edges or brightness, fails if they are more alike than those of another seed (printed: a figure, no "
        "numbers)",
        minutes=60,
        test=weight_cascade,
        seeds=SEEDS,
    ),
    Claim(
        name="mirror-decoder",
        source=SOURCE,
        says="An autoencoder that mirrors a finished ranker's encoder gives valid pictures of what the ranker sees "
        "(sec. 5.2.3).",
        published=(),
        here=f"{RANKERS}; the mirror of a ranker that only compares, {STEPS:,} steps on {2 * BATCH} images, k such "
        "that both terms are equal for mean pictures and embeddings, as print gives none; pictures of the ranker's "
        "own embeddings of 10,000 test images; holds if they miss less than half of the variance, fails if no less "
        "than the mean image does, in every seed (printed: by eye)",
        minutes=200,
        test=mirror_decoder,
        seeds=SEEDS,
    ),
    Claim(
        name="embedding-walk",
        source=SOURCE,
        says="Where an embedding is walked down the ranking loss towards a lower or a higher comparison, what is "
        "drawn of it changes as was meant.",
        published=(),
        here=f"{RANKERS}; {PAIRS} test pairs, {WALK} steps of {PACE:g} gradients on the first embedding; in place of "
        f"eyes the 5 nearest of {READ:,} training images; holds if the digit read moves as was meant, and further "
        "than after a random move of the same length (printed: strips of pictures, no numbers)",
        minutes=90,
        test=embedding_walk,
        seeds=SEEDS,
    ),
)
