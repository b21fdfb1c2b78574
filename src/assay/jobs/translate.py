"""Train translators on pairs of images, and leave their answers with how sure they are.

    out/translation.html     every test image with truth, mean, spread and error side by side, and a review threshold
    out/results.zip          the same for all of them, as pictures and as arrays in full precision, with the settings
    out/translator.safetensors   to be asked: `assay audit out/translator.safetensors --data PAIRS`; of ways that keep
                             whole networks (`translate_ways.py`)
    out/translation.json     the numbers; written last, so that where it lies all of it is there

A command that was stopped goes on where it was when it is given again with the same folder. No torch is imported before
a training begins: a page that only checks what was typed has no need of it.
"""

from __future__ import annotations

import io
import json
import math
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.errors import AssayError
from assay.store.files import make_folder, naming, read_json, strict_json, write_atomically

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from assay.data.image_pairs import ImagePairs, Split
    from assay.nn.members import Members
    from assay.nn.translator import Translator
    from assay.report.translation import Pictures, Review, Scores, Translation
    from assay.run import Run

SAMPLE = "cells"
"""The word for data made here: fields of cells, see data/stained_cells.py."""
SAMPLE_TRAIN, SAMPLE_TEST = 120, 24
AT_ONCE = 2**21  # pixels of all members' answers that are held at once
KEPT = 2**22  # pixels that ranks and thresholds are taken from
STEPS = 100  # of the slider
LONGEST = 120  # letters of a title
PAGE, ARCHIVE, WEIGHTS, TOLD = "translation.html", "results.zip", "translator.safetensors", "translation.json"
PROGRESS = "progress.json"  # while it trains


class Knob(NamedTuple):
    """A number that a person may turn, and how far."""

    low: float
    high: float
    about: str
    folded: bool = False
    """Whether a page hides it among those for advanced users."""


