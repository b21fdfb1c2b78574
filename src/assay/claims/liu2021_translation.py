"""Liu 2021: which of seven ways to be unsure finds what does not belong in an image, and what density does to them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from assay.claim import Claim, Evidence, Held, Published
from assay.claims._elsewhere import RULE, elsewhere
from assay.claims._kept import ROOMS, Tensors, kept
from assay.claims._student import of_seeds
from assay.data.whole import Whole
from assay.finding import Measure
from assay.methods.uncertainty.image_correlation import pearson, spearman
from assay.methods.uncertainty.pixel_ranking import MOST, partial_auc, ranked
from assay.methods.uncertainty.pixel_spread import together

if TYPE_CHECKING:
    from assay.data.marked import Marked
    from assay.nn.members import Members
    from assay.remedy import Remedy
    from assay.run import Run
    from assay.subject import Subject

SOURCE = "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021 (dissertation), sec. 5.3-5.4"
SEEDS, MEMBERS, DRAWS = 5, 6, 15
TRAINED, TESTED = 400, 100
EPOCHS, BATCH, LR, WEIGHT_DECAY = 40, 16, 2e-3, 1e-5
WIDTH, LEVELS = 16, 4
LAM, SHARE = 10.0, 0.08  # FastEnsemble's, and what a further member takes of a training
STEP = 1e-4  # of SGLD, on squared errors in units of the tolerance
RATE = 0.05  # of the dropout before every weight layer
TOLERANCE = 0.1
LEARNT = 0.8  # mean correlation at home of a single network, below which nothing is concluded
CHANCE = MOST**2 / 2
METHODS = ("naive", "MC-dropout", "SGLD", "SVI", "batch", "snapshot", "FastEnsemble")
STRANGE = ("impurities", "foreign")
PLACES = ("very dense", "dense", "sparse", "very sparse")
HOMES = {"clean": "sparse", "model A": "very sparse", "model B": "very dense"}
"""What networks are trained on, by the density of its fields."""
PRINTED: dict[str, tuple[float, ...]] = {  # in the order of METHODS
    "impurities": (0.112, 0.074, 0.099, 0.050, 0.098, 0.002, 0.108),
    "foreign": (0.082, 0.035, 0.021, 0.023, 0.059, 0.001, 0.090),
    "model A, very dense": (0.869, 0.803, 0.756, 0.762, 0.865, 0.853, 0.865),
    "model A, dense": (0.925, 0.869, 0.803, 0.807, 0.919, 0.909, 0.923),
    "model A, sparse": (0.952, 0.909, 0.853, 0.849, 0.947, 0.939, 0.950),
    "model A, very sparse": (0.974, 0.933, 0.894, 0.887, 0.968, 0.960, 0.971),
    "model B, very dense": (0.956, 0.865, 0.861, 0.734, 0.953, 0.945, 0.952),
    "model B, dense": (0.963, 0.863, 0.887, 0.778, 0.961, 0.957, 0.962),
    "model B, sparse": (0.967, 0.843, 0.902, 0.818, 0.965, 0.962, 0.966),
    "model B, very sparse": (0.971, 0.815, 0.924, 0.846, 0.969, 0.970, 0.972),
}
ROWS = {"impurities": "MSC-Impurities", "foreign": "MSC-LNCaP"}
AS_SAVED = "snapshot, as the public code saves"
Array = NDArray[np.float64]


@cache
def _data() -> dict[str, Marked]:
    """What is trained on, by its home, and what is tested on."""
    from assay.data.stained_cells import DENSITIES, make_fields

    sets = {
        home: make_fields(range(k * 10_000, k * 10_000 + TRAINED), cells=DENSITIES[density])
        for k, (home, density) in enumerate(HOMES.items())
    }
    for k, density in enumerate(PLACES):
        sets[density] = make_fields(range(100_000 + 1000 * k, 100_000 + 1000 * k + TESTED), cells=DENSITIES[density])
    sets["foreign"] = make_fields(range(200_000, 200_000 + TESTED), holds="foreign")
    sets["impurities"] = make_fields(range(210_000, 210_000 + TESTED), holds="impurities")
    return {name: fields.marked() for name, fields in sets.items()}


def _remedy(method: str) -> Remedy:
    """The way as it stands on the shelf of remedies, all trained as long as a single network."""
    # by their files and not by the shelf's names: a record hangs on their code
    from assay.remedies import batch_ensemble, ensemble, fast_ensemble, mc_dropout, sgld, snapshot, variational

    taught: dict[str, Any] = {
        "epochs": EPOCHS, "lr": LR, "weight_decay": WEIGHT_DECAY, "optimiser": "adamw", "batch": BATCH,
    }  # fmt: skip
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "naive": (ensemble, {"members": MEMBERS, **taught}),
        "MC-dropout": (mc_dropout, {"rate": RATE, "draws": DRAWS, **taught}),
        "SGLD": (sgld, {"samples": MEMBERS, "step": STEP, **taught}),
        "SVI": (variational, {"draws": DRAWS, **taught, "weight_decay": 0.0}),
        "batch": (batch_ensemble, {"members": MEMBERS, **taught}),
        "snapshot": (snapshot, {"members": MEMBERS, **taught}),
        "FastEnsemble": (fast_ensemble, {"members": MEMBERS, "share": SHARE, "lam": LAM, "lr": LR / 2,
                                           "weight_decay": WEIGHT_DECAY, "epochs": EPOCHS, "batch": BATCH}),
    }  # fmt: skip
    way, settings = ways[method]
    remedy: Remedy = way.SHELVED(**settings)
    return remedy


@cache
def _single(home: str, seed: int, device: str) -> Subject:
    """One network trained at home: where FastEnsemble starts, and what the others are retrained from."""
    from assay.methods.train.fit import fit
    from assay.nn.translator import Translator
    from assay.remedies._retraining import loss_of
    from assay.subject import Subject
    from assay.tasks import ImageToImage

    data = _data()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = Translator(1, 1, width=WIDTH, levels=LEVELS)
    net.begin(torch.from_numpy(data[home].labels))
    task = ImageToImage(tuple(data[home].x.shape[1:]), TOLERANCE)  # type: ignore[arg-type]
    subject = Subject.of(
        net.eval(), {"train": data[home], "test": data[HOMES[home]]}, task, name=f"{home}, seed {seed}"
    )
    fit(
        net, data[home], epochs=EPOCHS, lr=LR, batch=BATCH, weight_decay=WEIGHT_DECAY, optimiser="adamw",
        loss=loss_of(subject), rng=torch.Generator(device).manual_seed(seed), device=device,
    )  # fmt: skip
    return subject


@cache
def _made(method: str, home: str, seed: int, run: Run) -> Members:
    from assay.nn.members import Ensemble

    subject = _single(home, seed, run.device)
    if method == "single":
        return Ensemble([subject.model], average="answers").eval()
    if method == AS_SAVED:
        return _as_saved(_made("snapshot", home, seed, run), subject, seed)
    model = _remedy(method).apply(subject, replace(run, seed=seed)).model
    return model.eval()  # type: ignore[return-value]


def _as_saved(snapshots: Members, subject: Subject, seed: int) -> Members:
    """The first file is the network before any training, and the end of the last cycle is in none."""
    from assay.methods.train.fit import reset
    from assay.nn.members import Ensemble

    assert isinstance(snapshots, Ensemble)
    fresh: nn.Module = reset(subject.model, torch.Generator().manual_seed(seed))
    device = next(snapshots.parameters()).device
    saved = [copy.deepcopy(net) for net in snapshots.nets][:-1]
    return Ensemble([fresh.to(device), *saved], average="answers").eval()


class _Seen(NamedTuple):
    """Of one predictor on one set."""

    correlation: float  # mean over images whose correlation is defined
    undefined: int
    area: float  # partial area in boxes, pixels of all images pooled; NaN where there are none
    each: float  # the same, mean over images
    goes: float  # Spearman's of spread and error, mean over images


def _look(model: Members, data: Marked, device: str, seed: int) -> _Seen:
    x, y = data.take(np.arange(len(data)))
    cuda = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        model.to(device)
        parts = [together(model.members(some.to(device)).float()) for some in torch.split(x, 25)]
    mean, spread = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    true, inside = y.numpy(), data.inside(np.arange(len(data)))
    r = pearson(mean, true)
    goes = spearman(spread, np.abs(mean - true).mean(1))
    area = each = float("nan")
    if inside.any():
        pooled = ranked(spread.ravel(), inside.ravel(), rng=np.random.default_rng(seed))
        alone = ranked(spread.reshape(len(x), -1), inside.reshape(len(x), -1), rng=np.random.default_rng(seed))
        area, each = float(partial_auc(pooled)), _known(partial_auc(alone))
    return _Seen(_known(r), int(np.isnan(r).sum()), area, each, _known(goes))


def _at_all(method: str, home: str, places: tuple[str, ...], seed: int, run: Run) -> dict[str, _Seen]:
    """By set. Kept, as trainings behind it take long."""

    def make() -> Tensors:
        model = _made(method, home, seed, run)
        return {place: torch.tensor(_look(model, _data()[place], run.device, seed)).double() for place in places}

    told = (method, home, places, seed)
    data = [Whole(*_data()[name].take(np.arange(len(_data()[name])))) for name in (home, *places)]
    found = kept(make, __name__, told, run.device, data, (*ROOMS, "remedies"))
    rows = {place: found[place].tolist() for place in places}
    return {place: _Seen(row[0], int(row[1]), *row[2:]) for place, row in rows.items()}


def _known(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _all(
    run: Run, homes: Mapping[str, tuple[str, ...]], methods: tuple[str, ...]
) -> dict[tuple[str, str, str], list[_Seen]]:
    """By method, home and set, seed after seed."""
    seen: dict[tuple[str, str, str], list[_Seen]] = {}
    with run.progress("training translators", len(homes) * len(methods) * SEEDS) as tick:
        for home, places in homes.items():
            for seed in range(run.seed, run.seed + SEEDS):
                for method in methods:
                    for place, found in _at_all(method, home, places, seed, run).items():
                        seen.setdefault((method, home, place), []).append(found)
                    tick(1)
    return seen


def _learnt(seen: dict[tuple[str, str, str], list[_Seen]], home: str, place: str) -> bool:
    return all(each.correlation >= LEARNT for each in seen["single", home, place])


def _seeds(name: str, values: list[float], *, share: bool = False) -> Measure:
    """The mean over the seeds in which it is defined, with Student's interval; None where it is in none."""
    known = [value for value in values if np.isfinite(value)]
    if not known:
        return Measure(name=name, value=None, n=0, better="neither", about="undefined in every seed")
    return of_seeds(name, known, share=share)


