from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.finding import Finding, Measure, Witnesses
from assay.probe import Probe, configure, judge_witnesses, put
from assay.run import Budget

ONE = (Measure(name="m", value=1.0, better="higher"),)


@dataclass(frozen=True)
class Vandal(Probe):
    """Does everything that a probe must not do?"""

    source: ClassVar[str] = "none"
    radius: float = 8 / 255
    steps: int | None = None
    norm: Literal["linf", "l2"] = "linf"
    names: tuple[str, ...] = ("a",)
    deep: bool = False

    def ask(self, subject, run):
        model = subject.model
        assert not model.training
        assert not any(p.requires_grad for p in model.parameters())
        model.train()
        model(subject.data["test"].take(np.arange(50))[0])  # moves the BatchNorm statistics
        for p in model.parameters():
            p.data.add_(1.0)
            p.requires_grad_(True)
            p.grad = torch.ones_like(p)
        model[0].register_forward_hook(lambda *_: None)
        model[0].weight.requires_grad_(False)
        torch.rand(3)
        return Finding(says="", measures=ONE)


def state_of(model):
    return (
        {k: v.clone() for k, v in model.state_dict().items()},
        [m.training for m in model.modules()],
        [len(m._forward_hooks) for m in model.modules()],
        [p.requires_grad for p in model.parameters()],
        [p.grad for p in model.parameters()],
    )


def test_a_subject_is_left_bit_for_bit_as_it_was(digits, run):
    model = digits.model
    model[0].weight.requires_grad_(False)
    model[2].train()
    model[4].bias.grad = grad = torch.ones(10)
    handle = model[1].register_forward_hook(lambda *_: None)
    try:
        before, noise = state_of(model), torch.random.get_rng_state()
        answer = put(Vandal(), digits, run)
        assert answer.status == "asked", answer.why
        after = state_of(model)
        assert all(torch.equal(after[0][k], v) for k, v in before[0].items())
        assert after[1:4] == before[1:4]
        assert model[4].bias.grad is grad
        assert model[4].weight.grad is None
        assert torch.equal(torch.random.get_rng_state(), noise)
    finally:
        handle.remove()
        model.requires_grad_(True).eval()
        model[4].bias.grad = None


@pytest.fixture
def rounding():
    """Kernels of a GPU that round factors to ten bits, as torch lets cuDNN do."""
    kernels = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [kernel.allow_tf32 for kernel in kernels]
    for kernel in kernels:
        kernel.allow_tf32 = True
    yield kernels
    for kernel, was in zip(kernels, before, strict=True):
        kernel.allow_tf32 = was


def test_a_question_is_asked_in_whole_float32(digits, run, rounding):
    met = []

    @dataclass(frozen=True)
    class Looks(Probe):
        """How are numbers rounded?"""

        source: ClassVar[str] = "none"

        def ask(self, subject, run):
            met.extend(kernel.allow_tf32 for kernel in rounding)
            raise AssayError("enough")

    put(Looks(), digits, run)
    assert met == [False, False]
    assert [kernel.allow_tf32 for kernel in rounding] == [True, True]


def test_a_probe_stands_under_what_it_says_or_under_its_folder(digits, run, monkeypatch):
    assert Vandal.theme() == put(Vandal(), digits, run).theme == "other"
    monkeypatch.setattr(Vandal, "__module__", "theirs.attacked.vandal")
    assert Vandal.theme() == "attacked"
    monkeypatch.setattr(Vandal, "stands_under", "proved")
    assert Vandal.theme() == put(Vandal(), digits, run, key="k").theme == "proved"
    monkeypatch.setattr(Vandal, "stands_under", "proven")
    with pytest.raises(AssayError, match="'vandal' stands under 'proven', which is no theme; use one of right, sure"):
        Vandal.theme()


def test_a_probe_that_breaks_is_an_answer_that_says_why(digits, run):
    @dataclass(frozen=True)
    class Broken(Vandal):
        """?"""

        def ask(self, subject, run):
            subject.model.train()
            raise KeyError("gone")

    answer = put(Broken(), digits, run)
    assert (answer.status, answer.finding) == ("failed", None)
    assert "KeyError: 'gone'; --debug shows where" in answer.why
    assert not digits.model.training
    with pytest.raises(KeyError):
        put(Broken(), digits, replace(run, debug=True))


