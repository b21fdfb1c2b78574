"""Train a ranker on a folder of images with a number each, and say how good it is on images that were held back.

    out/ranker.safetensors

The file goes back in with the folder: `assay audit out/ranker.safetensors --data FOLDER`. It knows what it was trained
on, so that the same images are held back then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from assay.errors import AssayError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from assay.data.valued_images import ValuedImages
    from assay.methods.train.ranker import Course
    from assay.nn.siamese import Siamese
    from assay.run import Run
    from assay.subject import Subject

Decoder = Literal["joint", "mirror", "afterwards"]
EMBEDDING = {"digits": 10, "grey": 10, "colour": 64}
"""The size of the embedding where nobody says it; the thesis draws 10 for MNIST and prints none for faces."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What a ranker is worth on images that it was not trained on, beside what takes no training at all."""

    images: int
    pairs: int
    error: float  # mean |t - c| over the pairs
    constant: float  # the same for c = 0.5, whatever the pair
    order: float  # share of the pairs with different numbers that are put in the right order; by chance a half
    redrawn: float  # mean squared error of a pixel in the decoder's pictures of the ranker's embeddings
    blank: float  # the same for the mean image, whatever the image


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A ranker in its file, how many images it was trained on, and its worth on the others."""

    path: Path
    architecture: str
    embedding: int
    low: float
    high: float
    images: int
    decoder: Decoder
    worth: Worth
    mirrored: float | None
    """What a mirror's pictures miss of its own embeddings (mean squared, held-back images); None of other decoders."""


def train_on_folder(
    folder: str | Path,
    *,
    architecture: str | None = None,
    embedding: int | None = None,
    values: tuple[float, float] | None = None,
    steps: int = 3000,
    batch: int = 64,
    held_back: float = 0.2,
    decoder: Decoder = "joint",
    run: Run,
    out: str | Path,
) -> Trained:
    """Train a ranker with decoder on the images of `folder` (see `assay.data.valued_images.open_valued`) and keep it.

    `architecture` is one of `assay.nn.siamese.ARCHITECTURES`, by default "grey" or "colour" as the first image is;
    images are scaled and cropped to what it takes, and those trained on are held in memory. `values` is the range that
    the numbers may have, by default from the smallest to the largest in the folder. `decoder` is trained together with
    the ranker ("joint"); on the finished ranker's embeddings ("afterwards"); or as half of an autoencoder that learns
    to embed as the finished ranker does ("mirror"): the ways that the source rejected, to be compared.
    """
    import numpy as np
    import torch

    from assay.data.valued_images import open_valued
    from assay.methods.train.fit import reset
    from assay.methods.train.ranker import Course
    from assay.nn.siamese import ARCHITECTURES, Siamese
    from assay.subjects.doors.ranker_file import open_ranker, save_ranker

    for name, least, given in (("steps", 1, steps), ("batch", 2, batch), ("embedding", 1, embedding)):
        if given is not None and given < least:
            raise AssayError(f"--{name} must be at least {least}, got {given}.")
    if architecture is not None and architecture not in ARCHITECTURES:
        raise AssayError(f"There is no architecture {architecture!r}; choose one of {', '.join(ARCHITECTURES)}.")
    if decoder not in get_args(Decoder):
        raise AssayError(f"There is no decoder {decoder!r}; choose one of {', '.join(get_args(Decoder))}.")
    images = open_valued(folder)
    architecture = architecture or ("grey" if images.form.channels == 1 else "colour")
    embedding = embedding or EMBEDDING[architecture]
    channels, height, width = ARCHITECTURES[architecture].shape
    images = open_valued(folder, (height, width), channels)
    low, high = values or (float(images.values.min()), float(images.values.max()))
    _check_range(images, low, high)
    parts = images.split(held_back)
    for name, part in parts.items():
        if len(np.unique(part.values)) < 2:
            raise AssayError(
                f"All {len(part)} images to {name} on have the number {part.values[0]:g}; give more images."
            )
    path = Path(out) / "ranker.safetensors"
    _make_folder(path.parent)
    learnt = parts["train"]
    x = _read(learnt, run, "reading images")
    rng = torch.Generator().manual_seed(run.seed)
    with torch.random.fork_rng(devices=[]):
        model = reset(ARCHITECTURES[architecture](embedding), rng)
    assert isinstance(model, Siamese)
    trainings = 1 if decoder == "joint" else 2
    with run.progress(f"training {architecture} on {len(learnt)} images", trainings * steps) as tick:
        course = Course(steps=steps, batch=batch, progress=lambda done, loss: tick(1), device=run.device)
        mirror = _fit(model, decoder, x, learnt, (low, high), rng, course)
    save_ranker(
        path, model, architecture=architecture, embedding=embedding, low=low, high=high, seen=learnt.marks(),
        decoder=decoder,
    )  # fmt: skip
    return Trained(
        path=path,
        architecture=architecture,
        embedding=embedding,
        low=low,
        high=high,
        images=len(learnt),
        decoder=decoder,
        worth=_judge(open_ranker(path, folder), run),
        mirrored=None if mirror is None else _looks(mirror, _read(parts["test"], run, "looking into the mirror")),
    )


