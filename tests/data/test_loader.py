from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from assay.data.loader import Loaded
from assay.errors import AssayError
from assay.subject import Data, Subject
from assay.tasks import Classification, Labels, Regression

X = torch.arange(24.0).reshape(6, 4) / 24
Y = torch.tensor([0, 2, 1, 0, 2, 1])


class Listed:
    """Items in a list, whatever they are; `told` are attributes."""

    def __init__(self, items, **told):
        self.items = items
        for name, value in told.items():
            setattr(self, name, value)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


class Columns(Listed):
    """As Hugging Face's datasets are: rows by number, columns by name."""

    @property
    def column_names(self):
        return list(self.items[0])

    def __getitem__(self, k):
        return [item[k] for item in self.items] if isinstance(k, str) else self.items[k]


class Feature:
    names = ("red", "green", "blue")


def test_a_loader_gives_its_data_set_in_order_through_its_collate():
    def doubled(items):
        x, y = zip(*items, strict=True)
        return 2 * torch.stack(x), torch.stack(y)

    plain = Loaded(DataLoader(TensorDataset(X, Y), batch_size=2, shuffle=True))
    twice = Loaded(DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=doubled))
    assert isinstance(plain, Data)
    for data, factor in ((plain, 1), (twice, 2)):
        x, y = data.take(np.array([5, 0, -2]))
        assert_close(x, factor * X[[5, 0, 4]], rtol=0, atol=0)
        assert y.tolist() == [1, 0, 2]
        assert data.labels.tolist() == Y.tolist()
    assert plain.fingerprint() != twice.fingerprint()
    assert plain.take(np.array([], dtype=np.int64))[0].shape == (0, 4)


def test_a_sampler_of_a_part_says_which_items_there_are():
    data = Loaded(DataLoader(TensorDataset(X, Y), sampler=SubsetRandomSampler([4, 1, 3])))
    assert len(data) == 3
    assert data.labels.tolist() == [2, 2, 0]
    assert_close(data.take(np.arange(3))[0], X[[4, 1, 3]], rtol=0, atol=0)


def test_batches_that_are_dicts():
    items = [{"pixel_values": x, "labels": int(y)} for x, y in zip(X, Y, strict=True)]
    data = Loaded(DataLoader(Listed(items)))
    assert_close(data.take(np.arange(6))[0], X, rtol=0, atol=0)
    assert data.labels.tolist() == Y.tolist()


def test_datasets_like():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    items = [{"image": Image.fromarray(p), "label": int(y)} for p, y in zip(pixels, Y, strict=True)]
    data = Loaded(Columns(items, features={"label": Feature()}))
    x, y = data.take(np.array([1, 3]))
    assert_close(x, torch.from_numpy(pixels[[1, 3]]).permute(0, 3, 1, 2) / 255, rtol=0, atol=0)
    assert y.tolist() == [2, 0]
    assert data.classes == ("red", "green", "blue")
    named = Loaded(
        Columns([{"first": x.tolist(), "second": "ab"[k % 2]} for k, x in enumerate(X)]), input="first", target="second"
    )
    assert named.classes == ("a", "b")
    assert named.labels.tolist() == [0, 1] * 3
    assert_close(named.take(np.arange(6))[0], X, rtol=0, atol=0)


@pytest.mark.parametrize("soft", [False, True])
def test_maite(soft):
    protocols = pytest.importorskip("maite.protocols.image_classification")
    images = np.random.default_rng(0).random((6, 3, 4, 4), dtype=np.float32)
    rows = np.eye(3, dtype=np.float32)[Y.numpy()]
    rows = 0.6 * rows + 0.4 / 3 if soft else rows
    items = [(image, row, {"id": k}) for k, (image, row) in enumerate(zip(images, rows, strict=True))]
    told = {"id": "six", "index2label": {1: "b", 0: "a", 2: "c"}}
    dataset = Listed(items, metadata=told)
    assert isinstance(dataset, protocols.Dataset)
    data = Loaded(dataset)
    assert data.labels.tolist() == Y.tolist()
    assert data.classes == ("a", "b", "c")
    assert_close(data.take(np.arange(6))[0], torch.from_numpy(images), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("targets", "labels", "kind"),
    [
        ([0.5, 1.5], [0.5, 1.5], np.float32),
        ([[0.5, 2.0], [1.0, 1.0]], [[0.5, 2.0], [1.0, 1.0]], np.float32),
        ([[1, 1, 0], [0, 0, 0]], [[1, 1, 0], [0, 0, 0]], np.int64),  # several labels at once
        ([[0, 1, 0], [1, 0, 0]], [1, 0], np.int64),
        ([[3], [1]], [3, 1], np.int64),
        (["b", "a"], [1, 0], np.int64),
    ],
)
def test_targets(targets, labels, kind):
    data = Loaded(Listed([(X[k], t) for k, t in enumerate(targets)]))
    assert data.labels.tolist() == labels
    assert data.labels.dtype == kind


