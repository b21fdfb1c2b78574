"""Train the same architecture again with labels that give similar classes some of the probability."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from assay.methods.train.class_similarity import (
    class_distances,
    fit_encoder,
    similarity_labels,
    smoothed,
    uniform_labels,
    word_distances,
    word_vectors,
)
from assay.methods.uncertainty.activations import features
from assay.remedies._retraining import Retraining, anew
from assay.remedy import Tried

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

Similarity = Literal["l1", "l2", "codes", "features", "words", "uniform"]
INPUTS = 10_000  # training inputs at most whose pairs are compared, drawn by seed and by class


@dataclass(frozen=True)
class ClassSimilaritySmoothing(Retraining):
    """Trains it again from scratch on labels smoothed towards similar classes, so that it is less sure; else free.

    `alpha` of a label goes to the other classes, the more similar ones first: `beta` says how much more, 0 not at all.
    `similarity` is that of what enters the subject's own last linear layer (features, in the place of codes), of the
    pixels (l1, l2), of an autoencoder's codes (codes; it is trained first), of the class names in a file of word
    vectors (words, with `vectors` its path), or none: uniform is plain label smoothing, to compare with.
    """

    alpha: float = 0.1
    beta: float = 2.0
    similarity: Similarity = "features"
    vectors: str = ""

    source: ClassVar[str] = "Liu & JaJa, ICANN 2021"
    mends: ClassVar[tuple[str, ...]] = ("confidence",)
    tried: ClassVar[tuple[Tried, ...]] = (
        Tried(
            probe="confidence",
            says="ResNet-18 on CIFAR-10, similarity=codes: calibration error from 8.4 to 3.4 %, accuracy "
            "from 78.1 to 77.4 %; similarity=uniform brought the calibration error from 8.4 to 3.0 %",
            claim="liu2021-smoothing/beats-one-hot",
        ),
    )

    def why_not(self, subject: Subject) -> str | None:
        if self.similarity == "features" and "head" not in subject.layers:
            return "similarity=features compares what enters the last linear layer, and the model has none; take l2"
        if self.similarity == "words" and not self.vectors:
            return "similarity=words wants a text file of word vectors; name it with vectors=PATH"
        return super().why_not(subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        loss = smoothed(self.labels(subject, run, rng).to(run.device))
        model = anew(subject.model, rng)
        self.train(model, subject, run, rng, loss=loss)
        return subject.cured(model, self.name())

    def labels(self, subject: Subject, run: Run, rng: torch.Generator) -> Tensor:  # -> k k
        """The smooth label of each class."""
        names = subject.task.classes
        if self.similarity == "uniform":
            return uniform_labels(len(names), alpha=self.alpha)
        if self.similarity == "words":
            away = word_distances(word_vectors(self.vectors, names))
        else:
            x, y = subject.data["train"].take(run.pick(subject.data["train"], INPUTS))
            x, y = x.to(run.device), y.to(run.device)
            if self.similarity == "codes":
                epochs = self.epochs_on(subject)
                with run.progress(f"training an autoencoder for {epochs} epochs", epochs) as tick:
                    encoder = fit_encoder(
                        subject.data["train"],
                        epochs=epochs,
                        rng=rng,
                        on_epoch=lambda epoch, loss: tick(1),
                        device=run.device,
                    )
                x = encoder(x)
            elif self.similarity == "features":
                model = copy.deepcopy(subject.model).to(run.device).eval()
                x = features(model, x, subject.layers["head"], entering=True)
            away = class_distances(x, y, classes=len(names), norm="l1" if self.similarity == "l1" else "l2")
        return similarity_labels(away, alpha=self.alpha, beta=self.beta)


SHELVED = ClassSimilaritySmoothing
