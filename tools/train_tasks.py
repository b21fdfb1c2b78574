"""Train the weights of the reference subjects of the tasks that are no plain classification.

    python tools/train_tasks.py                     train all thirteen, write the weights
    python tools/train_tasks.py scenes_detector     train one
    python tools/train_tasks.py --holdout 0.2       to tune: keep a share of the training inputs back, write nothing

Each is trained on its own task's loss, unless it has one of its own, in one thread and from one seed, in at most a
minute or two of one core. The test inputs are looked at at the end, beside what a model scores that saw no input. The
weight decay of the regression was chosen over five folds of its training rows: its intervals of 80 % hold 75 % of those
held back, and with a tenth of it 67 %. The shipped weights were made with torch 2.13.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from lesson import BUNDLED
from safetensors.torch import save_file
from torch import Tensor, nn

from assay.data.arrays import Targets
from assay.data.cart_pole import returns
from assay.data.credit import CLASSES, load_loans
from assay.data.diabetes import load_diabetes
from assay.data.digits import noisy_digits
from assay.data.fields import load_fields
from assay.data.hiring import CLASSES as HIRED
from assay.data.hiring import load_applications
from assay.data.scenes import load_scenes
from assay.data.seasons import load_series
from assay.data.sentences import load_sentences
from assay.data.vessels import load_vessels
from assay.methods.right.masks import edges
from assay.methods.train.fit import fit
from assay.methods.train.lovasz import region_and_edge
from assay.nn.read_as import OneScore
from assay.subjects import (
    cart_pole,
    credit_logit,
    diabetes_mlp,
    digits_denoiser,
    digits_retrieval,
    fields_cupnet,
    hiring_mlp,
    scenes_detector,
    scenes_labels,
    scenes_segmenter,
    seasons_forecaster,
    sentences_tagger,
    vessels_glunet,
)
from assay.tasks import Classification, Task

SHARPER = 12.0  # a cosine has no more than 2 to tell items apart: its logits while it learns


class Lesson(NamedTuple):
    """What is taught to what, and how."""

    model: Callable[[], nn.Module]
    task: Callable[[], Task]
    data: Callable[[], dict[str, tuple[Any, Any]]]
    fit: dict[str, Any]
    first: Callable[[Any, Tensor, Tensor], None] | None = None  # model, x, targets: what it takes over from the data
    last: Callable[[Any], None] | None = None  # what else is printed of it
    kept: Callable[[Any], nn.Module] = lambda model: model  # whose weights are written
    loss: Callable[[Tensor, Tensor], Tensor] | None = None  # its task's unless said


def adam(epochs: int, lr: float, batch: int = 64, **more: Any) -> dict[str, Any]:
    return {"epochs": epochs, "lr": lr, "batch": batch, "optimiser": "adam", **more}


def standardise(model: diabetes_mlp.DiabetesMLP, x: Tensor, y: Tensor) -> None:
    model.mean.copy_(x.mean(0))
    model.std.copy_(x.std(0))
    model.unit.copy_(torch.stack([y.mean(), y.std()]))


def in_millimetres(model: fields_cupnet.FieldsCupNet, x: Tensor, y: Tensor) -> None:
    model.mean.copy_(y.mean(0))
    model.std.copy_(y.std(0))


class Asked(nn.Module):
    """The searcher while it learns: the gallery is embedded anew at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.searcher = digits_retrieval.Searcher()
        rows = digits_retrieval.gallery()
        self.items, _ = digits_retrieval.load_digits()["train"].take(rows)

    def forward(self, x: Tensor) -> Tensor:
        return SHARPER * self.searcher.embed(x) @ self.searcher.embed(self.items).T

    @torch.no_grad()
    def taught(self) -> digits_retrieval.Searcher:
        self.searcher.gallery.copy_(self.searcher.embed(self.items))
        return self.searcher