def _gap(name: str, ours: list[float], theirs: list[float]) -> Measure:
    return _seeds(name, [a - b for a, b in zip(ours, theirs, strict=True)])


def _told(measure: Measure) -> str:
    return f"{measure.value or 0:.3f}"


def _places(values: Mapping[str, float]) -> str:
    return ", ".join(sorted(values, key=lambda name: -values[name]))


def areas(run: Run) -> Evidence:
    """Naive first, FastEnsemble near it, snapshot at chance, impurities easier than foreign cells."""
    places = (*STRANGE, HOMES["clean"])
    seen = _all(run, {"clean": places}, ("single", *METHODS, AS_SAVED))
    area = {key: [each.area for each in some] for key, some in seen.items()}
    rows = {
        (method, place): _seeds(f"partial area, {place}, {method}", area[method, "clean", place], share=True)
        for place in STRANGE
        for method in (*METHODS, AS_SAVED)
    }
    others = [m for m in METHODS if m not in ("naive", "FastEnsemble")]

    def best(place: str, some: list[str]) -> list[float]:
        return [max(values) for values in zip(*(area[m, "clean", place] for m in some), strict=True)]

    gaps = [
        *(
            _gap(f"{place}: naive less the best of the others but FastEnsemble", area["naive", "clean", place],
                 best(place, others))
            for place in STRANGE
        ),
        *(
            _gap(f"{place}: FastEnsemble less the best of the others but naive", area["FastEnsemble", "clean", place],
                 best(place, others))
            for place in STRANGE
        ),
        _gap("naive: impurities less foreign", area["naive", "clean", "impurities"], area["naive", "clean", "foreign"]),
    ]  # fmt: skip
    chance = [
        _gap(f"{place}: snapshot less chance", area["snapshot", "clean", place], [CHANCE] * SEEDS) for place in STRANGE
    ]
    at_chance = all((m.low or 0) <= 0 for m in chance)
    held: Held = "cannot tell"
    if _learnt(seen, "clean", HOMES["clean"]):
        held = _signs(*gaps)
        if held == "holds" and not at_chance:
            held = "fails"
    order = {place: _places({m: rows[m, place].value or 0.0 for m in METHODS}) for place in STRANGE}
    saved = ", ".join(f"{_told(rows[AS_SAVED, place])} on {place}" for place in STRANGE)
    own = ", ".join(f"{_told(rows['snapshot', place])} on {place}" for place in STRANGE)
    return elsewhere(
        held,
        says=f"By partial area, best first: {'; '.join(f'{place}: {told}' for place, told in order.items())}. Chance "
        f"has {CHANCE:g}. Snapshots have {own}; saved as the public code saves them, with an untrained network first, "
        f"{saved}.",
        measures=(
            *(rows[method, place] for place in STRANGE for method in METHODS),
            *(rows[AS_SAVED, place] for place in STRANGE),
            *gaps,
            *chance,
            *(
                _seeds(f"partial area of each image, {place}, {m}", [e.each for e in seen[m, "clean", place]],
                       share=True)
                for place in STRANGE
                for m in METHODS
            ),
            *(
                _seeds(f"spread goes with the error, {place}, {m}", [e.goes for e in seen[m, "clean", place]])
                for place in places
                for m in METHODS
            ),
        ),
    )  # fmt: skip