@pytest.mark.parametrize(
    ("targets", "kind"),
    [
        ([[0, 1, 0], [1, 0, 0]], np.int64),  # of several labels, one each
        ([[0.25, 0.75], [0.5, 0.5]], np.float32),  # two numbers that happen to add up to 1
        ([[3], [1]], np.int64),
        ([-3, 1], np.int64),
    ],
)
def test_targets_of_a_task_without_classes_stay_as_they_are(targets, kind):
    data = Loaded(Listed([(X[k], t) for k, t in enumerate(targets)]), classes=False)
    assert data.labels.tolist() == targets
    assert data.take(np.arange(2))[1].tolist() == targets
    assert data.labels.dtype == kind


def test_words_are_no_numbers():
    with pytest.raises(AssayError, match="The target of item 0 of Listed is a str"):
        Loaded(Listed([(X[0], "a"), (X[1], "b")]), classes=False)


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (Labels(("a", "b", "c")), torch.eye(3).long().repeat(2, 1)),
        (Regression(("u", "v", "w"), (0.1, 0.1, 0.1)), torch.eye(3).repeat(2, 1) / 2 + 1 / 6),
    ],
)
@pytest.mark.parametrize("door", ["module", "function"])
def test_a_task_that_is_told_decides_what_targets_are(task, rows, door):
    """Rows that add up to 1 are a class each where nobody says otherwise, and what they are where someone does."""
    layer = nn.Linear(4, 3)
    model = layer if door == "module" else lambda x: layer(torch.as_tensor(x)).detach().numpy()
    loader = DataLoader(TensorDataset(X, rows), batch_size=2)
    assert Subject.of(model, loader, task).data["test"].labels.tolist() == rows.tolist()
    assert Subject.of(model, loader, task).task == task
    one_of_three = Subject.of(model, loader, Classification(("a", "b", "c")))
    assert one_of_three.data["test"].labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert Subject.of(model, loader).task == Classification(("0", "1", "2"))


def test_eight_bits_are_brought_to_the_pixels():
    data = Loaded(Listed([(np.array([[0, 255]], dtype=np.uint8), 0)]), pixels=(-1.0, 1.0))
    assert data.take(np.arange(1))[0].tolist() == [[[-1.0, 1.0]]]


class Endless(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


class Boxes:
    boxes = labels = scores = None


class Breaks(Listed):
    def __getitem__(self, k):
        if k == 3:
            raise OSError("disk\ngone")
        return super().__getitem__(k)


def wrong(items):
    raise RuntimeError("stack expects each tensor to be equal size")


PAIRS = list(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (DataLoader(Endless()), "A Endless gives items in a row and none by its number"),
        (Listed([]), "The Listed holds no items"),
        (Listed([X[0]]), r"The items of Listed are Tensor, not \(input, target\)"),
        (Listed([{"a": 1, "b": 2}]), r"Items have 'a', 'b'; name the input among them \(input=...\)"),
        (Listed([{"x": 1, "b": 2}]), r"Items have 'x', 'b'; name the target among them"),
        (Listed([(X[0], Boxes(), {})]), "The target of item 0 of Listed is a Boxes; give a class index"),
        (Listed([(X[0], [1, 0]), (X[1], [1])]), r"The target of item 1 of Listed has shape \(1,\), the first \(2,\)"),
        (Listed([(X[0], float("nan"))]), "The target of item 0 of Listed is nan; give finite numbers"),
        (Listed([(X[0], -1)]), "Label -1 at row 0 is negative"),
        (Breaks(PAIRS), "Item 3 of Breaks cannot be read: OSError: disk"),
        (DataLoader(Listed(PAIRS), collate_fn=wrong), "The collate function of the loader raised RuntimeError on 6"),
        (DataLoader(Listed(PAIRS), collate_fn=lambda i: 7), r"gives a int; give \(inputs, targets\)"),
        (DataLoader(Listed(PAIRS), collate_fn=lambda i: (X, 7)), "gives no target for each of 6 items"),
    ],
)
def test_refused_in_one_line(source, words):
    with pytest.raises(AssayError, match=words) as refused:
        Loaded(source)
    assert "\n" not in str(refused.value)


def test_inputs_that_cannot_be_taken():
    with pytest.raises(AssayError, match=r"Item 1 of Listed has shape \(3,\) where item 0 has \(4,\)"):
        Loaded(Listed([(X[0], 0), (X[1, :3], 1)])).take(np.arange(2))
    with pytest.raises(AssayError, match="Item 0 of Listed is a str, no numbers; give a tensor"):
        Loaded(Listed([("a text", 0)])).take(np.arange(1))
    half = Loaded(DataLoader(Listed(PAIRS), collate_fn=lambda i: (torch.stack([i[0][0]]), [int(p[1]) for p in i])))
    with pytest.raises(AssayError, match="The loader gives 1 inputs for 2 items"):
        half.take(np.arange(2))
    with pytest.raises(AssayError, match="Items have no 'z', only 'x', 'y'"):
        Loaded(Listed([{"x": 1, "y": 2}]), input="z")


def test_a_fingerprint_hangs_on_inputs_and_targets():
    def of(x, y, **told):
        return Loaded(Listed(list(zip(x, y, strict=True)), **told)).fingerprint()

    moved = X.clone()
    moved[5, 3] += 1e-3
    assert of(X, Y) == of(X.clone(), Y.tolist())
    assert len({of(X, Y), of(moved, Y), of(X, Y.flip(0)), of(X, Y, classes=("a", "b", "c"))}) == 4
