"""Changed words, asked of a bag of embeddings that reads a toy vocabulary: what breaks it is known beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.data.texts import Texts
from assay.errors import AssayError
from assay.finding import Gallery, finding_from_json, finding_to_json
from assay.inputs import Text
from assay.probe import judge_witnesses, put
from assay.probes.attacked.can_a_few_words_break_it import CanAFewWordsBreakIt, marked
from assay.report.page import _room
from assay.subject import Subject

VOCABULARY = ("", "?", "good", "terrible", "awful", "dreadful", "film", "movie", "the", "was", "day")
GOOD = ["the film was good good", "the day was good good"]
BAD = ["the film was terrible", "the day was terrible"]


class Tokens:
    """Words by number; one that it does not know is 1, and 0 comes after the end. A slip takes two tokens."""

    pad_token_id = 0

    def __len__(self) -> int:
        return len(VOCABULARY)

    def encode(self, text: str) -> list[int]:
        return [k for w in text.split() for k in ([VOCABULARY.index(w)] if w in VOCABULARY else [1, 1])]


class Bag(nn.Module):
    """Says 'bad' where the weights of its words sum to more than 0; padding has none."""

    def __init__(self, weights: dict[str, float]) -> None:
        super().__init__()
        table = torch.tensor([weights.get(word, 0.0) for word in VOCABULARY])
        self.table = nn.Embedding.from_pretrained(torch.stack([-table / 2, table / 2], 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.table(x.long()).sum(1)
        return out


def subject(weights: dict[str, float], length: int | None = 10, **told) -> Subject:
    frame = {"text": GOOD * 10 + BAD * 10, "label": ["good"] * 20 + ["bad"] * 20}
    data = Texts(frame, tokenizer=Tokens(), length=length, classes=("good", "bad"))
    return Subject.classifier(Bag(weights), {"test": data}, name="bag", **told)


def ask(asked, run, **settings):
    answer = put(CanAFewWordsBreakIt(**settings), asked, replace(run, debug=True))
    assert answer.status == "asked", answer.why
    return answer.finding


WEIGHTS = {"good": -1.0, "terrible": 1.0, "awful": -1.0, "dreadful": 1.0}


def test_a_synonym_that_the_model_reads_wrongly_breaks_it(run):
    asked = subject(WEIGHTS)
    assert asked.tokens
    finding = ask(asked, run)
    values = {m.name: m.value for m in finding.measures}
    # no synonym of "good" is listed and one slip of two leaves it right; of "terrible" either change is enough
    assert values["accuracy under changed text"] == 0.5
    assert values["accuracy under changed words"] == 0.5
    assert values["accuracy under changed characters"] == 0.5
    assert values["median share of words changed"] == 0.25
    assert [b.value for b in finding.measure().beside] == [0.5, 1.0]
    texts = finding.samples.columns["broken by words"].tolist()
    assert texts == [""] * 20 + ["the film was awful", "the day was awful"] * 10
    assert set(finding.samples.columns["words changed"][20:].tolist()) == {1}


def test_what_broke_it_are_the_tokens_of_the_text_that_is_shown(run):
    asked = subject(WEIGHTS)
    finding = ask(asked, run)
    w, columns = finding.witnesses, finding.samples.columns
    assert len(w) == 40
    assert set(w.norm) == {"none"}
    held, reasons = judge_witnesses(w, asked, run)
    assert held.all(), reasons
    place = {int(i): k for k, i in enumerate(columns["index"])}
    texts = [str(columns[f"broken by {how}"][place[int(i)]]) for i, how in zip(w.index, w.how, strict=True)]
    x, fits = asked.data["test"].encode(texts)
    assert bool(fits.all())
    np.testing.assert_array_equal(w.changed, x.numpy())
    np.testing.assert_array_equal(w.clean, asked.data["test"].take(w.index)[0].numpy())
    assert (w.said != w.label).all()


def test_texts_stand_before_and_after_in_the_report(run):
    finding = ask(subject(WEIGHTS), run)
    (gallery,) = (view for view in finding.views if isinstance(view, Gallery))
    assert len(gallery.exhibits) == run.budget.shown
    assert "bad: said good after synonyms. the film was [terrible -> awful]" in gallery.exhibits[0].caption
    assert "slips" in gallery.exhibits[1].caption
    assert _room(gallery) == 150
    assert finding_from_json(finding_to_json(finding)).views == finding.views
    long = " ".join(["word"] * 300)
    told = marked(long + " end " + long, long + " END " + long)
    assert "[end -> END]" in told
    assert len(told) < 420


def test_a_model_that_ignores_words_holds_and_says_that_little_is_known(run):
    finding = ask(subject({}), run)  # ties: the first class is the answer, so that half are right
    assert finding.measure().value == 0.5
    assert finding.witnesses is None
    assert (finding.samples.columns["characters queries"][:20] > 20).all()
    assert finding.measure("median share of words changed").value is None
    assert any("No text broke" in a.says for a in finding.alarms)


def test_where_nothing_could_be_tried_the_number_is_in_doubt(run):
    doubted = {name for a in ask(subject(WEIGHTS), run).alarms for name in a.doubts}
    assert doubted == {"accuracy under changed words"}  # "the day was good good" has no word in the list
    narrow = ask(subject(WEIGHTS, length=None), run)
    (cut,) = (a for a in narrow.alarms if "no room for some changes by slips" in a.says)
    assert cut.doubts == ("accuracy under changed characters", "accuracy under changed text")


def test_more_words_break_more_and_the_same_seed_the_same(run):
    asked = subject({**WEIGHTS, "?": 0.1})  # a slip makes a word into two that lean a little to "bad"
    first, again, more = ask(asked, run), ask(asked, run), ask(asked, run, share=0.4)
    assert first.measures == again.measures
    for name, column in first.samples.columns.items():
        np.testing.assert_array_equal(column, again.samples.columns[name])
    assert first.measure("accuracy under changed characters").value == 1.0
    assert first.measure().value == 0.5  # whichever attacker does better
    assert first.measure("median share of words changed").value == 0.25
    assert more.measure("accuracy under changed characters").value == 0.5  # two words of five: both "good"
    assert more.measure("accuracy under changed words").value == 0.5
    assert set(more.samples.columns["characters changed"][:20].tolist()) == {2}


def test_a_random_model_counts_by_fresh_answers(run):
    class Dice(Bag):
        def forward(self, x):
            return super().forward(x) + 0.1 * torch.randn(len(x), 2)

    asked = subject(WEIGHTS)
    dice = replace(asked, model=Dice(WEIGHTS), draws=4)
    finding = ask(dice, run)
    assert finding.measure("accuracy under changed words").value == pytest.approx(0.5, abs=0.05)
    again = finding.measure("accuracy under changed text, asked 10 times")
    assert again.value <= finding.measure().value + 1e-9


def test_it_needs_texts_with_their_tokenizer():
    asked = subject(WEIGHTS)
    numbers = Arrays(*asked.data["test"].take(np.arange(4)))
    assert "the test data here are Arrays" in CanAFewWordsBreakIt().why_not(replace(asked, data={"test": numbers}))
    bare = Texts({"text": GOOD, "label": ["good", "bad"]})
    assert "without the tokenizer" in CanAFewWordsBreakIt().why_not(replace(asked, data={"test": bare}))
    with pytest.raises(AssayError, match="share=0 of 'can-a-few-words-break-it'"):
        CanAFewWordsBreakIt(share=0)


def test_other_texts_are_encoded_as_the_data_are():
    data = subject(WEIGHTS, length=None).data["test"]
    x, _ = data.take(np.arange(4))
    again, fits = data.encode(data.strings(np.arange(4)))
    assert torch.equal(x, again)
    assert fits.all()
    x, fits = data.encode(["", "the", "the the the the the the"])
    assert fits.tolist() == [False, True, False]
    assert x[1].tolist() == [8, 0, 0, 0, 0]

    def padded(texts: list[str]) -> list[list[int]]:  # as Hugging Face's do: to the longest of a batch
        rows = [Tokens().encode(text) for text in texts]
        return [row + [0] * (max(map(len, rows)) - len(row)) for row in rows]

    data = Texts({"text": GOOD, "label": ["a", "b"]}, tokenizer=padded)
    x, fits = data.encode(["the", "the the the the the the"])
    assert fits.tolist() == [True, False]
    assert x[0].tolist() == [8, 0, 0, 0, 0]
    with pytest.raises(AssayError, match="have no tokenizer, so that no other can be read"):
        Texts({"text": GOOD, "label": ["a", "b"]}).encode(["a"])


def test_words_and_characters_part_what_an_attacker_tries():
    both = Text().neighbours("A happy child.", 1)
    words, characters = (Text().neighbours("A happy child.", 1, norm) for norm in ("words", "characters"))
    assert words == ("A glad child.",)
    assert "A HAPPY child." in characters
    assert set(both) == {*words, *characters}
    assert not {*words} & {*characters}
