from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from assay.errors import AssayError, MissingExtra
from assay.subjects import Source, open_subject
from assay.subjects.doors.onnx_file import OnnxModel, Rebuilt
from assay.subjects.doors.onnx_weights import locations

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def without_onnx2torch(monkeypatch):
    """As on most machines; the tests that want it bring their own."""
    monkeypatch.setitem(sys.modules, "onnx2torch", None)


def opened(forms, path):
    return open_subject(Source(str(path), str(forms.npz)))


@pytest.mark.parametrize("form", ["onnx", "onnx_of_four"])
@pytest.mark.parametrize("n", [0, 1, 4, 10])
def test_answers_are_those_of_the_model_itself(forms, form, n):
    subject = opened(forms, getattr(forms, form))
    assert_close(subject.predict(forms.x[:n]), forms.model(forms.x[:n]).detach(), rtol=0, atol=1e-5)


def test_there_are_no_gradients_and_it_says_so(forms):
    subject = opened(forms, forms.onnx)
    assert not subject.differentiable
    assert subject.name == "any.onnx"
    assert subject.about == "any.onnx through onnxruntime: answers without gradients."


def moved_out(path: Path, folder: Path, location: str) -> Path:
    """The model with its weights in a file of their own, next to it."""
    model = onnx.load(path)
    onnx.save_model(model, folder / "split.onnx", save_as_external_data=True, location=location, size_threshold=0)
    return folder / "split.onnx"


def test_the_fingerprint_covers_the_file_and_the_weights_beside_it(forms, tmp_path):
    assert opened(forms, forms.onnx).fingerprint() == opened(forms, forms.onnx).fingerprint()
    assert opened(forms, forms.onnx).fingerprint() != opened(forms, forms.onnx_of_four).fingerprint()
    path = moved_out(forms.onnx, tmp_path, "weights.bin")
    subject = opened(forms, path)
    assert_close(subject.predict(forms.x), forms.model(forms.x).detach(), rtol=0, atol=1e-5)
    weights = bytearray((tmp_path / "weights.bin").read_bytes())
    weights[0] ^= 1
    (tmp_path / "weights.bin").write_bytes(weights)
    assert opened(forms, path).fingerprint() != subject.fingerprint()


@pytest.mark.parametrize("length", [3, 127, 128, 300])
def test_names_of_any_length_are_found_wherever_a_tensor_may_stand(length):
    model = onnx.ModelProto(doc_string="\x0a\x08location\x12\x05false")
    tensors = [model.graph.initializer.add(), model.graph.node.add().attribute.add().t]
    tensors += [model.graph.sparse_initializer.add().values, model.graph.sparse_initializer.add().indices]
    inner = model.graph.node.add().attribute.add().g
    tensors += [inner.initializer.add(), inner.node.add().attribute.add().graphs.add().initializer.add()]
    tensors += [inner.node.add().attribute.add().tensors.add(), inner.node.add().attribute.add().sparse_tensor.values]
    tensors += [model.functions.add().node.add().attribute.add().t, model.functions.add().attribute_proto.add().t]
    tensors += [model.training_info.add().algorithm.initializer.add()]
    tensors += [inner.node.add().attribute.add().sparse_tensors.add().values]
    for k, tensor in enumerate(tensors):
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "w" * length + str(k)
        entry = tensor.external_data.add()
        entry.key, entry.value = "offset", "12"
        tensor.float_data.extend([0.5] * 3)
        tensor.dims.extend([1, 2, 3])
    assert locations(model.SerializeToString()) == {"w" * length + str(k) for k in range(len(tensors))}


@pytest.mark.parametrize("location", ["../weights.bin", "/tmp/weights.bin", "link.bin"])
def test_weights_elsewhere_are_refused(forms, tmp_path, location):
    (tmp_path / "inside").mkdir()
    path = moved_out(forms.onnx, tmp_path / "inside", "weights.bin")
    (tmp_path / "inside" / "weights.bin").rename(tmp_path / "weights.bin")
    (tmp_path / "inside" / "link.bin").symlink_to(tmp_path / "weights.bin")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = location if entry.key == "location" else entry.value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(AssayError, match=f"split.onnx' keeps weights in '{location}', outside its folder"):
        opened(forms, path)


def test_broken_files_are_one_line(forms, tmp_path):
    whole = forms.onnx.read_bytes()
    for name, content in (("text", b"hello" * 20), ("empty", b""), ("cut", whole[: len(whole) // 2])):
        (tmp_path / f"{name}.onnx").write_bytes(content)
        with pytest.raises(AssayError, match=rf"{name}.onnx' cannot be read as ONNX \(.*\); export the") as caught:
            opened(forms, tmp_path / f"{name}.onnx")
        assert "\n" not in str(caught.value)


def test_two_outputs_are_refused(forms, tmp_path):
    model = onnx.load(forms.onnx)
    hidden = model.graph.node[0].output[0]
    model.graph.output.append(onnx.helper.make_tensor_value_info(hidden, onnx.TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "two.onnx")
    with pytest.raises(AssayError, match=r"two.onnx' has inputs \['image'\] and outputs \[.*, .*\]; export a model"):
        opened(forms, tmp_path / "two.onnx")


def test_without_onnxruntime_the_message_is_the_line_to_type(forms, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"Reading .onnx needs onnxruntime: pip install 'assay\[onnx\]'"):
        opened(forms, forms.onnx)


# A stand-in for onnx2torch, which needs a torchvision that loads.


def converting(monkeypatch, convert):
    module = types.ModuleType("onnx2torch")
    module.convert = convert
    monkeypatch.setitem(sys.modules, "onnx2torch", module)


@pytest.mark.parametrize("form", ["onnx", "onnx_of_four"])
def test_a_faithful_copy_brings_gradients(forms, monkeypatch, form):
    converting(monkeypatch, lambda path: forms.model)
    subject = opened(forms, getattr(forms, form))
    assert subject.differentiable
    assert isinstance(subject.model, Rebuilt)
    assert "rebuilt by onnx2torch, with answers within" in subject.about
    assert subject.model.state_digest
    assert_close(subject.predict(forms.x), forms.model(forms.x).detach())


def wrong(path):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))


def broken(path):
    raise NotImplementedError("Converter is not implemented (GridSample)\nand more")


@pytest.mark.parametrize(
    ("convert", "says"),
    [
        (wrong, r"answers without gradients; those of onnx2torch's copy differ by \d"),
        (broken, r"onnx2torch failed \(Converter is not implemented \(GridSample\)\)\.$"),
    ],
)
def test_an_unfaithful_copy_is_not_used(forms, monkeypatch, convert, says):
    converting(monkeypatch, convert)
    subject = opened(forms, forms.onnx)
    assert isinstance(subject.model, OnnxModel)
    assert not subject.differentiable
    assert re.search(says, subject.about)
