"""A model out of an .onnx file: answers by onnxruntime, and gradients where onnx2torch can rebuild it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay.data.plain_file import check_plain, open_plain, read_plain
from assay.errors import AssayError, MissingExtra
from assay.subjects.doors.intake import Intake
from assay.subjects.doors.onnx_weights import Damaged, locations
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source

DTYPES = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}
MOST_BYTES = 2**31 - 1  # protobuf has no longer messages
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


def open(path: Path, source: Source) -> Opened:
    """The model as onnxruntime runs it; once it has seen inputs, as torch does where that agrees."""
    model = open_onnx(path)

    def seen(x: Tensor) -> Opened:
        faithful, about = with_gradients(model, path, x)
        return Opened(model=faithful, name=path.name, about=about, shape=model.intake.shape)

    return Opened(model=model, name=path.name, shape=model.intake.shape, seen=seen)


def open_onnx(path: Path) -> OnnxModel:
    """An onnxruntime session on the CPU for a model with one input and one output."""
    # Builds for some systems send events to their maker from the moment of the import; no request is ever made here.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as e:
        raise MissingExtra.of("Reading .onnx", "onnxruntime", "onnx") from e
    content = read_plain(path, MOST_BYTES)
    weights = _weights(path, content)
    digest = hashlib.blake2b(content, digest_size=16)
    for file in filter(Path.exists, weights):
        with open_plain(file) as kept:
            while part := kept.read(2**20):
                digest.update(part)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors come as exceptions; they need not be printed as well
    options.add_session_config_entry("session.load_model_format", "ONNX")  # what was looked at, and no other reading
    try:
        # Where no other file belongs to it, the bytes that were looked at are the ones that are run.
        given = str(path) if weights else content
        session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
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
    return OnnxModel(session, Intake(path.name, tuple(shape), batch or 1, batch), digest.digest())


def with_gradients(onnx: OnnxModel, path: Path, x: Tensor) -> tuple[nn.Module, str]:
    """The model rebuilt by onnx2torch if that is here and gives the same answers, else as it was; and what to say.

    onnx2torch needs torchvision, which fails in several ways beside a torch that it was not built for.
    """
    try:
        from onnx2torch import convert
    except Exception:
        return onnx, f"{path.name} through onnxruntime: answers without gradients."
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


def _weights(path: Path, content: bytes) -> list[Path]:
    """The files beside the model that it keeps weights in; such a file elsewhere is refused."""
    try:
        names = sorted(locations(content))
    except Damaged as e:
        raise AssayError(f"{str(path)!r} cannot be read as ONNX ({e}); export the model again.") from e
    home = os.path.realpath(path.parent)
    found = []
    for name in names:
        weights = Path(os.path.realpath(path.parent / name.replace("\0", "\ufffd")))
        if not weights.is_relative_to(home):
            raise AssayError(
                f"{str(path)!r} keeps weights in {name!r:.200}, outside its folder; put them beside the model."
            )
        if weights.exists():  # if not, onnxruntime says so
            check_plain(weights)
        found.append(weights)
    return found


def _told(e: Exception) -> str:
    lines = str(e).strip().splitlines()
    return lines[0] if lines else type(e).__name__