class WithEdges(nn.Module):
    """GLUNet while it learns: the edge map is one more channel of its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = vessels_glunet.network()

    def forward(self, x: Tensor) -> Tensor:
        logits, edge = self.net.both(x)
        assert edge is not None
        return torch.cat([logits, edge], 1) if self.training else logits

    @staticmethod
    def loss(out: Tensor, target: Tensor) -> Tensor:
        return region_and_edge(out[:, :-1], out[:, -1:], target, edges(target))


def balance(model: cart_pole.Policy) -> None:
    rng = np.random.default_rng(1)
    earned, chance = returns(model.act, 200, rng), returns(lambda s: rng.integers(2, size=len(s)), 200, rng)
    print(
        f"  steps in 200 episodes: {earned.mean():.1f} of 500, at least {earned.min()}; at random {chance.mean():.1f}"
    )


def bayes(_: nn.Module) -> None:
    loans = load_loans()["test"]
    print(f"  whoever knows the true chances: {((loans.chance > 0.5) == loans.failed).mean():.4f}")


def untouched(_: nn.Module) -> None:
    noisy, clean = noisy_digits()["test"]
    score = digits_denoiser.task().score(torch.from_numpy(noisy), torch.from_numpy(clean)).mean()
    print(f"  the noisy image as it is: {score:.4f}")


def scenes(target: str) -> Callable[[], dict[str, tuple[Any, Any]]]:
    return lambda: {part: (each.x, getattr(each, target)) for part, each in load_scenes().items()}


LESSONS: dict[str, Lesson] = {
    "diabetes_mlp": Lesson(
        diabetes_mlp.DiabetesMLP,
        diabetes_mlp.task,
        lambda: {part: tuple(each) for part, each in load_diabetes().items()},
        adam(25, 0.01, 32, weight_decay=3e-2),
        standardise,
    ),
    "credit_logit": Lesson(
        lambda: OneScore(credit_logit.CreditLogit(), probability=False),
        lambda: Classification(CLASSES),
        lambda: {part: (each.x, each.failed) for part, each in load_loans().items()},
        adam(25, 0.005, weight_decay=1e-4),
        last=bayes,
        kept=lambda model: model.model,
    ),
    "fields_cupnet": Lesson(
        fields_cupnet.FieldsCupNet,
        fields_cupnet.task,
        lambda: {part: tuple(each) for part, each in load_fields().items()},
        adam(40, 0.006),
        in_millimetres,
    ),
    "hiring_mlp": Lesson(
        hiring_mlp.HiringMLP,
        lambda: Classification(HIRED),
        lambda: {part: (each.x, each.hired) for part, each in load_applications().items()},
        adam(20, 0.005, weight_decay=1e-4),
    ),
    "scenes_labels": Lesson(scenes_labels.network, scenes_labels.task, scenes("holds"), adam(10, 0.003)),
    "scenes_segmenter": Lesson(scenes_segmenter.Segmenter, scenes_segmenter.task, scenes("kind"), adam(5, 0.005, 32)),
    "scenes_detector": Lesson(scenes_detector.Detector, scenes_detector.task, scenes("boxes"), adam(24, 0.005)),
    "digits_denoiser": Lesson(
        digits_denoiser.Denoiser, digits_denoiser.task, noisy_digits, adam(20, 0.003), last=untouched
    ),
    "seasons_forecaster": Lesson(
        seasons_forecaster.Forecaster,
        seasons_forecaster.task,
        lambda: {part: tuple(each) for part, each in load_series().items()},
        adam(30, 0.003),
    ),
    "sentences_tagger": Lesson(
        sentences_tagger.Tagger,
        sentences_tagger.task,
        lambda: {part: (each.tokens.astype(np.float32), each.tags) for part, each in load_sentences().items()},
        adam(12, 0.005),
    ),
    "digits_retrieval": Lesson(
        Asked, digits_retrieval.task, digits_retrieval.queries, adam(25, 0.003), kept=Asked.taught
    ),
    "vessels_glunet": Lesson(
        WithEdges,
        vessels_glunet.task,
        lambda: {part: tuple(each) for part, each in load_vessels().items()},
        adam(4, 0.01, 32),
        kept=lambda model: model.net,
        loss=WithEdges.loss,
    ),
    "cart_pole": Lesson(cart_pole.Policy, cart_pole.task, cart_pole.observed, adam(30, 0.005), last=balance),
}


def teach(name: str, holdout: float) -> None:
    lesson, start = LESSONS[name], time.monotonic()
    torch.manual_seed(0)  # the initial weights
    model, task = lesson.model(), lesson.task()
    data = {part: Targets(*each) for part, each in lesson.data().items()}
    (x, y), (asked, target) = (each.take(np.arange(len(each))) for each in (data["train"], data["test"]))
    if kept := int(holdout * len(x)):
        x, y, asked, target = x[kept:], y[kept:], x[:kept], y[:kept]
    if lesson.first is not None:
        lesson.first(model, x, y)
    rng = torch.Generator().manual_seed(0)
    loss = lesson.loss or task.loss
    fit(model, Targets(x, y), loss=lambda out, t: loss(out, t).mean(), rng=rng, **lesson.fit)
    model.eval()
    state = lesson.kept(model).state_dict()
    if not kept:
        save_file({key: value.contiguous() for key, value in state.items()}, BUNDLED / f"{name}.safetensors")
    with torch.no_grad():
        out = model(asked)
    score, right = task.score(out, target).mean(), task.right(out, target).double().mean()
    says, plain = task.trivial(y.numpy())
    plain = plain.expand(len(asked), *plain.shape)
    nothing, by_chance = task.score(plain, target).mean(), task.right(plain, target).double().mean()
    size = sum(value.numel() * value.element_size() for value in state.values())
    print(
        f"{name}: {task.headline} {score:.4f} on {len(asked)} inputs not trained on, good enough {right:.4f}; "
        f"{says}: {nothing:.4f}, {by_chance:.4f}; {size / 1000:.0f} kB, {time.monotonic() - start:.0f} s",
        flush=True,
    )
    if lesson.last is not None:
        lesson.last(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *LESSONS], help="all unless named")
    parser.add_argument("--holdout", type=float, default=0.0, help="a share of the training inputs to score on instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.names or LESSONS:
        teach(name, given.holdout)


if __name__ == "__main__":
    main()
