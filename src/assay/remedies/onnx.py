"""Ship the network as an ONNX graph, run by onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.compress.export import to_onnx
from assay.nn.onnx_net import OnnxNet
from assay.remedies._shipping import Shipping, example, floats, of_one_answer

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Onnx(Shipping):
    """Ships it as an ONNX graph that onnxruntime's optimiser went through: the same answers up to rounding.

    Answers are onnxruntime's on the CPU, and slopes those of the torch network that was exported, which are the same
    function: attacks and maps see what they saw before.
    """

    source: ClassVar[str] = "the ONNX standard; onnxruntime's graph optimiser, at the level that fits every machine"

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or of_one_answer(subject)

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(OnnxNet(floats(subject)), self.name())

    def apply(self, subject: Subject, run: Run) -> Subject:
        cured = self.frame(subject)
        assert isinstance(cured.model, OnnxNet)  # frame
        cured.model.set(to_onnx(cured.model.model, example(subject)))
        return cured

    def shipped(self, cured: Subject) -> int:
        assert isinstance(cured.model, OnnxNet)  # frame
        return len(cured.model.file())


SHELVED = Onnx
