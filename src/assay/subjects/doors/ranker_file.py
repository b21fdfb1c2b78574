"""A trained ranker in one .safetensors file: weights, and in its metadata what they are the weights of.

The file is data and nothing else: no code is in it and none is run to open it. It also knows by their hashes the images
that it was trained on, so that none of them is asked about, in whatever folder it turns up again.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.pairs import Pairs
from assay.data.valued_images import ValuedImages, open_valued
from assay.errors import AssayError
from assay.given import PAIRS
from assay.nn.siamese import ARCHITECTURES
from assay.subject import Subject
from assay.tasks import Ranking

if TYPE_CHECKING:
    from assay.nn.siamese import Siamese

KIND = "assay ranker"
DECODERS = {"mirror": "mirror decoder", "afterwards": "decoder trained afterwards"}
SEEN = "trained on"  # the tensor of hashes; no weight of a module can have this name


def save_ranker(
    path: str | Path,
    model: nn.Module,
    *,
    architecture: str,
    embedding: int,
    low: float,
    high: float,
    seen: NDArray[np.int64],
    decoder: str = "joint",
) -> None:
    """Write the weights of `ARCHITECTURES[architecture](embedding)`, the range of values, and what was trained on.

    `seen` are the `ValuedImages.marks` of the images, `decoder` is how its decoder was trained.
    """
    from safetensors.torch import save

    path = Path(path)
    state = {name: t.detach().cpu().clone().contiguous() for name, t in model.state_dict().items()}
    about = {"kind": KIND, "architecture": architecture, "embedding": str(embedding), "decoder": decoder}
    content = save(
        {**state, SEEN: torch.from_numpy(seen)}, {**about, "low": repr(float(low)), "high": repr(float(high))}
    )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # no other writer's, in another container either
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as e:
        with suppress(OSError):
            temporary.unlink()
        raise AssayError(f"Cannot write {str(path)!r}: {e.strerror or e}; choose another folder with --out.") from e


def is_ranker(path: Path) -> bool:
    """Whether the metadata of a .safetensors file say that it is one of ours."""
    with reading(path) as f:
        return bool((f.metadata() or {}).get("kind") == KIND)


def open_ranker(path: str | Path, data: str | Path) -> Subject:
    """The ranker of a file, to be asked about the images in a folder that it was not trained on."""
    path = Path(path)
    with reading(path) as f:
        about = f.metadata() or {}
        # Copies: what is given is mapped, and a file that is cut off later would end the process.
        state = {name: f.get_tensor(name).clone() for name in f.keys()}  # noqa: SIM118  (not a mapping)
    try:
        seen = state.pop(SEEN).numpy()
        shape = ARCHITECTURES[about["architecture"]].shape
        embedding, task = int(about["embedding"]), Ranking(float(about["low"]), float(about["high"]))
        if not math.isfinite(task.high - task.low):
            raise ValueError(f"values from {task.low:g} to {task.high:g}")
        model = _model(about["architecture"], embedding, state)
    except (KeyError, ValueError) as e:
        raise AssayError(f"{str(path)!r} is no whole ranker ({e}); make it again with `assay rank`.") from e
    images = open_images(data, shape, task, path.name)
    old = np.isin(images.marks(), seen)
    fresh = images.values[~old]
    if not len(fresh):
        raise AssayError(f"{path.name} was trained on every image of {data}; give a folder with others.")
    if len(np.unique(fresh)) < 2:
        raise AssayError(
            f"The {len(fresh)} images of {data} that {path.name} was not trained on all have the number {fresh[0]:g}; "
            "give more, with different numbers."
        )
    parts = {"test": images.rows(np.flatnonzero(~old))}
    if old.any():
        parts["train"] = images.rows(np.flatnonzero(old))
    return Subject.ranker(
        model.eval(),
        parts,
        low=task.low,
        high=task.high,
        name=path.name,
        about=f"A ranker with {DECODERS.get(about.get('decoder', ''), 'decoder')} ({about['architecture']}, "
        f"{embedding} numbers an image) for values from {task.low:g} to {task.high:g}, trained on {len(seen)} images.",
    )


def open_images(folder: str | Path, shape: tuple[int, ...], task: Ranking, who: str) -> ValuedImages:
    """The images of a folder as a ranker takes them: scaled and cropped to its shape, with numbers in its range."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise AssayError(f"{who} takes inputs of shape {shape}, which are no images; leave --data out.")
    images = open_valued(folder, (shape[1], shape[2]), shape[0])
    outside = np.flatnonzero((images.values < task.low) | (images.values > task.high))
    if len(outside):
        raise AssayError(
            f"{images.paths[outside[0]]} has the number {images.values[outside[0]]:g}, and {who} is for "
            f"{task.low:g} to {task.high:g}; remove it, or train with a wider range."
        )
    return images


def open_pairs(folder: str | Path, shape: tuple[int, ...], task: Ranking, who: str) -> Pairs:
    """Pairs of such images."""
    images = open_images(folder, shape, task, who)
    return Pairs.ranked(images, images.values, PAIRS)


def _model(architecture: str, embedding: int, state: dict[str, Tensor]) -> Siamese:
    """The architecture with these weights; nothing is allocated before their shapes have been compared."""
    unlike = ValueError(f"its weights are not those of {architecture!r} with {embedding} numbers an image")
    try:
        with torch.device("meta"):
            model = ARCHITECTURES[architecture](embedding)
    except (RuntimeError, TypeError) as e:  # what torch says of sizes beyond all bounds
        raise unlike from e
    if {k: (t.dtype, t.shape) for k, t in model.state_dict().items()} != {
        k: (t.dtype, t.shape) for k, t in state.items()
    }:
        raise unlike
    model.load_state_dict(state, assign=True)
    return model


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """The file, open."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as f:
            yield f
    except (OSError, SafetensorError) as e:
        raise AssayError(f"{str(path)!r} cannot be read as safetensors ({e}); write it again.") from e
