"""Store and compute in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from assay.errors import AssayError
from assay.methods.compress.export import reason
from assay.nn.in_dtype import InDtype
from assay.remedies._shipping import Shipping, example, floats

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class HalfPrecision(Shipping):
    """Stores and computes in 16 bits: half the size, and fast where the processor has them, else slow.

    `to` "float16" has 11 bits of precision and ends at 65,504, "bfloat16" has 8 and the range of float32. Gradients are
    those of the network in 16 bits: very small ones are rounded to zero in float16. A processor without such
    instructions may take a hundred times as long as in float32; what it takes here is measured.
    """

    to: Literal["float16", "bfloat16"] = "float16"

    source: ClassVar[str] = "Micikevicius et al., ICLR 2018, arXiv:1710.03740; Kalamkar et al. 2019, arXiv:1905.12322"

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(InDtype(floats(subject), DTYPES[self.to], tokens=subject.tokens), self.name())

    def apply(self, subject: Subject, run: Run) -> Subject:
        most = torch.finfo(DTYPES[self.to]).max
        instead = "use bfloat16, or leave it in float32" if self.to == "float16" else "leave it in float32"
        for name, value in subject.model.state_dict().items():
            if value.is_floating_point() and value.numel() and float(value.abs().max()) > most:
                raise AssayError(
                    f"{name!r} holds {float(value.abs().max()):.6g}, and {self.to} ends at {most:,.6g}; {instead}."
                )
        cured = self.frame(subject)
        cured.model.to(run.device)
        try:
            said = cured.predict(example(subject).to(run.device))
        except (RuntimeError, NotImplementedError) as e:  # an operator that has no such kernel on this device
            raise AssayError(
                f"{type(subject.model).__name__} does not run in {self.to} on {run.device} ({reason(e)}); use the "
                "other of bfloat16 and float16, or another device."
            ) from e
        if not bool(said.isfinite().all()) and bool(subject.predict(example(subject).to(run.device)).isfinite().all()):
            raise AssayError(
                f"In {self.to} its answers are not finite: a value inside is too large, or a divisor rounds to zero; "
                f"{instead}."
            )
        return cured


SHELVED = HalfPrecision
