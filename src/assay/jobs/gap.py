"""Two models on the same inputs: how often they agree, how far apart their numbers are, and where that begins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay import shelf
from assay.data.plain_file import read_plain
from assay.errors import AssayError
from assay.finding import Measure, share
from assay.methods.compress.parting import PARTED, Layer, Parting, apart, inner, onnx_inner, parting, said
from assay.methods.uncertainty.exact import exact
from assay.probe import undisturbed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.run import Run, Shard
    from assay.subject import Subject
    from assay.subjects import Source

TRACED = 4  # inputs whose way through both networks is followed, the one with the largest gap first
TIMES = 5  # as many inputs as other questions look at: two passes are cheap


@dataclass(frozen=True, kw_only=True)
class Gap:
    """What lies between two models. `index` is the input with the largest gap, in `largest` and `relative` to its
    largest answer."""

    names: tuple[str, str]
    agreement: Measure
    largest: float
    relative: float
    median: float
    index: int
    layers: tuple[Layer, ...]
    where: str
    notes: tuple[str, ...] = ()

    def says(self) -> tuple[str, ...]:
        """Sentences for a terminal and a page."""
        n = self.agreement.n or 0
        same = round((self.agreement.value or 0.0) * n)
        low, high = (100 * (end or 0.0) for end in (self.agreement.low, self.agreement.high))
        return (
            f"{self.names[0]} and {self.names[1]} give the same answer to {share(same, n)} of the inputs (exact 95 % "
            f"interval {low:.2f} to {high:.2f} %).",
            f"Their numbers differ by at most {self.largest:.3g}, on input {self.index}: {100 * self.relative:.2g} % "
            f"of its largest answer; on half of the inputs by at most {self.median:.3g}.",
            self.where,
            *self.notes,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "models": list(self.names),
            "agreement": {"value": self.agreement.value, "low": self.agreement.low, "high": self.agreement.high},
            "n": self.agreement.n,
            "largest": _finite(self.largest),
            "relative": _finite(self.relative),
            "median": _finite(self.median),
            "index": self.index,
            "where": self.where,
            "notes": list(self.notes),
            "layers": [
                {**layer._asdict(), "gap": _finite(layer.gap), "relative": _finite(layer.relative)}
                for layer in self.layers
            ],
        }


def _finite(number: float) -> float | None:
    """JSON has no other numbers."""
    return number if math.isfinite(number) else None


def opened_both(sources: tuple[Source, Source], run: Run) -> tuple[Subject, Subject]:
    """Two models, shown the same inputs: those of --data, or of the one that comes with Assay."""
    from assay.engine.opening import opened
    from assay.subjects import with_data_of

    bundled = [source.subject in shelf.names("subjects") for source in sources]
    with run.progress("opening both models", 2) as tick:
        if sources[0].data is None and any(bundled) and not all(bundled):
            own = bundled.index(True)
            known = opened(sources[own])
            tick(1)
            other = with_data_of(known, sources[1 - own])
            found = (known, _admitted(other)) if own == 0 else (_admitted(other), known)
        else:
            found = (opened(sources[0]), opened(sources[1]))
        tick(1)
    unlike = found[1].unlike(found[0])
    if unlike is not None:
        raise AssayError(f"{found[1].name!r} {unlike}; give two models for the same.")
    return found


def _admitted(subject: Subject) -> Subject:
    from assay.door import admit

    return admit(subject).subject


def between(one: Subject, two: Subject, run: Run, files: Mapping[str, Path] | None = None) -> Gap:
    """Compare two models on the test inputs of the first; `files` are those of .onnx models, by the subject's name."""
    from assay.nn.read_as import LogProbabilities

    read = [any(isinstance(m, LogProbabilities) for m in each.model.modules()) for each in (one, two)]
    notes = []
    if read[0] != read[1]:
        notes.append("One of the two gives probabilities: the logarithms of both are compared.")
    classes = "classes" in one.task.gives
    wanted = None if run.budget.samples is None else TIMES * run.budget.samples
    index = run.pick(one.data["test"], wanted)

    def work(shard: Shard) -> Mapping[str, Tensor]:
        out = [each.task.checked(each.predict(shard.x), len(shard.x)).double() for each in (one, two)]
        same = (
            out[0].argmax(1) == out[1].argmax(1)
            if classes
            else one.task.right(out[0].float(), shard.y) == two.task.right(out[1].float(), shard.y)
        )
        a, b = ((each.log_softmax(1) if read[0] != read[1] else each).flatten(1) for each in out)
        return {"same": same, "gap": apart(a, b).amax(1), "most": a.abs().nan_to_num(0, 0).amax(1)}

    with undisturbed(one.model, run), undisturbed(two.model, run):
        rows = run.map(work, one, "test", index, "answers of both")
        at = int(rows["gap"].argmax())
        order = [at, *(i for i in range(len(index)) if i != at)][:TRACED]
        x = one.data["test"].take(index[order])[0].to(run.device)
        found, reason = _traced(one, two, x, files or {}, run)
    if not classes:
        notes.append("The same answer is one that is good enough of both, or of neither.")
    same = rows["same"].astype(bool)
    low, high = exact(int(same.sum()), len(same))
    relative = float(rows["gap"][at] / max(rows["most"][at], 1e-30))
    return Gap(
        names=(one.name, two.name),
        agreement=Measure(
            name="agreement", value=float(same.mean()), low=float(low), high=float(high), n=len(same), unit="%",
            better="higher",
        ),
        largest=float(rows["gap"][at]),
        relative=relative,
        median=float(np.median(rows["gap"])),
        index=int(index[at]),
        layers=() if found is None else found.layers,
        where=reason if found is None else said(found, answers=relative),
        notes=tuple(notes),
    )  # fmt: skip


