from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay.errors import AssayError
from assay.subjects import Source, doors, open_subject

os.environ.setdefault("KERAS_BACKEND", "torch")
keras: Any = None


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Here and not above: it takes a second in every process that collects tests."""
    global keras
    keras = pytest.importorskip("keras")
    pytest.importorskip("h5py")
    if keras.backend.backend() != "torch":
        pytest.skip("Keras was imported on another backend")


def network(softmax: bool = False) -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8, 6, 3)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax" if softmax else None),
        ]
    )


X = torch.rand(5, 3, 8, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("keras")
    network().save(folder / "net.keras")
    np.savez(folder / "images.npz", x=X.numpy(), y=np.arange(5) % 3)
    return folder


def opened(folder: Path, name: str = "net.keras", **words):
    return open_subject(Source(str(folder / name), str(folder / "images.npz"), **words))


def test_answers_are_those_of_keras(saved):
    subject = opened(saved)
    expected = network().predict(X.permute(0, 2, 3, 1).numpy(), verbose=0)
    assert_close(subject.predict(X).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert subject.inputs.shape == (3, 8, 6)
    assert subject.differentiable
    assert "channels last" in subject.notes[0]


def test_gradients_are_those_of_finite_differences(saved):
    model = opened(saved).model
    x = X[:1].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x)[0, 1], x)
    step = torch.randn(X[:1].shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        rise = (model(X[:1] + 1e-2 * step)[0, 1] - model(X[:1] - 1e-2 * step)[0, 1]) / 2e-2
    assert_close(rise, (slope * step).sum(), rtol=2e-2, atol=1e-4)
    assert float(slope.abs().max()) > 0


def test_an_object_opens_too():
    net = network()
    model = doors.of(net).model
    assert_close(model(X).detach(), torch.as_tensor(net.predict(X.permute(0, 2, 3, 1).numpy(), verbose=0)))
    rows = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    assert doors.of(rows).shape == (4,)
    assert doors.of(rows).model(torch.rand(3, 4)).shape == (3, 2)
    first, second = (keras.Input((4,)) for _ in range(2))
    both = keras.Model([first, second], keras.layers.Dense(2)(keras.layers.Concatenate()([first, second])))
    with pytest.raises(AssayError, match="takes 2 inputs; give one that takes one batch"):
        doors.of(both)


def test_the_fingerprint_tells_weights_and_description(saved, tmp_path):
    assert opened(saved).fingerprint() == opened(saved).fingerprint()
    net = network()
    net.layers[-1].kernel.assign(net.layers[-1].kernel * 2)
    net.save(tmp_path / "net.keras")
    np.savez(tmp_path / "images.npz", x=X.numpy(), y=np.arange(5) % 3)
    assert opened(tmp_path).fingerprint() != opened(saved).fingerprint()
    again = opened(saved).model
    with torch.no_grad():
        for weights in filter(torch.is_floating_point, again.parameters()):
            weights += 0.1
    again.load_state_dict(opened(saved).model.state_dict())
    assert_close(again(X), opened(saved).model(X))
    network(softmax=True).save(tmp_path / "net.keras")
    assert opened(tmp_path).fingerprint() != opened(saved).fingerprint()


def test_another_shape_is_one_line(saved, tmp_path):
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 3, 6, 8), np.float32), y=np.arange(3))
    with pytest.raises(
        AssayError, match=r"takes inputs of shape 3 x 8 x 6 \(channels first\), and the data has 3 x 6 x 8"
    ):
        open_subject(Source(str(saved / "net.keras"), str(tmp_path / "wide.npz")))
    with pytest.raises(AssayError, match="takes inputs of shape 8 x 6 x 3"):
        opened(saved, layout="nchw")


def rewritten(saved: Path, path: Path, change) -> Path:
    """The file with another description."""
    with zipfile.ZipFile(saved / "net.keras") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, json.dumps(change(json.loads(content))) if name == "config.json" else content)
    np.savez(path.parent / "images.npz", x=X.numpy(), y=np.arange(5) % 3)
    return path


def test_a_lambda_layer_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: open("ran", "w") and x)])  # noqa: SIM115
    net(torch.zeros(1, 4))
    assert Path("ran").exists()
    Path("ran").unlink()
    net.save("net.keras")
    np.savez("images.npz", x=np.zeros((4, 4), np.float32), y=np.arange(4))
    with pytest.raises(AssayError, match=r"net.keras' cannot be loaded by Keras .*[Ll]ambda") as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value)
    assert not Path("ran").exists()


@pytest.mark.parametrize("module", ["os", "subprocess", "somebody.layers", "keras_hub.layers"])
def test_other_modules_are_not_imported(saved, tmp_path, module):
    def change(config):
        config["config"]["layers"][1] |= {"module": module, "class_name": "system", "registered_name": None}
        return config

    rewritten(saved, tmp_path / "net.keras", change)
    before = set(sys.modules)
    with pytest.raises(
        AssayError, match=rf"net.keras' wants 'system' of the module '{module}', which would be imported"
    ):
        opened(tmp_path)
    assert not {n for n in set(sys.modules) - before if n.startswith(("somebody", "keras_hub"))}


def test_halves_bombs_and_strange_parts_are_one_line(saved, tmp_path):
    whole = (saved / "net.keras").read_bytes()
    np.savez(tmp_path / "images.npz", x=X.numpy(), y=np.arange(5) % 3)

    def refused(content: bytes) -> str:
        (tmp_path / "net.keras").write_bytes(content)
        with pytest.raises(AssayError) as caught:
            opened(tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "cannot be loaded by Keras" in refused(whole[: len(whole) // 2])
    assert "no archive" in refused(b"hello")

    def archive(**members: bytes) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
            for name, content in members.items():
                new.writestr(name.replace("_", "."), content)
        return made.getvalue()

    assert "cannot be loaded by Keras" in refused(archive(config_json=b"{}"))
    assert "holds 'evil.so' beside the model" in refused(archive(config_json=b"{}", evil_so=b""))
    assert "is described by more than 67,108,864 bytes" in refused(archive(config_json=bytes(65 * 2**20)))
    assert "unpacks to" in refused(archive(config_json=b"{}", model_weights_h5=bytes(520 * 2**20)))


def test_without_keras_the_message_is_the_line_to_type(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(AssayError, match=r"Reading .keras needs keras and h5py: pip install 'assay\[keras\]'"):
        opened(saved)