WAYS = ("ensemble", "fast-ensemble", "snapshot", "batch-ensemble", "sgld", "mc-dropout", "variational")
"""To an uncertainty, by the names of the remedies that they are; `translate_ways.py`."""
KNOBS: Mapping[str, Knob] = {
    "epochs": Knob(1, 200, "times that every training pair is seen; fewer for a large set"),
    "members": Knob(1, 10, "networks in the ensemble; more for a better uncertainty, 1 has none"),
    "batch": Knob(1, 16, "pairs that are learnt from at once", True),
    "learning_rate": Knob(1e-4, 1e-2, "how large a step of the training is", True),
    "weight_decay": Knob(1e-6, 5e-4, "how much weights are drawn to 0", True),
    "dropout": Knob(0, 0.9, "share of what comes up from smaller sizes that is dropped while it trains", True),
    "width": Knob(2, 64, "channels of the network at full size", True),
    "levels": Knob(2, 6, "sizes of the network, each half of the last", True),
    "review": Knob(0.001, 0.5, "share of pixels that is flagged for a person to look at, to begin with", True),
    "tolerance": Knob(0.001, 1, "error of a pixel, of 1, above which it counts as wrong", True),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that reaches the trainer. The first six are the sliders of the source, with its ranges and defaults, but for
    epochs, which may be fewer than 10, and members, of which its default 1 has no uncertainty."""

    epochs: int = 100
    members: int = 3
    batch: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    dropout: float = 0.5
    width: int = 16
    levels: int = 4
    distance: str = "l1"
    turned: bool = True
    review: float = 0.05
    tolerance: float = 0.1
    way: str = WAYS[0]

    def __post_init__(self) -> None:
        for name, knob in KNOBS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not knob.low <= value <= knob.high:
                raise AssayError(f"--{_typed(name)} {value} is out of range; give {knob.low:g} to {knob.high:g}.")
        if self.distance not in ("l1", "l2"):
            raise AssayError(f"--distance {self.distance!r} is none; choose l1 or l2.")
        if self.way not in WAYS:
            raise AssayError(f"--way {self.way[:40]!r} is none; choose {', '.join(WAYS)}.")
        if self.way != WAYS[0] and self.members < 2:
            raise AssayError(f"--way {self.way} with --members 1 has no uncertainty; give 2 or more.")
        if self.way == "mc-dropout" and self.dropout == 0:
            raise AssayError("--way mc-dropout with --dropout 0 draws the same each time; give more, such as 0.1.")
        if self.way == "snapshot" and self.epochs < self.members:
            raise AssayError(f"--way snapshot needs an epoch for each of its members; give --epochs {self.members}.")
        if self.way == "batch-ensemble" and self.batch < self.members:
            raise AssayError(
                f"--way batch-ensemble splits a batch among its members; give --batch {self.members} or more."
            )


@dataclass(frozen=True)
class Done:
    told: Translation | None
    """None where all of it lay there from before."""
    folder: Path
    says: str

    @property
    def page(self) -> Path:
        return self.folder / PAGE


def translate(
    data: str | Path, *, settings: Settings, run: Run, out: str | Path, title: str = "", command: tuple[str, ...] = ()
) -> Done:
    """Train on the pairs of `data` and answer its test images; see the module for what is left in `out`."""
    from assay.report.translation import in_words, render
    from assay.run import environment

    title = _title(title) or (f"Made {SAMPLE}" if str(data) == SAMPLE else Path(data).name)
    folder = Path(out)
    pairs = _open(data, run)
    key = _key(settings, run.seed, pairs, title)
    if (known := _known(folder, key)) is not None:
        return Done(None, folder, known)
    with naming(folder):
        make_folder(folder)
    keep = folder / "training"
    first = replace(settings, members=1, way=WAYS[0])  # what fast-ensemble begins with
    plain, fast = settings.way == WAYS[0], settings.way == "fast-ensemble"
    nets, losses = _trained(pairs, settings if plain else first, run, keep, key) if plain or fast else ([], ())
    if plain:
        model = _together(nets)
    else:
        from assay.jobs.translate_ways import Lesson, made, nets_of

        lesson = Lesson(**{name: getattr(settings, name) for name in Lesson._fields})
        model = made(settings.way, nets[0] if fast else network(pairs, settings), pairs, lesson, run)
        nets = nets_of(model) or []
    if nets:
        _write_weights(folder / WEIGHTS, nets, pairs, settings)
    asked = _Answers(pairs, model, settings, run)
    told = _translation(asked, folder / ARCHIVE, title, Path(data).name, losses, command, environment(run.device))
    says = in_words(told)
    write_atomically(folder / PAGE, render(told))
    write_atomically(folder / TOLD, strict_json({"key": key, "says": says, **told.told()}))
    shutil.rmtree(keep, ignore_errors=True)
    (folder / PROGRESS).unlink(missing_ok=True)
    return Done(told, folder, says)


def progress_in(path: Path) -> float | None:
    """How far a training is, from 0 to 1, by what it leaves as it goes; None where nothing is known."""
    try:
        told = read_json(path.read_bytes())
        return min(1.0, float(told["done"]) / float(told["of"]))
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


def write_sample(path: str | Path, *, train: int = SAMPLE_TRAIN, test: int = SAMPLE_TEST) -> Path:
    """Pairs made here, in the layout that is read: a .zip to look at, to try out, or to fill with one's own images."""
    from assay.data.stained_cells import make_fields

    path, held = Path(path), io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_STORED) as archive:
        for split, count, first in (("train", train, 0), ("test", test, 10_000)):
            made = make_fields(range(first, first + count))
            for side, images in (("input", made.x), ("output", made.stain)):
                for number, image in enumerate(images):
                    archive.writestr(f"{side}/{split}/field_{number:04d}.png", _as_png(image / 255.0))
    write_atomically(path, held.getvalue())
    return path


def _typed(name: str) -> str:
    return name.replace("_", "-")


def _title(title: str) -> str:
    title = " ".join(title.split())
    if len(title) > LONGEST:
        raise AssayError(f"The title has {len(title):,} letters; give up to {LONGEST}.")
    return title


def _open(data: str | Path, run: Run) -> ImagePairs:
    from assay.data.image_pairs import ImagePairs, Split, open_image_pairs
    from assay.data.stained_cells import make_fields

    if str(data) == SAMPLE:
        with run.progress("making cells", SAMPLE_TRAIN + SAMPLE_TEST) as tick:
            splits = {}
            for split, count, first in (("train", SAMPLE_TRAIN, 0), ("test", SAMPLE_TEST, 10_000)):
                made = make_fields(range(first, first + count))
                splits[split] = Split(tuple(f"field_{k:04d}" for k in range(count)), made.x, made.stain)
                tick(count)
        return ImagePairs(splits["train"], splits["test"])
    with run.progress("reading images", 1) as tick:
        pairs = open_image_pairs(data, tick=lambda done: tick(0))
        tick(1)
    return pairs


