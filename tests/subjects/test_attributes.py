"""What is known of the people behind the inputs: --sensitive, --groups, and `attributes=` in Python."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from assay import Subject
from assay.attribute import Attribute, parted
from assay.data.held_out import Part
from assay.data.hiring import load_applications, make_applications, merit
from assay.errors import AssayError
from assay.jobs.audit.job import Job
from assay.jobs.check import check
from assay.probe import Probe
from assay.subjects import Source, open_subject

RNG = np.random.default_rng(0)
X, Y = RNG.random((90, 4), dtype=np.float32) * 5, np.arange(90) % 3
SEX = np.where(RNG.random(90) < 0.4, "f", "m")
WHO = RNG.integers(0, 12, 90)


def subject_with(attributes, **told):
    torch.manual_seed(0)
    data = {"test": (X, Y), "train": (X[:50], Y[:50])}
    return Subject.of(nn.Linear(4, 3), data, attributes=attributes, **told)


def test_values_are_read_as_they_are_given_and_unknown_is_minus_one():
    words = Attribute.of("sex", {"test": ["m", "f", None, "", "m"], "train": np.array(["f"])})
    assert words.values == ("f", "m")
    assert words.codes["test"].tolist() == [1, 0, -1, -1, 1]
    assert words.codes["train"].tolist() == [0]
    assert words.told() == "sex: test f 1, m 2, unknown 2; train f 1, m 0"
    assert Attribute.of("old", np.array([True, False])).values == ("false", "true")
    assert Attribute.of("who", [10, 9, 10]).values == ("9", "10")  # by size, not by the alphabet
    assert Attribute.of("size", [0.5, np.nan, 2.0]).codes["test"].tolist() == [0, -1, 1]
    assert Attribute.of("sex", np.array([b"f", b"m"])).values == ("f", "m")
    cut = Attribute.of("age", {"test": [24.0, 25.0, np.nan]}, cut="<25")
    assert (cut.values, cut.codes["test"].tolist()) == (("age<25", "age>=25"), [0, 1, -1])
    assert Attribute.of("age", [24, 25, 26], cut=">25").codes["test"].tolist() == [0, 0, 1]


def test_what_pandas_does_not_know_is_unknown():
    pd = pytest.importorskip("pandas")
    given = pd.Series(["f", pd.NA, "m"], dtype="string")
    assert Attribute.of("sex", given).codes["test"].tolist() == [0, -1, 1]


@settings(deadline=None, max_examples=15)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=2, max_size=20).filter(lambda c: {"a", "b"} <= {*c}))
def test_codes_lead_back_to_what_was_given(cells):
    found = Attribute.of("g", cells)
    assert [None if k < 0 else found.values[k] for k in found.codes["test"]] == cells


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("sex", ("sex", None)),
        ("age<25", ("age", "<25")),
        ("my age >= -2.5", ("my age", ">=-2.5")),
        ("a<b", ("a<b", None)),
    ],
)
def test_a_cut_is_read_off_the_word(word, read):
    assert parted(word) == read


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sex": ["m"] * 90}, "The attribute 'sex' has one value, 'm'; give one that parts the rows"),
        ({"sex": [None] * 90}, "The attribute 'sex' has no value"),
        ({"sex": SEX[:80]}, "The attribute 'sex' has 80 values for the 90 rows of 'test'; give one for each row"),
        ({"sex": {"tset": SEX}}, "The attribute 'sex' is given for 'tset', which is no split; there are 'test'"),
        ({"who": np.arange(90)}, "The attribute 'who' has 90 values, more than 30; join some, or cut numbers"),
        ({"size": X[:, 0]}, "The attribute 'size' has 90 different numbers; give groups, such as x <"),
        ({"class": Y}, "The attribute 'class' is the label: each of its values goes with one class"),
        ({"class": np.where(np.arange(90) == 7, "", Y.astype(str))}, "The attribute 'class' is the label"),
        ({"sex": SEX.reshape(45, 2)}, r"The attribute 'sex' has shape \(45, 2\) in 'test'; give one value"),
        ({"sex": {}}, "The attribute 'sex' is given for no split"),
        (["sex"], "The attributes are a list; give a mapping"),
        ({"sex": Attribute("race", ("a", "b"), {"test": np.zeros(90, dtype=np.int64)})}, "'race' is given as 'sex'"),
    ],
)  # fmt: skip
def test_what_cannot_be_an_attribute_is_told_in_one_line(given, words):
    with pytest.raises(AssayError, match=words) as told:
        subject_with(given)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("codes", "words"), [(np.array([0, 2]), "The code 2 of 'a' in 'test' is none"), (np.array([0.0]), "are float64")]
)
def test_codes_are_places_among_the_values(codes, words):
    with pytest.raises(AssayError, match=words):
        Attribute("a", ("x", "y"), {"test": codes})


def test_codes_follow_the_rows_wherever_the_data_are_cut():
    subject = subject_with({"sex": {"test": SEX, "train": SEX[:50]}, "who": WHO})
    rows = np.array([70, 3, 41])
    cut = replace(subject.in_shares(), data={"test": Part(subject.in_shares().data["test"], rows)})
    assert cut.attributes["sex"].codes.keys() == {"test"}
    again = replace(cut, data={"test": Part(cut.data["test"], np.array([2, 0]))})
    for name, values in (("sex", SEX), ("who", WHO.astype(str))):
        for each, at in ((subject, np.arange(90)), (cut, rows), (again, rows[[2, 0]])):
            attribute = each.attributes[name]
            assert np.array(attribute.values)[attribute.codes["test"]].tolist() == values[at].tolist()
    other = replace(cut, data={"test": subject_with({}).data["test"]})  # as many rows, and nobody knows whose
    assert all(not attribute.codes for attribute in other.attributes.values())
    cured = subject.cured(nn.Linear(4, 3), "another")
    assert cured.attributes["sex"].codes["test"].tolist() == subject.attributes["sex"].codes["test"].tolist()
    new = replace(cut, attributes={"sex": Attribute("sex", ("f", "m"), {"test": np.array([0, 1, 1])})})
    assert new.attributes["sex"].codes["test"].tolist() == [0, 1, 1]


def test_the_fingerprint_knows_the_people_and_is_as_it_was_without_them():
    plain, known = subject_with({}), subject_with({"sex": SEX})
    assert plain.fingerprint() == replace(known, attributes={}).fingerprint()
    other = SEX.copy()
    other[7] = "m" if other[7] == "f" else "f"
    named = np.where(SEX == "f", "w", "m")
    assert (
        len({s.fingerprint() for s in (plain, known, subject_with({"sex": other}), subject_with({"sex": named}))}) == 4
    )


def test_small_groups_are_a_note_and_no_error():
    few = np.where(np.arange(90) < 3, "f", "m")
    assert "A group of 'sex' has fewer than 30 test inputs, too few to tell anything about: f (3)." in (
        subject_with({"sex": few}).notes
    )
    enough = subject_with({"sex": np.where(np.arange(90) < 40, "f", "m")})
    assert enough.notes == subject_with({}).notes


class Asks(Probe):
    """Is anyone there?"""

    needs = ("attributes",)

    def ask(self, subject, run):
        raise NotImplementedError


def test_a_question_about_people_says_how_to_tell_of_them():
    assert Asks().why_not(subject_with({"sex": SEX})) is None
    why = Asks().why_not(subject_with({"sex": {"train": SEX[:50]}}))
    assert why is not None
    assert "--sensitive COLUMN" in why
    assert "--groups NAME=PATH" in why


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A model of two columns, and tables with people beside them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)

    def write(name, n, **more):
        with open(name, "w", newline="") as file:
            rows = [
                {
                    "a": f"{rng.normal():.6f}", "b": f"{rng.normal():.6f}", "sex": "mf"[i % 2], "age": 20 + i % 40,
                    "one": "x", "site": "north" if i % 3 else "south", "y": "yes" if rng.random() < 0.5 else "no",
                    **more,
                }
                for i in range(n)
            ]  # fmt: skip
            out = csv.DictWriter(file, rows[0])
            out.writeheader()
            out.writerows(rows)

    write("test.csv", 120)
    write("train.csv", 60)
    (tmp_path / "model.py").write_text(
        "import torch\n\n\ndef build():\n    torch.manual_seed(0)\n    return torch.nn.Linear(5, 2)\n"
        "\n\ndef narrow():\n    torch.manual_seed(0)\n    return torch.nn.Linear(3, 2)\n"
    )
    np.save("groups.npy", np.arange(120) % 3)
    np.save("short.npy", np.arange(100) % 3)
    np.save("objects.npy", np.array(["a", None] * 60, dtype=object))
    (tmp_path / "torn.npy").write_bytes((tmp_path / "groups.npy").read_bytes()[:-8])
    (tmp_path / "text.npy").write_text("no array at all")
    (tmp_path / "groups.csv").write_text("race\n" + "\n".join(["green", "blue", '""'] * 40) + "\n")
    (tmp_path / "blank.csv").write_text("race\n" + "\n".join(["green", "", "blue"] * 40) + "\n\n")
    (tmp_path / "numbers.csv").write_bytes(b"who\r\n" + b"1\r\n\r\n2\r\n" * 40)
    (tmp_path / "nameless.csv").write_text("green\nblue\n" * 60)
    (tmp_path / "two.csv").write_text("a,b\n1,2\n")
    return Source("model.py:build", data="test.csv", target="y", train="train.csv", domain_column="site")


def test_columns_of_a_table_tell_of_its_people_and_stay_inputs_where_the_model_takes_them(table):
    subject = open_subject(replace(table, sensitive=("sex", "age<30")))
    sex, age = subject.attributes["sex"], subject.attributes["age"]
    assert sex.values == ("f", "m")
    assert sex.codes["test"].tolist() == [1, 0] * 60
    assert len(sex.codes["train"]) == 60
    assert age.values == ("age<30", "age>=30")
    assert age.counts("test") == {"age<30": 30, "age>=30": 90}
    south = subject.data["south"]
    assert sex.codes["south"].tolist() == sex.codes["test"][south.rows].tolist()  # a domain that is a part of test
    assert subject.inputs.shape == (5,)  # a, b, sex, age, one


def test_a_model_that_takes_fewer_is_not_shown_what_is_sensitive(table):
    narrow = open_subject(replace(table, subject="model.py:narrow", sensitive=("sex", "age<30")))
    assert narrow.inputs.shape == (3,)
    assert "The model takes 3 columns; what is sensitive is not shown to it." in narrow.notes
    assert set(narrow.attributes) == {"sex", "age"}


def test_files_tell_of_the_people_behind_any_data(table):
    subject = open_subject(replace(table, groups=("race=groups.csv", "hue=groups.npy"), sensitive=("sex",)))
    assert list(subject.attributes) == ["sex", "race", "hue"]
    assert subject.attributes["race"].counts("test") == {"blue": 40, "green": 40}
    assert subject.attributes["race"].codes["test"][2] == -1
    assert subject.attributes["hue"].values == ("0", "1", "2")
    blank = open_subject(replace(table, groups=("race=blank.csv", "who=numbers.csv")))
    for name in ("race", "who"):
        assert blank.attributes[name].codes["test"].tolist() == ([1, -1, 0] if name == "race" else [0, -1, 1]) * 40
    np.save("train.npy", np.arange(60) % 3)
    both = open_subject(replace(table, groups=("hue=groups.npy", "hue@train=train.npy")))
    assert both.attributes["hue"].codes["train"].tolist() == [0, 1, 2] * 20


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"sensitive": ("sexx",)}, "test.csv has no column 'sexx' for --sensitive; did you mean 'sex'?"),
        ({"sensitive": ("y",)}, "--sensitive 'y' is the target, what the model is asked for"),
        ({"sensitive": ("one",)}, "The attribute 'one' has one value, 'x'"),
        ({"sensitive": ("age",)}, "The column 'age' has 40 different numbers; part them with a cut, such as age<39.5"),
        ({"sensitive": ("sex<3",)}, "The column 'sex' holds words, and sex<3 cuts numbers"),
        ({"sensitive": ("sex", "sex")}, "The attribute 'sex' is given twice by --sensitive"),
        ({"sensitive": ("sex",), "groups": ("sex=groups.npy",)}, "'sex' is given twice, by --sensitive and --groups"),
        ({"sensitive": ("sex",), "data": None, "target": None, "train": None, "domain_column": None},
         "--sensitive is about the table of --data, and there is no --data"),
        ({"groups": ("race",)}, "--groups 'race' is not NAME=PATH"),
        ({"groups": ("race=nowhere.npy",)}, "There is no file nowhere.npy"),
        ({"groups": ("race=short.npy",)}, "The attribute 'race' has 100 values for the 120 rows of 'test'"),
        ({"groups": ("race@dev=groups.npy",)}, "is about 'dev', which is no split; there are"),
        ({"groups": ("race=objects.npy",)}, "objects.npy holds Python objects, which only a pickle can carry"),
        ({"groups": ("race=torn.npy",)}, "torn.npy says that its array has 960 bytes, and it has not"),
        ({"groups": ("race=text.npy",)}, "text.npy cannot be read as an .npy file"),
        ({"groups": ("race=nameless.csv",)}, "nameless.csv begins with 'green', which is one of its values too"),
        ({"groups": ("race=two.csv",)}, "two.csv has 2 columns"),
        ({"groups": ("race=groups.npy", "race=groups.csv")}, "The groups 'race' of 'test' are given twice"),
    ],
)  # fmt: skip
def test_what_was_typed_wrong_is_told_in_one_line(table, told, words):
    with pytest.raises(AssayError) as error:
        open_subject(replace(table, **told))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_words_travel_into_the_other_process_and_the_files_may_be_read_there(table, tmp_path):
    source = replace(table, sensitive=("sex", "age<30"), groups=("race=groups.csv",))
    words = source.words()
    for option, value in (("--sensitive", "sex"), ("--sensitive", "age<30"), ("--groups", "race=groups.csv")):
        assert (option, value) in [*pairwise(words)]
    job = Job(source=source)
    assert Job.from_json(json.loads(json.dumps(job.to_json()))).source == source
    assert any(path.name == "groups.csv" for path in job.reads())


def test_check_tells_what_was_understood_of_people(table):
    lines = check(replace(table, sensitive=("sex",), domain_column=None, train=None)).lines
    assert ("attribute", "sex: test f 60, m 60") in lines


def test_the_applications_wrong_whom_they_say():
    many = make_applications(40_000, np.random.default_rng(2))
    women, far = many.sex == 0, many.origin == 2
    for wronged in (women, far):
        assert many.hired[~wronged].mean() - many.hired[wronged].mean() > 0.1
        assert abs(many.deserved[~wronged].mean() - many.deserved[wronged].mean()) < 0.02
    assert (many.hired <= many.deserved).all()  # the same luck: nobody gains by it
    assert many.x[~women, 4].mean() - many.x[women, 4].mean() > 0.4
    assert [len(each.x) for each in load_applications().values()] == [4000, 3000]
    fair = make_applications(4000, np.random.default_rng(3), bias=0)
    assert (fair.hired == fair.deserved).all()
    assert abs(fair.x[fair.sex == 1, 4].mean() - fair.x[fair.sex == 0, 4].mean()) < 0.06
    chance = 1 / (1 + np.exp(-merit(fair.x)))
    assert abs((fair.hired - chance).mean()) < 0.03
