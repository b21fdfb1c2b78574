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


@dataclass(frozen=True, kw_only=True)
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
        Form(name="onnx", says="an ONNX graph, in floats", remedy="onnx", suffix=".onnx"),
        Form(
            name="onnx-int8",
            says="an ONNX graph with int8 weights and activations, calibrated on training inputs",
            remedy="onnx-int8",
            suffix=".onnx",
        ),
        Form(
            name="onnx-int8-dynamic",
            says="an ONNX graph with int8 weights, activations scaled at every pass",
            remedy="onnx-int8",
            suffix=".onnx",
            settings={"activations": "dynamic"},
        ),
        Form(
            name="int8",
            says="a torch program with int8 weights",
            remedy="quantise",
            suffix=".pt2",
            settings={"weights": "8"},
        ),
        Form(
            name="int8-activations",
            says="a torch program with int8 weights and activations, calibrated on training inputs",
            remedy="quantise",
            suffix=".pt2",
            settings={"weights": "8", "activations": "static"},
        ),
        Form(
            name="int4",
            says="a torch program with 4-bit weights in groups of 32",
            remedy="quantise",
            suffix=".pt2",
            settings={"weights": "4"},
        ),
        Form(
            name="float16",
            says="a torch program in float16",
            remedy="half-precision",
            suffix=".pt2",
            settings={"to": "float16"},
        ),
        Form(
            name="bfloat16",
            says="a torch program in bfloat16",
            remedy="half-precision",
            suffix=".pt2",
            settings={"to": "bfloat16"},
        ),
        Form(
            name="compiled",
            says="a plain torch program; its times are those after torch.compile, which its user calls",
            remedy="compiled",
            suffix=".pt2",
        ),
    )
}


def form(name: str) -> Form:
    """The form of this name."""
    if name not in FORMS:
        raise AssayError(f"There is no form {name!r} to ship in; give one of {', '.join(FORMS)}.")
    return FORMS[name]


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
