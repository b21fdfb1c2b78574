from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from assay.errors import AssayError, MissingExtra
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.subjects import Source, doors, open_subject
from assay.subjects.doors.onnx_file import OnnxModel, Rebuilt
from assay.subjects.doors.onnx_weights import locations

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def without_onnx2torch(monkeypatch):
    """As on most machines; the tests that want it bring their own."""
    monkeypatch.setitem(sys.modules, "onnx2torch", None)


def opened(forms, path, **words):
    return open_subject(Source(str(path), str(forms.npz), **words))


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


def with_two_outputs(forms, folder: Path) -> tuple[Path, str, str]:
    """The model with what goes into its last layer as a second output; the names of both."""
    model = onnx.load(forms.onnx)
    hidden = model.graph.node[0].output[0]
    model.graph.output.append(onnx.helper.make_tensor_value_info(hidden, onnx.TensorProto.FLOAT, None))
    onnx.save(model, folder / "two.onnx")
    return folder / "two.onnx", model.graph.output[0].name, hidden


def test_of_two_outputs_one_is_chosen(forms, tmp_path):
    path, logits, hidden = with_two_outputs(forms, tmp_path)
    with pytest.raises(
        AssayError, match=rf"two.onnx has the outputs {logits} .*, {hidden} .*; choose one with --output"
    ):
        opened(forms, path)
    with pytest.raises(AssayError, match=rf"two.onnx has no output 'logit' but {logits} .*; choose one with --output"):
        opened(forms, path, output="logit")
    subject = opened(forms, path, output=logits)
    assert_close(subject.predict(forms.x), forms.model(forms.x).detach(), rtol=0, atol=1e-5)
    assert not subject.differentiable
    assert subject.fingerprint() != opened(forms, forms.onnx).fingerprint()
    other = doors.open_file(path, Source(str(path), output=hidden)).model
    assert tuple(other(forms.x).shape[1:]) != (3,)
    assert other.state_digest != subject.model.state_digest


# Models as others made them.


def made(path: Path, nodes, inputs, outputs, **constants) -> Path:
    """An ONNX file of a few operators."""
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(nodes, "made", inputs, outputs, tensors)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def value(name: str, kind: str, *shape):
    return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape)


node = onnx.helper.make_node
TABLE = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


def tokens(path: Path) -> Path:
    """The mean of the rows of a table that whole numbers point at."""
    nodes = [node("Gather", ["table", "ids"], ["rows"]), node("ReduceMean", ["rows"], ["out"], axes=[1], keepdims=0)]
    return made(path, nodes, [value("ids", "INT32", "n", 4)], [value("out", "FLOAT", "n", 3)], table=TABLE)


def test_whole_numbers_are_taken_as_such(tmp_path):
    path = tokens(tmp_path / "ids.onnx")
    ids = np.random.default_rng(1).integers(0, 7, (6, 4))
    np.savez(tmp_path / "ids.npz", x=ids.astype(np.float32), y=np.arange(6) % 3)
    subject = open_subject(Source(str(path), str(tmp_path / "ids.npz")))
    assert_close(subject.predict(torch.from_numpy(ids).float()), torch.from_numpy(TABLE[ids].mean(1)))
    for off in (0.3, -0.3):
        assert_close(subject.predict(torch.from_numpy(ids) + off), torch.from_numpy(TABLE[ids].mean(1)))
    assert not subject.differentiable
    assert "takes whole numbers (int32): values are rounded" in subject.notes[0]


def test_rows_of_whole_numbers_are_names_and_those_of_a_table_are_not(tmp_path):
    path = tokens(tmp_path / "ids.onnx")
    ids = np.random.default_rng(1).integers(0, 6, (6, 4))
    ids[0, 0] = 6  # one column has a name that the others have not
    np.savez(tmp_path / "ids.npz", x=ids.astype(np.float32), y=np.arange(6) % 3)
    rows = np.column_stack([ids, np.arange(6) % 3])
    np.savetxt(tmp_path / "ids.csv", rows, fmt="%d", delimiter=",", header="a,b,c,d,y", comments="")
    subject = open_subject(Source(str(path), str(tmp_path / "ids.npz")))
    assert subject.tokens
    assert (subject.inputs.low, subject.inputs.high) == (0, 6)
    assert [float(w) for w in subject.inputs.edges()[1]] == [6.0] * 4
    assert "read as names" in subject.notes[1]
    assert not any("radius" in note for note in subject.notes)
    assert "none lies between two" in str(WorstCaseAccuracy().why_not(subject))
    told = open_subject(Source(str(path), str(tmp_path / "ids.npz"), bounds=(0.0, 9.0)))
    assert [float(w) for w in told.inputs.edges()[1]] == [9.0] * 4
    table = open_subject(Source(str(path), str(tmp_path / "ids.csv"), target="y"))
    assert not table.tokens
    assert WorstCaseAccuracy().why_not(table) is None


