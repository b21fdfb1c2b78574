"""A small text classifier on a corpus made by code, in which it is known which words carry the topic.

An input is an embedded text: one row of numbers for each word, zeros after the end. So whatever asks for a gradient or
moves an input by a little can be asked of texts too; what it moves is then no word any more, and says so.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.topics import CLASSES, LONGEST, WORDS, encode, load_topics
from assay.nn.text_classifier import TextClassifier
from assay.subject import Recipe, Subject

WIDTH = 16  # of an embedding


class TopicsText(nn.Module):
    """Embedded texts in, topics out; a row of zeros is no word. It keeps the table of embeddings, to read and show.

    The convolution has no offset, so that a text that fades away evenly becomes the empty text without a jump, and
    methods that start from the empty text may add up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.text = TextClassifier(len(WORDS), len(CLASSES), width=WIDTH, longest=LONGEST)
        assert self.text.features.bias is not None  # a Conv1d has one unless told otherwise
        nn.init.zeros_(self.text.features.bias)
        self.text.features.bias.requires_grad_(False)

    def forward(self, embedded: Tensor) -> Tensor:  # n L m -> n c
        return self.text.classify(embedded, (embedded != 0).any(2))

    @torch.no_grad()
    def read(self, text: str) -> Tensor:  # -> words m
        """A text, embedded, without what comes after its end."""
        tokens = torch.from_numpy(encode(text))
        return self.text.embed(tokens[tokens != 0][None])[0]

    @torch.no_grad()
    def words(self, embedded: Tensor) -> tuple[str, ...]:  # L m -> words
        """The word nearest to each row, up to the end of the text."""
        shown = embedded[(embedded != 0).any(1)]
        return tuple(WORDS[int(k)] for k in torch.cdist(shown, self.text.table.weight).argmin(1))


@torch.no_grad()
def embedded_topics(model: TopicsText) -> dict[str, Arrays]:
    """The corpus of `load_topics` as this model's inputs, n LONGEST WIDTH."""
    made = {}
    for part, tokens in load_topics().items():
        x, y = tokens.take(np.arange(len(tokens)))
        made[part] = Arrays(model.text.embed(x), y, CLASSES)
    return made


def build() -> Subject:
    """The classifier with its weights and the texts that it was trained and is tested on."""
    from safetensors.torch import load

    model = TopicsText()
    model.load_state_dict(load((files("assay.data") / "bundled" / "topics_text.safetensors").read_bytes()))
    return Subject.classifier(
        model.eval(),
        embedded_topics(model),
        name="topics-text",
        classes=CLASSES,
        bounds=(-1.0, 1.0),
        about="A convolution over word embeddings, trained on 3,000 texts of 6 to 12 words; right on 0.9860 of the 500 "
        "test texts. An input is an embedded text whose entries lie between -1 and 1.",
    )


SHELVED = Recipe(
    says="A small text classifier on six topics: texts made by code, in which the words that matter are known",
    source="Kim 2014, arXiv:1408.5882, with one width of kernels",
    build=build,
)
