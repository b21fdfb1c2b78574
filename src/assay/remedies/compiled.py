"""Let torch.compile make the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.errors import AssayError
from assay.methods.compress.export import reason
from assay.nn.compiled import Backend, Compiled
from assay.remedies._shipping import Shipping, example, floats

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class CompiledNet(Shipping):
    """Compiles its forward pass: the same weights, and the same answers up to the order in which sums are taken.

    The file that ships is the plain program: whoever loads it calls torch.compile, and the times told are those after
    that. Slopes are those of the network as it was. `backend` "aot-eager" goes through torch's compiler and runs its
    own kernels, where there is no C++ compiler.
    """

    backend: Backend = "inductor"

    source: ClassVar[str] = "Ansel et al., ASPLOS 2024 (torch.compile)"

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(Compiled(floats(subject), self.backend), self.name())

    def apply(self, subject: Subject, run: Run) -> Subject:
        cured = self.frame(subject)
        cured.model.to(run.device)
        try:
            cured.predict(example(subject).to(run.device))
        except Exception as e:  # the compiler raises whatever it meets
            raise AssayError(
                f"{type(subject.model).__name__} does not compile ({reason(e)}); --set backend=aot-eager does without "
                "a C++ compiler, or ship it as onnx."
            ) from e
        return cured

    def beside(self, subject: Subject, cured: Subject, run: Run) -> tuple[str, ...]:
        said = f"The time is that after torch.compile ({self.backend}); a file of it is the plain program, uncompiled."
        return (*super().beside(subject, cured, run), said)


SHELVED = CompiledNet