WEIGHTS = np.random.default_rng(2).normal(size=(60, 3)).astype(np.float32)


def channels_last(path: Path) -> Path:
    """A linear layer on images of n h w c, which tells every place from every other."""
    nodes = [node("Flatten", ["image"], ["flat"]), node("MatMul", ["flat", "weights"], ["out"])]
    inputs, outputs = [value("image", "FLOAT", "n", 4, 5, 3)], [value("out", "FLOAT", "n", 3)]
    return made(path, nodes, inputs, outputs, weights=WEIGHTS)


def test_channels_last_are_put_there(tmp_path):
    path = channels_last(tmp_path / "last.onnx")
    x = np.random.default_rng(0).random((6, 3, 4, 5)).astype(np.float32)
    np.savez(tmp_path / "first.npz", x=x, y=np.arange(6) % 3)
    subject = open_subject(Source(str(path), str(tmp_path / "first.npz"), layout="nhwc"))
    assert_close(
        subject.predict(torch.from_numpy(x)), torch.from_numpy(x.transpose(0, 2, 3, 1).reshape(6, 60) @ WEIGHTS)
    )
    assert subject.inputs.shape == (3, 4, 5)
    with pytest.raises(AssayError, match="takes inputs of shape 4 x 5 x 3, .* 3 x 4 x 5; give --layout nhwc if"):
        open_subject(Source(str(path), str(tmp_path / "first.npz")))
    ids = tokens(tmp_path / "ids.onnx")
    with pytest.raises(AssayError, match=r"--layout nhwc is for images, and ids.onnx takes ids \(int32 any x 4\)"):
        open_subject(Source(str(ids), str(tmp_path / "first.npz"), layout="nhwc"))
    with pytest.raises(AssayError, match="--layout 'hwc' is none; give nchw"):
        open_subject(Source(str(path), layout="hwc"))


def with_sides(path: Path) -> Path:
    """out = x * rate + the first row of the state for each input."""
    nodes = [
        node("Mul", ["x", "rate"], ["scaled"]),
        node("Gather", ["state", "zero"], ["row"], axis=0),
        node("Add", ["scaled", "row"], ["out"]),
    ]
    inputs = [value("x", "FLOAT", "n", 3), value("state", "FLOAT", 2, "n", 3), value("rate", "FLOAT")]
    return made(path, nodes, inputs, [value("out", "FLOAT", "n", 3)], zero=np.array(0))


def test_side_inputs_are_fed(tmp_path):
    path = with_sides(tmp_path / "sides.onnx")
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "rows.npz", x=x.numpy(), y=np.arange(5) % 3)

    def fed(*feed: str):
        return open_subject(Source(str(path), str(tmp_path / "rows.npz"), feed=feed))

    assert_close(fed("state=0.5", "rate=-2").predict(x), -2 * x + 0.5)
    assert_close(fed("rate=3", "state=0").predict(x[:2]), 3 * x[:2])
    assert fed("state=0", "rate=1").fingerprint() != fed("state=0", "rate=2").fingerprint()
    for feed, says in (
        (
            (),
            r"has the inputs x \(float any x 3\), state \(float 2 x any x 3\), rate \(float\); one takes ",
        ),
        (("rate=1",), r"one takes the data, say what the others are: --feed state=NUMBER"),
        (("rate=1", "stat=0"), "has no input 'stat' to feed; it has x"),
        (("rate=fast",), "--feed 'rate=fast' is not NAME=NUMBER"),
        (("rate",), "--feed 'rate' is not NAME=NUMBER"),
        (("state=1,2",), r"--feed state has 2 numbers for state \(float 2 x any x 3\); give one for all"),
        (("state=0", "rate=1", "x=1"), "Every input of sides.onnx is fed"),
    ):
        with pytest.raises(AssayError, match=says):
            fed(*feed)