def _fit(
    model: Siamese,
    decoder: Decoder,
    x: Tensor,
    images: ValuedImages,
    span: tuple[float, float],
    rng: torch.Generator,
    course: Course,
) -> Siamese | None:
    """Train the ranker and its decoder, in place; -> the mirror, where there is one."""
    from assay.methods.train.fit import reset
    from assay.methods.train.ranker import fit_decoder, fit_mirror, fit_ranker
    from assay.nn.siamese import Siamese

    low, high = span
    alone = decoder != "joint"
    fit_ranker(model, x, images.values, low=low, high=high, rng=rng, comparison_only=alone, course=course)
    if decoder == "afterwards":
        assert model.decoder is not None  # every architecture has one
        fit_decoder(model, model.decoder, x, rng=rng, course=course)
    if decoder != "mirror":
        return None
    mirror = reset(model, rng)
    assert isinstance(mirror, Siamese)
    fit_mirror(model, mirror, x, rng=rng, course=course)
    model.decoder = mirror.decoder
    return mirror


def _looks(mirror: Siamese, x: Tensor) -> float:
    from assay.methods.train.ranker import embed, likeness

    assert mirror.decoder is not None
    return likeness(mirror.decoder, embed(mirror.encoder, x), x).error


def _judge(subject: Subject, run: Run) -> Worth:
    """The worth of a ranker with decoder on the images of its test pairs."""
    import numpy as np
    import torch

    from assay.data.valued_images import ValuedImages
    from assay.methods.train.ranker import embed, likeness
    from assay.nn.siamese import Siamese
    from assay.tasks import Ranking

    model, task, pairs = subject.model, subject.task, subject.pairs["test"]
    assert isinstance(model, Siamese)
    assert isinstance(task, Ranking)
    assert isinstance(pairs.singles, ValuedImages)
    assert model.decoder is not None
    model.to(run.device)
    x = _read(pairs.singles, run, "reading images that were held back")
    e = embed(model.encoder, x)
    with torch.no_grad():
        first, second = e[torch.from_numpy(pairs.pairs).to(e.device)].unbind(1)
        c = model.compare(first, second).double().cpu().numpy()
    t, untied = task.target(pairs.gaps), pairs.gaps != 0
    drawn = likeness(model.decoder, e, x)
    return Worth(
        images=len(x),
        pairs=len(pairs),
        error=float(np.abs(t - c).mean()),
        constant=float(np.abs(t - 0.5).mean()),
        order=float(((c >= task.tie) == (t > task.tie))[untied].mean()),
        redrawn=drawn.error,
        blank=drawn.blank,
    )


def _read(images: ValuedImages, run: Run, about: str) -> Tensor:  # -> n c h w
    import numpy as np
    import torch

    parts = []
    with run.progress(about, len(images)) as tick:
        for rows in np.array_split(np.arange(len(images)), len(images) // 100 + 1):
            parts.append(images.take(rows)[0])
            tick(len(rows))
    return torch.cat(parts)


def _check_range(images: ValuedImages, low: float, high: float) -> None:
    if low == high:
        raise AssayError(
            f"Every image of {images.root} has the number {low:g}, so there is no order to learn; mend them."
        )
    if not (low < high and math.isfinite(high - low)):
        raise AssayError(f"--values {low:g} {high:g} is no range; give the lowest first, then the highest.")
    for path, value in zip(images.paths, images.values, strict=True):
        if not low <= value <= high:
            raise AssayError(f"{path} has the number {value:g}, outside --values {low:g} {high:g}; widen the range.")


def _make_folder(folder: Path) -> None:
    """Now rather than after the training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise AssayError(f"Cannot write into {str(folder)!r}: {e.strerror or e}; choose another with --out.") from e