def _key(settings: Settings, seed: int, pairs: ImagePairs, title: str) -> str:
    from assay.data.digest import of_array

    found = sha256(json.dumps([asdict(settings), seed, title], sort_keys=True).encode())
    for split in (pairs.train, pairs.test):
        found.update(json.dumps(split.names).encode() + of_array(split.x))
        found.update(b"" if split.y is None else of_array(split.y))
    return found.hexdigest()


def _known(folder: Path, key: str) -> str | None:
    """What was said of the very same training, where all of it lies there; another one's folder is refused."""
    path = folder / TOLD
    if not path.exists():
        return None
    try:
        stored = read_json(path.read_bytes())
    except (OSError, ValueError) as e:
        raise AssayError(f"{str(path)!r} cannot be read ({e}); choose another folder with --out.") from e
    if stored.get("key") != key:
        raise AssayError(
            f"{str(folder)!r} holds a training with other settings or data; choose another folder with --out."
        )
    return str(stored.get("says", "")) if (folder / PAGE).exists() and (folder / ARCHIVE).exists() else None


class _Rows:
    """Training pairs, eight bits each until they are taken."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split.x)

    def take(self, index: NDArray[Any], /) -> tuple[Tensor, Tensor]:
        from assay.data.arrays import as_inputs

        assert self.split.y is not None
        return as_inputs(self.split.x[index]), as_inputs(self.split.y[index])


def network(pairs: ImagePairs, settings: Settings) -> Translator:
    """A translator for such pairs, before any training."""
    import torch

    from assay.nn.translator import Translator

    (channels, height, width), (answers, _, _) = pairs.shapes
    if min(height, width) < 2 ** (settings.levels - 1):
        raise AssayError(
            f"Images of {width} x {height} pixels cannot be halved {settings.levels - 1} times; give fewer --levels."
        )
    with torch.random.fork_rng(devices=[]):
        return Translator(channels, answers, width=settings.width, levels=settings.levels, dropout=settings.dropout)


def _trained(
    pairs: ImagePairs, settings: Settings, run: Run, keep: Path, key: str
) -> tuple[list[nn.Module], tuple[tuple[float, ...], ...]]:
    from assay.methods.train.translate import fit_translators

    s, rows = settings, _Rows(pairs.train)
    about = f"training {s.members} network{'s' if s.members > 1 else ''} for {s.epochs} epochs on {len(rows)} pairs"
    with run.progress(about, s.members * s.epochs) as tick:
        seen = [0] * s.members  # a training that goes on begins where it was

        def told(member: int, epoch: int, loss: float) -> None:
            tick(epoch - seen[member])
            seen[member] = epoch
            done = member * s.epochs + epoch
            write_atomically(keep.parent / PROGRESS, strict_json({"done": done, "of": s.members * s.epochs}))

        taught = fit_translators(
            network(pairs, s), rows, members=s.members, epochs=s.epochs, lr=s.learning_rate, seed=run.seed,
            batch=s.batch, weight_decay=s.weight_decay, distance=s.distance,  # type: ignore[arg-type]  # checked
            turned=s.turned, on_epoch=told, device=run.device, keep=keep, keep_key=key,
        )  # fmt: skip
    return [each.net for each in taught], tuple(each.losses for each in taught)


def _together(nets: list[nn.Module]) -> Members:
    from assay.nn.members import Ensemble

    return Ensemble(nets, average="answers").eval()


def _write_weights(path: Path, nets: list[nn.Module], pairs: ImagePairs, settings: Settings) -> None:
    from assay.subjects.doors.translator_file import packed

    (channels, _, _), (answers, _, _) = pairs.shapes
    write_atomically(
        path, packed(nets, channels=channels, answers=answers, width=settings.width, levels=settings.levels,
                     tolerance=settings.tolerance)
    )  # fmt: skip


class _Answer(NamedTuple):
    """Of one test image."""

    name: str
    source: NDArray[np.float32]  # c h w
    truth: NDArray[np.float32] | None  # k h w
    mean: NDArray[np.float32]  # k h w
    spread: NDArray[np.float32] | None  # h w; None where there is one member
    error: NDArray[np.float32] | None  # h w


class _Answers:
    """The answers of all members to the test images, a few at a time."""

    def __init__(self, pairs: ImagePairs, model: Members, settings: Settings, run: Run) -> None:
        self.pairs, self.model, self.settings, self.run = pairs, model, settings, run

    def __iter__(self) -> Iterator[_Answer]:
        import numpy as np
        import torch

        from assay.data.arrays import as_inputs
        from assay.methods.uncertainty.pixel_spread import together

        test = self.pairs.test
        (_, height, width), (k, _, _) = self.pairs.shapes
        at_once = max(1, AT_ONCE // (self.settings.members * k * height * width))
        self.model.to(self.run.device)
        with self.run.progress("answering the test images", len(test.x)) as tick:
            for rows in np.array_split(np.arange(len(test.x)), -(-len(test.x) // at_once)):
                x = as_inputs(test.x[rows])
                with torch.no_grad(), torch.random.fork_rng():
                    torch.manual_seed(self.run.seed + int(rows[0]))  # of ways that draw
                    there = x.to(self.run.device)
                    mean, spread = (part.cpu() for part in together(self.model.members(there)))
                truth = None if test.y is None else as_inputs(test.y[rows])
                error = None if truth is None else (mean - truth).abs().mean(1)
                for i, row in enumerate(rows):
                    yield _Answer(
                        test.names[row], x[i].numpy(), None if truth is None else truth[i].numpy(), mean[i].numpy(),
                        spread[i].numpy() if self.settings.members > 1 else None,
                        None if error is None else error[i].numpy(),
                    )  # fmt: skip
                    tick(1)


class _Pooled:
    """Pixels of all test images, so many of each that all fit."""

    def __init__(self, images: int, pixels: int) -> None:
        self.step = max(1, -(-images * pixels // KEPT))
        self.spread: list[NDArray[np.float32]] = []
        self.error: list[NDArray[np.float32]] = []
        self.square, self.sum = 0.0, 0.0
        self.correlation: list[float] = []
        self.rank: list[float] = []

    def add(self, one: _Answer) -> None:
        import numpy as np

        from assay.methods.uncertainty.image_correlation import pearson, spearman

        if one.spread is not None:
            self.spread.append(one.spread.ravel()[:: self.step].copy())
        if one.error is None or one.truth is None:
            return
        self.error.append(one.error.ravel()[:: self.step].copy())
        self.sum += float(one.error.mean(dtype=np.float64))
        self.square += float(((one.mean.astype(np.float64) - one.truth) ** 2).mean())
        self.correlation.append(float(pearson(one.mean[None], one.truth[None])[0]))
        if one.spread is not None:
            self.rank.append(float(spearman(one.spread[None], one.error[None])[0]))


def _translation(
    asked: _Answers, archive: Path, title: str, data: str, losses: tuple[tuple[float, ...], ...],
    command: tuple[str, ...], environment: Mapping[str, str],
) -> Translation:  # fmt: skip
    from assay.report.translation import MOST_SHOWN, Translation

    pairs, settings = asked.pairs, asked.settings
    (c, h, w), (k, _, _) = pairs.shapes
    pooled = _Pooled(len(pairs.test.x), h * w)
    about = {"title": title, "data": data, "seed": asked.run.seed, **asdict(settings), "versions": dict(environment)}
    about |= {"notes": list(pairs.notes)} if pairs.notes else {}
    shown: list[_Answer] = []
    with _archive(archive) as write:
        write("settings.json", strict_json(about).encode())
        for one in asked:
            pooled.add(one)
            _keep(write, one)
            if len(shown) < MOST_SHOWN:
                shown.append(one)
    review = _review(pooled, settings)
    widest = max((float(one.spread.max()) for one in shown if one.spread is not None), default=0.0)
    largest = max((float(one.error.max()) for one in shown if one.error is not None), default=0.0)
    return Translation(
        title=title, when=datetime.now(UTC).isoformat(timespec="seconds"), data=data, trained_on=len(pairs.train.x),
        tested_on=len(pairs.test.x), shape=(c, h, w), answers=k, members=settings.members,
        tolerance=settings.tolerance, settings=asdict(settings), seed=asked.run.seed,
        scores=_scores(pooled, pairs, settings, asked.run.seed), review=review, losses=losses, widest=widest,
        largest=largest, pictures=tuple(_pictures(one, review, widest, largest) for one in shown), command=command,
        environment=environment, notes=pairs.notes,
    )  # fmt: skip


class _archive:
    """A zip that lies there whole or not at all; entered, it gives what adds a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.beside = path, path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")

    def __enter__(self) -> Any:
        with naming(self.path):
            self.zip = zipfile.ZipFile(self.beside, "x", zipfile.ZIP_DEFLATED)
        return self._write

    def _write(self, name: str, content: bytes) -> None:
        with naming(self.path):
            self.zip.writestr(name, content)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            with naming(self.path):
                self.zip.close()
                if kind is None:
                    self.beside.replace(self.path)
        finally:
            self.beside.unlink(missing_ok=True)


