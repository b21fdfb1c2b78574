"""Which images of a gallery show the same digit: by the cosine of their embeddings."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from assay.data.digits import load_digits, weights
from assay.nn.siamese import small_encoder
from assay.subject import Recipe, Subject
from assay.tasks import Retrieval

SIZE = 12  # of an embedding
EACH = 10  # images of each digit in the gallery


class Searcher(nn.Module):
    """Embeds a query and compares it with a gallery that was embedded before: n 1 8 8 -> n g."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = small_encoder(SIZE)
        self.gallery: Tensor
        self.register_buffer("gallery", torch.zeros(10 * EACH, SIZE))

    def embed(self, x: Tensor) -> Tensor:  # n 1 8 8 -> n s, of length 1
        return normalize(self.encoder(x).flatten(1), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x) @ self.gallery.T


def gallery() -> NDArray[np.int64]:  # -> g
    """The first EACH training images of each digit, by their rows."""
    y = load_digits()["train"].labels
    return np.concatenate([np.flatnonzero(y == c)[:EACH] for c in range(10)])


def queries() -> dict[str, tuple[Tensor, NDArray[np.int64]]]:
    """The other training images and the test images, each with the items of the gallery that show its digit."""
    digits, rows = load_digits(), gallery()
    kinds, made = digits["train"].labels[rows], {}
    for part, data in digits.items():
        asked = np.setdiff1d(np.arange(len(data)), rows) if part == "train" else np.arange(len(data))
        x, y = data.take(asked)
        made[part] = (x, (y.numpy()[:, None] == kinds).astype(np.int64))
    return made


def task() -> Retrieval:
    rows = gallery()
    kinds = load_digits()["train"].labels[rows]
    return Retrieval(tuple(f"{kind} (image {row})" for kind, row in zip(kinds, rows, strict=True)))


def build() -> Subject:
    """The network with its weights, its gallery, and the queries that it was trained and is tested on."""
    model = Searcher()
    model.load_state_dict(weights("digits_retrieval"))
    return Subject.of(
        model.eval(),
        queries(),
        task(),
        name="digits-retrieval",
        about="An embedding of digits of 8 x 8, trained on 1,200 of them, that looks for the same digit among 100; "
        "precision of the first five 0.9718 for the 497 test images.",
    )


SHELVED = Recipe(
    says="Which of a hundred of scikit-learn's digits show the same digit as a query: by their embeddings",
    source="Alpaydin and Kaynak 1998, doi:10.24432/C50P49",
    build=build,
)
