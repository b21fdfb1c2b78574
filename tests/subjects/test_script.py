from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from assay.errors import AssayError
from assay.subjects import Source, open_subject

NET = """
import torch
from torch import nn
import assay

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
    def forward(self, x):
        return self.head(x)

x, y = torch.linspace(0, 1, 24).view(6, 4), torch.arange(6) % 2
"""


def written(tmp_path, text, name="subject.py"):
    path = tmp_path / name
    path.write_text(text)
    return f"{path}:build"


def test_a_subject_a_pair_and_a_module(tmp_path):
    whole = "def build(): return assay.Subject.classifier(Net(), (x, y), name='mine', classes=['no', 'yes'])"
    subject = open_subject(Source(written(tmp_path, NET + whole)))
    assert (subject.name, subject.task.classes) == ("mine", ("no", "yes"))
    pair = "def build(): return Net(), {'test': (x, y), 'train': (x, y)}"
    subject = open_subject(Source(written(tmp_path, NET + pair)))
    assert (subject.name, set(subject.data), subject.differentiable) == ("Net", {"test", "train"}, True)
    np.savez(tmp_path / "data.npz", x=np.zeros((3, 4), np.float32), y=np.array([0, 1, 1]))
    source = Source(written(tmp_path, NET + "def build(): return Net()"), str(tmp_path / "data.npz"), mean=None)
    assert len(open_subject(source).data["test"]) == 3
    with pytest.raises(AssayError, match="is a model without data; give --data"):
        open_subject(Source(source.subject))


def test_given_data_goes_before_the_pairs_own(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((3, 4), np.float32), y=np.array([0, 1, 1]))
    text = written(tmp_path, NET + "def build(): return Net(), (x, y)")
    assert len(open_subject(Source(text, str(tmp_path / "data.npz"))).data["test"]) == 3


def test_a_model_without_gradients_is_found_out(tmp_path):
    code = NET + "class Still(Net):\n    def forward(self, x):\n        with torch.no_grad(): return self.head(x)\n"
    subject = open_subject(Source(written(tmp_path, code + "def build(): return Still(), (x, y)")))
    assert not subject.differentiable
    code = NET + "class Cut(Net):\n    def forward(self, x): return self.head(x.detach())\n"
    subject = open_subject(Source(written(tmp_path, code + "def build(): return Cut(), (x, y)")))
    assert not subject.differentiable


def test_looking_for_gradients_leaves_the_model_as_it_was(tmp_path):
    code = NET + "def build():\n    net = nn.Sequential(nn.BatchNorm1d(4), Net()).train(); return net, (x, y)\n"
    model = open_subject(Source(written(tmp_path, code))).model
    assert model.training
    assert model[0].training
    assert int(model[0].num_batches_tracked) == 0
    assert all(p.grad is None for p in model.parameters())


def test_the_file_finds_what_lies_beside_it_and_leaves_the_path_alone(tmp_path):
    (tmp_path / "beside_the_subject.py").write_text(NET)
    before = list(sys.path)
    text = "from beside_the_subject import *\ndef build():\n    import beside_the_subject; return Net(), (x, y)\n"
    assert open_subject(Source(written(tmp_path, text))).name == "Net"
    assert sys.path == before
    assert not list(tmp_path.glob("__pycache__/subject.*"))


def test_an_edited_file_is_another_subject(tmp_path):
    code = NET.replace("nn.Linear(4, 2)", "nn.Linear(4, 2, bias=False); nn.init.ones_(self.head.weight)")
    text = written(tmp_path, code + "def build(): return Net(), (x, y)")
    first = open_subject(Source(text))
    fingerprint = first.fingerprint()
    assert open_subject(Source(text)).fingerprint() == fingerprint
    written(tmp_path, code.replace("return self.head(x)", "return self.head(-x)") + "def build(): return Net(), (x, y)")
    second = open_subject(Source(text))
    assert second.fingerprint() != fingerprint
    torch.testing.assert_close(second.predict(torch.ones(1, 4)), -first.predict(torch.ones(1, 4)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def other(): pass\ndef third(): pass", r"no function 'build' in .*; give .*:other \(it has: other, third\)"),
        ("x = 1", r"no function 'build' in .*subject.py; write one: def build"),
        ("def build():\n    return 1 / 0", r"subject.py:build raised ZeroDivisionError on line 2: division by zero"),
        ("import nothing_of_the_kind\ndef build(): pass", r"subject.py raised ModuleNotFoundError on line 1: No mod"),
        ("def build(:\n    pass", r"subject.py raised SyntaxError on line 1: "),
        ("raise SystemExit(3)", r"subject.py raised SystemExit on line 1: 3"),
        ("def build():\n    raise ValueError('two\\nlines')", r"raised ValueError on line 2: two lines; mend it there"),
        ("def build(): return None", r"subject.py:build returned NoneType; return an assay.Subject"),
        ("def build(): return 1, 2, 3", r"returned a tuple of int, int, int; return"),
        ("def build(): return {'model': 1}", r"returned dict; return"),
        ("def build(size): return size", r"raised TypeError: build\(\) missing 1 required positional argument: 'size'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, text, says):
    with pytest.raises(AssayError, match=says) as caught:
        open_subject(Source(written(tmp_path, text)))
    assert "\n" not in str(caught.value)


def test_the_name_of_the_function_is_needed(tmp_path):
    text = written(tmp_path, "def make(): pass").removesuffix(":build")
    with pytest.raises(AssayError, match=r"subject.py lacks a function's name; give .*subject.py:make"):
        open_subject(Source(text))


def test_the_users_own_assay_errors_come_through(tmp_path):
    code = NET + "def build(): return assay.Subject.classifier(Net(), {'train': (x, y)})"
    with pytest.raises(AssayError, match=r"^The data has no split 'test'"):
        open_subject(Source(written(tmp_path, code)))
