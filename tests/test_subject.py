from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay.errors import AssayError, SubjectError
from assay.subject import InputSpace, Subject
from assay.tasks import Classification

X = np.random.default_rng(0).random((12, 1, 8, 8)).astype(np.float32)
Y = np.arange(12) % 3


def net(classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


class Answers(nn.Module):
    """Returns whatever it is told to, for bad-input tests."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer(x)


def test_data_may_be_a_pair_a_dataset_a_path_or_a_mapping(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=Y)
    dataset = TensorDataset(torch.tensor(X), torch.tensor(Y))
    model = net()
    for data in (
        (X, Y),
        (torch.tensor(X), torch.tensor(Y)),
        dataset,
        tmp_path / "d.npz",
        {"test": (X, Y), "train": dataset},
    ):
        subject = Subject.classifier(model, data)
        assert subject.task == Classification(("0", "1", "2"))
        assert subject.inputs == InputSpace((1, 8, 8), 0.0, 1.0)
        x, y = subject.data["test"].take(np.array([3, 1]))
        assert torch.equal(x, torch.tensor(X[[3, 1]]))
        assert y.tolist() == [0, 1]


def test_eight_bit_inputs_become_fractions():
    subject = Subject.classifier(net(), ((X * 255).astype(np.uint8), Y))
    assert float(subject.data["test"].take(np.arange(12))[0].max()) <= 1.0


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        (lambda x: x, (X, Y), "wants a torch.nn.Module, got function"),
        (net(), {"train": (X, Y)}, r"no split 'test', only \['train'\]"),
        (net(), (X[:0], Y[:0]), "'test' is empty"),
        (net(), (X, Y[:5]), r"Labels have shape \(5,\) for 12 inputs"),
        (net(), (X, Y + 1), r"In 'test' label 3 of input 2 is outside 0..2 for 3 classes"),
        (net(), (X, Y.astype(float)), "dtype float64; give class indices"),
        (net(), (X * 255, Y), r"has the value 2\d\d\.?\d* outside the bounds \[0, 1\]; scale the data"),
        (net(), 7, "The data of 'test' is a int; give a pair"),
        (nn.Linear(3, 3), (X, Y), "The model raised RuntimeError on an input of shape .1, 1, 8, 8."),
        (Answers(lambda x: [1]), (X, Y), "The model returned list, not a tensor"),
        (Answers(lambda x: torch.full((len(x), 3), torch.nan)), (X, Y), "NaN or infinity for input 0"),
        (
            Answers(lambda x: torch.tensor([0, 1, 2, -torch.inf, -torch.inf]).repeat(len(x), 1)),
            (X, Y),
            "returned minus infinity for class 3, 4, whatever it was shown; leave out classes that are switched off",
        ),
        (Answers(lambda x: torch.tensor([0, torch.nan, 2, -torch.inf]).repeat(len(x), 1)), (X, Y), "NaN or infinity"),
        (Answers(lambda x: torch.full((len(x), 3), -torch.inf)), (X, Y), "NaN or infinity for input 0"),
        (Answers(lambda x: torch.zeros(len(x), 3, 2)), (X, Y), "returned 1 x 3 x 2 for one input: it gives rows"),
        (Answers(lambda x: torch.zeros(1, 3)), (X, Y), r"returned shape \(1, 3\) for 4 inputs"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(model, data, words):
    with pytest.raises(AssayError, match=words) as refused:
        Subject.classifier(model, data)
    assert "\n" not in str(refused.value)


def test_the_number_of_classes_must_be_the_models():
    with pytest.raises(SubjectError, match="has 3 outputs for 4 classes"):
        Subject.classifier(net(), (X, Y), classes=("a", "b", "c", "d"))


def test_normalisation_happens_inside():
    model = net()
    plain = Subject.classifier(model, (X, Y))
    inside = Subject.classifier(model, (X, Y), mean=(0.5,), std=(0.25,))
    x = torch.tensor(X)
    torch.testing.assert_close(inside.predict(x), plain.predict((x - 0.5) / 0.25))
    with pytest.raises(AssayError, match="--mean has 2 values for 1 channels"):
        Subject.classifier(model, (X, Y), mean=(0.1, 0.2))
    with pytest.raises(AssayError, match="--std must be positive"):
        Subject.classifier(model, (X, Y), std=(0.0,))


def test_a_random_model_answers_with_the_mean_of_its_draws():
    model = Answers(lambda x: torch.randn(len(x), 3))
    subject = Subject(
        name="r",
        model=model,
        task=Classification(("a", "b", "c")),
        inputs=InputSpace((1, 8, 8)),
        data=Subject.classifier(net(), (X, Y)).data,
        draws=5,
    )
    torch.manual_seed(0)
    draws = torch.stack([torch.randn(12, 3).softmax(-1) for _ in range(5)]).mean(0)
    torch.manual_seed(0)
    torch.testing.assert_close(subject.predict(torch.tensor(X)), draws.log())


def test_the_fingerprint_follows_weights_data_task_and_code():
    model = net()
    one = Subject.classifier(model, (X, Y))
    assert one.fingerprint() == Subject.classifier(model, (X.copy(), Y.copy())).fingerprint()
    others = [
        Subject.classifier(net(), (X, Y)),
        Subject.classifier(model, (X[:9], Y[:9])),
        replace(one, draws=2),
        Subject.classifier(model, (X, Y), bounds=(-1, 1)),
        Subject.classifier(model, (X, Y), classes=("a", "b", "c")),
    ]

    class Shifted(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + 1

    others.append(replace(one, model=Shifted(*model)))
    assert len({s.fingerprint() for s in [one, *others]}) == 7


def test_the_fingerprint_sees_a_flag_that_is_no_weight():
    class Signed(nn.Module):
        def __init__(self, sign):
            super().__init__()
            self.sign, self.inner = sign, nn.Linear(64, 3)
            nn.init.ones_(self.inner.weight)
            nn.init.zeros_(self.inner.bias)

        def forward(self, x):
            return self.sign * self.inner(x.flatten(1))

    one, other, same = (Subject.classifier(Signed(s), (X, Y)).fingerprint() for s in (1, -1, 1))
    assert one == same != other


def test_layers_are_guessed_and_can_be_overridden():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    assert Subject.classifier(model, (X, Y)).layers == {"last_conv": "1", "head": "3"}
    assert Subject.classifier(model, (X, Y), layers={"last_conv": "0"}).layers == {"last_conv": "0"}


def test_a_cured_subject_remembers_where_it_came_from():
    cured = Subject.classifier(net(), (X, Y), name="s").cured(net(), "sleep").cured(net(), "tea")
    assert cured.name == "s+sleep+tea"
    assert cured.origin == ("sleep", "tea")


def test_impossible_spaces_and_tasks_are_refused():
    with pytest.raises(AssayError, match="low < high, got 1 and 0"):
        InputSpace((3,), 1, 0)
    with pytest.raises(AssayError, match="at least 2 classes, got 1"):
        Classification(("only",))
