"""A network that answers through onnxruntime, kept as the bytes of its .onnx file."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import AssayError, MissingExtra
from assay.nn.on_demand import OnDemand


def session(given: str | bytes, *, optimised: str | None = None) -> Any:
    """An onnxruntime session on the CPU, of a file or of its bytes, with as many threads as torch has.

    With `optimised` the graph is written there as onnxruntime's optimiser leaves it: constants folded and batch
    normalisations merged, and nothing that is made for this machine alone.
    """
    # Builds for some systems send events to their maker from the moment of the import; no request is ever made here.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as e:
        raise MissingExtra.of("Reading .onnx", "onnxruntime", "onnx") from e
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors come as exceptions; they need not be printed as well
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.load_model_format", "ONNX")  # what was looked at, and no other reading
    if optimised is not None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = optimised
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


class _SlopeOf(torch.autograd.Function):
    """The value of the second, the slope of the first."""

    @staticmethod
    def forward(ctx: Any, soft: Tensor, said: Tensor) -> Tensor:  # n *k, n *k -> n *k
        return said.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class OnnxNet(nn.Module):
    """What the bytes of an .onnx file answer, with the slopes of the network that they were made of.

    `model` is that network, in torch. onnxruntime gives no gradients; where some are asked for, the answer is the
    session's and the slope is `model`'s at the same input: straight through, as an attacker would do who knows the
    network before it was shipped (BPDA: Athalye, Carlini and Wagner, ICML 2018, arXiv:1802.00420, sec. 4.1). Of a
    float graph that is the true gradient up to rounding. Of an integer graph, whose true gradient is zero almost
    everywhere, it is the useful one: an attack that fails on it fails against more than rounding.

    `content` is a buffer, so that the file is among the weights: what is kept and loaded again is the file that ships.
    A graph for one input at a time is asked so.
    """

    content: Tensor

    def __init__(self, model: nn.Module, content: bytes = b"") -> None:
        super().__init__()
        self.model = model
        self.register_buffer("content", torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8))
        self._running = OnDemand()
        self.training = model.training

    def file(self) -> bytes:
        """The .onnx file."""
        return self.content.cpu().numpy().tobytes()

    def set(self, content: bytes) -> None:
        """Answer by this file from now on."""
        self.content = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.content.device)
        self._running = OnDemand()

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *k
        said = self._said(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return said
        out: Tensor = _SlopeOf.apply(self.model(x), said)  # type: ignore[no-untyped-call]
        return out

    def _said(self, x: Tensor) -> Tensor:  # n *d -> n *k
        if not isinstance(x, Tensor):  # onnxruntime ends the process where torch.fx hands it a stand-in
            raise AssayError(f"An ONNX graph is given a {type(x).__name__}, and takes a tensor; it cannot be traced.")
        if self._running.made is None:
            self._running.made = session(self.file())
        running = self._running.made
        takes = running.get_inputs()[0]
        given = x.detach().cpu().float().contiguous()
        batches = torch.split(given, 1) if takes.shape[0] == 1 else [given]
        try:
            parts = [running.run(None, {takes.name: batch.numpy()})[0] for batch in batches]
        except Exception as e:  # its exceptions share no class but this one
            what = " ".join(str(e).split())[:200]
            raise AssayError(
                f"The ONNX graph fails on inputs of shape {tuple(x.shape[1:])} ({what}); export it for such inputs."
            ) from e
        return torch.cat([torch.from_numpy(part) for part in parts]).to(x)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A file of any length is taken."""
        kept = state_dict.get(f"{prefix}content")
        if isinstance(kept, Tensor):
            self.content = torch.empty_like(kept, device=self.content.device)
            self._running = OnDemand()
        super()._load_from_state_dict(state_dict, prefix, *rest)
