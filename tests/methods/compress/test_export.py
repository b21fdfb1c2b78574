"""Networks as programs of torch.export: how many inputs there are is followed, not fixed."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay import shelf
from assay.errors import AssayError
from assay.methods.compress.export import reason, to_onnx, to_program
from assay.nn.batch_ensemble import as_batch_ensemble
from assay.nn.local_norm import LocalNorm, LocalNormed
from assay.nn.read_as import OneScore
from assay.nn.sape import RelationAttention

X = torch.rand(9, 8, 3, 3, generator=torch.Generator().manual_seed(0))


def forecaster() -> tuple[nn.Module, Tensor]:
    subject = shelf.load("subjects", "seasons-forecaster").build()
    return subject.model, torch.as_tensor(subject.data["test"].take(np.arange(9))[0])


def small(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 4, 2), *between, nn.Flatten(), nn.Linear(16, 3))


NETS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "seasons-forecaster": forecaster,
    "batch-ensemble": lambda: (as_batch_ensemble(small(), 3, torch.Generator().manual_seed(0)), X),
    "localnorm": lambda: (LocalNormed(small(LocalNorm(4, 2)), 2, "single"), X),
    "one-score": lambda: (OneScore(nn.Sequential(nn.Flatten(), nn.Linear(72, 1)), probability=False), X),
    "sape": lambda: (RelationAttention(8, (3, 3)), X),
}


class Picky(nn.Module):
    """Takes any number of inputs but one."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.jit.is_tracing() and not torch.compiler.is_exporting() and len(x) == 1:
            raise ValueError("one is too few")
        out: Tensor = self.line(x)
        return out


@pytest.mark.parametrize("export", [to_onnx, to_program])
def test_a_network_that_fails_by_itself_is_told_of_in_one_line(export: Callable[[nn.Module, Tensor], bytes]) -> None:
    if export is to_onnx:
        pytest.importorskip("onnx")
    with pytest.raises(AssayError, match=r"Picky does not export .* \(it fails on 1 inputs: one is too few") as told:
        export(Picky(), torch.rand(4, 3))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", NETS)
def test_a_program_answers_as_many_inputs_as_it_is_given(name: str) -> None:
    model, x = NETS[name]()
    model.eval()
    again = torch.export.load(io.BytesIO(to_program(model, x[:4]))).module()
    with torch.no_grad():
        for many in (1, 2, 9):
            assert_close(again(x[:many]), model(x[:many]), rtol=1e-4, atol=1e-5)


def test_a_reason_is_one_line_without_colours_and_names_the_operator() -> None:
    raised = RuntimeError(
        "Failed to convert the exported program to an ONNX model. \x1b[96mThis is step 3/3\x1b[0m of exporting it. "
        "See torch.onnx.export\nmore"
    )
    raised.__cause__ = RuntimeError("No decomposition of aten.special_i0e.default")
    said = reason(raised)
    assert said == "the operator aten.special_i0e: Failed to convert the exported program to an ONNX model."
