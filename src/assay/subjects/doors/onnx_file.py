"""A model out of an .onnx file: answers by onnxruntime, and gradients where onnx2torch can rebuild it."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.plain_file import check_plain, open_plain, read_plain
from assay.errors import AssayError, SubjectError
from assay.nn.onnx_net import session
from assay.subjects.doors.intake import Intake
from assay.subjects.doors.onnx_weights import Damaged, locations
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source

FLOATS = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}
WHOLE = {
    **{f"tensor(int{bits})": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}
NAMES = ("tensor(int32)", "tensor(int64)")  # what embeddings are indexed by; smaller ones are pixels or flags
MAPS = ("seq(map(string,tensor(float)))", "seq(map(int64,tensor(float)))")
"""What scikit-learn's classifiers give by way of skl2onnx: for each input, a probability by the name of each class."""
MOST_BYTES = 2**31 - 1  # protobuf has no longer messages
WORDS = 200  # characters of what onnxruntime says
AGREEMENT = 1e-4
"""How far, relative to the largest answer, a rebuilt model may be from onnxruntime: float32 rounds 1e-7 a step."""


class OnnxModel(nn.Module):
    """Answers of an onnxruntime session; no gradients. `state_digest` is a hash of the file, with all weights.

    `output` is the one that is read, `feed` what the inputs beside the batch are filled with. A model of whole numbers
    gets values rounded, one with channels last (`nhwc`) gets them there.
    """

    def __init__(
        self,
        session: Any,
        intake: Intake,
        digest: str,
        *,
        input: str | None = None,
        output: str | None = None,
        feed: Mapping[str, tuple[float, ...]] | None = None,
        nhwc: bool = False,
    ) -> None:
        super().__init__()
        inputs = {i.name: i for i in session.get_inputs()}
        self.session = session
        self.intake = intake
        self.input = input or next(iter(inputs))
        self.output = output or session.get_outputs()[0].name
        self.feed = {name: (inputs[name], values) for name, values in (feed or {}).items()}
        self.nhwc = nhwc
        self.dtype = (FLOATS | WHOLE)[inputs[self.input].type]
        self.state_digest = digest

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        return self.intake.feed(self._answer, x)

    def _answer(self, x: Tensor) -> Tensor:
        out = self.run(x)
        values = np.array([list(row.values()) for row in out]) if isinstance(out, list) else out
        return torch.from_numpy(values).to(x)

    def run(self, x: Tensor) -> Any:  # n *d -> an array, or a list of n mappings
        """What the session gives, as it gives it."""
        given = x.detach().cpu().permute(0, 2, 3, 1) if self.nhwc else x.detach().cpu()
        whole = self.dtype in WHOLE.values()
        batch = (given.round() if whole else given).to(self.dtype).contiguous().numpy()
        sides = {name: _filled(side, values, len(x)) for name, (side, values) in self.feed.items()}
        try:
            return self.session.run([self.output], {self.input: batch, **sides})[0]
        except Exception as e:  # its exceptions share no class but this one
            shape = " x ".join(map(str, x.shape[1:]))
            raise SubjectError(
                f"{self.intake.file} fails on inputs of shape {shape} ({_why(e)}); bring them to what it takes: many "
                "networks want sides that are multiples of 32, or numbers of words that they know."
            ) from e


def _filled(side: Any, values: tuple[float, ...], n: int) -> NDArray[Any]:
    """A side input: its values where it has as many, or the one of them throughout; what has no length has n."""
    shape = [d if isinstance(d, int) else n for d in side.shape]
    dtype = torch.empty(0, dtype=(FLOATS | WHOLE)[side.type]).numpy().dtype
    if len(values) == 1:
        return np.full(shape, values[0], dtype=dtype)
    return np.asarray(values, dtype=dtype).reshape(shape)


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
    running, digest = _session(path)
    inputs, outputs = running.get_inputs(), running.get_outputs()
    feed = _feed(path, inputs, source.feed)
    taken = _batch(path, [i for i in inputs if i.name not in feed])
    read, note = _output(path, outputs, source.output)
    nhwc = source.layout == "nhwc"
    if nhwc and len(taken.shape) != 4:
        raise AssayError(f"--layout nhwc is for images, and {path.name} takes {_form(taken)}; leave it out.")
    first, *rest = (d if isinstance(d, int) else None for d in taken.shape)
    shape = (rest[2], rest[0], rest[1]) if nhwc else tuple(rest)
    chosen = {"output": source.output, "feed": sorted(feed.items()), "nhwc": nhwc}
    if any(chosen.values()):
        digest = hashlib.blake2b(f"{digest} {chosen}".encode(), digest_size=16).hexdigest()
    intake = Intake(path.name, shape, first or 1, first, nhwc=nhwc)
    model = OnnxModel(running, intake, digest, input=taken.name, output=read.name, feed=feed, nhwc=nhwc)
    notes = [note] if note else []
    if taken.type in WHOLE:
        notes.append(f"{path.name} takes whole numbers ({taken.type[7:-1]}): values are rounded to them.")
    names = taken.type in NAMES and len(taken.shape) == 2
    labels = _labels(model) if read.type in MAPS else None
    opened = Opened(
        model=model,
        name=path.name,
        about=f"{path.name} through onnxruntime: answers without gradients.",
        reads=read.name,
        shape=shape,
        classes=None if labels is None else tuple(map(str, labels)),
        labels=labels,
        notes=tuple(notes),
        whole=names,
    )
    if len(inputs) > 1 or len(outputs) > 1 or nhwc or taken.type not in FLOATS:
        return replace(opened, gradients=False)

    def look(opened: Opened, x: Tensor) -> Opened:
        faithful, about = with_gradients(model, path, x[:4])
        return replace(opened, model=faithful, about=about)

    return replace(opened, look=look)