def density(run: Run) -> Evidence:
    """Naive first in nearly all cells, FastEnsemble next, and model A loses more with density than model B."""
    homes = dict.fromkeys(("model A", "model B"), PLACES)
    seen = _all(run, homes, ("single", *METHODS))
    by = {key: [each.correlation for each in some] for key, some in seen.items()}
    undefined = sum(each.undefined for some in seen.values() for each in some)
    rows = {
        (m, home, place): _seeds(f"correlation, {home}, {place}, {m}", by[m, home, place])
        for home in homes
        for place in PLACES
        for m in METHODS
    }
    cells = [(home, place) for home in homes for place in PLACES]
    ranks = {
        m: [1 + sum((rows[o, *cell].value or 0.0) > (rows[m, *cell].value or 0.0) for o in METHODS) for cell in cells]
        for m in METHODS
    }
    lost = {
        home: [b - a for a, b in zip(by["naive", home, far], by["naive", home, near], strict=True)]
        for home, near, far in (("model A", "very sparse", "very dense"), ("model B", "very dense", "very sparse"))
    }
    falls = _gap("naive: lost by model A far from home less that by model B", lost["model A"], lost["model B"])
    steps = [
        _gap(f"naive, model A: {a} less {b}", by["naive", "model A", a], by["naive", "model A", b])
        for a, b in zip(PLACES[::-1], PLACES[-2::-1], strict=False)
    ]
    first, second = ranks["naive"].count(1), sum(rank <= 2 for rank in ranks["FastEnsemble"])
    held: Held = "cannot tell"
    if all(_learnt(seen, home, HOMES[home]) for home in homes):
        held = _signs(falls, *steps)
        if held == "holds" and (first < len(cells) - 1 or second < len(cells) - 1):
            held = "fails"
    return elsewhere(
        held,
        says=f"Naive is first in {first} of {len(cells)} cells, FastEnsemble first or second in {second}. Far from "
        f"home model A loses {np.mean(lost['model A']):.3f} and model B {np.mean(lost['model B']):.3f} (naive). "
        f"Of {undefined} images the correlation is undefined; they are not counted.",
        measures=(
            *(rows[m, home, place] for home, place in cells for m in METHODS),
            falls,
            *steps,
            *(_exact(f"mean place, {m}", float(np.mean(ranks[m])), len(cells)) for m in METHODS),
        ),
    )


