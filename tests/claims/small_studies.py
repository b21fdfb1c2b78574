"""Studies of large networks, made to run in a second: a few small images of the bundled sample and little effort."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch import nn

from assay.claim import Claim, Evidence, judged
from assay.claims import (
    _kept,
    _networks,
    _robust,
    he2021_pruning,
    li2021_mmf,
    liu2021_baselines,
    liu2021_random,
    liu2021_sde,
    meng2021_parts,
    passov2021_gator,
    qiu2021_fading,
    wang2022_cifar10,
    ye2021_capacity,
    yin2021_localnorm,
    zhang2021_slimming,
)
from assay.data import beyond, fashion
from assay.methods.train.robust import RobustRecipe
from assay.methods.train.well_trained import Recipe
from assay.nn import resnet, vgg

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Small:
    settings: Mapping[str, Any]
    every: int = 4  # pixel of an image is kept
    stages: tuple[int, ...] = (1, 1, 1)  # of VGG16
    blocks: int | None = None  # of ResNet-18, in place of its eight
    ungated: tuple[str, ...] = ()  # claims that may be judged on such networks too


RANDOM_ARMS = tuple(liu2021_random.DRAWS)
STUDIES: dict[ModuleType, Small] = {
    he2021_pruning: Small({
        "SEEDS": 1, "BATCH": 40, "TUNED": 2, "EARLY": 1, "HALVED": (0,), "HELD_OUT": 20,
        "SAMPLE": 20, "SHORT": 20, "GENES": 2, "ITERATIONS": 1, "STEPS": 2, "ATTACKED": 10, "FILTERS": (16, 32),
        "ENTRIES": 18, "TIMES": 3,
    }, every=3, stages=(1, 1), ungated=("four-agree-on-random-filters", "beyond-accuracy")),
    li2021_mmf: Small({
        "SEEDS": 2, "EPOCHS": 1, "BATCH": 30, "WIDTH": 2, "LOOKED_AT": 60, "EARLY": "body.2", "LATE": "body.4",
    }),
    liu2021_baselines: Small({
        "SEEDS": 1, "EPOCHS": 1, "AGAIN": 1, "BATCH": 30, "WIDTH": 1, "IMAGES": 12, "CLEAN": 30, "STEPS": 2,
        "PRINTED_STEPS": 2, "PGD_STEPS": 2,
    }),
    liu2021_random: Small({
        "SEEDS": 1, "EPOCHS": dict.fromkeys(RANDOM_ARMS, 1), "BATCH": 30, "WIDTH": 1, "INNER_STEPS": 1, "IMAGES": 12,
        "CLEAN": 30, "DRAWS": {arm: 2 if liu2021_random.DRAWS[arm] > 1 else 1 for arm in RANDOM_ARMS}, "EOT": 2,
        "PGD_STEPS": 2, "STEPS": 2, "PRINTED_STEPS": 2, "ANSWERS": 2, "TRACED": 8, "PAIRS": 3, "TANH_EPOCHS": 1,
    }, ungated=("second-order",)),
    liu2021_sde: Small({
        "SEEDS": 1, "WIDTH": 2, "GRID": 0.5, "EPOCHS": 1, "BATCH": 30, "DRAWS": 2, "CLEAN": 20, "CORRUPTED": 5,
        "TYPES": liu2021_sde.TYPES[:2], "TRACED": 6, "STEPS": 2, "EOT": 2, "PATHS": 2,
    }, every=3),
    meng2021_parts: Small({
        "SEEDS": 2, "IMAGES": 4, "ITEMS": 2, "QUERIES": 3, "WIDTHS": (2, 3), "GATHERS": (1, 1), "STEPS": 2, "EACH": 2,
    }, every=2),
    passov2021_gator: Small({
        "SEEDS": 1, "GATING": 1, "AGAIN": 1, "TIMED": 4, "TRUSTED": 2,
    }, every=3, blocks=1),
    qiu2021_fading: Small({
        "SEEDS": 1, "AGAIN": 1, "LAMBDA_E": 20.0, "TRUSTED": 2,
    }, every=3, blocks=1),
    wang2022_cifar10: Small({"SEEDS": 1, "BATCH": 20, "WIDTH": 1, "MOST": 2, "digits.STEPS": 2, "digits.BIM_STEPS": 2}),
    ye2021_capacity: Small({
        "SEEDS": 2, "EPOCHS": 2, "BATCH": 20, "WIDTHS": (8, 6), "HELD_OUT": 20, "FAKE": 8, "STEPS": 2, "ATTACKED": 10,
        "PRICES": {key: (prices[0], 10 * prices[0]) for key, prices in ye2021_capacity.PRICES.items()},
    }, every=7, ungated=("sturdier",)),
    yin2021_localnorm: Small({
        "SEEDS": 1, "EPOCHS": 1, "BATCH": 16, "WIDTH": 2, "GROUPS": 4, "IMAGES": 40,
        "LEVELS": {"AGN": (1.0,), "APN": (0.5,), "MBN": (0.5,)},
    }, stages=(1, 1)),
    zhang2021_slimming: Small({
        "SEEDS": 1, "AGAIN": 1, "ROUNDS": 2, "TRUSTED": 2,
    }, every=3, blocks=1),
}  # fmt: skip


class FewBlocks(nn.Sequential):
    """A residual network in place of ResNet-18."""

    def __init__(self, classes: int = 10, *, width: int, blocks: int, narrow: int) -> None:
        width = min(width, narrow)
        super().__init__(
            *(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(resnet.Block(width, width, 1) for _ in range(blocks)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)),
        )


def ruled(study: ModuleType, name: str, evidence: Evidence) -> Evidence:
    """With the verdict that a claim of the study may have."""
    claim: Claim = next(c for c in study.SHELVED if c.name == name)
    return judged(claim, evidence)


def forget() -> None:
    """Nothing that a study has kept is left."""
    for study in (*STUDIES, _networks, _robust):
        for kept in vars(study).values():
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()


@contextmanager
def made_small(study: ModuleType) -> Iterator[None]:
    """CIFAR-10 is sixty small images of the bundled sample in three equal colours, MNIST the same in grey."""
    small, patch, bundled = STUDIES[study], pytest.MonkeyPatch(), fashion.load_fashion()
    for name, value in small.settings.items():
        where, _, last = name.rpartition(".")  # of the study, or of one that it builds on
        patch.setattr(getattr(study, where) if where else study, last, value)
    patch.setattr(_kept, "_folder", lambda: Path(os.devnull) / "kept")  # nothing is found there, or put there
    patch.setattr(vgg, "STAGES", small.stages)
    patch.setattr(vgg, "WIDER", (2,) * len(small.stages))
    few = Recipe(epochs=1, batch=30, lr=0.1, moved=1, mirrored=True)
    patch.setattr(_networks, "RECIPES", dict.fromkeys(_networks.RECIPES, few))
    patch.setattr(_networks, "SHORTER", few)
    patch.setattr(_networks, "narrow_vgg16", lambda: vgg.Vgg16(width=1))
    patch.setattr(_robust, "RECIPE", RobustRecipe(epochs=1, batch=20, lr=0.1, steps=1, shift=1))
    for each in (_robust, liu2021_random):
        patch.setattr(each, "vgg16", lambda: vgg.Vgg16(width=1))
    patch.setattr(he2021_pruning, "vgg16", lambda: vgg.Vgg16(width=2))
    if small.blocks is not None:
        patch.setattr(resnet, "ResNet18", partial(FewBlocks, blocks=small.blocks, narrow=4))
    grey = {part: data.x[:60, :, :: small.every, :: small.every] for part, data in bundled.items()}
    labels = np.arange(60) % 10
    arrays = type(bundled["test"])
    patch.setattr(beyond, "mnist", lambda: {part: arrays(x, labels, CIFAR) for part, x in grey.items()})
    patch.setattr(
        beyond, "cifar10", lambda: {part: arrays(np.repeat(x, 3, axis=1), labels, CIFAR) for part, x in grey.items()}
    )
    hundred = {part: arrays(data.x[:100], data.labels[:100], data.classes) for part, data in bundled.items()}
    patch.setattr(fashion, "load_fashion", lambda: hundred)
    forget()
    try:
        yield
    finally:
        patch.undo()
        forget()
