from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close

from assay.data.arrow import MOST_LINE
from assay.data.image_folder import ImageFolder
from assay.data.open import open_data
from assay.data.texts import Texts
from assay.errors import AssayError
from assay.inputs import Text
from assay.subject import Data

STRINGS = ["a fine day", "no", "line one\nline two", 'she said "no", and left']
LABELS = ["good", "bad", "good", "bad"]
FRAME = {"text": STRINGS, "label": LABELS}


def lengths(texts: list[str]) -> list[list[int]]:
    """A tokenizer: the length of each word."""
    return [[len(word) for word in text.split()] for text in texts]


class OneByOne:
    """As the kind `Text` wants one."""

    pad_token_id = 19

    def encode(self, text):
        return [len(word) for word in text.split()]

    def __len__(self):
        return 20


def files(folder):
    with (folder / "d.csv").open("w") as file:
        file.write("text,label\n")
        for text, label in zip(STRINGS, LABELS, strict=True):
            file.write('"{}",{}\n'.format(text.replace('"', '""'), label))
    with (folder / "d.jsonl").open("w") as file:
        for text, label in zip(STRINGS, LABELS, strict=True):
            file.write(json.dumps({"text": text, "label": label}) + "\n")
    pq.write_table(pa.table(FRAME), folder / "d.parquet")
    return [folder / f"d.{end}" for end in ("csv", "jsonl", "parquet")]


def test_every_form_gives_the_same(tmp_path):
    sets = [Texts(path, tokenizer=lengths) for path in files(tmp_path)]
    sets += [
        Texts(FRAME, tokenizer=lengths),
        open_data(tmp_path / "d.csv", target="label", text="text", tokenizer=lengths),
    ]
    wanted = torch.tensor([[1, 4, 3, 0, 0], [2, 0, 0, 0, 0], [4, 3, 4, 3, 0], [3, 4, 5, 3, 4.0]])
    for data in sets:
        assert isinstance(data, Data)
        assert data.strings(np.array([2, -1])) == [STRINGS[2], STRINGS[3]]
        x, y = data.take(np.arange(4))
        assert_close(x, wanted, rtol=0, atol=0)
        assert y.tolist() == [1, 0, 1, 0]
        assert data.classes == ("bad", "good")
    assert len({data.fingerprint() for data in sets}) == 1
    assert sets[0].described() == [
        "4 texts of 1 to 5 words.",
        "The target 'label' has 2 classes: 'bad' 50.0%, 'good' 50.0%.",
        "Texts have 1 to 5 tokens; shorter ones are padded to 5 with 0.",
    ]


def test_a_folder_of_folders(tmp_path):
    for k, (text, label) in enumerate(zip(STRINGS, LABELS, strict=True)):
        (tmp_path / "t" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / label / f"{k}.txt").write_text(text)
    data = open_data(tmp_path / "t", tokenizer=lengths)
    assert isinstance(data, Texts)
    Image.new("L", (2, 2)).save(tmp_path / "t" / "bad" / "x.png")
    Image.new("L", (2, 2)).save(tmp_path / "t" / "good" / "x.png")
    assert isinstance(open_data(tmp_path / "t"), ImageFolder)  # beside images a text is a remark on them
    assert data.classes == ("bad", "good")
    assert data.strings(np.arange(4)) == [STRINGS[1], STRINGS[3], STRINGS[0], STRINGS[2]]
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert Texts(tmp_path / "t", classes=("good", "bad")).labels.tolist() == [1, 1, 0, 0]
    with pytest.raises(AssayError, match="is 'bad' in row 0, not among the classes 'good', 'other'"):
        Texts(tmp_path / "t", classes=("good", "other"))
    (tmp_path / "t" / "bad" / "x.txt").write_bytes(b"caf\xe9")
    with pytest.raises(AssayError, match=r"x\.txt is not UTF-8 \(byte 3\)"):
        Texts(tmp_path / "t")
    (tmp_path / "t" / "bad" / "x.txt").unlink()
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "t" / "bad" / "x.txt").symlink_to("../../secret.txt")
    with pytest.raises(AssayError, match="is a link that leads out"):
        Texts(tmp_path / "t")
    (tmp_path / "t" / "bad" / "x.txt").unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.txt").write_text("secret")
    (tmp_path / "t" / "worse").symlink_to("../elsewhere")
    with pytest.raises(AssayError, match="worse' is a link that leads out"):
        Texts(tmp_path / "t")
    (tmp_path / "u" / "one").mkdir(parents=True)
    with pytest.raises(AssayError, match="has 1 sub-folders"):
        Texts(tmp_path / "u")
    (tmp_path / "u" / "two").mkdir()
    with pytest.raises(AssayError, match=r"one holds no \.txt files"):
        Texts(tmp_path / "u")


