"""The forms that a network ships in: it answers nearly as before, the same each time, and the original stays."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.held_out import Part
from assay.errors import AssayError
from assay.jobs.forms import FORMS, write
from assay.remedies.compiled import CompiledNet
from assay.remedies.distillation import KnowledgeDistillation
from assay.remedies.half_precision import HalfPrecision
from assay.remedies.onnx import Onnx
from assay.remedies.onnx_int8 import OnnxInt8
from assay.remedies.quantise import Quantise
from assay.remedy import Remedy
from assay.run import Run
from assay.subject import Subject
from assay.subjects.doors import of

SHIPPED: list[tuple[Remedy, float]] = [  # with how far, in spreads of the logits, an answer may be off
    (Onnx(), 1e-5),
    (OnnxInt8(inputs=100), 0.15),
    (OnnxInt8("dynamic"), 0.15),
    (Quantise(), 0.05),
    (Quantise("8", "static"), 0.15),
    (Quantise("4", "dynamic", group=16), 0.8),
    (HalfPrecision("float16"), 0.01),
]
IDS = [f"{remedy.name()}-{i}" for i, (remedy, _) in enumerate(SHIPPED)]


@pytest.fixture(autouse=True)
def _extras(request: pytest.FixtureRequest) -> None:
    if "onnx" in request.node.name:
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")


def inputs(subject: Subject, count: int = 40) -> Tensor:
    return subject.data["test"].take(np.arange(count))[0]


@pytest.mark.parametrize(("remedy", "apart"), SHIPPED, ids=IDS)
def test_a_form_answers_nearly_as_before_and_the_same_each_time(
    remedy: Remedy, apart: float, digits: Subject, run: Run
) -> None:
    before, x = digits.fingerprint(), inputs(digits)
    assert remedy.why_not(digits) is None
    cured = remedy.apply(digits, run)
    assert digits.fingerprint() == before
    assert cured.origin == (remedy.name(),)
    said, was = cured.predict(x), digits.predict(x)
    assert 0 < float((said - was).abs().max()) <= apart * float(was.std()) or apart == 1e-5
    assert float((said - was).abs().max()) <= apart * float(was.std())
    assert cured.fingerprint() == remedy.apply(digits, run).fingerprint()  # it is known, and the same
    kept = remedy.frame(digits)
    kept.model.load_state_dict(cured.model.state_dict())
    assert torch.equal(kept.predict(x), said)
    given = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(cured.model(given).logsumexp(1).sum(), given)
    assert slope.isfinite().all()
    assert (slope.flatten(1).abs().amax(1) > 0).all()
    assert {"last_conv", "head"} <= set(cured.layers)
    (cost,) = {remedy.cost()}
    assert cost is not None
    assert cost.training == 0
    told, *further = remedy.beside(digits, cured, run)
    assert "bytes" in told
    assert "times as long" in told
    if isinstance(remedy, OnnxInt8):  # a layer normalisation between 8-bit values is computed in floats
        words = "Between 8-bit values, " if remedy.activations == "static" else "Computed in 8 bits: "
        assert further[-1].startswith(words)


def test_a_student_learns_and_is_smaller(digits: Subject, run: Run) -> None:
    remedy = KnowledgeDistillation(epochs=2, width=0.5)
    one, other = (remedy.apply(digits, run) for _ in range(2))
    assert one.fingerprint() == other.fingerprint()  # the same seed, the same small model
    assert one.model[0].out_channels == 4  # type: ignore[index,union-attr]
    x, y = digits.data["test"].take(np.arange(300))
    assert float((one.predict(x).argmax(1) == y).float().mean()) > 0.7
    frame = remedy.frame(digits)
    frame.model.load_state_dict(one.model.state_dict())
    assert_close(frame.predict(x), one.predict(x))
    control = remedy.control()
    assert control is not None
    assert control.frame(digits).model[0].out_channels == 4  # type: ignore[index,union-attr]
    assert control.settings() == {k: v for k, v in remedy.settings().items() if k not in ("temperature", "mix")}
    assert KnowledgeDistillation(student="fashion-cnn").frame(digits).predict(x[:2]).shape == (2, 10)
    with pytest.raises(AssayError, match=r"The network of 'wine-mlp' fails on inputs of shape \(1, 8, 8\); give a"):
        KnowledgeDistillation(student="wine-mlp").apply(digits, run)
    for settings in ({"width": 0.0}, {"mix": 2.0}, {"temperature": -1.0}):
        with pytest.raises(AssayError):
            KnowledgeDistillation(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("remedy", "suffix"), [(OnnxInt8("dynamic"), ".onnx"), (Quantise("4", "static"), ".pt2")], ids=["onnx", "program"]
)
def test_the_file_opens_again_and_answers_as_what_was_shipped(
    remedy: Remedy, suffix: str, digits: Subject, run: Run, tmp_path: Path
) -> None:
    cured, x = remedy.apply(digits, run), inputs(digits, 7)
    path = tmp_path / f"small{suffix}"
    assert write(cured, path) == path.stat().st_size
    opened = of(str(path)).model
    with torch.no_grad():
        assert_close(opened(x), cured.predict(x), atol=1e-5, rtol=1e-5)
        assert_close(opened(x[:1]), cured.predict(x[:1]), atol=1e-5, rtol=1e-5)
    if suffix == ".pt2":  # the slope through rounded activations outlives the file
        given = x.clone().requires_grad_()
        slopes = [torch.autograd.grad(each(given).logsumexp(1).sum(), given)[0] for each in (opened, cured.model)]
        assert_close(*slopes)
        assert str(Path(__file__).parent).encode() not in path.read_bytes()
        with pytest.raises(AssayError, match="ends in none of .onnx and .pt2"):
            write(cured, tmp_path / "small.bin")
    else:
        with pytest.raises(AssayError, match="is an ONNX graph and no torch program"):
            write(cured, tmp_path / "small.pt2")


def test_forms_are_made_by_remedies_that_there_are(digits: Subject) -> None:
    assert {"onnx", "onnx-int8", "onnx-int8-dynamic", "int8", "int4", "float16", "bfloat16", "compiled"} <= set(FORMS)
    for name, each in FORMS.items():
        remedy = each.made_by()
        assert each.name == name
        assert remedy.why_not(digits) is None
        assert remedy.name() == each.remedy
    assert FORMS["onnx-int8"].made_by({"inputs": "9"}).settings()["inputs"] == 9


class Odd(nn.Module):
    """Weights, and a step that 16 bits lack on the CPU; or answers beyond them."""

    def __init__(self, times: float = 1.0) -> None:
        super().__init__()
        self.layer, self.times = nn.Linear(64, 10), times

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        if self.times > 1:
            return out * self.times * self.times / self.times
        return out + torch.linalg.det(out[:, :4].reshape(-1, 2, 2)).unsqueeze(1)


class Brink(Odd):
    """A divisor that rounds to zero in 8 bits of precision."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out / (torch.ones_like(out) + 2**-10 - 1)


