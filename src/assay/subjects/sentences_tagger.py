"""People and places in sentences made by code: a tag for each word. An input is a row of word numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from assay.data.digits import weights
from assay.data.sentences import LONGEST, NONE, TAGS, WORDS, load_sentences
from assay.subject import Recipe, Subject
from assay.tasks import Tagging

WIDTH = 12  # of an embedding


class Tagger(nn.Module):
    """Word embeddings and two convolutions over three words each: n 12 -> n 12 5. Numbers are rounded to words."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(len(WORDS), WIDTH, padding_idx=NONE)
        self.around = nn.Sequential(
            nn.Conv1d(WIDTH, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Conv1d(32, len(TAGS), 1)

    def forward(self, tokens: Tensor) -> Tensor:  # n L -> n L k
        embedded = self.table(tokens.round().long().clamp(0, len(WORDS) - 1))
        logits: Tensor = self.head(self.around(embedded.transpose(1, 2))).transpose(1, 2)
        return logits


def task() -> Tagging:
    return Tagging(TAGS, spans=True)


def build() -> Subject:
    """The tagger with its weights and the sentences that it was trained and is tested on."""
    model = Tagger()
    model.load_state_dict(weights("sentences_tagger"))
    made = Subject.of(
        model.eval(),
        {part: (each.tokens.astype(np.float32), each.tags) for part, each in load_sentences().items()},
        task(),
        name="sentences-tagger",
        bounds=(0.0, len(WORDS) - 1.0),
        differentiable=False,
        about=f"Two convolutions over word embeddings that mark people and places, trained on 3,000 sentences of up to "
        f"{LONGEST} words; F1 of the spans 0.9569 on the 500 test sentences. An input is a row of word numbers.",
    )
    return replace(made, tokens=True)


SHELVED = Recipe(
    says="People and places marked in sentences made by code, some of whose names may be either",
    source="Made by assay.data.sentences",
    build=build,
)
