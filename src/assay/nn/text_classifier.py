"""A small classifier of texts: word embeddings, one convolution over the words, the maximum over the text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError

PAD = 0  # the number of no word


class TextClassifier(nn.Module):
    """Words in, classes out: n L word numbers (PAD where the text has ended) -> n c.

    `embed` and `classify` are the two halves, so that an explanation can move the embedding (n L m) in between. The
    convolution looks at three words, padding counts as zeros and never wins the maximum, so that a text's answer does
    not depend on how far it is padded. Word numbers may come as floats, as data sets hold them.

    Source: after Kim, EMNLP 2014, arXiv:1408.5882, with one width of kernels in place of three and no dropout.
    On `assay.data.topics`, `fit(model, load_topics()["train"], epochs=6, lr=0.01, batch=64, optimiser="adam", rng=...)`
    trains it in seconds.
    """

    def __init__(self, vocabulary: int, classes: int, *, width: int = 16, kernels: int = 32, longest: int = 64) -> None:
        super().__init__()
        if vocabulary < 2 or classes < 2 or width < 1 or kernels < 1 or longest < 1:
            raise AssayError(
                f"TextClassifier needs 2 words, 2 classes, and width, kernels and longest of at least 1, got "
                f"{vocabulary=}, {classes=}, {width=}, {kernels=}, {longest=}."
            )
        self.vocabulary, self.longest = vocabulary, longest
        self.table = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.features = nn.Conv1d(width, kernels, 3, padding=1)
        self.head = nn.Linear(kernels, classes)

    def forward(self, tokens: Tensor) -> Tensor:  # n L -> n c
        return self.classify(self.embed(tokens), tokens != PAD)

    def embed(self, tokens: Tensor) -> Tensor:  # n L -> n L m
        if tokens.ndim != 2:
            raise ShapeError(f"Texts come as (n, words), got shape {tuple(tokens.shape)}.")
        if tokens.shape[1] > self.longest:
            raise ShapeError(
                f"A text of {tokens.shape[1]} words is longer than the {self.longest} that this model takes."
            )
        number = tokens.long()
        if len(number) and not 0 <= int(number.min()) <= int(number.max()) < self.vocabulary:
            raise AssayError(
                f"Word numbers lie between 0 and {self.vocabulary - 1}, got {int(number.min())} to {int(number.max())}."
            )
        embedded: Tensor = self.table(number)
        return embedded

    def classify(self, embedded: Tensor, shown: Tensor | None = None) -> Tensor:  # n L m, L or n L bool -> n c
        """The classes of embedded texts; `shown` is False for padding (no padding where it is None)."""
        if shown is None:
            shown = torch.ones(embedded.shape[1], dtype=torch.bool, device=embedded.device)
        shown = shown.expand(embedded.shape[:2])[:, :, None]  # n L 1
        seen = torch.relu(self.features((embedded * shown).transpose(1, 2))).transpose(1, 2)  # n L k, at least 0
        logits: Tensor = self.head((seen * shown).amax(1))
        return logits
