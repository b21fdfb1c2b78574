"""A ranker that was trained comes back from its file as it was, and is asked only about what it has not seen."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from assay.data.valued_images import open_valued
from assay.errors import AssayError
from assay.nn.siamese import ARCHITECTURES, Siamese
from assay.subjects import Source, open_subject
from assay.subjects.doors.ranker_file import is_ranker, open_ranker, save_ranker
from assay.tasks import Ranking

NONE = np.empty(0, dtype=np.int64)


@pytest.fixture(scope="module")
def model() -> Siamese:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ARCHITECTURES["digits"](4).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images, the k-th with the number k, some of them in colour and none of 8 x 8."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for k in range(12):
        shape = (10, 12, 3) if k % 3 else (9, 9)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / "images" / f"{k}_a.png")
    return tmp_path / "images"


@pytest.fixture
def file(tmp_path: Path, model: Siamese) -> Path:
    path = tmp_path / "deep" / "ranker.safetensors"
    save_ranker(path, model, architecture="digits", embedding=4, low=0, high=11, seen=NONE)
    return path


def rewritten(
    file: Path, *, weights: Mapping[str, Tensor] | None = None, metadata: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """The same file with other weights or metadata; an empty text leaves a word out."""
    with safe_open(file, framework="pt") as f:
        about = {**f.metadata(), **metadata}
    save_file(dict(weights or load_file(file)), file, metadata={k: v for k, v in about.items() if v})
    return file


def refused(path: Path, folder: Path | None, **options: object) -> str:
    with pytest.raises(AssayError) as told:
        open_subject(Source(str(path), None if folder is None else str(folder), **options))  # type: ignore[arg-type]
    assert "\n" not in str(told.value)
    return str(told.value)


def test_it_comes_back_as_it_was(file: Path, folder: Path, model: Siamese) -> None:
    assert is_ranker(file)
    assert os.listdir(file.parent) == ["ranker.safetensors"]  # no temporary file is left
    subject = open_subject(Source(str(file), str(folder)))
    assert subject.task == Ranking(0, 11)
    assert subject.inputs.shape == (2, 1, 8, 8)
    assert not subject.model.training
    pairs, _ = subject.data["test"].take(np.arange(50))
    with torch.no_grad():
        torch.testing.assert_close(subject.model(pairs), model(pairs), rtol=0, atol=0)
    assert all(p.requires_grad and not p.is_meta for p in subject.model.parameters())
    assert "(digits, 4 numbers an image) for values from 0 to 11" in subject.about


def test_what_was_trained_on_is_not_asked_about_wherever_it_lies(
    file: Path, folder: Path, model: Siamese, tmp_path: Path
) -> None:
    parts = open_valued(folder).split(0.25)
    save_ranker(file, model, architecture="digits", embedding=4, low=0, high=11, seen=parts["train"].marks())
    subject = open_ranker(file, folder)
    assert sorted(subject.pairs["test"].values) == sorted(parts["test"].values)
    assert sorted(subject.pairs["train"].values) == sorted(parts["train"].values)
    assert "trained on 9 images" in subject.about
    other = tmp_path / "other"
    other.mkdir()
    old, new = parts["train"].paths[0], parts["test"].paths
    (other / "7_renamed.png").write_bytes(old.read_bytes())
    for path in new:
        (other / path.name).write_bytes(path.read_bytes())
    moved = open_ranker(file, other)
    assert sorted(moved.pairs["test"].values) == sorted(parts["test"].values)
    assert moved.pairs["train"].values.tolist() == [7]
    for path in new:
        (other / path.name).unlink()
    assert "ranker.safetensors was trained on every image of" in refused(file, other)
    (other / new[0].name).write_bytes(new[0].read_bytes())
    assert "The 1 images of" in refused(file, other)
    assert "give more, with different numbers" in refused(file, other)


def test_weights_of_others_are_refused_as_before(tmp_path: Path, folder: Path) -> None:
    for metadata in (None, {"format": "pt"}, {"kind": "something else"}):
        save_file({"w": torch.zeros(2)}, tmp_path / "net.safetensors", metadata=metadata)
        assert not is_ranker(tmp_path / "net.safetensors")
        says = refused(tmp_path / "net.safetensors", folder)
        assert "holds weights, which need code to run; give --builder net.py:build" in says


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("sprung",)


def test_a_pickle_under_a_false_name_is_not_read(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(pickle.dumps(Trap()))
    torch.save({"w": Trap()}, tmp_path / "b.safetensors")
    for name in ("a", "b"):
        says = refused(tmp_path / f"{name}.safetensors", folder)
        assert "cannot be read as safetensors" in says
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_file(file: Path, folder: Path) -> None:
    whole = file.read_bytes()
    for kept in (0, 7, 100, len(whole) - 1):
        file.write_bytes(whole[:kept])
        assert "cannot be read as safetensors" in refused(file, folder)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"architecture": "vast"}, "'vast'"),
        ({"architecture": ""}, "'architecture'"),
        ({"architecture": "grey"}, "its weights are not those of"),
        ({"embedding": "5"}, "its weights are not those of"),
        ({"embedding": "0"}, "at least 1 number"),
        ({"embedding": "many"}, "'many'"),
        ({"embedding": str(10**12)}, "its weights are not those of"),  # nothing of that size is made first
        ({"embedding": str(10**30)}, "its weights are not those of"),
        ({"low": "old"}, "'old'"),
        ({"high": "0.0"}, "low 0 and high 0"),
        ({"high": "nan"}, "nan"),
        ({"high": "inf"}, "inf"),
    ],
)
def test_metadata_that_do_not_fit(file: Path, folder: Path, metadata: dict[str, str], says: str) -> None:
    told = refused(rewritten(file, metadata=metadata), folder)
    assert "ranker.safetensors' is no whole ranker (" in told
    assert "make it again with `assay rank`" in told
    assert says in told


def test_weights_that_do_not_fit(file: Path, folder: Path) -> None:
    weights = load_file(file)
    first = next(name for name in weights if name.startswith("encoder"))
    fewer = {name: t for name, t in weights.items() if name != first}
    for bad in (fewer, {**weights, "more": torch.zeros(1)}, {**weights, first: weights[first].double()}):
        says = refused(rewritten(file, weights=bad), folder)
        assert "is no whole ranker (its weights are not those of 'digits' with 4 numbers an image)" in says
    unknown = {name: t for name, t in weights.items() if name != "trained on"}
    assert "is no whole ranker ('trained on')" in refused(rewritten(file, weights=unknown), folder)
    spoilt = {**weights, first: torch.full_like(weights[first], float("nan"))}
    assert "The model returned NaN or infinity for input" in refused(rewritten(file, weights=spoilt), folder)


def test_a_number_outside_its_range_names_the_image(file: Path, folder: Path, model: Siamese) -> None:
    save_ranker(file, model, architecture="digits", embedding=4, low=0, high=10, seen=NONE)
    says = refused(file, folder)
    assert "11_a.png has the number 11, and ranker.safetensors is for 0 to 10; remove it, or train" in says


def test_data_is_wanted_and_what_the_ranker_knows_itself_is_not(file: Path, folder: Path) -> None:
    assert "is a ranker without data; give --data: a folder of images with a number each" in refused(file, None)
    for option, value in {"bounds": (0.0, 1.0), "mean": (0.5,), "std": (0.5,), "size": 8}.items():
        says = refused(file, folder, **{option: value})
        assert f"brings its own input space, so --{option} does not apply; leave it out" in says
    assert "There is no folder" in refused(file, folder / "nowhere")


def test_a_place_that_cannot_be_written(tmp_path: Path, model: Siamese) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AssayError, match=r"Cannot write .*; choose another folder with --out"):
        save_ranker(
            tmp_path / "file" / "r.safetensors", model, architecture="digits", embedding=4, low=0, high=1, seen=NONE
        )


SCRIPT = """
import torch
from assay import Subject
from assay.data.arrays import Arrays
from assay.data.pairs import Pairs
from assay.nn.siamese import ARCHITECTURES, Comparison, Distance, Siamese