def _signs(*gaps: Measure) -> Held:
    if all((gap.low or 0) > 0 for gap in gaps):
        return "holds"
    return "fails" if any((gap.high or 0) < 0 for gap in gaps) else "cannot tell"


def second_everywhere(run: Run) -> Evidence:
    """Arithmetic of what is printed: no network is asked."""
    places = {
        row: 1 + sum(other > values[-1] for other in values[:-1]) for row, values in PRINTED.items() if row != "foreign"
    }
    tied = [row for row, values in PRINTED.items() if row != "foreign" and values.count(values[-1]) > 1]
    other = {row: place for row, place in places.items() if place != 2}
    first = [row for row, place in other.items() if place < 2]
    behind = [row for row, place in other.items() if place > 2]
    ahead = PRINTED["foreign"][-1] == max(PRINTED["foreign"])
    return Evidence(
        verdict="holds" if ahead and not behind and not tied else "fails",
        says=f"In print it is first on MSC-LNCaP, second in {len(places) - len(other)} of {len(places)} other rows "
        f"({len(tied)} of them tied: {', '.join(tied) or 'none'}), first in {', '.join(first) or 'none'} and behind a "
        f"second other method in {', '.join(behind) or 'none'}.",
        measures=(
            _exact("rows in which it is second", len(places) - len(other), len(places)),
            _exact("rows in which it shares its place", len(tied), len(places)),
            _exact("rows in which two are ahead of it", len(behind), len(places)),
        ),
    )


