"""Everyday change of texts: a bag of words whose answer to every rewritten text is known beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.texts import Texts
from assay.finding import Finding, Gallery, Matrix
from assay.inputs import Text
from assay.probe import judge_witnesses, put
from assay.probes.steady.everyday_change import SEVERITIES, EverydayChange
from assay.run import Run
from assay.subject import Subject

WEIGHTS = {"": 0.0, "?": 0.0, "good": -1.0, "terrible": 1.0, "awful": -1.0, "dreadful": 1.0, "film": 0.0, "the": 0.0,
           "was": 0.0, "day": 0.0}  # fmt: skip
WORDS = list(WEIGHTS)
TEXTS = ["the film was good", "the day was good", "the film was terrible", "the day was terrible"] * 5


class Tokens:
    """Words by number; one that it does not know takes two places, and 0 comes after the end."""

    pad_token_id = 0

    def __len__(self) -> int:
        return len(WORDS)

    def encode(self, text: str) -> list[int]:
        return [k for w in text.split() for k in ([WORDS.index(w)] if w in WEIGHTS else [1, 1])]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.tensor([[0.0, v] for v in WEIGHTS.values()]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.table(x.long()).sum(1)
        return out


def subject(length: int = 10) -> Subject:
    frame = {"text": TEXTS, "label": ["good", "good", "bad", "bad"] * 5}
    data = Texts(frame, tokenizer=Tokens(), length=length, classes=("good", "bad"))
    return Subject.classifier(Bag(), {"test": data}, name="bag")


def ask(asked: Subject, run: Run, *names: str) -> Finding:
    answer = put(EverydayChange(names), asked, replace(run, debug=True))
    assert answer.finding is not None, answer.why
    return answer.finding


def says_bad(text: str) -> bool:
    return sum(WEIGHTS.get(w, 0.0) for w in text.split()) > 0


def test_each_text_is_rewritten_as_a_string_and_read_anew(run: Run) -> None:
    names = ("typos", "casing", "swapped-words", "synonyms")
    found = ask(subject(), run, *names)
    (matrix,) = (v for v in found.views if isinstance(v, Matrix))
    for name, row in zip(names, matrix.values, strict=True):
        for severity, kept in zip(SEVERITIES, row, strict=True):
            change = Text().everyday()[name]
            after = [change([t], severity, torch.Generator().manual_seed(run.seed + i))[0] for i, t in enumerate(TEXTS)]
            right = [says_bad(text) == (i % 4 > 1) for i, text in enumerate(after)]
            assert kept == pytest.approx(np.mean(right)), (name, severity)
    typos, casing, swapped, synonyms = (row[-1] for row in matrix.values)
    assert swapped == 1 > max(typos, casing, synonyms)  # a bag does not mind the order


def test_what_broke_it_is_the_text_that_is_shown_and_its_tokens_break_it_again(run: Run) -> None:
    asked = subject()
    found = ask(asked, run, "synonyms", "casing")
    w = found.witnesses
    assert w is not None
    assert judge_witnesses(w, asked, run)[0].all()
    (gallery,) = (v for v in found.views if isinstance(v, Gallery))
    one = next(e for e in gallery.exhibits if "synonyms" in e.caption)
    assert one.caption.endswith(" was awful")
    at = list(w.index).index(one.index)
    text = one.caption.rsplit(". ", 1)[1]
    np.testing.assert_array_equal(w.changed[at], asked.data["test"].encode([text])[0][0].numpy())


def test_texts_that_a_change_cannot_touch_or_that_no_longer_fit_are_said(run: Run) -> None:
    found = ask(subject(length=4), run, "synonyms", "casing")
    said = [a.says for a in found.alarms]
    assert any(s.startswith("Changes by synonyms leave 5 of 20 (25 %)") for s in said)  # only the good days have none
    assert any(s.startswith("Changes by casing make 20 of 20") for s in said)
    (matrix,) = (v for v in found.views if isinstance(v, Matrix))
    assert matrix.values[1] == (1.0,) * 5  # left as they were


def test_without_strings_or_their_tokenizer_the_reason_is_said() -> None:
    asked = subject()
    rows = asked.data["test"].take(np.arange(4))
    bare = Subject.classifier(Bag(), (rows[0].numpy(), rows[1].numpy()), bounds=(0.0, 10.0))
    reason = EverydayChange().why_not(replace(bare, tokens=True))
    assert reason is not None
    assert "strings that they stand for are not at hand" in reason
    unread = Texts({"text": TEXTS, "label": ["good", "bad"] * 10}, classes=("good", "bad"))
    reason = EverydayChange().why_not(replace(asked, data={"test": unread}))
    assert reason is not None
    assert "without the tokenizer" in reason