def build():
    x = torch.rand(20, 1, 8, 8)
    return Subject.ranker(ARCHITECTURES["digits"](4), (x, torch.arange(20)))

def rows():
    model = Siamese(torch.nn.Flatten(), Comparison(5, 3))
    return Subject.ranker(model, (torch.rand(20, 5), torch.arange(20)))

def alike():
    singles = Arrays(torch.rand(10, 1, 8, 8), torch.arange(10) % 2)
    pairs = Pairs.alike(singles, singles.labels, 20)
    return Subject.similarity(Siamese(torch.nn.Flatten(), Distance()), pairs, threshold=1)
"""


def test_another_ranker_takes_a_folder_too(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "subject.py").write_text(SCRIPT)
    subject = open_subject(Source(f"{tmp_path}/subject.py:build", str(folder)))
    assert sorted(subject.pairs["test"].values) == list(range(12))
    assert subject.data["test"].take(np.arange(3))[0].shape == (3, 2, 1, 8, 8)
    with pytest.raises(AssayError, match="--size does not apply"):
        open_subject(Source(f"{tmp_path}/subject.py:build", str(folder), size=8))
    with pytest.raises(AssayError, match=r"takes inputs of shape \(5,\), which are no images; leave --data out"):
        open_subject(Source(f"{tmp_path}/subject.py:rows", str(folder)))


def test_a_similarity_takes_a_folder_of_classes(tmp_path: Path) -> None:
    for k in range(8):
        path = tmp_path / "images" / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 30 * k, np.uint8)).save(path)
    (tmp_path / "subject.py").write_text(SCRIPT)
    subject = open_subject(Source(f"{tmp_path}/subject.py:alike", str(tmp_path / "images")))
    assert subject.task.classes == ("different", "same")
    assert subject.pairs["test"].values.tolist() == [0] * 4 + [1] * 4
    x, same = subject.data["test"].take(np.arange(100))
    assert x.shape == (100, 2, 1, 8, 8)
    assert same.sum() == 50
