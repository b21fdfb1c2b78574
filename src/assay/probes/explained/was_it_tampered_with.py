"""Whether the network shows signs of having been built to mislead its explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError, SubjectError
from assay.finding import Alarm, Bars, Beside, Exhibit, Finding, Gallery, Measure, Panel, share
from assay.methods.explain.gradcam import gradcam, last_maps, normalise
from assay.methods.explain.tampering import Sign, tampering, twin
from assay.nn.inner import inner_points
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

EACH = 3 / 2  # inputs for each step of the budget
HEADLINE = "signs of tampering"
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
TALLEST = 2.0  # bars are cut here: a tampered network reaches thousands


@dataclass(frozen=True)
class WasItTamperedWith(Probe):
    """Was the model tampered with?

    Edits that paint GradCAM's map and leave the answers alone show in the maps, the weights and the slopes of the
    network. Each sign is a score with a threshold that untouched networks stay well below; one that the network does
    not allow says why, and the others count. Of backdoors that change answers these signs know nothing.
    """

    inputs: int | None = None

    source: ClassVar[str] = (
        "signs of the edits in Viering, Wang, Loog & Eisemann, BMVC workshops 2019, and Wang, TU Delft 2024 "
        "(dissertation), ch. 6; the thresholds are Assay's own"
    )
    needs: ClassVar[tuple[Need, ...]] = ("classes", "gradients")  # three signs weigh the classes against one another
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0),)

    def __post_init__(self) -> None:
        self.refuse_below(2, "inputs")

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"], self.inputs or run.budget.few(max(2, int(EACH * run.budget.steps))))
        rows = run.map(lambda s: {"x": s.x}, subject, "test", index, "inputs to look at")
        x = torch.as_tensor(rows["x"], device=run.device)
        layer = _last_standing(subject.model, x)
        with run.progress("signs of tampering", 1) as tick:
            signs = tampering(subject.model, layer, x, random=subject.draws > 1)
            tick(1)
        read = {s.name: s.score for s in signs if s.score is not None}
        if not read:
            raise SubjectError(f"None of {len(signs)} signs of tampering can be read: {signs[0].why}.")
        seen = [s for s in signs if s.alarm]
        blamed = sorted({k for s in seen for k in s.channels})
        where = f" They point at map {', '.join(map(str, blamed))} of {layer!r}." if 0 < len(blamed) <= 5 else ""
        rest = "" if len(read) == len(signs) else f" {len(signs) - len(read)} of {len(signs)} do not apply to it."
        return Finding(
            says=(
                f"{share(len(seen), len(read))} signs of tampering show: {', '.join(s.name for s in seen)}.{where}"
                if seen
                else f"None of {len(read)} signs of tampering shows; an edit of another kind may show none of them."
            )
            + rest,
            measures=(
                Measure(
                    name=HEADLINE,
                    value=float(len(seen)),
                    n=len(index),
                    better="lower",
                    about=f"how many of {len(read)} scores lie above their thresholds; n is the inputs looked at",
                    beside=(Beside("an untouched network", 0.0),),
                ),
                *(
                    Measure(
                        name=s.name,
                        value=s.score,
                        n=len(index),
                        better="lower",
                        about=f"an alarm would say: {s.means}",
                        beside=(Beside("alarms above", s.threshold),),
                    )
                    for s in signs
                    if s.name in read
                ),
                *(
                    Measure(name=s.name, value=None, better="lower", about=f"it does not apply: {s.why}")
                    for s in signs
                    if s.name not in read
                ),
            ),
            views=(
                _bars([s for s in signs if s.name in read]),
                *_pictures(subject, layer, x, index, seen, blamed, run.budget.shown),
            ),
            alarms=(
                *(
                    Alarm(f"{s.name}: {read[s.name]:.3g} is above {s.threshold:g}. {s.means}", doubts=(HEADLINE,))
                    for s in seen
                ),
                *(Alarm(f"Not read, {s.name}: {s.why}.") for s in signs if s.name not in read),
                *_too_few(len(read), len(signs)),
            ),
        )


def _too_few(read: int, signs: int) -> tuple[Alarm, ...]:
    """A network that most signs know nothing of is not cleared by the others."""
    if 2 * read > signs:
        return ()
    says = f"Only {read} of {signs} signs could be read: that none shows would clear it of little."
    return (Alarm(says, doubts=(HEADLINE,)),)


def _last_standing(model: nn.Module, x: Tensor) -> str | None:
    """The last module that gives maps, once in a pass and pooling left aside: a map that somebody put behind the last
    convolution's own stands in it, and `last_maps` stops before such a one. None where no convolution runs."""
    given: list[tuple[str, Tensor]] = []
    pooled: list[Tensor] = []
    runs: Counter[str] = Counter()

    def note(module: nn.Module, _: Any, out: Any, name: str) -> None:
        runs[name] += 1
        if isinstance(module, POOLS):
            pooled.append(out)
        elif isinstance(out, Tensor) and out.ndim == 4 and out[0, 0].numel() > 1:
            given.append((name, out))

    handles = [
        m.register_forward_hook(partial(note, name=name))
        for name, m in inner_points(model)
        if name and not isinstance(m, torch.jit.ScriptModule)  # which takes no hook from outside
    ]
    try:
        with torch.no_grad():
            model(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    if not any(isinstance(m, nn.Conv2d) and runs[name] for name, m in inner_points(model)):
        return None
    # A container that ends in pooling hands on what the pooling gave.
    alone = (name for name, out in reversed(given) if runs[name] == 1 and not any(out is p for p in pooled))
    return next(alone, None) or last_maps(model, x)


def _bars(signs: Sequence[Sign]) -> Bars:
    return Bars(
        name="signs",
        title="Each sign, as a multiple of its threshold",
        y_label="score / threshold",
        labels=tuple(s.name for s in signs),
        values=tuple(min(TALLEST, (s.score or 0.0) / s.threshold) for s in signs),
        marks=(Beside("alarm", 1.0),),
        says=f"Bars are cut at {TALLEST:g}; the measures have the scores. Lower is better.",
    )


def _pictures(
    subject: Subject,
    layer: str | None,
    x: Tensor,
    index: NDArray[np.int64],
    seen: Sequence[Sign],
    blamed: Sequence[int],
    shown: int,
) -> tuple[Gallery, ...]:
    """GradCAM's maps with the verdict on them; where signs point at some of the layer's maps, also without those."""
    if layer is None or not subject.inputs.is_image:
        return ()
    few = slice(0, max(1, shown // 2))
    try:
        # In float64: beside a map of height 1e6 the rest of a float32 one is rounding.
        cam = gradcam(*twin(subject.model, x[few]), layer)
    except AssayError:  # no gradient leads to the maps: the signs have said so
        return ()
    keep = torch.ones(cam.maps.shape[1], dtype=torch.bool, device=x.device)
    keep[list(blamed)] = False
    drawn = {"GradCAM": normalise(cam.heat())}
    if blamed:
        drawn["without them"] = normalise(cam.heat(keep=keep))
    verdict = f"not to be believed: {', '.join(s.name for s in seen)}" if seen else "no sign of tampering"
    exhibits = []
    for i, place in enumerate(index[few]):
        picture = Panel.of(
            "input", f"Input {place}", x[i].cpu().numpy(), low=subject.inputs.low, high=subject.inputs.high
        )
        maps = (Panel.of(k, f"{k}, input {place}", heat[i].cpu().numpy()[None]) for k, heat in drawn.items())
        exhibits.append(Exhibit(index=int(place), caption=f"GradCAM: {verdict}", panels=(picture, *maps)))
    return (
        Gallery(
            name="maps",
            title="What GradCAM shows of this model",
            exhibits=tuple(exhibits),
            says="Without them: the map that is left when the maps that the signs point at are taken out."
            if blamed
            else "",
        ),
    )


SHELVED = WasItTamperedWith