def test_the_tokenizer_of_the_kind_text_serves_here_too():
    data = Texts(FRAME, tokenizer=OneByOne())
    assert data.tokens[1].tolist() == [2, 19, 19, 19, 19]
    told = Text.of(STRINGS, OneByOne()).tokens(STRINGS)
    assert [row[row != 19].tolist() for row in data.tokens] == told


@pytest.mark.parametrize(
    "made",
    [
        lambda t: {"input_ids": lengths(t)},
        lambda t: np.array([[1, 2]] * len(t)),
        lambda t: torch.tensor([[1, 2]] * len(t)),
        lambda t: {"input_ids": torch.tensor([[1, 2]] * len(t)), "attention_mask": 0},
    ],
)
def test_what_tokenizers_give(made):
    x, _ = Texts(FRAME, tokenizer=made).take(np.arange(4))
    assert x.dtype == torch.float32
    assert x.shape in ((4, 2), (4, 5))
    assert not Texts(FRAME, tokenizer=lambda t: [[1, 2]] * len(t)).notes  # of one length: nothing to say


def test_one_length_for_all_splits():
    assert Texts(FRAME, tokenizer=lengths, length=7).take(np.arange(2))[0].shape == (2, 7)
    with pytest.raises(AssayError, match="Text 3 has 5 tokens, more than 4; cut it, or give a larger length"):
        Texts(FRAME, tokenizer=lengths, length=4)


def fails(texts):
    raise KeyError("unk")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"vocabulary": 5}, r"Text 3 \(.*\) gives token 5, outside the vocabulary of 5; the tokenizer does not match"),
        ({"tokenizer": lambda t: [[-1]] * len(t)}, r"gives token -1, outside the vocabulary"),
        ({"tokenizer": lambda t: [[2**24]] * len(t)}, r"gives token 16777216, outside the vocabulary of 16,777,216"),
        ({"tokenizer": lambda t: [[1]]}, "The tokenizer gives 1 rows for 4 texts"),
        ({"tokenizer": lambda t: [[1.5]] * len(t)}, r"gives float64 of shape \(1,\) for text 0"),
        ({"tokenizer": lambda t: [[[1]]] * len(t)}, r"gives int64 of shape \(1, 1\) for text 0"),
        ({"tokenizer": lambda t: [[]] * len(t)}, r"Text 0 \('a fine day'\) gives no token"),
        ({"tokenizer": fails}, r"The tokenizer raised KeyError on texts 0 to 3 \('unk'\)"),
    ],
)
def test_a_tokenizer_that_does_not_match(told, words):
    with pytest.raises(AssayError, match=words):
        Texts(FRAME, **{"tokenizer": lengths, **told})