def _feed(path: Path, inputs: Sequence[Any], words: tuple[str, ...]) -> dict[str, tuple[float, ...]]:
    """What the side inputs are filled with, as it was typed."""
    feed = {}
    known = {i.name: i for i in inputs}
    for word in words:
        name, _, text = word.partition("=")
        try:
            values = tuple(float(v) for v in text.split(","))
        except ValueError:
            raise AssayError(f"--feed {word!r} is not NAME=NUMBER; write for example --feed sr=16000.") from None
        if name not in known:
            raise AssayError(f"{path.name} has no input {name!r} to feed; it has {_forms(inputs)}.")
        side = known[name]
        if side.type not in FLOATS | WHOLE:
            raise AssayError(f"--feed {name} is for {side.type}, which no number is; export the model without it.")
        count = math.prod(d for d in side.shape if isinstance(d, int))
        if len(values) not in (1, count) or (len(values) > 1 and not all(isinstance(d, int) for d in side.shape)):
            raise AssayError(f"--feed {name} has {len(values)} numbers for {_form(side)}; give one for all.")
        feed[name] = values
    return feed


def _batch(path: Path, inputs: Sequence[Any]) -> Any:
    """The one input that is not fed."""
    if len(inputs) > 1:
        extra = " ".join(f"--feed {i.name}=NUMBER" for i in inputs[1:])
        raise AssayError(
            f"{path.name} has the inputs {_forms(inputs)}; one takes the data, say what the others are: {extra}."
        )
    if not inputs:
        raise AssayError(f"Every input of {path.name} is fed, so none takes the data; leave one --feed out.")
    if inputs[0].type not in FLOATS | WHOLE or not inputs[0].shape:
        raise AssayError(
            f"{path.name} takes {inputs[0].type} of shape {inputs[0].shape}; export it for a batch of numbers."
        )
    return inputs[0]


def _output(path: Path, outputs: Sequence[Any], chosen: str | None) -> tuple[Any, str]:
    """The output that is read, and what to say of it; a class without its scores is not one to read."""
    scores = [o for o in outputs if o.type in FLOATS or o.type in MAPS]
    if chosen is not None:
        found = next((o for o in outputs if o.name == chosen), None)
        if found is None:
            raise AssayError(f"{path.name} has no output {chosen!r} but {_forms(outputs)}; choose one with --output.")
        if found not in scores:
            raise AssayError(f"The output {_form(found)} of {path.name} holds no scores; choose another with --output.")
        return found, ""
    if not scores:
        raise AssayError(f"{path.name} has the outputs {_forms(outputs)}, none of scores; export it with its logits.")
    if len(scores) > 1:
        raise AssayError(f"{path.name} has the outputs {_forms(outputs)}; choose one with --output NAME.")
    told = f"Of the outputs {_forms(outputs)} {scores[0].name} is read." if len(outputs) > 1 else ""
    return scores[0], told


def _labels(model: OnnxModel) -> tuple[Any, ...] | None:
    """By what names a model of maps tells its classes: it is asked once, about nothing."""
    nothing = torch.zeros(model.intake.fewest, *(d or 1 for d in model.intake.shape))
    try:
        return tuple(model.run(nothing)[0])
    except Exception:  # its exceptions share no class but this one; the data may be another matter
        return None


def _form(each: Any) -> str:
    sides = " x ".join(str(d) if isinstance(d, int) else "any" for d in each.shape)
    kind = each.type[len("tensor(") : -1] if each.type.startswith("tensor(") else each.type
    return f"{each.name} ({kind}{' ' if sides else ''}{sides})"


def _forms(some: Sequence[Any]) -> str:
    return ", ".join(map(_form, some))


def _session(path: Path) -> tuple[Any, str]:
    """An onnxruntime session on the CPU, and a hash of the file and of the weights beside it."""
    content = read_plain(path, MOST_BYTES)
    weights = _weights(path, content)
    digest = hashlib.blake2b(content, digest_size=16)
    for file in filter(Path.exists, weights):
        with open_plain(file) as kept:
            while part := kept.read(2**20):
                digest.update(part)
    try:
        # Where no other file belongs to it, the bytes that were looked at are the ones that are run.
        given = str(path) if weights else content
        running = session(given)
    except AssayError:
        raise
    except Exception as e:  # its exceptions share no class but this one
        raise AssayError(f"{str(path)!r} cannot be read as ONNX ({_told(e)}); export the model again.") from e
    return running, digest.hexdigest()


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


def _why(e: Exception) -> str:
    """The last thing that onnxruntime says, without the place in its own source that it says first."""
    told = re.sub(r"^.*?Status Message: ", "", " ".join(str(e).split()))
    return re.sub(r"^/\S+ .*? (?:was|is) (?:false|true)\. ?", "", told)[:WORDS] or type(e).__name__


def _told(e: Exception) -> str:
    lines = str(e).strip().splitlines()
    return lines[0] if lines else type(e).__name__
