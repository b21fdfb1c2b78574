from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.subjects import Source, doors, open_subject

W = np.array([[1.0, -1.0], [0.5, 2.0]], dtype=np.float32)


def linear(x):
    assert isinstance(x, np.ndarray)
    return x @ W


def test_a_function_of_arrays_answers_without_gradients():
    opened = doors.of(linear)
    x = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    assert_close(opened.model(x), x @ torch.from_numpy(W))
    assert (opened.name, opened.gradients) == ("linear", False)
    assert opened.model(x.double()).dtype == torch.float64


def test_a_function_that_changes_its_input_does_not_change_ours():
    def doubling(x):
        x *= 2
        return x

    x = torch.ones(2, 2)
    assert_close(doors.of(doubling).model(x), 2 * torch.ones(2, 2))
    assert_close(x, torch.ones(2, 2))


def test_words_are_no_numbers():
    with pytest.raises(SubjectError, match=r"The function returned <U3 of shape \(2,\); return numbers"):
        doors.of(lambda x: ["cat", "dog"]).model(torch.zeros(2, 2))


def test_a_module_is_as_it_is():
    net = nn.Linear(2, 2)
    assert doors.of(net).model is net
    assert doors.of(net).gradients is None


class Maite:
    """As maite.protocols.image_classification.Model asks: a list of images in, a list of scores out."""

    metadata = {"id": "tiny", "index2label": {1: "dog", 0: "cat"}}  # noqa: RUF012

    def __init__(self, torchy: bool) -> None:
        self.w = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
        self.torchy = torchy

    def __call__(self, batch):
        assert len(batch[0].shape) == 3
        if self.torchy:
            return [torch.as_tensor(x).reshape(-1) @ self.w for x in batch]
        return [np.asarray(x).reshape(-1) @ self.w.numpy() for x in batch]


def test_a_model_of_maites_protocol():
    maite = pytest.importorskip("maite.protocols.image_classification")
    assert isinstance(Maite(True), maite.Model)
    x = torch.rand(5, 3, 2, 2, requires_grad=True)
    for torchy in (True, False):
        opened = doors.of(Maite(torchy))
        assert opened.classes == ("cat", "dog")
        assert opened.name == "tiny"
        assert_close(opened.model(x.detach()), x.detach().flatten(1) @ Maite(True).w)
    out = doors.of(Maite(True)).model(x)
    assert_close(torch.autograd.grad(out[:, 1].sum(), x)[0].flatten(1), Maite(True).w[:, 1].expand(5, 12))


def test_an_answer_for_each_input_is_wanted():
    class Short(Maite):
        def __call__(self, batch):
            return super().__call__(batch)[:1]

    with pytest.raises(SubjectError, match="returned 1 answers for 2 inputs; return one for each"):
        doors.of(Short(True)).model(torch.zeros(2, 3, 2, 2))


DICTS = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x):
        return {"logits": self.net(x), "features": x * 2}

class One(Two):
    def forward(self, x):
        return {"logits": self.net(x)}

class Pair(Two):
    def forward(self, x):
        return self.net(x), x

class Words(Two):
    def forward(self, x):
        return "cat"

def two():
    torch.manual_seed(0)
    return Two().eval()

def one():
    torch.manual_seed(0)
    return One().eval()

def pair():
    torch.manual_seed(0)
    return Pair().eval()

def words():
    return Words().eval()

def plain():
    torch.manual_seed(0)
    return Two().net
"""


@pytest.fixture
def dicts(tmp_path):
    (tmp_path / "subject.py").write_text(DICTS)
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(0).random((6, 4)).astype(np.float32), y=np.arange(6) % 3)

    def opened(function: str, output: str | None = None):
        return open_subject(Source(f"{tmp_path}/subject.py:{function}", str(tmp_path / "rows.npz"), output=output))

    return opened


def test_of_several_outputs_one_is_chosen_by_name(dicts):
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))
    expected = dicts("plain").predict(x)
    for function, output in (("two", "logits"), ("one", None), ("pair", "0"), ("one", "logits")):
        subject = dicts(function, output)
        assert_close(subject.predict(x), expected)
        assert subject.differentiable
    with pytest.raises(AssayError, match=r"has the outputs logits \(1 x 3\), features \(1 x 4\); choose .* --output"):
        dicts("two")
    with pytest.raises(AssayError, match=r"has no output 'logit' but logits \(1 x 3\), features"):
        dicts("two", "logit")
    with pytest.raises(AssayError, match="has one output, so --output logits does not apply"):
        dicts("plain", "logits")
    with pytest.raises(AssayError, match="returned str, not a tensor"):
        dicts("words")


def test_an_option_of_another_door_is_refused(tmp_path):
    (tmp_path / "trees.txt").write_text("tree\n")
    with pytest.raises(AssayError, match=r"--output does not apply to 'trees.txt'; leave it out. It is for subject.py"):
        open_subject(Source(str(tmp_path / "trees.txt"), output="x"))
    with pytest.raises(AssayError, match=r"--output does not apply"):
        open_subject(Source("wine-mlp", output="x"))
