"""What a door gives: a model that takes tensors, and what it knows of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from assay.errors import AssayError, SubjectError

if TYPE_CHECKING:
    from assay.subjects import Source

Answers = Literal["classes", "labels", "numbers", "tags"]
"""One class of several, several labels at once, numbers, or a class for each place of a sequence."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model as it came through its door. The data, and what is made of both, come afterwards."""

    model: nn.Module
    """Floats of n *d in, tensors out: logits, numbers, or several of them by name."""
    name: str
    about: str = ""
    """One sentence: what it is, and whether it has gradients."""
    answers: Answers | None = None
    """What is in a row of its output; None where nobody says, which is then taken for classes."""
    reads: str | None = None
    """Which of its outputs it gives, where the door has chosen."""
    classes: tuple[str, ...] | None = None
    """Names in the order of the outputs."""
    labels: tuple[Any, ...] | None = None
    """What the model itself calls them, in the same order: numbers, or strings. Targets that say so are mapped."""
    shape: tuple[int | None, ...] | None = None
    """Of one input as Assay gives it, channels first; None inside where any length goes."""
    columns: tuple[str, ...] | None = None
    """Names of the columns of a row, where the model has them."""
    gradients: bool | None = None
    """None: to be tried."""
    notes: tuple[str, ...] = ()
    """How it is read where that is not plain, in sentences."""
    encode: Callable[[Sequence[str]], Tensor] | None = None
    """Texts into what the model takes, where it reads text: n strings -> n l token ids."""
    tokens: int | None = None
    """How many tokens it knows, where an input is a row of them."""
    whole: bool = False
    """Whether it takes rows of whole numbers, which then are no amounts but names: bytes, words, codes."""
    data: Any = None
    """What came with the model, where its door brought some."""
    look: Callable[[Opened, Tensor], Opened] | None = None
    """What becomes of it once it has been shown some inputs."""

    def shown(self, x: Tensor) -> Opened:  # n *d
        """It, with what can be known of it from these inputs."""
        return self if self.look is None else replace(self.look(self, x), look=None)

    @property
    def channels(self) -> int | None:
        """Those of the images that it takes: as it says, or as its first convolution does."""
        if self.shape is not None:
            return self.shape[0] if len(self.shape) == 3 else None
        return next((m.in_channels for m in self.model.modules() if isinstance(m, nn.Conv2d)), None)


def only_output(out: Any, chosen: str | None, who: str) -> str | None:
    """The name of the output to read: None for a tensor as it is. Of several, one must have been chosen."""
    if isinstance(out, Tensor):
        if chosen is not None:
            raise SubjectError(f"{who} has one output, so --output {chosen} does not apply; leave it out.")
        return None
    several = outputs(out)
    if not several:
        raise SubjectError(f"{who} returned {type(out).__name__}, not a tensor; return the logits alone.")
    listed = ", ".join(f"{name} ({' x '.join(map(str, t.shape))})" for name, t in several.items())
    if chosen is None and len(several) == 1:
        return next(iter(several))
    if chosen is None:
        raise SubjectError(f"{who} has the outputs {listed}; choose one with --output NAME.")
    if chosen not in several:
        raise SubjectError(f"{who} has no output {chosen!r} but {listed}; choose one of these with --output.")
    return chosen


def outputs(out: Any) -> dict[str, Tensor]:
    """The tensors among several outputs, by name, or by place from 0."""
    if isinstance(out, Mapping):
        pairs = [(str(k), v) for k, v in out.items()]
    elif isinstance(out, tuple | list):
        fields = getattr(out, "_fields", None) or map(str, range(len(out)))
        pairs = list(zip(fields, out, strict=True))
    else:
        pairs = []
    return {name: value for name, value in pairs if isinstance(value, Tensor)}


class OneOutput(nn.Module):
    """Of a model with several outputs, the one that was chosen."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *k
        return outputs(self.model(x))[self.output]


def refuse(source: Source, *options: str) -> None:
    """Options that say what a model takes, where the subject says so itself."""
    for option in options:
        if getattr(source, option) not in (None, ()):
            raise AssayError(
                f"{source.subject} brings its own input space, so --{option} does not apply; leave it out."
            )