def _exact(name: str, value: float, n: int) -> Measure:
    return Measure(name=name, value=float(value), low=float(value), high=float(value), better="neither", n=n)


def _published(rows: tuple[str, ...], what: str) -> tuple[Published, ...]:
    return tuple(
        Published(f"{what}, {row}, {method}", value, f"table 5.1, {ROWS.get(row, row)}, {method}")
        for row in rows
        for method, value in zip(METHODS, PRINTED[row], strict=True)
    )


HERE = (
    f"{TRAINED} generated fields of 64 x 64 to train on (assay.data.stained_cells), {TESTED} of each kind to test, "
    f"{SEEDS} seeds; U-Nets of {LEVELS} sizes and width {WIDTH}, {EPOCHS} epochs of AdamW at {LR:g} in batches of "
    f"{BATCH}, squared errors; {MEMBERS} members, {DRAWS} passes of random ones, each way as its remedy has it, "
    f"trained as long as a single network; FastEnsemble: lambda {LAM:g}, {100 * SHARE:g} % of a training for each "
    f"further member; nothing is concluded unless a single network has a correlation of {LEARNT:g} at home in every "
    f"seed; print has microscope images: {RULE}"
)
SHELVED = (
    Claim(
        name="partial-areas",
        source=SOURCE,
        says="By the area under the ROC curve up to 20 % false alarms, a naive ensemble and FastEnsemble find strange "
        "pixels best, snapshots at chance or below, and impurities are easier than foreign cells.",
        published=_published(STRANGE, "partial area"),
        here=f"{HERE}; pixels of all images pooled, ties at random; holds if naive and FastEnsemble are each ahead of "
        "the five others on both sets, the naive one is better on impurities, and snapshot is not above chance",
        minutes=900,
        test=areas,
    ),
    Claim(
        name="density-shift",
        source=SOURCE,
        says="Under a change of density the naive ensemble correlates best in nearly every case and FastEnsemble next; "
        "what was trained on sparse fields loses more on dense ones than the other way round.",
        published=_published(tuple(row for row in PRINTED if row not in STRANGE), "correlation"),
        here=f"{HERE}; mean Pearson correlation over images; nearly every: all but one of eight cells; model A must "
        "fall from density to density",
        minutes=1800,
        test=density,
    ),
    Claim(
        name="second-everywhere",
        source=SOURCE,
        says="FastEnsemble surpasses all others on MSC-LNCaP and is second on all other data sets.",
        published=(),
        here="arithmetic of table 5.1: its place among the seven in each of the nine other rows; fails if two methods "
        "are ahead of it in a row, or it shares its place",
        minutes=0.01,
        test=second_everywhere,
    ),
)