def test_what_cannot_ship_says_why_in_one_line(digits: Subject, run: Run) -> None:
    bare = replace(digits, model=nn.Sequential(nn.Flatten(), nn.Softmax(1)), layers={})
    untaught = replace(digits, data={"test": digits.data["test"]})
    for remedy in (Onnx(), OnnxInt8(), Quantise(), HalfPrecision(), CompiledNet()):
        assert "has none in torch" in (remedy.why_not(bare) or "")
    assert "means of 4 random ones" in (Onnx().why_not(replace(digits, draws=4)) or "")
    lone = replace(digits, data={"test": Part(digits.data["test"], np.arange(1))})
    for remedy in (OnnxInt8(), Quantise(activations="static")):
        assert remedy.why_not(untaught) is None
        said = remedy.why_not(lone) or ""
        assert "calibrates activations on inputs of 'train' or 'calibration' or 'validation', or on a half of" in said
        assert "has only 'test' (1); give such a split, or activations=dynamic, which needs none" in said
    missing = OnnxInt8(calibrate_on="held").why_not(untaught) or ""
    assert f"on inputs of 'held', and the subject has only 'test' ({len(digits.data['test']):,})" in missing
    for remedy in (OnnxInt8("dynamic"), OnnxInt8(calibrate_on="test"), Quantise(activations="dynamic")):
        assert remedy.why_not(untaught) is None
    for settings in ({"inputs": 0}, {"group": 0}):
        with pytest.raises(AssayError, match="=0 of 'quantise' is none"):
            Quantise(**settings)  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="inputs=0 leaves nothing to calibrate on"):
        OnnxInt8(inputs=0)
    loud = Odd()
    with torch.no_grad():
        loud.layer.weight[0, 0] = 1e6
    deaf = Odd()
    with torch.no_grad():
        deaf.layer.weight[0, 0] = 3.4e38
    to: Literal["float16", "bfloat16"]
    for model, to, words in (
        (Odd(), "float16", r"Odd does not run in float16 on cpu \("),
        (Odd(1e5), "float16", "In float16 its answers are not finite.* use bfloat16, or leave it in float32"),
        (loud, "float16", r"'layer.weight' holds 1e\+06, and float16 ends at 65,504; use bfloat16"),
        (deaf, "bfloat16", r"holds 3.4e\+38, and bfloat16 ends at 3.38953e\+38; leave it in float32"),
        (Brink(), "bfloat16", "In bfloat16 its answers are not finite.*zero; leave it in float32"),
    ):
        with pytest.raises(AssayError, match=words) as e:
            HalfPrecision(to).apply(replace(digits, model=model.eval(), layers={}), run)
        assert "\n" not in str(e.value)