def test_without_a_tokenizer_there_are_strings_and_no_numbers():
    data = Texts(FRAME)
    assert data.strings(np.arange(4)) == STRINGS
    with pytest.raises(AssayError, match="no tokenizer, so there are no numbers to take"):
        data.take(np.arange(1))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty"),
        (b"{]\n", r"Row 0 of .*d\.jsonl is no JSON"),
        (b'{"text": "a", "label": 1}\n[1]\n', r"Row 1 of .* is a list, no object"),
        (b"[" * 100_000 + b"\n", r"Row 0 of .* is no JSON"),
        (b'{"text": {"a": 1}, "label": 1}\n', "'text' in row 0 of .* is nested"),
        (b'{"text": "caf\xe9"}\n', r"Line 1 of .* is not UTF-8"),
        (b'{"txt": "a", "label": 1}\n{"txt": "b", "label": 2}\n', "has no column of texts 'text'; did you mean 'txt'"),
        (b'{"text": "a"}\n{"text": "b", "lable": 2}\n', "has no target column 'label'; did you mean 'lable'"),
        (b'{"text": "a", "label": 1}\n{"label": 2}\n', "'text' has no text in row 1"),
        (b'{"text": 1, "label": 1}\n{"text": 2, "label": 2}\n', "'text' is int64, not text"),
        (b'{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n', "'label' mixes numbers .1. and words: row 1"),
        (b'{"text": "a", "label": %s}\n' % (b"9" * 30), "'label' cannot be read"),
        (b'"' + b"x" * (MOST_LINE + 10), f"Line 1 of .* has more than {MOST_LINE:,} bytes"),
    ],
)
def test_bad_lines(tmp_path, raw, words):
    (tmp_path / "d.jsonl").write_bytes(raw)
    with pytest.raises(AssayError, match=words) as refused:
        Texts(tmp_path / "d.jsonl")
    assert "\n" not in str(refused.value)


def test_texts_that_a_dictionary_would_blow_up_are_refused(tmp_path):
    large = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, dtype=np.int32)), ["x" * 2**20])
    pq.write_table(pa.table({"text": large, "label": np.arange(10_000) % 2}), tmp_path / "d.parquet")
    with pytest.raises(AssayError, match=r"The texts unpack to 10,485,760,000 bytes, over the 536,870,912"):
        Texts(tmp_path / "d.parquet")


def test_a_fingerprint_hangs_on_texts_labels_and_tokens():
    prints = {
        Texts(FRAME).fingerprint(),
        Texts(FRAME, tokenizer=lengths).fingerprint(),
        Texts(FRAME, tokenizer=lengths, length=9).fingerprint(),
        Texts({**FRAME, "label": LABELS[::-1]}).fingerprint(),
        Texts({**FRAME, "text": [*STRINGS[:3], "x"]}).fingerprint(),
        Texts({**FRAME, "text": ["a fine dayn", "o", *STRINGS[2:]]}).fingerprint(),
    }
    assert len(prints) == 6
    assert Texts(FRAME).fingerprint() in prints


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=2, max_size=8), st.integers(60, 70))
def test_padding_takes_nothing_away(rows, pad):
    texts = [" ".join(map(str, row)) for row in rows]
    frame = {"text": texts, "label": [k % 2 for k in range(len(rows))]}
    data = Texts(frame, tokenizer=lambda t: [[int(w) for w in s.split()] for s in t], pad=pad)
    x, _ = data.take(np.arange(len(rows)))
    assert x.shape[1] == max(map(len, rows))
    assert [row[row != pad].tolist() for row in x] == rows
    assert bool(data.notes) == (len(set(map(len, rows))) > 1)


def test_open_says_what_is_missing(tmp_path):
    files(tmp_path)
    with pytest.raises(AssayError, match=r"d\.csv is a table; name the column that a model should predict"):
        open_data(tmp_path / "d.csv")
    with pytest.raises(AssayError, match="it holds no images; leave size and channels out"):
        open_data(tmp_path / "d.csv", size=(2, 2), target="label")
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 3), dtype=np.float32), y=[0, 1])
    with pytest.raises(AssayError, match=r"d\.npz is no table; leave target, text and train out"):
        open_data(tmp_path / "d.npz", target="label")
