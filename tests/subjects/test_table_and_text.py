"""The subjects on a table and on texts: as good as they say, in bounds, and readable."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine as original

from assay.data.topics import STOP_WORDS, WORDS, decode, load_topics
from assay.errors import AssayError
from assay.jobs.audit import audit
from assay.methods.certify.layers import layers
from assay.methods.explain.maps import explain
from assay.subjects import Source, open_subject
from assay.subjects.topics_text import TopicsText
from assay.subjects.wine_mlp import COLUMNS, WineMLP

SIZES = {"wine-mlp": (118, 60), "topics-text": (3000, 500)}


@pytest.mark.parametrize("name", SIZES)
def test_it_is_as_good_as_it_says(name: str) -> None:
    subject = open_subject(Source(name))
    train, test = SIZES[name]
    stated = re.search(rf"right on ([\d.]+) of the {test} test", subject.about)
    assert stated is not None
    x, y = subject.data["test"].take(np.arange(test))
    right = float((subject.predict(x).argmax(1) == y).double().mean())
    assert right == pytest.approx(float(stated[1]), abs=1.01 / test)  # one input may lie on the border
    assert (len(subject.data["train"]), len(subject.data["test"])) == (train, test)
    for data in subject.data.values():
        every, _ = data.take(np.arange(len(data)))
        assert float(every.min()) >= subject.inputs.low
        assert float(every.max()) <= subject.inputs.high


def test_no_wine_is_both_learned_from_and_tested_on() -> None:
    subject = open_subject(Source("wine-mlp"))
    rows = {part: data.take(np.arange(len(data)))[0].numpy() for part, data in subject.data.items()}
    assert not {r.tobytes() for r in rows["train"]} & {r.tobytes() for r in rows["test"]}


def test_wines_are_shown_as_they_were_recorded() -> None:
    subject = open_subject(Source("wine-mlp"))
    assert isinstance(subject.model, WineMLP)
    x, _ = subject.data["test"].take(np.arange(60))
    recorded = np.array([subject.model.in_units(row) for row in x])
    known = {tuple(np.round(row, 3)) for row in original().data}
    assert all(tuple(np.round(row, 3)) in known for row in recorded)
    torch.testing.assert_close(subject.model.from_units(recorded[3].tolist()), x[3], rtol=0, atol=1e-6)
    assert subject.model.columns == tuple(COLUMNS)


def test_the_table_network_can_be_read_by_certificates() -> None:
    subject = open_subject(Source("wine-mlp"))
    assert [a.out_shape for a in layers(subject.model, subject.inputs.shape)] == [(16,), (16,), (3,)]


def test_texts_are_read_and_shown_word_by_word() -> None:
    subject = open_subject(Source("topics-text"))
    assert isinstance(subject.model, TopicsText)
    tokens = load_topics()["test"].x[:20].astype(int)
    x, _ = subject.data["test"].take(np.arange(20))
    for row, numbers in zip(x, tokens, strict=True):
        assert subject.model.words(row) == decode(numbers)
    read = subject.model.read("The doctor, the fever!")
    assert subject.model.words(read) == ("the", "doctor", "the", "fever")
    assert subject.task.classes[int(subject.model(read[None]).argmax())] == "health"


def test_the_end_of_a_text_changes_nothing() -> None:
    subject = open_subject(Source("topics-text"))
    x, _ = subject.data["test"].take(np.arange(30))
    whole = subject.predict(x)
    for i, row in enumerate(x):
        torch.testing.assert_close(subject.predict(row[(row != 0).any(1)][None])[0], whole[i])


def test_a_text_that_fades_becomes_the_empty_text() -> None:
    """So integrated gradients from the empty text may add up."""
    subject = open_subject(Source("topics-text"))
    x = subject.model.read("a team and the referee of a league")[None]  # type: ignore[operator]
    torch.testing.assert_close(subject.predict(1e-7 * x), subject.predict(0 * x), rtol=0, atol=1e-5)
    found = explain(subject.model, x, None, "integrated-gradients")
    assert found.gap is not None
    assert abs(float(found.gap[0])) < 0.02 * abs(float(found.values.sum()))


def test_topic_words_carry_the_class_and_stop_words_do_not() -> None:
    """What is known of the corpus: leaving out each word in turn, the one that costs most is a word of the topic."""
    subject = open_subject(Source("topics-text"))
    x, y = subject.data["test"].take(np.arange(40))
    hits = 0
    for row, label in zip(x, y, strict=True):
        words = subject.model.words(row)  # type: ignore[operator]
        text = row[: len(words)][None]
        cost = explain(subject.model, text, int(label), "occlusion").values[0].sum(1)
        hits += words[int(cost.argmax())] not in STOP_WORDS
    assert hits >= 38
    assert len(WORDS) > len(STOP_WORDS)


@pytest.mark.parametrize("name", SIZES)
def test_an_audit_asks_or_says_why_not(name: str, tmp_path: Path) -> None:
    done = audit(
        open_subject(Source(name)), probes=["accuracy", "confidence", "everyday-change"], out=tmp_path, budget="quick"
    )
    assert [row.answer.status for row in done.rows] == ["asked", "asked", "does not apply"]
    assert "it knows images" in done.row("everyday-change").answer.why


def test_a_text_that_is_too_long_is_refused_in_one_line() -> None:
    subject = open_subject(Source("topics-text"))
    with pytest.raises(AssayError, match=r"A text of 13 words does not fit; .* 1 to 12 words"):
        subject.model.read("a " * 13)  # type: ignore[operator]
