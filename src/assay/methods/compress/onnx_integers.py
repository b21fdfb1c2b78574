"""The integers of onnxruntime: an ONNX graph whose convolutions and products are taken in 8 bits.

onnxruntime's own quantiser does it, so that the file is what others ship. Static: each tensor between layers gets one
scale and zero point, by the least and the largest value that calibration inputs put there, and the graph says so with
QuantizeLinear and DequantizeLinear (QDQ), which onnxruntime fuses into integer kernels. Dynamic: the scale of what goes
into a layer is taken from the batch itself at every pass. Weights are int8, symmetric, one scale for each output
channel, in both:

    scale_c = max |w_c| / 127,      q = round( w / scale_c ) in -127 .. 127

Kernels differ between machines: without VNNI some x86 processors saturate sums of two products at 16 bits, so that the
same file may answer a little otherwise elsewhere.

Source: Jacob et al., CVPR 2018, arXiv:1712.05877; onnxruntime's quantisation documentation (S8S8 in QDQ is its choice).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from torch import Tensor

from assay.errors import AssayError, MissingExtra
from assay.methods.compress.export import quiet

if TYPE_CHECKING:
    from onnx import ModelProto

FRAME = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant", "Identity", "Cast"})
SHAPES = frozenset(
    {"Shape", "Gather", "Slice", "Reshape", "Flatten", "Transpose", "Concat", "Squeeze", "Unsqueeze", "Split", "Expand"}
)
"""They move values and compute none: whether they have an integer form is nobody's concern."""
INTEGER = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm", "QAttention"})


def static(content: bytes, batches: Iterable[Tensor]) -> bytes:  # each n *d
    """The graph with int8 weights and int8 activations, calibrated on these inputs."""
    quantisation = _quantisation()
    given = list(batches)
    if not sum(len(batch) for batch in given):
        raise AssayError("There is no input to calibrate on; give at least one.")

    class Inputs(quantisation.CalibrationDataReader):  # type: ignore[misc,name-defined]  # of a package without types
        def __init__(self, name: str) -> None:
            self.left: Iterator[Tensor] = iter(given)
            self.name = name

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.left, None)
            return None if batch is None else {self.name: batch.cpu().float().numpy()}

    def make(source: str, target: str, name: str) -> None:
        quantisation.quantize_static(
            source, target, Inputs(name), quant_format=quantisation.QuantFormat.QDQ, per_channel=True,
            activation_type=quantisation.QuantType.QInt8, weight_type=quantisation.QuantType.QInt8,
        )  # fmt: skip

    return _made(content, make)


def dynamic(content: bytes) -> bytes:
    """The graph with int8 weights; what goes into a layer is brought to 8 bits by its own range, batch by batch."""
    quantisation = _quantisation()

    def make(source: str, target: str, name: str) -> None:
        quantisation.quantize_dynamic(source, target, per_channel=True, weight_type=quantisation.QuantType.QInt8)

    return _made(content, make)


def kinds(before: bytes, after: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """Of a graph and its quantised form: operators that are given 8-bit values, and those that stay in floats.

    By name, with how many there are of each. Operators that only move values count as neither. Of the first, those of
    a static graph stand between 8-bit values; whether one is computed in integers is for the session that loads it,
    which has kernels for convolutions and products and, say, none for layer normalisation: that runs in floats. An
    operator that the quantiser has no rule for (a sine) stays in floats, also where its neighbours' values are in 8
    bits on their way to it and from it; so does, in a dynamic graph, one that reads an embedding out of 8 bits.
    """
    was = {(node.op_type, node.output[0]) for node in _read(before).graph.node}
    every = _read(after).graph.node
    nodes = [node for node in every if node.op_type not in FRAME | SHAPES]
    static = any(node.op_type == "QuantizeLinear" for node in every)
    ruled = _ruled() if static else frozenset[str]()
    whole = {out for node in every if node.op_type == "DequantizeLinear" for out in node.output}
    integers = [n for n in nodes if n.op_type in INTEGER or (n.op_type in ruled and whole & set(n.input))]
    floats = [node for node in nodes if node not in integers and (node.op_type, node.output[0]) in was]
    return dict(Counter(node.op_type for node in integers)), dict(Counter(node.op_type for node in floats))


def _made(content: bytes, make: Callable[[str, str, str], None]) -> bytes:
    """What `make` does to the graph, from one file to another; a graph of which nothing is quantised is refused."""
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    graph = _read(content)
    add_pre_process_metadata(graph)  # it is optimised already, and the quantiser would say that it should be
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(graph.SerializeToString())
        try:
            with quiet():
                make(str(source), str(target), graph.graph.input[0].name)
        except Exception as e:  # the quantiser raises whatever it meets
            raise AssayError(
                f"onnxruntime's quantiser fails ({' '.join(str(e).split())[:200]}); ship it as onnx, in floats."
            ) from e
        made = target.read_bytes()
    integers, floats = kinds(content, made)
    stored = any(node.op_type == "DequantizeLinear" for node in _read(made).graph.node)  # an embedding alone
    if not integers and not stored:
        named = ", ".join(f"{count} {name}" for name, count in sorted(floats.items())) or "none that computes"
        raise AssayError(
            f"No operator of the graph has an integer form (it has {named}), so that int8 would change nothing; ship "
            "it as onnx."
        )
    return made


def _read(content: bytes) -> ModelProto:
    try:
        import onnx
    except ImportError as e:
        raise MissingExtra.of("Quantising .onnx", "onnx", "onnx") from e
    return onnx.load_from_string(content)


def _ruled() -> frozenset[str]:
    """The operators that onnxruntime's static quantiser has a rule for: those that it takes unless told."""
    _quantisation()
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    return frozenset({*QLinearOpsRegistry, *QDQRegistry})


def _quantisation() -> Any:
    try:
        from onnxruntime import quantization
    except ImportError as e:
        raise MissingExtra.of("Quantising .onnx", "onnx and onnxruntime", "onnx") from e
    return quantization