def test_answers_are_compiled_and_what_a_compiled_pass_lacks_is_not(
    digits: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler itself takes half a minute; what stands in for it answers twice the numbers."""

    def doubled(model: nn.Module, **k: Any) -> Any:
        assert k == {"backend": "inductor", "dynamic": True}
        return lambda x: 2 * model(x)

    monkeypatch.setattr(torch, "compile", doubled)
    cured, x = CompiledNet().apply(digits, run), inputs(digits)
    said, was = cured.predict(x), digits.predict(x)
    assert_close(said, 2 * was)
    assert_close(copy.deepcopy(cured.model).requires_grad_(False)(x), said)
    assert cured.fingerprint() == CompiledNet().apply(digits, run).fingerprint()
    assert "the plain program, uncompiled" in CompiledNet().beside(digits, cured, run)[-1]
    assert "a plain torch program; its times are those after torch.compile" in FORMS["compiled"].says
    frozen = cured.model.requires_grad_(False)
    assert_close(frozen(x.clone().requires_grad_()), was)  # somebody wants a slope
    handle = frozen.get_submodule(cured.layers["last_conv"]).register_forward_hook(lambda *a: None)
    assert_close(frozen(x), was)  # somebody watches a layer
    handle.remove()
    assert_close(frozen(x), said)

    def without(*a: Any, **k: Any) -> None:
        raise RuntimeError("No working C++ compiler found.\nMore words.")

    monkeypatch.setattr(torch, "compile", without)
    with pytest.raises(AssayError, match=r"Sequential does not compile \(No working C\+\+ compiler found") as e:
        CompiledNet().apply(digits, run)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("remedy", [OnnxInt8(inputs=50), Quantise(activations="static", inputs=50)])
def test_without_a_split_for_it_half_of_test_is_calibrated_on_and_not_asked_about(
    remedy: OnnxInt8 | Quantise, digits: Subject, run: Run
) -> None:
    taken: list[int] = []

    class Watched(Part):
        def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
            taken.extend(indices.tolist())
            return super().take(indices)

    whole = Watched(digits.data["test"], np.arange(len(digits.data["test"])))
    given = replace(digits, data={"test": whole})
    small = remedy.apply(given, run)
    kept = small.data["test"]
    assert isinstance(kept, Part)
    assert 0 < len(kept) < len(whole)
    asked, seen = set(kept.rows.tolist()), set(taken)
    assert len(seen - asked) == 50
    assert seen & asked <= set(range(4))  # what it is exported with has no say in its scales
    assert "one half of 'test', which left the data" in small.about
    assert remedy.frame(given).data["test"].fingerprint() == kept.fingerprint()
    chosen = replace(remedy, calibrate_on="test").apply(given, run)
    assert len(chosen.data["test"]) == len(whole)
