"""People and places in sentences made by code: a tag for each word. An input is a row of word numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from assay.data.digits import weights
from assay.data.sentences import LONGEST, NONE, TAGS, WORDS, load_sentences
from assay.errors import AssayError
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

    def read(self, text: str) -> Tensor:  # -> L
        """A text as a row of word numbers, NONE after its end."""
        number = {word: k for k, word in enumerate(WORDS)}
        said = text.lower().split()
        strange = [word for word in said if word not in number]
        if strange or not 0 < len(said) <= LONGEST:
            why = f"the word {strange[0]!r} is none of its {len(WORDS) - 1}" if strange else f"it has {len(said)} words"
            raise AssayError(f"{text!r} is no text for this model: {why}; give 1 to {LONGEST} of its words.")
        return torch.tensor([float(number[word]) for word in said] + [float(NONE)] * (LONGEST - len(said)))

    def words(self, text: Tensor) -> tuple[str, ...]:  # L -> words
        """The words of a row, up to its end."""
        return tuple(WORDS[int(k)] for k in text.round().long() if int(k) != NONE)


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
