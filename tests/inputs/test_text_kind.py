"""Texts: slips that a reader passes over, the tokenizer that must match, and what an attacker may try."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.topics import WORDS, encode
from assay.errors import AssayError
from assay.inputs import SEVERITIES, Text
from assay.inputs.reach import WordReach
from assay.inputs.show import Words
from assay.inputs.synonyms import GROUPS, SYNONYMS
from assay.inputs.text import NEGATIONS, lookalikes, slips, synonyms

LONG = (
    "We bought the old house near the river in the spring, because the children had always wanted a garden. "
    "It was not easy to fix the roof, and nobody told us that the winter would be so cold. However, the neighbours "
    "were happy to help, and we never regretted the choice: the kitchen is large, the rooms are quiet, and many "
    "friends visit us often. If somebody asks whether it was a mistake, we smile."
)
TEXTS = [
    LONG,
    "The movie was very good.",
    "Stop!",
    "Perhaps it is difficult to choose, but we don't think so.",
    LONG.upper(),
]
EVERY = Text().everyday()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def edits(a: str, b: str) -> int:
    """Levenshtein's distance; of texts with as many words, summed over these, which is no less."""
    if a.count(" ") == b.count(" ") > 0 and a.replace(" ", "") != b.replace(" ", ""):
        return sum(edits(x, y) for x, y in zip(a.split(" "), b.split(" "), strict=True))
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


class ByWord:
    """The words of the bundled corpus as a tokenizer."""

    def encode(self, text: str) -> Sequence[int]:
        return [int(k) for k in encode(text) if k]

    def __len__(self) -> int:
        return len(WORDS)


class ByCharacter:
    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def __len__(self) -> int:
        return self.size


@pytest.mark.parametrize("name", ["typos", "homoglyphs", "punctuation", "spacing"])
def test_small_slips_are_as_few_as_said(name: str):
    """One edit for each word that is touched, two where letters change places; one word in ten up to severity 2."""
    words = len(LONG.split())
    for severity, share in zip(SEVERITIES, EVERY[name].strengths, strict=True):
        for seed in range(2):
            (changed,) = EVERY[name]([LONG], severity, seeded(seed))
            most = max(1, round(share * words))
            assert 0 < edits(LONG, changed) <= (2 if name == "typos" else 1) * most
            if severity <= 2:
                assert most <= words / 10 + 0.5
                assert edits(LONG, changed) <= 0.05 * len(LONG)
            if name in ("typos", "homoglyphs"):
                pairs = list(zip(LONG.split(), changed.split(), strict=True))
                assert sum(a != b for a, b in pairs) <= most


def test_a_typo_keeps_the_ends_of_a_word_and_leaves_short_words_alone():
    for seed in range(5):
        (changed,) = EVERY["typos"]([LONG], 5, seeded(seed))
        for before, after in zip(LONG.split(), changed.split(), strict=True):
            a, b = (re.sub(r"\W", "", word) for word in (before, after))
            assert (a[0], a[-1]) == (b[0], b[-1])
            if len(a) < 4:
                assert a == b
    assert slips("cat") == ()
    assert set(slips("word")) == {"wird", "wprd", "wrd", "woord", "wrod", "woed", "wotd", "wod", "worrd"}
    assert "Hello," not in slips("Hello,")
    assert all(word.endswith(",") for word in slips("Hello,"))


@pytest.mark.parametrize("name", EVERY)
def test_a_higher_severity_changes_what_the_lower_did_and_more(name: str):
    far = [edits(LONG, EVERY[name]([LONG], severity, seeded(4))[0]) for severity in SEVERITIES]
    assert far[0] > 0
    assert all(a <= b for a, b in pairwise(far)), far
    assert far[-1] > far[0]
    if name in ("typos", "casing", "synonyms", "homoglyphs"):
        touched = [
            {
                k
                for k, (a, b) in enumerate(zip(LONG.split(), EVERY[name]([LONG], s, seeded(4))[0].split(), strict=True))
                if a != b
            }
            for s in SEVERITIES
        ]
        assert all(a <= b for a, b in pairwise(touched))


