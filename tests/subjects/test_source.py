from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from assay.errors import AssayError, SubjectError
from assay.subjects import Source, open_subject


def test_words_are_those_of_the_command_line():
    source = Source("model.onnx", "images", (0, 255), (0.485, 0.456, 0.406), (0.25,), 224, True)
    assert " ".join(source.words()) == (
        "model.onnx --data images --bounds 0 255 --mean 0.485,0.456,0.406 --std 0.25 --size 224 --allow-pickle"
    )
    assert Source("fashion-cnn").words() == ("fashion-cnn",)
    found = Source(
        "m.onnx", output="p", layout="nhwc", feed=("sr=16000", "h=0"), builder="net.py:build", trust=("a.B",)
    )
    assert " ".join(found.words()) == (
        "m.onnx --output p --layout nhwc --builder net.py:build --feed sr=16000 --feed h=0 --trust a.B"
    )


def test_importing_needs_no_torch():
    code = "import sys, assay.subjects; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_is_nearly_right_gets_a_hint():
    with pytest.raises(AssayError, match=r"no subject 'fashion-cn'; did you mean 'fashion-cnn'"):
        open_subject(Source("fashion-cn"))


@pytest.mark.parametrize("text", ["model.pt2", "there/is/none", "subject.py:build", "model.onnx", "model.pth", "a.b"])
def test_what_looks_like_a_path_is_missed_as_a_file(text):
    with pytest.raises(AssayError, match=r"There is no file '(model|there|subject|a)[^:]*'; check the path"):
        open_subject(Source(text))


def test_a_folder_or_an_unknown_file_is_no_model(tmp_path):
    with pytest.raises(AssayError, match="is a folder; give a name"):
        open_subject(Source(str(tmp_path)))
    (tmp_path / "model.tflite").write_bytes(b"TFL3")
    with pytest.raises(AssayError, match=r"model.tflite' is no model that can be opened; give .*subject.py:build"):
        open_subject(Source(str(tmp_path / "model.tflite")))


def test_weights_alone_need_code(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, tmp_path / "net.safetensors")
    with pytest.raises(
        AssayError, match=r"holds weights, which need code to run; give --builder net.py:build, where build"
    ):
        open_subject(Source(str(tmp_path / "net.safetensors")))


def test_size_without_data_says_so():
    with pytest.raises(AssayError, match="--size 224 scales the images of --data"):
        open_subject(Source("fashion-cnn", size=224))


def test_a_model_without_data_asks_for_it(forms):
    for path in (forms.pt2, forms.onnx):
        with pytest.raises(AssayError, match="is a model without data; give --data"):
            open_subject(Source(str(path)))


def test_bounds_mean_and_std_reach_the_subject(forms, tmp_path):
    np.savez(tmp_path / "bytes.npz", x=(forms.x * 255).numpy(), y=np.arange(10) % 3)
    source = Source(str(forms.pt2), str(tmp_path / "bytes.npz"), bounds=(0, 255), mean=(0.0,), std=(255.0,))
    subject = open_subject(source)
    assert (subject.inputs.low, subject.inputs.high) == (0, 255)
    torch.testing.assert_close(subject.predict(forms.x * 255), forms.model(forms.x).detach())
    with pytest.raises(AssayError, match="--mean has 2 values for 1 channels"):
        open_subject(Source(str(forms.pt2), str(forms.npz), mean=(0.0, 0.0)))


def image_folder(root: Path, classes: int, side: int, mode: str) -> Path:
    rng = np.random.default_rng(0)
    for name in "abcdef"[:classes]:
        (root / name).mkdir(parents=True)
        for i in range(2):
            pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(root / name / f"{i}.png")
    return root


@pytest.mark.parametrize("form", ["pt2", "onnx", "onnx_of_four"])
def test_a_folder_of_colour_images_becomes_grey_for_a_grey_model(forms, tmp_path, form):
    folder = image_folder(tmp_path / "images", classes=3, side=8, mode="RGB")
    subject = open_subject(Source(str(getattr(forms, form)), str(folder)))
    assert subject.task.classes == ("a", "b", "c")
    assert subject.inputs.shape == (1, 8, 8)


@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_images_of_another_size_name_the_option(forms, tmp_path, form):
    folder = image_folder(tmp_path / "images", classes=3, side=12, mode="L")
    with pytest.raises(SubjectError, match=r"takes inputs of shape 1 x 8 x 8, .* has 1 x 12 x 12; give --size 8\."):
        open_subject(Source(str(getattr(forms, form)), str(folder)))
    assert open_subject(Source(str(getattr(forms, form)), str(folder), size=8)).inputs.shape == (1, 8, 8)


def test_vectors_for_a_model_of_images(forms, tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 64), np.float32), y=np.arange(4) % 3)
    with pytest.raises(SubjectError, match=r"takes inputs of shape 1 x 8 x 8, and the data has 64; bring the data"):
        open_subject(Source(str(forms.pt2), str(tmp_path / "rows.npz")))


@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_another_number_of_classes_is_one_line(forms, tmp_path, form):
    folder = image_folder(tmp_path / "images", classes=4, side=8, mode="L")
    with pytest.raises(SubjectError, match="has 3 outputs for 4 classes"):
        open_subject(Source(str(getattr(forms, form)), str(folder)))


def test_the_bundled_subject_takes_other_data_but_no_other_scale(tmp_path):
    folder = image_folder(tmp_path / "images", classes=3, side=30, mode="RGB")
    with pytest.raises(AssayError, match="fashion-cnn brings its own input space, so --std does not apply"):
        open_subject(Source("fashion-cnn", std=(0.5,)))
    np.savez(tmp_path / "few.npz", x=np.zeros((5, 1, 28, 28), np.uint8), y=np.arange(5))
    subject = open_subject(Source("fashion-cnn", str(tmp_path / "few.npz")))
    assert len(subject.data["test"]) == 5
    assert set(subject.data) == {"test"}
    subject = open_subject(Source("fashion-cnn", str(folder), size=28))
    assert subject.data["test"].take(np.arange(1))[0].shape == (1, 1, 28, 28)


def test_draws_are_declared_with_an_option():
    assert open_subject(Source("digits-mlp", draws=5)).draws == 5
    assert open_subject(Source("digits-mlp")).draws == 1
    with pytest.raises(AssayError, match="--draws 0 is no number of passes"):
        open_subject(Source("digits-mlp", draws=0))
