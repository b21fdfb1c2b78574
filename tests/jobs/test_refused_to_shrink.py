"""What cannot be made smaller is told in one line, with what can be done, and the original stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.jobs.ship import ship
from assay.remedies.onnx_int8 import OnnxInt8
from assay.run import Run
from assay.subject import Subject


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3))


class Mixes(nn.Sequential):
    """What comes between needs all channels at once."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(9, 6), nn.LayerNorm(6), nn.Linear(6, 3))


class Decides(nn.Module):
    """A way that hangs on the numbers: no graph holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(9, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        out: Tensor = self.head(h if h.sum() > 0 else -h)
        return out


class Bare(nn.Module):
    """Weights, and no operator that onnxruntime has in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(9))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x.flatten(1) / self.scale)


def subject_of(net: nn.Module) -> Subject:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(80, 1, 3, 3, generator=draw), torch.arange(80) % 3
    return Subject.classifier(net.eval(), {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}, name="few")


def cured(remedy: str, **settings: str) -> Callable[[Subject, Path], object]:
    return lambda subject, out: cure(remedy, subject, settings=settings, probes=["accuracy"], out=out, control=False)


def shipped(form: str, **given: Any) -> Callable[[Subject, Path], object]:
    return lambda subject, out: ship(subject, form, probes=["accuracy"], inputs=40, out=out, **given)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("make", "ask", "says"),
    [
        (
            Mixes,
            cured("prune"),
            r"No channel .* cut: '1' must keep its own, module '2' reads them .*; put at least one",
        ),
        (Decides, cured("gator"), r"cannot read the forward pass of Decides .*decisions"),
        (plain, cured("prune", price="flops=0.001"), r"flops=0.001 cannot be met: .* ask for 0\.\d+ or more"),
        (plain, cured("gator", price="flops=0.001"), r"cannot be met: .*; ask for more than that"),
        (plain, cured("bfrifp", price="flops=0.001", lambda_e="4"), r"flops=0.001 cannot be met: .* ask for 0\.\d+"),
        (plain, cured("blended-pruning", price="flops=0.001"), r"flops=0.001 cannot be met: .* ask for 0\.\d+ or more"),
        (plain, cured("prune", criterion="bn-gamma"), r"bn-gamma reads a batch normalisation, and none follows '1'"),
        (plain, cured("slimming"), r"needs convolutions or linear layers with batch normalisation"),
        (normed, cured("slimming", price="flops=0.001"), r"The price flops=0.001 cannot be met: .*; ask for more"),
        (normed, cured("slimming", epochs="2"), r"epochs=2 cannot be divided among 2 rounds"),
        (plain, cured("bfrifp", epochs="1"), r"epochs=1 end before all filters have faded"),
        (plain, cured("blended-pruning", criteria="bn-beta,l1,l2"), r"bn-beta reads .* and none follows '1'"),
        (plain, cured("blended-pruning", clusters="9"), r"The 8 criteria .* cannot be put into clusters=9"),
        (Mixes, shipped("prune"), r"'few' cannot be shipped as prune: No channel .* '1' must keep its own"),
        (plain, shipped("gator", settings={"price": "flops=0.001"}), r"flops=0.001 cannot be met: .*; ask for more"),
        (Bare, shipped("onnx-int8"), r"No operator .* integer form \(it has 1 Div, 1 Sin\).*; ship it as onnx"),
        (Bare, shipped("onnx-int8-dynamic"), r"No operator .* integer form \(it has 1 Div, 1 Sin\)"),
        (plain, shipped("onnx", limits=["everyday=1pt"]), r"is on everyday-change, which is not asked"),
    ],
    ids=[
        *("a-module-without-a-rule", "a-forward-pass-that-decides", "price-prune", "price-gator", "price-bfrifp"),
        *(
            "price-blended",
            "score-of-norms",
            "slimming-without-norms",
            "price-slimming",
            "slimming-too-short",
            "bfrifp-too-short",
            "blend-of-norms",
            "blend-of-clusters",
            "ship-without-a-rule",
            "ship-price",
            "onnx-static",
            "onnx-dynamic",
            "limit-not-asked",
        ),
    ],
)
def test_it_is_told_in_one_line_and_the_original_stays(
    make: Callable[[], nn.Module], ask: Callable[[Subject, Path], object], says: str, tmp_path: Path
) -> None:
    if "integer form" in says or "not asked" in says:
        pytest.importorskip("onnxruntime")
    subject = subject_of(make())
    before, state = subject.fingerprint(), {n: t.clone() for n, t in subject.model.state_dict().items()}
    with pytest.raises(AssayError, match=says) as told:
        ask(subject, tmp_path)
    assert "\n" not in str(told.value)
    assert subject.fingerprint() == before
    assert all(torch.equal(t, state[n]) for n, t in subject.model.state_dict().items())
    assert not subject.model.training
    assert all(p.requires_grad for p in subject.model.parameters())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in subject.model.modules())
    left = [path.relative_to(tmp_path) for path in tmp_path.rglob("*")]  # the audit before it, at most
    assert "integer form" in says or not left  # what could be known was told before the audit
    assert not [path for path in left if path.suffix in (".onnx", ".pt2") or path.parts[0].startswith(("cure", "ship"))]


class Waves(nn.Module):
    """Two products with a sine between them, which onnxruntime has in floats alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(9, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.sin(self.first(x.flatten(1))))
        return out


class LooksUp(nn.Module):
    """Weights that are looked up, and no product."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.words((8 * x.flatten(1)).long())).sum(1)


def test_of_an_embedding_alone_it_is_told_that_nothing_is_computed_in_8_bits(run: Run) -> None:
    pytest.importorskip("onnxruntime")
    subject, remedy = subject_of(LooksUp()), OnnxInt8("dynamic")
    told = remedy.beside(subject, remedy.apply(subject, run), run)[-1]
    assert told.startswith("Weights that are looked up are kept in 8 bits; nothing is computed so. In floats, for ")
    assert "1 Sin" in told


@pytest.mark.parametrize("activations", ["dynamic", "static"])
def test_an_operator_without_an_integer_form_among_others_is_named_in_one_line(activations: Any, run: Run) -> None:
    pytest.importorskip("onnxruntime")
    subject = subject_of(Waves())
    before = subject.fingerprint()
    remedy = OnnxInt8(activations)
    told = remedy.beside(subject, remedy.apply(subject, run), run)[-1]
    whole = "2 MatMulInteger" if activations == "dynamic" else "2 Gemm"
    assert told.endswith(f": {whole}. In floats, for want of an integer form or of use: 1 Sin.")
    assert "\n" not in told
    assert subject.fingerprint() == before
