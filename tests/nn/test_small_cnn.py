from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.data.fashion import fashion_weights, load_fashion
from assay.errors import AssayError
from assay.nn.small_cnn import SmallCNN


@pytest.fixture(scope="module")
def model():
    model = SmallCNN()
    model.load_state_dict(fashion_weights())
    return model.eval()


@pytest.fixture(scope="module")
def images():
    return load_fashion()["test"].take(np.arange(8))[0]


@torch.no_grad()
def test_accuracy_is_the_one_that_is_stated(model):
    data = load_fashion()["test"]
    hits = 0
    for rows in np.array_split(np.arange(len(data)), 20):
        x, y = data.take(rows)
        hits += int((model(x).argmax(-1) == y).sum())
    assert abs(hits / len(data) - 0.9095) <= 0.001  # a tie may fall the other way on another processor


def test_size(model):
    assert sum(parameter.numel() for parameter in model.parameters()) == 136_498
    assert sum(value.numel() * value.element_size() for value in model.state_dict().values()) < 1_000_000


def test_normalisation_is_inside_and_is_that_of_the_training_images(model):
    x = load_fashion()["train"].x / 255
    assert_close(model.mean.item(), x.mean(), rtol=0, atol=1e-4)
    assert_close(model.std.item(), x.std(), rtol=0, atol=1e-4)
    assert {"mean", "std"} <= model.state_dict().keys() - dict(model.named_parameters()).keys()
    torch.manual_seed(0)
    plain, scaled = SmallCNN(mean=0, std=1).eval(), SmallCNN(mean=0.3, std=0.5).eval()
    state = plain.state_dict() | {name: scaled.state_dict()[name] for name in ("mean", "std")}
    scaled.load_state_dict(state)
    z = torch.rand(2, 1, 28, 28)
    assert_close(scaled(z), plain((z - 0.3) / 0.5))


def test_inner_points_have_names_and_lead_to_the_answer(model, images):
    seen = {}
    handles = [
        model.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: seen.__setitem__(name, out))
        for name in ("last_conv", "features")
    ]
    logits = model(images)
    for handle in handles:
        handle.remove()
    assert seen["last_conv"].shape == (8, 96, 7, 7)
    assert seen["last_conv"].min() >= 0
    assert isinstance(model.head, nn.Linear)
    assert_close(seen["features"], seen["last_conv"].mean((2, 3)))
    assert_close(model.head(seen["features"]), logits)


def test_all_but_the_relus_is_affine(model, images):
    """With every ReLU open, f(a) + f(b) - f(0) = f(a + b)."""
    opened = SmallCNN()
    opened.load_state_dict(model.state_dict())
    for block in [*opened.body, opened.last_conv]:
        if isinstance(block, nn.Sequential):
            block[2] = nn.Identity()
    opened.eval()
    a, b = images[:4], images[4:]
    assert_close(opened(a) + opened(b) - opened(torch.zeros_like(a)), opened(a + b), rtol=1e-4, atol=1e-2)


def test_exports_with_a_free_batch(model, images):
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    for n in (1, 5, 8):
        assert_close(loaded(images[:n]), model(images[:n]))


def test_exports_to_onnx(model, images):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(model, (images[:2],), dynamic_shapes=({0: batch},), dynamo=True, verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for n in (1, 8):
        assert_close(torch.from_numpy(session.run(None, {name: images[:n].numpy()})[0]), model(images[:n]).detach())


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"classes": 1}, "at least 2 classes, got 1"), ({"std": 0.0}, "std, so it must be positive, got 0.0")],
)
def test_errors(settings, words):
    with pytest.raises(AssayError, match=words):
        SmallCNN(**settings)
