"""A network as a file that runs without its code: an ONNX graph, or a program of torch.export.

Each is asked again before it is believed: what was written must answer as the network does, for batches of other
lengths than it was exported with too. A model whose Python decides by how many inputs there are is not caught by
tracing, nor by torch.export, and is caught here.
"""

from __future__ import annotations

import copy
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from assay.errors import AssayError, MissingExtra
from assay.nn.onnx_net import session

AGREEMENT = 1e-3
"""How far, relative to the largest answer, a graph may be from its network: float32 rounds 1e-7 a step, and sums are
taken in another order."""
MOST_BYTES = 2**31 - 1  # protobuf has no longer messages
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal
OPERATOR = re.compile(r"\b(?:aten|prims|torch(?!\.(?:onnx|export)\b)|quantized|torchvision)(?:::|\.)[a-z_0-9]+")


def to_onnx(model: nn.Module, x: Tensor, *, alone: bool = False) -> bytes:  # n *d, n >= 2
    """The network in eval mode as the bytes of an .onnx file, as onnxruntime's graph optimiser leaves it.

    Batches may have any length, or one input where it is `alone`; the other sides are those of `x`, of which each is
    asked then, for a trace holds what the first one decides. The network is traced, which takes a tenth of a second;
    where that fails or answers otherwise, it goes through torch.export, which takes seconds and onnxscript.
    """
    try:
        import onnx as onnx  # the exporters of torch need it, and say so in another way each
    except ImportError as e:
        raise MissingExtra.of("Writing .onnx", "onnx", "onnx") from e
    model, x, reasons = copy.deepcopy(model).cpu().eval(), x.cpu(), []
    for export in (_traced, _through_export):
        try:
            with quiet(), torch.no_grad():
                content = optimised(export(model, x[:1] if alone else x, alone))
        except AssayError:
            raise
        except Exception as e:  # torch's two exporters and onnxruntime raise whatever they meet in a network
            reasons.append(reason(e))
            continue
        gap = _graph_gap(model, content, torch.split(x, 1) if alone else _lengths(x))
        if gap is None:
            return content
        reasons.append(gap)
    raise AssayError(
        f"{type(model).__name__} does not export to ONNX ({'; '.join(dict.fromkeys(reasons))}); write that step with "
        "operators that ONNX has, or ship it in another form, such as int8."
    )


def optimised(content: bytes) -> bytes:
    """The graph as onnxruntime's optimiser leaves it: constants folded, batch normalisations merged."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        session(content, optimised=str(path))
        return path.read_bytes()


def to_program(model: nn.Module, x: Tensor) -> bytes:  # n *d, n >= 2
    """The network in eval mode as the bytes of a .pt2 file: its graph and weights, with gradients."""
    model, x, file = copy.deepcopy(model).cpu().eval(), x.cpu(), io.BytesIO()
    cause: Exception | None = None
    gap: str | None
    try:
        with quiet(), torch.no_grad():
            program = exported(model, x)
            program.example_inputs = None  # somebody's data, which a file that ships need not hold
            for node in program.graph.nodes:
                for told in ("stack_trace", "torch_fn", "from_node"):
                    node.meta.pop(told, None)  # nor where its code lay
            torch.export.save(program, file)
            file.seek(0)
            again = torch.export.load(file).module()
    except Exception as e:  # torch.export, its writer and its reader raise whatever they meet in a network
        gap, cause = reason(e), e
    else:
        with quiet():
            gap = _gap(model, again, _lengths(x))
    if gap is not None:
        raise AssayError(
            f"{type(model).__name__} does not export as a program ({gap}); write that step without Python that depends "
            "on values or on how many inputs there are (x.shape[0] is followed, len(x) is not), or ship it as onnx."
        ) from cause
    return file.getvalue()


def exported(model: nn.Module, x: Tensor) -> ExportedProgram:  # n *d, n >= 2
    """By torch.export, for batches of any length."""
    return torch.export.export(model, (x,), dynamic_shapes=({0: Dim.AUTO},), strict=False)


def _traced(model: nn.Module, x: Tensor, alone: bool) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "traced.onnx"
        torch.onnx.export(
            model, (x,), path, dynamo=False, input_names=["input"], output_names=["output"],
            dynamic_axes=None if alone else {"input": {0: "n"}, "output": {0: "n"}},
        )  # fmt: skip
        return path.read_bytes()


def _through_export(model: nn.Module, x: Tensor, alone: bool) -> bytes:
    program = torch.onnx.export(
        model, (x,), dynamo=True, verbose=False, input_names=["input"], output_names=["output"],
        dynamic_shapes=None if alone else ({0: Dim("n")},),
    )  # fmt: skip
    assert program is not None  # where no file is given
    content: bytes = program.model_proto.SerializeToString()
    return content


def _lengths(x: Tensor) -> tuple[Tensor, ...]:  # n *d
    """Batches of several lengths, shorter and longer than what a network is exported with."""
    return x, x[:1], x[:3], torch.cat([x, x[:3]])


def _graph_gap(model: nn.Module, content: bytes, batches: tuple[Tensor, ...]) -> str | None:
    """How an ONNX graph answers otherwise than the network, in words; None where it does not."""
    if len(content) > MOST_BYTES:
        return f"its {len(content):,} bytes are more than an .onnx file holds"
    running = session(content)
    name = running.get_inputs()[0].name
    return _gap(model, lambda batch: torch.from_numpy(running.run(None, {name: batch.numpy()})[0]), batches)


def _gap(model: nn.Module, graph: Callable[[Tensor], Tensor], batches: tuple[Tensor, ...]) -> str | None:
    """How what was exported answers otherwise than the network, in words; None where it does not."""
    for batch in batches:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            answers = []
            for what, asked in (("it", model), ("its graph", graph)):
                torch.manual_seed(0)  # a network that draws is asked with the same draws
                try:
                    answers.append(asked(batch))
                except Exception as e:  # somebody's forward pass; and onnxruntime's share no class but this one
                    return f"{what} fails on {len(batch)} inputs: {reason(e)}"
        said, out = answers
        if out.shape != said.shape:
            return f"its graph answers {len(batch)} inputs with shape {tuple(out.shape)}, not {tuple(said.shape)}"
        apart = float((out - said).abs().max())
        if not apart <= AGREEMENT * max(float(said.abs().max()), 1e-6):  # a NaN compares false, and is refused too
            return f"its graph answers {len(batch)} inputs otherwise, by {apart:.2g}"
    return None


def reason(e: BaseException) -> str:
    """One line, with the operator where one is named."""
    said, cause = (COLOUR.sub("", str(each)) for each in (e, e.__cause__ or ""))
    found = OPERATOR.search(f"{said} {cause}")
    first = next((line.strip() for line in said.splitlines() if line.strip()), type(e).__name__)
    line = first.split(" This is step ")[0]  # torch's exporter counts its steps, and says what else to read
    return f"the operator {found[0]}: {line:.160}" if found and found[0] not in line else f"{line:.160}"


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters warn of their own affairs, in words for their makers."""
    was = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(was)
