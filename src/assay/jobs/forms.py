"""The forms that a network ships in: which remedy makes each, and which file it is written to.

A file stands alone: Assay's own doors open it again without the code of the network (`assay audit model.onnx`, `assay
audit model.pt2`), and so does whatever else reads ONNX or programs of torch.export.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay import shelf, store
from assay.errors import AssayError
from assay.probe import configure

if TYPE_CHECKING:
    from assay.remedy import Remedy
    from assay.subject import Subject

Suffix = Literal[".onnx", ".pt2"]


@dataclass(frozen=True)
class Form:
    """One way to ship: the remedy's name on its shelf, its settings, and the suffix of the file."""

    name: str
    says: str
    remedy: str
    suffix: Suffix
    settings: Mapping[str, Any] = field(default_factory=dict)

    def made_by(self, settings: Mapping[str, Any] | None = None) -> Remedy:
        """The remedy that makes it, with further settings of the user's."""
        kind: type[Remedy] = shelf.load("remedies", self.remedy)
        return configure(kind, {**self.settings, **(settings or {})})


FORMS: Mapping[str, Form] = {
    form.name: form
    for form in (
        Form("onnx", "an ONNX graph, in floats", "onnx", ".onnx"),
        Form("onnx-int8", "an ONNX graph with int8 weights and activations, calibrated on training inputs",
             "onnx-int8", ".onnx"),
        Form("onnx-int8-dynamic", "an ONNX graph with int8 weights, activations scaled at every pass",
             "onnx-int8", ".onnx", {"activations": "dynamic"}),
        Form("int8", "a torch program with int8 weights", "quantise", ".pt2", {"weights": "8"}),
        Form("int8-activations", "a torch program with int8 weights and activations, calibrated on training inputs",
             "quantise", ".pt2", {"weights": "8", "activations": "static"}),
        Form("int4", "a torch program with 4-bit weights in groups of 32", "quantise", ".pt2", {"weights": "4"}),
        Form("float16", "a torch program in float16", "half-precision", ".pt2", {"to": "float16"}),
        Form("bfloat16", "a torch program in bfloat16", "half-precision", ".pt2", {"to": "bfloat16"}),
        Form("compiled", "a plain torch program; its times are those after torch.compile, which its user calls",
             "compiled", ".pt2"),
    )
}  # fmt: skip


def write(subject: Subject, path: Path) -> int:
    """The subject's network as a file that stands alone; says how many bytes. What is there already is replaced.

    An .onnx file of a network that answers through one is that very file; any other network is exported.
    """
    from assay.methods.compress.export import to_onnx, to_program
    from assay.nn.compiled import Compiled
    from assay.nn.onnx_net import OnnxNet
    from assay.remedies._shipping import example

    # A compiled pass is of this process and no file holds it: the plain program is written.
    model = subject.model.model if isinstance(subject.model, Compiled) else subject.model
    if path.suffix == ".onnx":
        content = model.file() if isinstance(model, OnnxNet) else to_onnx(model, example(subject))
    elif path.suffix == ".pt2" and isinstance(model, OnnxNet):
        raise AssayError(f"{subject.name!r} is an ONNX graph and no torch program; end {path.name!r} in .onnx.")
    elif path.suffix == ".pt2":
        content = to_program(model, example(subject))
    else:
        raise AssayError(f"{path.name!r} ends in none of .onnx and .pt2; end it in one of them.")
    store.write_atomically(path, content)
    return len(content)
