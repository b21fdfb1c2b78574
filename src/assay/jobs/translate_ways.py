"""Seven ways to a translator that knows how sure it is: the remedies of the shelf, on pairs of images.

`ensemble` is the trainer of its own (`methods/train/translate.py`). The others are made as `assay cure` makes them,
from the same network, with every setting of the trainer: epochs, batch, rate, weight decay, dropout, what is lowered,
and whether pairs are turned over. `members` are the nets that are kept, or of the ways that draw, the draws.

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021, ch. 5.3: the seven that its benchmark compares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay import shelf
from assay.data.arrays import Targets
from assay.methods.train.translate import BETA, turned_over
from assay.nn.members import Ensemble, Members
from assay.nn.translator import Translator
from assay.tasks import ImageToImage

if TYPE_CHECKING:
    from torch import nn

    from assay.data.image_pairs import ImagePairs
    from assay.run import Run
    from assay.subject import Subject


class Lesson(NamedTuple):
    """What of the trainer's settings a way is made with."""

    epochs: int
    members: int
    batch: int
    learning_rate: float
    weight_decay: float
    dropout: float
    distance: str
    turned: bool
    tolerance: float


@dataclass(frozen=True)
class Lowered(ImageToImage):
    """Pairs of images of which a training lowers the absolute or the squared error."""

    distance: str = "l1"

    def loss(self, out: Tensor, target: Tensor) -> Tensor:  # n c h w, n c h w -> n
        off = out - target
        return (off.abs() if self.distance == "l1" else off.square()).flatten(1).mean(1)


class Turned(Targets):
    """Pairs that are turned over and round anew each time they are taken, both images alike."""

    def __init__(self, x: NDArray[np.uint8], y: NDArray[np.floating[Any]], seed: int) -> None:
        super().__init__(x, y)
        self._rng = torch.Generator().manual_seed(seed)

    def take(self, index: NDArray[Any], /) -> tuple[Tensor, Tensor]:
        return turned_over(*super().take(index), self._rng)


def made(way: str, net: nn.Module, pairs: ImagePairs, settings: Lesson, run: Run) -> Members:
    """What answers in this way, in eval mode. `net` is new, or for fast-ensemble trained already."""
    s = settings
    taught = {"epochs": s.epochs, "lr": s.learning_rate, "weight_decay": s.weight_decay, "batch": s.batch}
    adam = {"optimiser": "adamw", "momentum": BETA}
    own: dict[str, dict[str, Any]] = {
        "fast-ensemble": {"members": s.members},
        "snapshot": {"members": s.members, **adam},
        "batch-ensemble": {"members": s.members, **adam},
        "sgld": {"samples": s.members, "step": STEP, **adam},
        "mc-dropout": {"draws": s.members, "rate": s.dropout, **adam},
        "variational": {"draws": s.members, **adam},
    }
    remedy = shelf.load("remedies", way)(**taught, **own[way])
    model = remedy.apply(subject(net, pairs, settings, run.seed), replace(run, keep=None)).model
    assert isinstance(model, Members)
    return model.eval()


STEP = 1e-4  # of SGLD, on errors that are shares of 1: at its own 0.01 it leaves what was trained


def subject(net: nn.Module, pairs: ImagePairs, settings: Lesson, seed: int) -> Subject:
    from assay.subject import Subject

    train, (_, shape) = pairs.train, pairs.shapes
    assert train.y is not None
    wanted = train.y.astype(np.float32) / 255
    data = Turned(train.x, wanted, seed) if settings.turned else Targets(train.x, wanted)
    task = Lowered(shape, settings.tolerance, distance=settings.distance)
    return Subject.of(net.eval(), {"train": data, "test": Targets(train.x[:8], wanted[:8])}, task, name="translator")


def nets_of(model: Members) -> list[nn.Module] | None:
    """The nets of a way that keeps several whole ones; None where they share weights, or are drawn."""
    if isinstance(model, Ensemble) and all(isinstance(net, Translator) for net in model.nets):
        return list(model.nets)
    return None
