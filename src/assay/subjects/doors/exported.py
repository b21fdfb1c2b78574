"""A model out of a .pt2 file (torch.export), with its gradients."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from assay.errors import AssayError, SubjectError
from assay.subjects.doors.intake import Intake
from assay.subjects.doors.opened import Opened
from assay.subjects.doors.untrusted_pt2 import disarmed

if TYPE_CHECKING:
    from assay.subjects import Source


class ExportedModel(nn.Module):
    """An exported program as an ordinary module: it takes batches of any length, and changing its mode does nothing.

    `state_digest` is a hash of the file. A fingerprint of the model covers the program by it, and not only the weights.
    """

    def __init__(self, program: ExportedProgram, intake: Intake, dtype: torch.dtype, digest: bytes) -> None:
        super().__init__()
        self.program = program.module()
        self.intake = intake
        self.dtype = dtype
        self.state_digest = digest.hex()

    def train(self, mode: bool = True) -> Self:
        """Nothing changes: what the model does was fixed by the export, and the exported module refuses to be asked."""
        return self

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        return self.intake.feed(self._answer, x)

    def _answer(self, x: Tensor) -> Tensor:
        out = self.program(x.to(self.dtype))
        if not isinstance(out, Tensor):
            raise SubjectError(f"{self.intake.file} returned {type(out).__name__}; export a model that returns logits.")
        return out.to(x.dtype)


def open(path: Path, source: Source) -> Opened:
    """The program in the file as a model."""
    model = open_exported(path, source.allow_pickle)
    return Opened(model=model, name=path.name, about=f"{path.name}, a torch.export program.", shape=model.intake.shape)


def open_exported(path: Path, allow_pickle: bool) -> ExportedModel:
    """The program in the file; what `torch.export.load` would unpickle or evaluate is refused unless `allow_pickle`."""
    copy = None if allow_pickle else disarmed(path)
    try:
        if copy is None:
            program = torch.export.load(path)
        else:
            # Not torch.export.load, which logs a traceback and then tries the format that is all pickles.
            from torch.export.pt2_archive._package import load_pt2

            with warnings.catch_warnings():
                # Some releases map weights read-only and warn of it: nobody writes to them.
                warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
                program = load_pt2(copy).exported_programs["model"]
        shape, dtype = _input(program)
        _refuse_training(program, path)
        fewest, most = _batches(program, shape[0])
        intake = Intake(path.name, tuple(s if isinstance(s, int) else None for s in shape[1:]), fewest, most)
        return ExportedModel(program, intake, dtype, hashlib.blake2b(path.read_bytes(), digest_size=16).digest())
    except AssayError:
        raise
    except Exception as e:  # torch's reader raises whatever its thousands of lines meet
        what = str(e).strip().splitlines()
        raise AssayError(
            f"{str(path)!r} cannot be loaded by torch {torch.__version__} ({type(e).__name__}: "
            f"{what[0] if what else 'no message'}); export model.cpu().eval() again with this version of torch."
        ) from e


def _input(program: ExportedProgram) -> tuple[tuple[int | torch.SymInt, ...], torch.dtype]:
    """Shape and type of the one input, as they were when the program was exported."""
    (name,) = program.graph_signature.user_inputs
    value = next(n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.name == name)
    return tuple(value.shape), value.dtype


def _batches(program: ExportedProgram, length: int | torch.SymInt) -> tuple[int, int | None]:
    """The fewest and the most inputs that the program takes at once."""
    if isinstance(length, int):
        return length, length
    limits = program.range_constraints.get(length.node.expr)
    if limits is None:
        return 1, None
    return max(1, int(limits.lower)), int(limits.upper) if limits.upper.is_Integer else None


def _refuse_training(program: ExportedProgram, path: Path) -> None:
    """Dropout and batch statistics that were exported in training mode stay on for ever; no answer is the model's."""
    for graph in (m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)):
        for node in graph.nodes:
            schema = getattr(node.target, "_schema", None)
            if schema is None:
                continue
            given = {a.name: v for a, v in zip(schema.arguments, node.args, strict=False)} | dict(node.kwargs)
            drops = "dropout" in schema.name and given.get("train") is True and given.get("p") != 0
            if drops or (given.get("training") is True and given.get("running_mean") is not None):
                raise AssayError(
                    f"{str(path)!r} was exported in training mode ({schema.name} is on); export model.eval() instead."
                )
