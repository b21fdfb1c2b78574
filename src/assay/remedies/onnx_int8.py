"""Ship the network as an ONNX graph whose convolutions and products onnxruntime takes in 8 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import nn

from assay.errors import AssayError
from assay.methods.compress import onnx_integers
from assay.methods.compress.export import to_onnx
from assay.nn.onnx_net import OnnxNet
from assay.remedies._shipping import (
    Shipping,
    calibration,
    example,
    floats,
    left_by_calibration,
    no_calibration,
    of_one_answer,
)

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class OnnxInt8(Shipping):
    """Ships it as an ONNX graph with int8 weights and activations by onnxruntime's quantiser: a quarter of the size.

    `activations` "static" are scaled by what `inputs` training inputs (spread evenly, or those of the split
    `calibrate_on`) put between the layers, the logits too; what goes beyond is clipped. Without a split for it that is
    a fixed half of 'test', which leaves the data. "dynamic" takes the scale from the inputs at hand and needs no data;
    its graph takes one input at a time, for in a batch an answer would hang on its company. Operators without an
    integer form stay in floats, and a remark names them.

    An attacker gets the session's answers and the slopes of the network before it was quantised (straight through): the
    true slopes are zero almost everywhere, and believing those would hide attacks that work.
    """

    activations: Literal["static", "dynamic"] = "static"
    inputs: int = 256
    calibrate_on: str = ""

    source: ClassVar[str] = "Jacob et al., CVPR 2018, arXiv:1712.05877; onnxruntime's quantiser (QDQ, per channel)"

    def __post_init__(self) -> None:
        if self.inputs < 1:
            raise AssayError(f"inputs={self.inputs} leaves nothing to calibrate on; give 1 or more, such as 256.")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject) or of_one_answer(subject)
        needs_data = reason is None and self.activations == "static"
        return no_calibration(subject, self.calibrate_on) if needs_data else reason

    def frame(self, subject: Subject) -> Subject:
        cured = subject.cured(OnnxNet(floats(subject)), self.name())
        return left_by_calibration(subject, cured, self.calibrate_on) if self.activations == "static" else cured

    def apply(self, subject: Subject, run: Run) -> Subject:
        cured = self.frame(subject)
        assert isinstance(cured.model, OnnxNet)  # frame
        graph = self._graph(cured.model.model, subject)
        if self.activations == "dynamic":
            cured.model.set(onnx_integers.dynamic(graph))
            return cured
        cured.model.set(onnx_integers.static(graph, calibration(subject, self.calibrate_on, self.inputs, "cpu")))
        return cured

    def _graph(self, model: nn.Module, subject: Subject) -> bytes:
        return to_onnx(model, example(subject), alone=self.activations == "dynamic")

    def shipped(self, cured: Subject) -> int:
        assert isinstance(cured.model, OnnxNet)  # frame
        return len(cured.model.file())

    def beside(self, subject: Subject, cured: Subject, run: Run) -> tuple[str, ...]:
        assert isinstance(cured.model, OnnxNet)  # frame
        whole, rest = onnx_integers.kinds(self._graph(cured.model.model, cured), cured.model.file())
        named = [", ".join(f"{count} {name}" for name, count in sorted(each.items())) for each in (whole, rest)]
        static = "Between 8-bit values, and computed in integers where onnxruntime has a kernel for it"
        said = f"{static if self.activations == 'static' else 'Computed in 8 bits'}: {named[0]}."
        if not whole:
            said = "Weights that are looked up are kept in 8 bits; nothing is computed so."
        stays = f" In floats, for want of an integer form or of use: {named[1]}." if rest else ""
        return (*super().beside(subject, cured, run), said + stays)


SHELVED = OnnxInt8