def test_swapped_words_are_the_same_words_and_none_moves_far():
    for severity in SEVERITIES:
        (changed,) = EVERY["swapped-words"]([LONG], severity, seeded(severity))
        before, after = LONG.split(), changed.split()
        assert sorted(before) == sorted(after)
        moved = [k for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        assert len(moved) % 2 == 0
        for k, next_k in zip(moved[::2], moved[1::2], strict=True):
            assert next_k == k + 1
            assert (after[k], after[next_k]) == (before[next_k], before[k])


def test_dropped_words_leave_the_rest_in_order_and_never_take_a_negation():
    for seed in range(4):
        for severity, share in zip(SEVERITIES, EVERY["dropped-words"].strengths, strict=True):
            (changed,) = EVERY["dropped-words"]([LONG], severity, seeded(seed))
            before, after = LONG.split(), changed.split()
            assert len(before) - len(after) == max(1, round(share * len(before)))
            rest = iter(before)
            assert all(word in rest for word in after)  # in the same order
            assert [w for w in before if w in NEGATIONS] == [w for w in after if w in NEGATIONS]
            assert "  " not in changed
            assert changed == changed.strip()
    mild = EVERY["dropped-words"]([LONG], 2, seeded())[0].split()
    assert all(word.lower() in mild for word in ("house", "river", "garden.", "kitchen", "roof,"))
    assert EVERY["dropped-words"](["Stop!", "we don't", "never not no"], 5, seeded())[:1] == ["Stop!"]
    assert EVERY["dropped-words"](["we don't"], 5, seeded()) == ["don't"]
    assert EVERY["dropped-words"](["never not no"], 5, seeded()) == ["never not no"]


def test_casing_changes_no_letter():
    for severity in SEVERITIES:
        for before, after in zip(TEXTS, EVERY["casing"](TEXTS, severity, seeded()), strict=True):
            assert before.lower() == after.lower()
            assert before != after


def test_synonyms_come_from_the_list_as_the_word_is_written():
    assert synonyms("Terrible,") == ("Awful,", "Dreadful,")
    assert synonyms("MOVIE") == ("FILM",)
    assert synonyms("quokka") == ()
    assert Text().neighbours("a terrible day", 1)[0] == "a dreadful day"  # and not: a awful
    assert Text().neighbours("an awful day", 1)[0] not in ("an terrible day", "an dreadful day")
    words = [word for group in GROUPS for word in group.split()]
    assert len(words) == len(set(words))  # no word has two meanings here
    assert all(word in SYNONYMS[other] for word in words for other in SYNONYMS[word])
    assert not set(words) & set(NEGATIONS) - {"nobody"}
    (changed,) = EVERY["synonyms"](["A quokka ate grass."], 5, seeded())
    assert changed == "A quokka ate grass."  # where the list stops, the text stays


def test_a_homoglyph_looks_the_same_and_is_not():
    assert lookalikes("box") == ("bоx", "boх")
    assert all(a != "box" and len(a) == 3 for a in lookalikes("box"))
    (changed,) = EVERY["homoglyphs"]([LONG], 3, seeded())
    back = changed.translate(str.maketrans("асеорхуіјѕАСЕНІКМОРТХВ", "aceopxyijsACEHIKMOPTXB"))
    assert back == LONG != changed


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=4), st.sampled_from(sorted(EVERY)), st.integers(1, 5))
def test_any_text_at_all_gives_a_text(texts: list[str], name: str, severity: int):
    changed = EVERY[name](texts, severity, seeded(1))
    assert len(changed) == len(texts)
    assert changed == EVERY[name](texts, severity, seeded(1))
    for before, after in zip(texts, changed, strict=True):
        assert isinstance(after, str)
        assert bool(before.split()) <= bool(after.split())  # no text becomes empty
        assert len(after) <= 2 * len(before) + 2
        Text().features(after)


def test_one_text_is_changed_alike_whatever_stands_behind_it():
    alone = EVERY["typos"]([LONG], 3, seeded(2))
    assert EVERY["typos"]([LONG, "other words here"], 3, seeded(2))[:1] == alone


def test_the_global_seed_is_left_alone():
    random.seed(0)
    expected = random.random()
    random.seed(0)
    state = torch.random.get_rng_state()
    EVERY["typos"](TEXTS, 3, seeded())
    assert random.random() == expected
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_tokenizer_that_does_not_match_is_told_in_one_line():
    kind = Text.of(["the doctor said it", "team and goal"], ByWord())
    assert kind.tokens(["the goal"]) == [[WORDS.index("the"), WORDS.index("goal")]]
    with pytest.raises(AssayError, match=r"Text 1 \('naïve'\) gives token 239, outside the vocabulary of 128") as told:
        Text.of(["plain", "naïve"], ByCharacter(128))
    assert "\n" not in str(told.value)
    with pytest.raises(AssayError, match="outside the vocabulary of 100"):  # the model knows fewer than the tokenizer
        Text.of(["plain"], ByCharacter(128), vocabulary=100)
    with pytest.raises(AssayError, match=r"Text 0 \(''\) gives no token"):
        Text.of([""], ByCharacter(128))
    with pytest.raises(AssayError, match="Text 1 is a int"):
        Text.of(["a", 3])  # type: ignore[list-item]
    with pytest.raises(AssayError, match=r"pass \[text\]"):
        Text.of("a text")
    with pytest.raises(AssayError, match=r"pass \[text\]"):
        EVERY["typos"]("a text", 1, seeded())
    with pytest.raises(AssayError, match="has no tokenizer"):
        Text().tokens(["a"])


def test_words_are_parts_with_their_characters():
    text = " The  doctor, the"
    features = Text().features(text)
    assert features.names == ("The", "doctor,", "the")
    assert "".join(text[int(k)] for k in features.positions(1)) == "doctor,"
    assert len(Text().features("")) == 0
    assert Text().show(text) == Words(text)


def test_an_attacker_has_words_and_characters_and_no_gradient():
    reach = Text().reach
    assert reach == WordReach(("words", "characters"), False)
    near = Text().neighbours("A happy child.", 1)
    assert {"A glad child.", "A hapy child.", "A hаppy child."} <= set(near)
    assert len(near) == len(set(near))
    for one in near:
        assert one.split()[0] == "A"
        assert one.split()[2] == "child."
        assert one != "A happy child."
    with pytest.raises(AssayError, match="There is no word 3"):
        Text().neighbours("A happy child.", 3)