# skl2onnx: a label and its probabilities.


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("names", [("rye", "oat", "bran"), (3, 5, 9)])
def test_of_a_label_and_its_probabilities_these_are_read(tmp_path, zipmap, names):
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(0)
    x = rng.random((60, 4)).astype(np.float32)
    places = (x[:, :3]).argmax(1)
    forest = RandomForestClassifier(5, random_state=0).fit(x, np.array(names)[places])
    options = None if zipmap else {id(forest): {"zipmap": False}}
    content = skl2onnx.to_onnx(forest, x[:1], options=options).SerializeToString()
    (tmp_path / "forest.onnx").write_bytes(content)
    order = {name: i for i, name in enumerate(forest.classes_.tolist())}
    own = isinstance(names[0], int) and zipmap  # the data may then say 3, 5 and 9
    y = np.array([names[p] if own else order[names[p]] for p in places])
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    subject = open_subject(Source(str(tmp_path / "forest.onnx"), str(tmp_path / "rows.npz")))
    assert_allclose(subject.predict(torch.from_numpy(x)), forest.predict_proba(x), rtol=0, atol=1e-6)
    assert subject.task.classes == (tuple(map(str, sorted(names))) if zipmap else ("0", "1", "2"))
    right = (subject.predict(torch.from_numpy(x)).argmax(1).numpy() == subject.data["test"].labels).mean()
    assert right > 0.95
    assert re.search("Of the outputs .*label .*probabilit.* is read", subject.notes[0])
    label = "output_label" if zipmap else "label"
    with pytest.raises(AssayError, match=r"label .* holds no scores; choose another"):
        doors.open_file(tmp_path / "forest.onnx", Source("forest.onnx", output=label))


# Files that came with packages: each opens, or says what it is.


def shipped(package: str, *inside: str) -> Path:
    spec = importlib.util.find_spec(package)  # found, not imported: what it needs need not be here
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not here")
    return Path(spec.origin).parent.joinpath(*inside)


def test_magika_opens():
    path = shipped("magika", "models", "standard_v3_3", "model.onnx")
    model = doors.open_file(path, Source(str(path)))
    content = torch.randint(0, 256, (3, 2048), generator=torch.Generator().manual_seed(0)).float()
    out = model.model(content)
    assert_close(out.sum(1), torch.ones(3))
    assert model.shape == (2048,)
    assert "whole numbers (int32)" in model.notes[0]


def test_rapidocrs_three_networks(tmp_path):
    def path(name: str) -> Path:
        return shipped("rapidocr_onnxruntime", "models", name)

    rng = np.random.default_rng(0)
    np.savez(tmp_path / "lines.npz", x=rng.random((2, 3, 48, 192)).astype(np.float32), y=np.arange(2))
    subject = open_subject(Source(str(path("ch_ppocr_mobile_v2.0_cls_infer.onnx")), str(tmp_path / "lines.npz")))
    assert subject.predict(torch.rand(2, 3, 48, 192)).shape == (2, 2)
    with pytest.raises(AssayError, match=r"returned 1 x \d+ x 6625 for one input: .* each place of a sequence"):
        open_subject(Source(str(path("ch_PP-OCRv4_rec_infer.onnx")), str(tmp_path / "lines.npz")))
    with pytest.raises(
        AssayError,
        match=r"det_infer.onnx fails on inputs of shape 3 x 48 x 192 \(Attempting to broadcast.*3 by 4\); bring",
    ):
        open_subject(Source(str(path("ch_PP-OCRv4_det_infer.onnx")), str(tmp_path / "lines.npz")))
    np.savez(tmp_path / "pages.npz", x=rng.random((2, 3, 64, 64)).astype(np.float32), y=np.arange(2))
    with pytest.raises(AssayError, match=r"returned 1 x 1 x 64 x 64 for one input: .* map"):
        open_subject(Source(str(path("ch_PP-OCRv4_det_infer.onnx")), str(tmp_path / "pages.npz")))


def test_silero_hears_with_its_state_fed(tmp_path):
    path = shipped("silero_vad", "data", "silero_vad.onnx")
    x = np.random.default_rng(0).normal(size=(4, 512)).astype(np.float32).clip(-1, 1)
    np.savez(tmp_path / "sound.npz", x=x, y=np.arange(4) % 2)
    with pytest.raises(AssayError, match=r"has the inputs input .*, state .*, sr \(int64\); one takes the data"):
        open_subject(Source(str(path), str(tmp_path / "sound.npz")))
    fed = Source(str(path), str(tmp_path / "sound.npz"), bounds=(-1, 1), output="output", feed=("state=0", "sr=16000"))
    subject = open_subject(fed)
    assert subject.task.classes == ("0", "1")
    assert_close(subject.predict(torch.from_numpy(x))[2:], subject.predict(torch.from_numpy(x[2:])), rtol=0, atol=1e-4)
    assert "probability of the second class" in " ".join(subject.notes)


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
