"""Train with further heads that tell the groups of label trees apart, and drop them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from assay.data.label_tree import read_tree, tree_texts
from assay.errors import AssayError
from assay.methods.right.visual_tree import FOUND, how_many, trees_from
from assay.methods.train.mmf import Mmf as Losses
from assay.methods.train.mmf import WithHeads, early_stage
from assay.probe import undisturbed
from assay.remedies._retraining import Hardening, kept_as

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.data.label_tree import LabelTree
    from assay.run import Run
    from assay.subject import Subject

INPUTS = 2000  # training inputs at most that a tree is found from, drawn by seed and by class


@dataclass(frozen=True)
class Mmf(Hardening):
    """Trains it with further heads that tell groups of classes apart, so that mistakes are milder; free at inference.

    `trees` are JSON files, {"group": ["class", ...], ...}, or `features`: the tree found from what enters the subject's
    own last linear layer, with `groups` groups (0.3 to a class unless given), or `inputs`: found from the inputs.
    `weights` are the shares of the loss that each tree's head has, one for all or one each. The heads read what the
    module `stage` gives out, by default one early on. Of a deeper tree they tell apart what stands just below its root.
    """

    trees: tuple[str, ...] = ("features",)
    weights: tuple[float, ...] = (0.1,)
    stage: str = ""
    groups: int | None = None

    source: ClassVar[str] = "Li, Zhou, Zhou & Wang, ICANN 2021"
    mends: ClassVar[tuple[str, ...]] = ("how-bad-are-its-mistakes",)
    of_layers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.trees:
            raise AssayError(f"{self.name()!r} wants a label tree; give trees=FILE, trees=features or trees=inputs.")
        # a file is read once and kept as its text: what it says then is what the weights were trained with
        object.__setattr__(self, "trees", tree_texts(self.trees, FOUND))
        if len(self.weights) not in (1, len(self.trees)):
            raise AssayError(
                f"{self.name()!r} got {len(self.weights)} weights for {len(self.trees)} trees; give one each."
            )
        each = self.weights * (len(self.trees) // len(self.weights))
        Losses([torch.zeros(1)] * len(each), each)
        if sum(each) >= 1:
            raise AssayError(
                f"weights={each} leave nothing of the loss to the network's own head; give less than 1 in all."
            )
        object.__setattr__(self, "weights", each)

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        if len(subject.task.classes) < 3:
            return "it tells groups of classes apart, and there are only two classes"
        if "features" in self.trees and "head" not in subject.layers:
            return "trees=features compares what enters the last linear layer, and the model has none; name a file"
        modules = [name for name, _ in subject.model.named_modules() if name]
        if self.stage and self.stage not in modules:
            near = get_close_matches(self.stage, modules, 3, 0) or modules[:3]
            return f"the model has no module {self.stage!r} for stage=; did you mean {' or '.join(near) or 'another'}"
        if len(modules) < 2:
            return f"{type(subject.model).__name__} has no module inside it that a head could read"
        if set(FOUND) & set(self.trees):
            how_many(len(subject.task.classes), self.groups)
            there = np.unique(np.asarray(subject.data["train"].labels))
            lost = [name for i, name in enumerate(subject.task.classes) if i not in there]
            if lost:
                return f"a tree is found from training inputs, and none is of class {lost[0]!r}; name a file of a tree"
        for tree in self.trees:
            if tree not in FOUND:
                read_tree(tree, subject.task.classes)  # says what is wrong with it before anything is trained
        try:
            x = subject.data["train"].take(np.arange(min(2, len(subject.data["train"]))))[0]
            self._read(subject.model, subject, x.to(next(subject.model.parameters()).device))
        except AssayError as e:
            return str(e).removesuffix(".")
        except Exception as e:  # somebody else's code
            return f"its heads read what a stage gives out, and on two inputs the model fails: {type(e).__name__}"
        return None

    def apply(self, subject: Subject, run: Run) -> Subject:
        trees = self._trees(subject, run)
        losses = Losses([torch.from_numpy(tree.group_of()) for tree in trees], self.weights)
        rng = run.rng()
        model = self.begun(subject.model, rng).to(run.device)
        x = subject.data["train"].take(run.pick(subject.data["train"], 2))[0].to(run.device)
        own = torch.Generator(run.device).manual_seed(run.seed + 1)  # weights 0 draw what the plain training draws
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):  # it asks the model once, which may draw
            heads = WithHeads(model, self._read(model, subject, x), losses.sizes, x, rng=own)
        for head in heads.heads:  # a stage may reckon in another type than a head
            head.register_forward_pre_hook(lambda head, given: given[0].to(head.weight.dtype))
        with kept_as(model):
            self.hardened(heads, subject, run, rng, about="training with heads for groups", loss=losses.loss)
        heads.close()
        return subject.cured(model, self.name())

    def _read(self, model: nn.Module, subject: Subject, x: Tensor) -> str:
        """The name of the module that the heads read: where there is but one with maps, its last convolution."""
        if self.stage:
            return self.stage
        try:
            return early_stage(model, x)
        except AssayError:
            if "last_conv" not in subject.layers:
                raise
            return subject.layers["last_conv"]

    def _trees(self, subject: Subject, run: Run) -> list[LabelTree]:
        def inputs() -> tuple[Tensor, Tensor]:
            x, y = subject.data["train"].take(run.pick(subject.data["train"], INPUTS))
            return x.to(run.device), y.to(run.device)

        model = copy.deepcopy(subject.model).to(run.device).eval()
        _, span = subject.inputs.edges()
        head = subject.layers.get("head")
        with undisturbed(model, run):  # a model that draws is asked with the same draws each time
            return trees_from(self.trees, subject.task.classes, model, head, inputs, span=span, groups=self.groups)


SHELVED = Mmf