def _traced(
    one: Subject, two: Subject, x: Tensor, files: Mapping[str, Path], run: Run
) -> tuple[Parting | None, str]:  # n *d
    """Both networks layer by layer, or why that cannot be."""
    inside = []
    with run.progress("layer by layer", 2) as tick:
        for each in (one, two):
            try:
                found = _inside(each.model, x, files.get(each.name))
            except AssayError as e:
                return None, f"Where it opens cannot be said: {e}"
            except Exception as e:  # somebody's forward pass, a program step by step, onnxruntime: they share no class
                what = (str(e).strip().splitlines() or [type(e).__name__])[0]
                return None, f"Where it opens cannot be said: {each.name} does not show its layers ({what[:200]})."
            if len(found) < 2:
                return None, f"Where it opens cannot be said: {each.name} shows nothing of what is inside it."
            inside.append(found)
            tick(1)
    return _laid(*inside), ""


def _laid(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> Parting:
    if len(one) <= len(two) or not set(one).isdisjoint(two):
        return parting(one, two)
    turned = parting(two, one)  # from the coarser one: a graph has more steps than there are modules
    layers = tuple(layer._replace(name=layer.other, other=layer.name) for layer in turned.layers)
    return turned._replace(layers=layers, alone=(turned.alone[1], turned.alone[0]))


def _inside(model: nn.Module, x: Tensor, file: Path | None) -> dict[str, Tensor]:  # n *d
    """What is inside a network for these inputs; of one that answers through onnxruntime, the nodes of its graph."""
    from assay.nn.onnx_net import OnnxNet
    from assay.subjects.doors.onnx_file import OnnxModel

    graph = next((m for m in model.modules() if isinstance(m, OnnxNet | OnnxModel)), None)
    if graph is None:
        return inner(model, x)
    caught: list[Tensor] = []
    handle = graph.register_forward_pre_hook(lambda _, given: caught.append(given[0].detach()))
    try:
        model(x)
    finally:
        handle.remove()
    if isinstance(graph, OnnxNet):
        return onnx_inner(graph.file(), _plainly, caught[0])
    if file is None or graph.feed or graph.nhwc:
        raise AssayError("the graph takes more than the inputs, or in another order; export it for a batch alone.")
    return onnx_inner(_content(file), _plainly, caught[0])


def _content(file: Path) -> bytes:
    from assay.subjects.doors.onnx_file import MOST_BYTES
    from assay.subjects.doors.onnx_weights import locations

    content = read_plain(file, MOST_BYTES)
    if locations(content):
        raise AssayError(f"{file.name} keeps weights in other files; save it as one.")
    return content


def _plainly(content: bytes) -> Any:
    """A session that takes the graph as it is: what the optimiser merges cannot be looked at."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def files_of(sources: tuple[Source, Source], found: tuple[Subject, Subject]) -> dict[str, Path]:
    """The .onnx files among two sources, by the name of the subject that each became."""
    named = zip(sources, found, strict=True)
    return {each.name: Path(source.subject) for source, each in named if source.subject.lower().endswith(".onnx")}


def compared(sources: tuple[Source, Source], run: Run) -> Gap:
    """Open two models and compare them; two of one name are told apart by which came first."""
    one, two = opened_both(sources, run)
    if one.name == two.name:
        one, two = replace(one, name=f"{one.name} (1)"), replace(two, name=f"{two.name} (2)")
    return between(one, two, run, files_of(sources, (one, two)))


__all__ = ["PARTED", "Gap", "between", "compared"]
