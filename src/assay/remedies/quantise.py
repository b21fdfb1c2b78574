"""Store the weights as integers of 8 or 4 bits, and round what goes into the layers to 8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from assay.errors import AssayError
from assay.methods.compress.quantise import Bits, InIntegers, layers, left_in_floats, quantise, seen_ranges
from assay.probe import undisturbed
from assay.remedies._shipping import Shipping, calibration, left_by_calibration, no_calibration

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

Ranges = dict[str, tuple[float, float]] | Literal["dynamic"] | None


@dataclass(frozen=True)
class Quantise(Shipping):
    """Stores its weights in 8 bits (a quarter of the size) or 4 (a seventh); no training, and no faster in torch.

    A scale for each output channel, or for each `group` of weights of one; of 4 bits that is 32. `activations` "static"
    also rounds what goes into each layer to 8 bits, by what `inputs` training inputs (or those of the split
    `calibrate_on`; without any, of a fixed half of 'test', which leaves the data) put there; "dynamic" by each input's
    own range.

    An attacker gets the true gradient where activations are floats, and the straight-through one where they are
    rounded, which is the one that finds attacks.
    """

    weights: Literal["8", "4"] = "8"
    activations: Literal["none", "static", "dynamic"] = "none"
    group: int | None = None
    inputs: int = 256
    calibrate_on: str = ""

    source: ClassVar[str] = "Jacob et al., CVPR 2018, arXiv:1712.05877; Krishnamoorthi 2018, arXiv:1806.08342"

    def __post_init__(self) -> None:
        for name in ("inputs", "group"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise AssayError(f"{name}={value} of 'quantise' is none; give 1 or more, such as 32.")

    @property
    def bits(self) -> Bits:
        return 8 if self.weights == "8" else 4

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and not layers(subject.model):
            return f"{type(subject.model).__name__} has no linear layer, convolution or embedding in torch"
        needs_data = reason is None and self.activations == "static"
        return no_calibration(subject, self.calibrate_on) if needs_data else reason

    def frame(self, subject: Subject) -> Subject:
        ranges: Ranges = None if self.activations == "none" else "dynamic" if self.activations == "dynamic" else {}
        return self._cured(subject, ranges)

    def apply(self, subject: Subject, run: Run) -> Subject:
        if self.activations != "static":
            return self.frame(subject)
        with undisturbed(subject.model, run):
            ranges = seen_ranges(subject.model, calibration(subject, self.calibrate_on, self.inputs, run.device))
        return self._cured(subject, ranges)

    def _cured(self, subject: Subject, ranges: Ranges) -> Subject:
        cured = subject.cured(quantise(subject.model, self.bits, group=self.group, ranges=ranges), self.name())
        return left_by_calibration(subject, cured, self.calibrate_on) if self.activations == "static" else cured

    def beside(self, subject: Subject, cured: Subject, run: Run) -> tuple[str, ...]:
        floats = sum(count for _, count in left_in_floats(cured.model))
        every = floats + sum(layer.kept.size for layer in layers(cured.model).values() if isinstance(layer, InIntegers))
        said = (
            f"{every - floats:,} of its {every:,} parameters are integers of {self.bits} bits; the others (biases, "
            "normalisations, what is in no such layer) stay floats. torch multiplies them out at every pass: smaller, "
            "and no faster."
        )
        return (*super().beside(subject, cured, run), said)


SHELVED = Quantise
