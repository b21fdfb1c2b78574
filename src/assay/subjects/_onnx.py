"""A model out of an .onnx file: answers by onnxruntime, and gradients where onnx2torch can rebuild it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.errors import AssayError, MissingExtra
from assay.subjects._intake import Intake

if TYPE_CHECKING:
    from assay.subject import Data

DTYPES = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}
AGREEMENT = 1e-4
"""How far, relative to the largest answer, a rebuilt model may be from onnxruntime: float32 rounds 1e-7 a step."""


class OnnxModel(nn.Module):
    """Answers of an onnxruntime session; no gradients. `state_digest` is a hash of the file, with all weights."""

    def __init__(self, session: Any, intake: Intake, digest: bytes) -> None:
        super().__init__()
        self.session = session
        self.intake = intake
        self.input = session.get_inputs()[0].name
        self.dtype = DTYPES[session.get_inputs()[0].type]
        self.state_digest = digest.hex()

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        return self.intake.feed(self._answer, x)

    def _answer(self, x: Tensor) -> Tensor:
        (out,) = self.session.run(None, {self.input: x.detach().cpu().to(self.dtype).numpy()})
        return torch.from_numpy(out).to(x)


class Rebuilt(nn.Module):
    """The same network as torch modules, for its gradients."""

    def __init__(self, model: nn.Module, answers: OnnxModel) -> None:
        super().__init__()
        self.model = model
        self.intake = answers.intake
        self.state_digest = answers.state_digest

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        return self.intake.feed(self.model, x)


def open_onnx(path: Path) -> OnnxModel:
    """An onnxruntime session on the CPU for a model with one input and one output."""
    try:
        import onnxruntime
    except ImportError as e:
        raise MissingExtra.of("Reading .onnx", "onnxruntime", "onnx") from e
    digest = _digest(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors come as exceptions; they need not be printed as well
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as e:  # its exceptions share no class but this one
        raise AssayError(f"{str(path)!r} cannot be read as ONNX ({_told(e)}); export the model again.") from e
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or len(outputs) != 1:
        raise AssayError(
            f"{str(path)!r} has inputs {[i.name for i in inputs]} and outputs {[o.name for o in outputs]}; export a "
            f"model that takes one batch and returns the logits alone."
        )
    if inputs[0].type not in DTYPES or not inputs[0].shape:
        raise AssayError(f"{str(path)!r} takes {inputs[0].type} of shape {inputs[0].shape}; export it for floats.")
    batch, *shape = (d if isinstance(d, int) else None for d in inputs[0].shape)
    return OnnxModel(session, Intake(path.name, tuple(shape), batch or 1, batch), digest)


def with_gradients(onnx: OnnxModel, path: Path, data: Data) -> tuple[nn.Module, str]:
    """The model rebuilt by onnx2torch if that is here and gives the same answers, else as it was; and what to say.

    onnx2torch needs torchvision, which fails in several ways beside a torch that it was not built for.
    """
    try:
        from onnx2torch import convert
    except Exception:
        return onnx, f"{path.name} through onnxruntime: answers without gradients."
    x, _ = data.take(np.arange(min(4, len(data))))
    try:
        rebuilt = Rebuilt(convert(str(path)).eval(), onnx)
        with torch.no_grad():
            gap, scale = float((rebuilt(x) - onnx(x)).abs().max()), float(onnx(x).abs().max())
    except AssayError:
        raise
    except Exception as e:  # an operator that onnx2torch lacks, or a shape that it reads otherwise
        return onnx, f"{path.name} through onnxruntime: answers without gradients; onnx2torch failed ({_told(e)})."
    if not gap <= AGREEMENT * max(scale, 1.0):  # a NaN compares false, and is refused too
        return onnx, (
            f"{path.name} through onnxruntime: answers without gradients; those of onnx2torch's copy "
            f"differ by {gap:.2g}."
        )
    return rebuilt, f"{path.name} rebuilt by onnx2torch, with answers within {gap:.1e} of onnxruntime's."


def _digest(path: Path) -> bytes:
    """A hash of the file and of the weights that it keeps in files beside it; such a file elsewhere is refused."""
    content = path.read_bytes()
    digest = hashlib.blake2b(content, digest_size=16)
    for name in sorted(_locations(content)):
        weights = (path.parent / name).resolve()
        if not weights.is_relative_to(path.parent.resolve()):
            raise AssayError(f"{str(path)!r} keeps weights in {name!r}, outside its folder; put them beside the model.")
        if weights.is_file():
            digest.update(weights.read_bytes())
    return digest.digest()


def _locations(content: bytes) -> set[str]:
    """Names of the files that hold a model's weights: in protobuf, field 1 is `location` and field 2 the name.

    Read from the bytes because onnxruntime does not tell, and the onnx package need not be here.
    """
    found = set()
    # The length of the name comes before it, seven bits a byte, the lowest first; two bytes are enough for any path.
    for match in re.finditer(rb"\x0a\x08location\x12([\x80-\xff]?)([\x00-\x7f])", content):
        more, last = match.groups()
        length = (more[0] - 128) + (last[0] << 7) if more else last[0]
        found.add(content[match.end() : match.end() + length].decode("utf-8", "replace"))
    return found


def _told(e: Exception) -> str:
    lines = str(e).strip().splitlines()
    return lines[0] if lines else type(e).__name__
