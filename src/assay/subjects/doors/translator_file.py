"""Trained translators in one .safetensors file: the weights of every member, and in its metadata what they are of.

The file is data and nothing else: no code is in it and none is run to open it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from assay.data.arrays import Targets
from assay.data.image_pairs import Split, open_image_pairs
from assay.errors import AssayError
from assay.nn.members import Ensemble
from assay.nn.translator import Translator
from assay.subject import Subject
from assay.subjects.doors.ranker_file import reading
from assay.tasks import ImageToImage

KIND = "assay translator"
MOST = {"channels": 3, "answers": 3, "width": 64, "levels": 6, "members": 10}
"""Of each number that says what the weights are of."""


def packed(
    nets: Sequence[nn.Module], *, channels: int, answers: int, width: int, levels: int, tolerance: float
) -> bytes:
    """The file of these members, each of the same form."""
    from safetensors.torch import save

    state = {
        f"nets.{k}.{name}": tensor.detach().cpu().clone().contiguous()
        for k, net in enumerate(nets)
        for name, tensor in net.state_dict().items()
    }
    form = {"channels": channels, "answers": answers, "width": width, "levels": levels, "members": len(nets)}
    about = {"kind": KIND, **{name: str(value) for name, value in form.items()}, "tolerance": repr(float(tolerance))}
    content: bytes = save(state, about)
    return content


def is_translator(path: Path) -> bool:
    """Whether the metadata of a .safetensors file say that it is one of ours."""
    with reading(path) as f:
        return bool((f.metadata() or {}).get("kind") == KIND)


def open_translator(path: str | Path, data: str | Path) -> Subject:
    """The translators of a file, to be asked about pairs of images in the layout that they were trained on."""
    path = Path(path)
    with reading(path) as f:
        about = f.metadata() or {}
        # Copies: what is given is mapped, and a file that is cut off later would end the process.
        state = {name: f.get_tensor(name).clone() for name in f.keys()}  # noqa: SIM118  (not a mapping)
    try:
        form = {name: int(about[name]) for name in MOST}
        if any(not 1 <= value <= MOST[name] for name, value in form.items()):
            raise ValueError(f"it is of {form}")
        model, tolerance = _model(form, state), float(about["tolerance"])
    except (KeyError, ValueError) as e:
        raise AssayError(f"{str(path)!r} is no whole translator ({e}); make it again with `assay translate`.") from e
    pairs = open_image_pairs(data, channels=form["channels"])
    (_, height, width), (answers, _, _) = pairs.shapes
    if answers != form["answers"]:
        raise AssayError(f"{path.name} answers in {form['answers']} channels, and output in {data} has {answers}.")
    if pairs.test.y is None:
        raise AssayError(f"{str(data)!r} has no output/test to hold its answers against; give the true images.")
    members = form["members"]
    subject = Subject.of(
        model.eval(),
        {"train": _targets(pairs.train), "test": _targets(pairs.test)},
        ImageToImage((answers, height, width), tolerance),
        name=path.name,
        about=f"{members} translator{'s' if members > 1 else ''}, a U-Net of {form['levels']} sizes each, width "
        f"{form['width']}.",
    )
    return replace(subject, notes=(*subject.notes, *pairs.notes))


def _targets(split: Split) -> Targets:
    assert split.y is not None
    return Targets(split.x, split.y.astype("float32") / 255)


def _model(form: dict[str, int], state: dict[str, Tensor]) -> nn.Module:
    """The members with these weights; nothing is allocated before their shapes have been compared."""
    with torch.device("meta"):
        nets = [
            Translator(form["channels"], form["answers"], width=form["width"], levels=form["levels"])
            for _ in range(form["members"])
        ]
        model = Ensemble(nets, average="answers")
    if {k: (t.dtype, t.shape) for k, t in model.state_dict().items()} != {
        k: (t.dtype, t.shape) for k, t in state.items()
    }:
        raise ValueError(f"its weights are not those of {form}")
    model.load_state_dict(state, assign=True)
    return model if form["members"] > 1 else nets[0]
