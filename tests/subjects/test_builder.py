"""Weights alone, in .safetensors and in a state dict, put into the network of --builder."""

from __future__ import annotations

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.subjects import Source, open_subject

NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))

def wider():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 3))

def longer():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3), nn.Linear(3, 3))

def none():
    return 3

def breaks():
    raise KeyError("depth")
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    torch.save({"epoch": 3, "state_dict": net.state_dict()}, tmp_path / "net.ckpt")
    return tmp_path, net


def opened(forms, folder, name, builder):
    return open_subject(Source(str(folder / name), str(forms.npz), builder=f"{folder}/net.py:{builder}"))


@pytest.mark.parametrize("name", ["net.safetensors", "net.pt", "net.ckpt"])
def test_the_network_answers_with_its_weights(forms, place, name):
    folder, net = place
    subject = opened(forms, folder, name, "build")
    assert_close(subject.predict(forms.x), net(forms.x).detach())
    assert subject.differentiable
    assert subject.name == name
    assert subject.about.endswith(f"net.py:build with the weights of {name}.")
    with torch.no_grad():
        net[1].weight.mul_(2)
    save_file(net.state_dict(), folder / "net.safetensors")
    assert opened(forms, folder, "net.safetensors", "build").fingerprint() != subject.fingerprint()


@pytest.mark.parametrize("name", ["net.safetensors", "net.pt"])
@pytest.mark.parametrize(
    ("builder", "says"),
    [
        ("wider", r"'1.weight' in net.\w+ has shape \(5, 64\), and in .*net.py:wider \(6, 64\); build the network"),
        (
            "longer",
            r"are not those of .*net.py:longer \(missing 4.weight, 4.bias, none unexpected\); build the network",
        ),
        ("none", "--builder .*net.py:none returned int; return the torch.nn.Module to fill"),
        ("breaks", "net.py:breaks raised KeyError on line 17: 'depth'; mend it there"),
        ("buld", "There is no function 'buld' in .*net.py; give"),
    ],
)
def test_weights_of_another_network_are_one_line(forms, place, name, builder, says):
    folder, _ = place
    with pytest.raises(AssayError, match=says) as caught:
        opened(forms, folder, name, builder)
    assert "\n" not in str(caught.value)


def test_names_that_are_too_many_are_told_in_part(forms, place):
    folder, _ = place
    save_file({f"w{i}": torch.zeros(1) for i in range(9)}, folder / "other.safetensors")
    with pytest.raises(
        AssayError, match=r"\(missing 1.weight, 1.bias, 3.weight and 1 more, unexpected w0, w1, w2 and 6"
    ):
        opened(forms, folder, "other.safetensors", "build")


@pytest.mark.parametrize(
    ("builder", "says"),
    [
        ("build", "--builder 'build' is not FILE.py:FUNCTION or MODULE:FUNCTION"),
        ("lost.py:build", "There is no file 'lost.py' for --builder"),
        ("there.is.none:build", "--builder there.is.none:build raised ModuleNotFoundError"),
        ("torch.nn:Identity", "are not those of torch.nn:Identity"),
    ],
)
def test_a_builder_that_is_none(forms, place, builder, says):
    folder, _ = place
    with pytest.raises(AssayError, match=says):
        open_subject(Source(str(folder / "net.safetensors"), str(forms.npz), builder=builder))


class Touch:
    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_no_code_in_a_state_dict_is_run(forms, place):
    folder, net = place
    torch.save({**net.state_dict(), "more": Touch(folder / "ran")}, folder / "evil.pt")
    with pytest.raises(AssayError, match=r"evil.pt' holds more than weights \(") as caught:
        opened(forms, folder, "evil.pt", "build")
    assert "\n" not in str(caught.value)
    assert not (folder / "ran").exists()
    torch.save({**net.state_dict(), "epoch": 3}, folder / "more.pt")
    with pytest.raises(AssayError, match="more.pt' holds 'epoch', which is no weight; save model.state_dict"):
        opened(forms, folder, "more.pt", "build")
    torch.save([1, 2], folder / "list.pt")
    with pytest.raises(AssayError, match="list.pt' holds list, no state dict"):
        opened(forms, folder, "list.pt", "build")


def test_a_builder_is_for_weights(forms):
    with pytest.raises(
        AssayError, match=r"--builder does not apply to 'any.onnx'; leave it out. It is for weights.safe"
    ):
        open_subject(Source(str(forms.onnx), str(forms.npz), builder="net.py:build"))


@pytest.mark.parametrize("suffix", ["pkl", "joblib", "pickle"])
def test_pickled_estimators_name_the_way_through_skops(tmp_path, suffix):
    path = tmp_path / f"forest.{suffix}"
    path.write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    with pytest.raises(AssayError, match=r"is a pickle, .*skops.io.dump\(model, 'forest.skops'\) for an estimator"):
        open_subject(Source(str(path)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("how", ["pickle", "joblib"])
def test_a_pickled_estimator_opens_with_consent(tmp_path, how):
    import joblib
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    x = np.random.default_rng(0).random((40, 3)).astype(np.float32)
    model = LogisticRegression().fit(x, x[:, 0] > 0.5)
    np.savez(tmp_path / "rows.npz", x=x, y=(x[:, 0] > 0.5).astype(int))
    path = tmp_path / ("model.pkl" if how == "pickle" else "model.joblib")
    path.write_bytes(pickle.dumps(model)) if how == "pickle" else joblib.dump(model, path)
    subject = open_subject(Source(str(path), str(tmp_path / "rows.npz"), allow_pickle=True))
    np.testing.assert_allclose(subject.predict(torch.from_numpy(x)).exp(), model.predict_proba(x), rtol=0, atol=1e-6)
    assert subject.name == path.name
    path.write_bytes(pickle.dumps("net.py"))
    with pytest.raises(AssayError, match="holds str, not a torch.nn.Module or an estimator"):
        open_subject(Source(str(path), str(tmp_path / "rows.npz"), allow_pickle=True))