def test_a_probe_says_why_it_does_not_apply(digits, run):
    @dataclass(frozen=True)
    class Needy(Vandal):
        """?"""

        needs: ClassVar = ("gradients", "images", "train")

    assert Needy().why_not(digits) is None
    blind = put(Needy(), replace(digits, differentiable=False), run)
    assert (blind.status, blind.why) == ("does not apply", "it needs gradients, and this model gives answers only")
    assert "training data" in (Needy().why_not(replace(digits, data={"test": digits.data["test"]})) or "")
    flat = replace(digits, inputs=replace(digits.inputs, shape=(64,)))
    assert "it is for images, and an input here has shape (64,)" in (Needy().why_not(flat) or "")


def test_a_key_changes_with_whatever_changes_the_answer(run):
    keys = {
        Vandal().key("s", run),
        Vandal().key("t", run),
        Vandal(radius=0.1).key("s", run),
        Vandal().key("s", replace(run, seed=1)),
        Vandal().key("s", replace(run, budget=Budget("tiny", samples=9, steps=5, restarts=1))),
    }
    assert len(keys) == 5
    assert Vandal().key("s", run) == Vandal().key("s", run)


def test_settings_come_as_text_or_as_values():
    probe = configure(Vandal, {"radius": "8/255", "steps": "7", "norm": "l2", "names": "a,b", "deep": "true"})
    assert probe == Vandal(radius=8 / 255, steps=7, norm="l2", names=("a", "b"), deep=True)
    assert configure(Vandal, {"steps": "none", "radius": 1}) == Vandal(radius=1.0)
    assert configure(Vandal, {"names": ["x"]}) == Vandal(names=("x",))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("size", "1", "no setting 'size'; its settings: radius, steps, norm, names, deep"),
        ("radius", "big", "radius='big' of .* is not float"),
        ("radius", "1/0", "is not float"),
        ("steps", "2.5", "is not int or NoneType"),
        ("steps", "nan", "is not int or NoneType"),
        ("steps", "inf", "is not int or NoneType"),
        ("norm", "l7", "is not 'linf' | 'l2'"),
        ("deep", "perhaps", "is not bool"),
    ],
)
def test_a_setting_that_is_wrong_is_named(name, value, words):
    with pytest.raises(AssayError, match=words):
        configure(Vandal, {name: value})


def witnesses_for(subject, norm, radius, changed):
    x, y = subject.data["test"].take(np.arange(len(changed)))
    said = subject.predict(torch.as_tensor(changed)).argmax(1).numpy()
    return Witnesses(
        split="test",
        index=np.arange(len(changed)),
        clean=x.numpy(),
        changed=changed,
        label=y.numpy(),
        said=said,
        norm=(norm,) * len(changed),
        radius=np.full(len(changed), radius),
        how=("x",) * len(changed),
    )


def test_witnesses_are_judged_by_answer_box_and_ball(digits, run):
    class Constant(nn.Module):
        def forward(self, x):
            return torch.eye(10)[3].repeat(len(x), 1)

    always_three = replace(digits, model=Constant())
    x, y = digits.data["test"].take(np.arange(40))
    moved = (x + 0.01).clamp(0, 1).numpy()
    held, why = judge_witnesses(witnesses_for(always_three, "linf", 0.011, moved), always_three, run)
    assert (held == (y != 3).numpy()).all()
    assert "the model answers '3', which is right" in why[int((y == 3).nonzero()[0])]
    outside = moved.copy()
    outside[:, 0, 0, 0] = 1.1
    held, why = judge_witnesses(witnesses_for(always_three, "none", 0.0, outside), always_three, run)
    assert not held.any()
    assert "it leaves the box [0, 1]" in why[int((y != 3).nonzero()[0])]
    for norm, too_small in (("linf", 0.009), ("l2", 0.02), ("l1", 0.1), ("l0", 3)):
        held, why = judge_witnesses(witnesses_for(always_three, norm, too_small, moved), always_three, run)
        assert not held.any(), norm
        assert any(f"its {norm} distance" in w for w in why)


def test_a_witness_that_does_not_hold_is_left_out_with_an_alarm(digits, run):
    @dataclass(frozen=True)
    class Liar(Vandal):
        """?"""

        def ask(self, subject, run):
            x = subject.data["test"].take(np.arange(30))[0].numpy()
            return Finding(says="", measures=ONE, witnesses=witnesses_for(subject, "linf", 0.1, x))

    finding = put(Liar(), digits, run).finding
    wrong = int(
        (
            digits.predict(digits.data["test"].take(np.arange(30))[0]).argmax(1).numpy()
            != digits.data["test"].labels[:30]
        ).sum()
    )
    assert len(finding.witnesses) == wrong < 30
    assert f"{30 - wrong} of 30" in finding.alarms[0].says
    assert finding.alarms[0].doubts == ("m",)
