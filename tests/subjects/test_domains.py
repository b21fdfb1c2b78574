"""Domains from outside: --domain, --domains, --domain-column, and `domains=` in Python."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from assay import Classification, Regression, Subject
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.jobs.audit.job import Job
from assay.run import Run
from assay.subjects import Source, open_subject

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8)
Y = np.arange(60) % 3
SCRIPT = """
import torch


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
"""


def net(classes=3, width=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(width, classes))


def images(folder, names, each=15, size=8, pixels=X):
    """Images in class folders, or in the folder itself where the name is empty."""
    for k, name in enumerate(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            image = Image.fromarray(pixels[(k * each + i) % len(pixels)])
            image.resize((size, size)).save(folder / name / f"{i:03}.png")
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A model without data, test images in class folders, and domains of every form."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(SCRIPT)
    images(tmp_path / "test", ["ape", "bee", "cat"])
    images(tmp_path / "far/night", ["bee", "cat"], pixels=X[::-1])  # one class is missing
    images(tmp_path / "far/2009", [""], each=40)
    np.savez(tmp_path / "far/bare.npz", x=X)
    np.savez(tmp_path / "labelled.npz", x=X, y=Y)
    return tmp_path


def source(**told):
    return Source("model.py:build", data="test", **told)


def test_labels_are_there_where_the_data_have_them(place):
    subject = open_subject(source(domain=("day=labelled.npz",), domains="far"))
    found = {name: (d.labelled, len(d.data), d.at) for name, d in subject.domains().items()}
    assert found == {
        "day": (True, 60, None),
        "night": (True, 30, None),
        "2009": (False, 40, 2009.0),
        "bare": (False, 60, None),
    }
    assert np.unique(subject.data["night"].labels).tolist() == [1, 2]  # as the test data count them, not from 0
    x, y = subject.everywhere().data["bare"].take(np.arange(60))
    torch.testing.assert_close(x, torch.tensor(X[:, None] / np.float32(255)))
    assert not y.any()
    assert subject.task.classes == ("ape", "bee", "cat")


def test_words_read_back_as_the_same_source(place):
    told = source(domain=("day=labelled.npz", "a=b"), domains="far")
    words = told.words()
    assert words[words.index("--domains") + 1] == "far"
    assert [words[i + 1] for i, w in enumerate(words) if w == "--domain"] == ["day=labelled.npz", "a=b"]
    table = Source("m.py:b", data="t.csv", target="y", domain_column="site").words()
    assert table[table.index("--domain-column") + 1] == "site"


def test_a_number_behind_a_name_says_where_a_domain_lies(place):
    typed = source(domain=("day@12.5=labelled.npz", "me@home=labelled.npz", "2009@-3=far/bare.npz"))
    assert {name: d.at for name, d in open_subject(typed).domains().items()} == {
        "day": 12.5,
        "me@home": None,
        "2009": -3.0,
    }
    whole = open_subject(Source("digits-mlp", domain=("far@7=far/bare.npz",)))
    assert whole.domains()["far"].at == 7.0


def test_a_word_too_long_for_a_file_is_no_path(place):
    word = "x" * 5000
    assert Job(source=source(domain=(f"day={word}",))).reads() == Job(source=source()).reads()
    with pytest.raises(AssayError, match="There is nothing at xxx"):
        open_subject(source(domain=(f"day={word}",)))


def test_a_guarded_child_may_read_what_lies_behind_a_name(place):
    reads = Job(source=source(domain=("day=labelled.npz",), domains="far")).reads()
    assert {(place / "labelled.npz").resolve(), (place / "far").resolve(), (place / "test").resolve()} <= set(reads)


def test_a_reference_subject_takes_domains_too(tmp_path):
    np.savez(tmp_path / "bare.npz", x=X)
    subject = open_subject(Source("digits-mlp", domain=(f"far={tmp_path / 'bare.npz'}",)))
    assert list(subject.domains()) == ["far"]
    assert set(subject.data) == {"train", "test"}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"domain": ("night",)}, "--domain 'night' is not NAME=PATH"),
        ({"domain": ("=x.npz",)}, "--domain '=x.npz' is not NAME=PATH"),
        ({"domain": ("night=none.npz",)}, "There is nothing at none.npz, given as --domain night"),
        ({"domain": ("bare=labelled.npz",), "domains": "far"}, "The domain 'bare' is given twice"),
        ({"domain": ("a=labelled.npz", "a=test")}, "The domain 'a' is given twice"),
        ({"domain": ("test=labelled.npz",)}, "A domain cannot be named 'test'"),
        ({"domain": ("outliers=far/bare.npz",)}, "A domain cannot be named 'outliers'"),
        ({"domain": ("few=few.npz",)}, "The domain 'few' has 29 inputs; give at least 30"),
        ({"domain": ("few=few-labelled.npz",)}, "The domain 'few' has 29 inputs; give at least 30"),
        ({"domain": ("wide=wide.npz",)}, r"Inputs of 'wide' have shape \(1, 9, 9\), those of 'test' \(1, 8, 8\)"),
        ({"domain": ("wide=wide",)}, r"Inputs of 'wide' have shape \(1, 9, 9\), those of 'test' \(1, 8, 8\)"),
        ({"domain": ("zoo=zoo",)}, "The domain 'zoo': it has the class 'dog', which the model does not know, only"),
        ({"domain": ("zoo=strange.npz",)}, "In 'zoo' label 7 of input 0 is outside 0..2 for 3 classes"),
        ({"domain": ("empty=empty",)}, "The domain 'empty': The folder empty holds no images"),
        ({"domain": ("odd=odd.npz",)}, "The domain 'odd': odd.npz holds 'q'; it needs inputs named x or images"),
        ({"domain": ("broken=broken.npz",)}, "The domain 'broken': broken.npz cannot be read as an .npz file"),
        ({"domain": (f"{'a' * 81}=labelled.npz",)}, "of a domain has 81 letters; give one line of up to 80"),
        ({"domain": ("a\nb=labelled.npz",)}, "of a domain is not one line"),
        ({"domain": ("@30=labelled.npz",)}, "--domain '@30=labelled.npz' is not NAME=PATH"),
        ({"domains": "none"}, "--domains none is no folder"),
        ({"domains": "empty"}, "--domains empty is empty"),
        ({"domain_column": "site"}, "--domain-column 'site' is about a table, and test is none"),
    ],
)
def test_a_domain_that_cannot_be_one_is_refused_in_one_line(place, told, words):
    np.savez(place / "few.npz", x=X[:29])
    np.savez(place / "few-labelled.npz", x=X[:29], y=Y[:29])
    np.savez(place / "wide.npz", x=np.zeros((40, 9, 9), dtype=np.uint8))
    np.savez(place / "strange.npz", x=X, y=Y + 7)
    np.savez(place / "odd.npz", q=X)
    (place / "broken.npz").write_bytes(b"PK nothing")
    images(place / "wide", [""], each=30, size=9)
    images(place / "zoo", ["ape", "dog"])
    (place / "empty").mkdir()
    with pytest.raises(AssayError, match=words) as refused:
        open_subject(source(**told))
    assert "\n" not in str(refused.value)


def test_a_link_out_of_a_folder_of_domains_is_refused(place):
    (place / "far/link").symlink_to(place / "test")
    with pytest.raises(AssayError, match="is a link that leads out of"):
        open_subject(source(domains="far"))


def test_models_of_pairs_have_no_domains_from_outside(tmp_path):
    np.savez(tmp_path / "bare.npz", x=X)
    with pytest.raises(AssayError, match="digits-similarity compares two inputs, and --domain is for models of single"):
        open_subject(Source("digits-similarity", domain=(f"far={tmp_path / 'bare.npz'}",)))


# Python


def test_inputs_alone_are_a_domain_without_labels(tmp_path):
    x = X[:, None] / np.float32(255)
    np.savez(tmp_path / "bare.npz", x=X)
    domains = {
        "pair": (x, Y),
        "array": x,
        "tensor": torch.tensor(x),
        "none": (x, None),
        "path": tmp_path / "bare.npz",
    }
    for subject in (
        Subject.of(net(), (x, Y), domains=domains),
        Subject.classifier(net(), (x, Y), domains=domains),
        Subject.of(lambda a: a.reshape(len(a), -1)[:, :3], (x, Y), domains=domains),
    ):
        assert {n: d.labelled for n, d in subject.domains().items()} == {n: n == "pair" for n in domains}
        assert list(subject.data) == ["test", "pair"]
        for name in list(domains)[1:]:
            torch.testing.assert_close(subject.unlabelled[name].take(np.arange(3))[0], torch.tensor(x[:3]))
    with pytest.raises(AssayError, match="The domain 'test' is given twice|A domain cannot be named 'test'"):
        Subject.of(net(), (x, Y), domains={"test": x})
    with pytest.raises(AssayError, match="The domain 'far' is given twice, as a split too"):
        Subject.of(net(), {"test": (x, Y), "far": (x, Y)}, domains={"far": x})
    with pytest.raises(AssayError, match="The domain 'far' has 7 inputs"):
        Subject.of(net(), (x, Y), domains={"far": (x[:7], Y[:7])})


@pytest.mark.parametrize("chosen", [True, False])
def test_no_domain_widens_the_ranges_that_radii_are_shares_of(chosen):
    x = RNG.normal(size=(40, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) if chosen else x.sum(1)
    model = nn.Linear(2, 2 if chosen else 1)
    far, odd = x.copy(), x * np.float32(0.5)
    far[:7] += 100
    odd[3] -= 100
    data = {"test": (x, y), "odd": (odd, y)}
    subject = Subject.of(model, data, domains={"far": far, "near": (x, y)})
    assert isinstance(subject.task, Regression) != chosen
    assert subject.inputs.ranges == Subject.of(model, (x, y)).inputs.ranges
    assert [d.labelled for d in subject.domains().values()] == [True, True, False]
    (said,) = [note for note in subject.notes if "at home" in note]
    assert "1 of 40 in 'odd', 7 of 40 in 'far'." in said
    for each in (subject.everywhere(), subject.in_shares().everywhere()):
        found = Run(engine=ThisProcess()).map(lambda s: {"x": s.x}, each, "far", np.arange(40), "inputs")["x"]
        assert (found[:7] > 5).all()
    far[0] = np.nan
    with pytest.raises(AssayError, match="Input 0 of 'far' has the value nan"):
        Subject.of(model, data, domains={"far": far})
    with pytest.raises(AssayError, match="of 'odd' has the value .* outside the bounds"):
        Subject.of(model, data, bounds=((-9.0, -9.0), (9.0, 9.0)))


def test_ranges_of_a_whole_subject_stay_where_a_typed_domain_leaves_them(tmp_path):
    whole = open_subject(Source("diabetes-mlp"))
    x = whole.data["test"].take(np.arange(40))[0].numpy()
    np.savez(tmp_path / "far.npz", x=100 * x)
    subject = open_subject(Source("diabetes-mlp", domain=(f"far={tmp_path / 'far.npz'}",)))
    assert subject.inputs.ranges == whole.inputs.ranges
    assert any("of 40 in 'far'" in note for note in subject.notes)


def test_classes_of_a_domain_are_matched_by_name_in_python_too(tmp_path):
    """As a domain and as a split: labels of both are counted as the test data count them, or refused."""
    test = images(tmp_path / "test", ["ape", "bee", "cat"])
    some = images(tmp_path / "some", ["bee", "cat"])
    zoo = images(tmp_path / "zoo", ["ape", "dog"])
    alone = np.zeros((30, 1, 8, 8), dtype=np.float32)
    strange = "The domain 'far': it has the class 'dog', which the model does not know, only 'ape', 'bee', 'cat'"
    for given, domains in (({"test": test, "far": some}, {}), (test, {"far": some})):
        subject = Subject.of(net(), given, domains=domains)
        assert np.unique(subject.data["far"].labels).tolist() == [1, 2]
        assert subject.data["far"].take(np.arange(1))[1].tolist() == [1]
    for given, domains in (({"test": test, "far": zoo}, {}), (test, {"far": zoo})):
        for task in (None, Classification(("ape", "bee", "cat"))):
            with pytest.raises(AssayError, match=strange):
                Subject.of(net(), given, task, domains=domains)
    with pytest.raises(AssayError, match="it has the class 'ape', which the model does not know, only '0', '1', '2'"):
        Subject.of(net(), (alone, np.zeros(30, dtype=np.int64)), domains={"far": zoo})


def test_pixels_of_inputs_at_a_path_come_between_the_bounds(tmp_path):
    np.savez(tmp_path / "bare.npz", x=X)
    pixels = X[:, None].astype(np.float32)
    path = {"far": tmp_path / "bare.npz"}
    for model in (net(), lambda a: a.reshape(len(a), -1)[:, :3]):
        subject = Subject.of(model, (pixels, Y), bounds=(0.0, 255.0), domains=path)
        torch.testing.assert_close(subject.unlabelled["far"].take(np.arange(60))[0], torch.tensor(pixels))


# Tables


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)

    def rows(n, sites, target=True):
        for i in range(n):
            a, b = rng.normal(size=2)
            told = {"a": a, "b": b, "site": sites[i % len(sites)]}
            yield told | ({"y": "yes" if a > 0 else "no"} if target else {})

    def write(name, rows):
        rows = list(rows)
        with open(name, "w", newline="") as file:
            out = csv.DictWriter(file, rows[0])
            out.writeheader()
            out.writerows(rows)

    write("train.csv", rows(60, ["north"]))
    write("test.csv", [*rows(90, ["north", "2009", "test"]), *rows(5, ["south"]), *rows(1, ["west"]), *rows(2, [""])])
    write("later.csv", rows(40, ["north"], target=False))
    write("long.csv", rows(40, ["s" * 81]))
    write("few.csv", rows(40, [str(i) for i in range(40)]))
    (tmp_path / "model.py").write_text(
        "import numpy as np\nfrom sklearn.linear_model import LogisticRegression\n\n\ndef build():\n"
        "    x = np.array([[-1.0, 0.0], [1.0, 0.0]])\n"
        "    return LogisticRegression().fit(x, ['no', 'yes'])\n"
    )
    return Source("model.py:build", data="test.csv", target="y", domain_column="site")


def test_a_column_parts_the_rows_of_a_table_and_is_no_input(table):
    subject = open_subject(table)
    assert {n: (d.labelled, len(d.data), d.at) for n, d in subject.domains().items()} == {
        "2009": (True, 30, 2009.0),
        "north": (True, 30, None),
        "site=test": (True, 30, None),  # the value is the name of a split
    }
    assert subject.inputs.shape == (2,)
    assert len(subject.data["test"]) == 98
    (said,) = [note for note in subject.notes if "'site'" in note]
    assert said == (
        "2 rows have no 'site' and 2 values of 'site' are in fewer than 30 rows: south (5), west (1); they are in no "
        "domain, and stay in the test data. Domains are rows of the test table: for want of --train each is compared "
        "with the rows of the others."
    )
    x, y = subject.data["2009"].take(np.arange(30))
    whole, label = subject.data["test"].take(np.arange(1, 90, 3))
    torch.testing.assert_close(x, whole)
    assert torch.equal(y, label)


def test_the_training_table_may_lack_the_column_or_have_it(table):
    with_train = open_subject(replace(table, train="train.csv", domain=("later=later.csv",)))
    assert list(with_train.data) == ["test", "train", "2009", "north", "site=test"]
    assert list(with_train.unlabelled) == ["later"]
    assert with_train.inputs.shape == (2,)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"domain_column": "sitte"}, "test.csv has no column 'sitte' for --domain-column; did you mean 'site'"),
        ({"domain_column": "y"}, "--domain-column 'y' is the target"),
        ({"domain_column": "a"}, "--domain-column 'a' has 98 values, none of them in 30 rows or more"),
        ({"data": None, "target": None}, "--domain-column is about the table of --data, and there is no --data"),
        ({"data": "long.csv"}, "of a domain has 81 letters; give one line of up to 80"),
        ({"domain": ("north=later.csv",)}, "The domain 'north' is a value of --domain-column too"),
        ({"domain": ("odd=model.py",)}, "The domain 'odd': model.py is no table that can be opened"),
    ],
)
def test_a_column_that_parts_nothing_is_refused_in_one_line(table, told, words):
    with pytest.raises(AssayError, match=words) as refused:
        open_subject(replace(table, **told))
    assert "\n" not in str(refused.value)


def test_texts_have_domains_in_the_form_of_the_test_data(tmp_path, monkeypatch):
    """Tokens are the model's own, padded to the length that the test data have; classes are matched by name."""
    from assay.data.texts import Texts
    from assay.subjects._domains import typed

    def letters(some):
        return [[ord(c) - 96 for c in text if c != " "] for text in some]

    monkeypatch.chdir(tmp_path)
    for name, rows in {
        "test": ["text,mood", *(f"abcd,{mood}" for mood in ("bad", "good") * 20)],
        "far": ["text,mood", *(f"ba,{mood}" for mood in ("good", "bad") * 20)],
        "bare": ["text", *["c"] * 40],
    }.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(rows))
    test = Texts("test.csv", "mood", tokenizer=letters, vocabulary=27)
    asked = Source("mood", data="test.csv", text="text", target="mood", domain=("far=far.csv", "bare=bare.csv"))
    found = typed(asked, test, (4,), ("bad", "good"), True)
    assert found["far"].take(np.arange(2))[0].tolist() == [[2, 1, 0, 0]] * 2
    assert found["far"].labels[:2].tolist() == [1, 0]
    assert found["bare"].take(np.arange(1))[0].tolist() == [[3, 0, 0, 0]]
    assert type(found["bare"]).__name__ == "Unlabelled"