def _keep(write: Any, one: _Answer) -> None:
    """Pictures to look at and arrays in full precision; mean and spread have the same height and width."""
    name = re.sub(r"[\\/:\0]", "_", one.name)
    write(f"source/{name}.png", _as_png(one.source))
    write(f"mean/{name}.png", _as_png(one.mean))
    write(f"mean/{name}.npy", _as_npy(one.mean))
    if one.truth is not None and one.error is not None:
        write(f"truth/{name}.png", _as_png(one.truth))
        write(f"error/{name}.npy", _as_npy(one.error))
    if one.spread is not None:
        write(f"spread/{name}.npy", _as_npy(one.spread))


def _as_npy(array: NDArray[np.float32]) -> bytes:
    import numpy as np

    held = io.BytesIO()
    np.save(held, array, allow_pickle=False)
    return held.getvalue()


def _as_png(image: NDArray[np.floating]) -> bytes:  # c h w between 0 and 1
    import numpy as np
    from PIL import Image

    pixels = np.clip(np.rint(255 * image), 0, 255).astype(np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(held, "PNG")
    return held.getvalue()


def _scores(pooled: _Pooled, pairs: ImagePairs, settings: Settings, seed: int) -> Scores:
    import numpy as np

    from assay.methods.uncertainty.pixel_ranking import partial_auc, ranked
    from assay.report.translation import Scores

    if not pooled.error:
        return Scores(error=None, root=None, blind=None, correlation=None, undefined=0, wrong=None, area=None,
                      rank=None)  # fmt: skip
    n, wrong = len(pooled.error), np.concatenate(pooled.error) > settings.tolerance
    area = math.nan
    if pooled.spread:
        order = ranked(np.concatenate(pooled.spread), wrong, rng=np.random.default_rng(seed))
        area = float(partial_auc(order))
    return Scores(
        error=pooled.sum / n, root=math.sqrt(pooled.square / n), blind=_blind(pairs),
        correlation=_mean(pooled.correlation), undefined=sum(map(math.isnan, pooled.correlation)),
        wrong=float(wrong.mean()), area=None if math.isnan(area) else area, rank=_mean(pooled.rank),
    )  # fmt: skip


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else None


def _blind(pairs: ImagePairs) -> float:
    """The root mean squared error of the mean training target, whatever the input."""
    import numpy as np

    assert pairs.train.y is not None and pairs.test.y is not None  # noqa: PT018
    mean = pairs.train.y.mean(0, dtype=np.float64)
    return math.sqrt(sum(float(((y - mean) ** 2).mean()) for y in pairs.test.y) / len(pairs.test.y)) / 255


def _review(pooled: _Pooled, settings: Settings) -> Review | None:
    """What each threshold of the slider flags; None where there is no uncertainty."""
    import numpy as np

    from assay.report.translation import Review

    if not pooled.spread:
        return None
    spread = np.concatenate(pooled.spread)
    order = np.argsort(spread, kind="stable")
    risen = spread[order]
    chosen = float(np.quantile(spread, 1 - settings.review))
    thresholds = np.unique(np.append(np.linspace(0, float(risen[-1]), STEPS), chosen))
    first = np.searchsorted(risen, thresholds)  # pixels below each
    flagged = len(risen) - first
    found = hits = None
    if pooled.error:
        wrong = (np.concatenate(pooled.error) > settings.tolerance)[order]
        above = np.append(np.cumsum(wrong[::-1])[::-1], 0)[first]  # wrong ones from each on
        found = tuple((above / max(1, wrong.sum())).tolist())
        hits = tuple((above / np.maximum(1, flagged)).tolist())
    return Review(
        threshold=chosen, thresholds=tuple(thresholds.tolist()), flagged=tuple((flagged / len(risen)).tolist()),
        found=found, hits=hits,
    )  # fmt: skip


def _pictures(one: _Answer, review: Review | None, widest: float, largest: float) -> Pictures:
    from assay.methods.uncertainty.pixel_spread import regions
    from assay.report.translation import Pictures, overlay, picture

    flagged, count = None, 0
    if review is not None and one.spread is not None:
        flagged, count = overlay(one.spread >= review.threshold), len(regions(one.spread, review.threshold))
    return Pictures(
        name=one.name, source=picture(one.source), mean=picture(one.mean), regions=count, flagged=flagged,
        truth=None if one.truth is None else picture(one.truth),
        spread=None if one.spread is None else picture(one.spread[None], high=widest),
        error=None if one.error is None else picture(one.error[None], high=largest),
    )  # fmt: skip
