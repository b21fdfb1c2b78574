"""Kind: what a model is shown. Its bounds, its everyday changes, what an attacker reaches, what can be told of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.inputs.change import Change
from assay.inputs.features import Features
from assay.inputs.reach import AnyReach, Norm, Reach
from assay.inputs.show import Show

B = TypeVar("B")  # a batch
O = TypeVar("O")  # one input
SLACK = 1e-6  # of the range: single precision cannot be held to less


class Kind(ABC, Generic[B, O]):
    """One kind of input: a batch is a tensor n *d, of texts a list of strings. Frozen, and of plain values only."""

    @abstractmethod
    def everyday(self) -> Mapping[str, Change[B]]:
        """What happens to such inputs without anyone attacking them, by name, at five severities."""

    @property
    @abstractmethod
    def reach(self) -> AnyReach:
        """What an attacker may change."""

    @abstractmethod
    def features(self, x: O) -> Features:
        """What an explanation of one input may speak of."""

    @abstractmethod
    def show(self, x: O) -> Show:
        """How one input is shown."""

    @abstractmethod
    def check(self, x: B) -> None:
        """Refuse, in one line, a batch that is not of this kind."""

    @property
    def is_image(self) -> bool:
        return False

    @property
    def is_picture(self) -> bool:
        """An image, or a pair of them."""
        return self.is_image


class Space(Protocol):
    """A box of values: a shape, and what the features lie between."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def ranges(self) -> tuple[tuple[float, float], ...] | None: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...

    def edges(self) -> tuple[Tensor, Tensor]: ...


class Told:
    """How radii are told of what has a space: as they are where values run from 0 to 1, else in both units."""

    if TYPE_CHECKING:

        @property
        def natural(self) -> Space | None: ...

    def size(self, radius: float, digits: int = 3) -> str:
        """A radius in words: as it is where values run from 0 to 1, else as a share and in natural units."""
        told = f"{radius:.{digits}g}"
        if self.natural is None:
            return told
        span = self.natural.edges()[1]
        small, large = (radius * float(s) for s in (span.min(), span.max()))
        if self.natural.ranges is None:
            return f"{told} of the range ({large:.3g} between {self.natural.low:g} and {self.natural.high:g})"
        return f"{told} of each feature's range (from {small:.3g} to {large:.3g} in its own units)"

    def aside(self, radius: float | None) -> str:
        """What to add where a radius stands as a bare number: what it is in natural units, nothing from 0 to 1."""
        return "" if self.natural is None or radius is None else f"; this is {self.size(radius)}"

    def axis(self, label: str) -> str:
        """The label of an axis of radii."""
        return label if self.natural is None else f"{label}, share of the range"


class Bounded(Told, Kind[Tensor, Tensor]):
    """A kind whose inputs are tensors of one shape with bounds: what is shared by all but texts.

    `ranges` is what each feature lies between, in the order of the flattened input, where features have ranges of their
    own; `low` and `high` are then the least and the greatest of them. `natural` is the kind that values are shares of,
    None where they are in natural units (see `assay.inputs.shares`).
    """

    if TYPE_CHECKING:  # a field of a dataclass cannot stand in for an abstract property

        @property
        def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def changes(self) -> Iterable[Change[Tensor]]:
        """The everyday changes as formulas: they may leave the bounds and touch what nobody can change."""

    @property
    def ranges(self) -> tuple[tuple[float, float], ...] | None:
        return None

    @property
    def low(self) -> float:
        return min((low for low, _ in self.ranges), default=0.0) if self.ranges is not None else 0.0

    @property
    def high(self) -> float:
        return max((high for _, high in self.ranges), default=1.0) if self.ranges is not None else 1.0

    @property
    def natural(self) -> Space | None:
        return None

    def edges(self) -> tuple[Tensor, Tensor]:  # -> *d or (), *d or (): float64
        """The lower bound and the width of the range, for each feature where they differ."""
        low, high = self.bounds()
        return low, high - low

    @property
    def reach(self) -> Reach:
        return self.reach_with()

    def reach_with(
        self,
        *,
        norms: tuple[Norm, ...] = ("linf", "l2"),
        free: Tensor | None = None,
        step: Tensor | None = None,
        choices: Tensor | None = None,
    ) -> Reach:  # *d each
        """All features free and without steps, unless said; a feature without a range is never free."""
        low, span = self.edges()
        free = span > 0 if free is None else free & (span > 0)
        step = torch.tensor(0.0, dtype=torch.float64) if step is None else step
        choices = torch.tensor(0) if choices is None else choices
        gradient = bool((free & (step == 0)).any())
        free, low, span, step, choices = (each.expand(self.shape) for each in (free, low, span, step, choices))
        return Reach(norms, gradient, free, low, span, step, choices)

    def everyday(self) -> Mapping[str, Change[Tensor]]:
        made = (replace(change, function=partial(self._kept, change.function)) for change in self.changes())
        return MappingProxyType({change.name: change for change in made})

    def typed(self, x: Tensor) -> Tensor:  # n *d -> n *d
        """The nearest values that features can have: whole numbers where they are integers or codes."""
        return x

    def present(self, x: Tensor) -> Tensor:  # n *d -> *d or n *d bool
        """Where something is: False for padding, which has no bounds and never changes."""
        return torch.ones(self.shape, dtype=torch.bool, device=x.device)

    def may_miss(self) -> Tensor:  # -> *d or () bool
        """Where NaN stands for a missing value."""
        return torch.tensor(False)

    def check(self, x: Tensor) -> None:  # n *d
        if not x.is_floating_point():
            raise AssayError(
                f"{self._name} wants floating point, got {x.dtype}; 8-bit pixels: x / 255, else x.float()."
            )
        if tuple(x.shape[1:]) != self.shape or x.ndim == 0:
            raise ShapeError(
                f"{self._name} wants a batch of shape (n, {', '.join(map(str, self.shape))}), got {tuple(x.shape)}; "
                "for a single input, pass x[None]."
            )
        if not x.numel():
            return
        low, high = (bound.to(x.device) for bound in self._held_to[:2])
        slack = SLACK * (high - low).clamp_min(torch.finfo(torch.float32).tiny)
        slack = slack.maximum(torch.maximum(low.abs(), high.abs()) * torch.finfo(x.dtype).eps)
        fine = (x >= low - slack) & (x <= high + slack) | (x.isnan() & self.may_miss().to(x.device)) | ~self.present(x)
        if not bool(fine.all()):
            row, *place = (int(i) for i in (~fine).nonzero()[0])
            least, most = (float(bound.expand(self.shape)[tuple(place)]) for bound in (low, high))
            raise AssayError(
                f"Input {row} has the value {float(x[(row, *place)]):g} in {self.place(tuple(place))}, outside the "
                f"bounds [{least:g}, {most:g}]; scale the data or widen the bounds."
            )

    def place(self, index: tuple[int, ...]) -> str:
        """How a feature is called in a message."""
        return f"feature {index[0] if len(index) == 1 else index}"

    @property
    def _name(self) -> str:
        return type(self).__name__

    def bounds(self) -> tuple[Tensor, Tensor]:  # -> *d or (), *d or (): float64
        """The lower and the upper bound, of each feature where they differ."""
        if self.ranges is None:
            low, high = torch.tensor([self.low, self.high], dtype=torch.float64)
            return low, high
        low, high = torch.tensor(self.ranges, dtype=torch.float64).reshape(-1, 2).T
        return low.reshape(self.shape), high.reshape(self.shape)

    def _kept(
        self,
        function: Callable[[Tensor, float, torch.Generator], Tensor],
        x: Tensor,
        strength: float,
        rng: torch.Generator,
    ) -> Tensor:  # n *d -> n *d
        """A change of a batch, held to the bounds, the types and what can change: no formula can overstep them."""
        self.check(x)
        if rng.device.type != x.device.type:
            raise AssayError(f"The generator is on {rng.device}, inputs on {x.device}; use torch.Generator(x.device).")
        if not len(x):
            return x.clone()
        work = x.to(torch.promote_types(x.dtype, torch.float32))
        low, high, free = self._held_to
        changed = function(work, strength, rng)
        changed = self.typed(torch.minimum(torch.maximum(changed, low.to(work)), high.to(work))).to(x.dtype)
        return torch.where(free.to(x.device) & self.present(x), changed, x)

    @cached_property
    def _held_to(self) -> tuple[Tensor, Tensor, Tensor]:  # *d or (), *d or (), *d
        """Bounds and what can change, made once: a kind is frozen, and an episode asks for them at every step."""
        return *self.bounds(), self.reach.free


def as_float(x: Tensor | Sequence[float] | object) -> Tensor:
    """Arrays, lists and tensors as a tensor of floating point: 32 bits unless it has more."""
    try:
        given = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as e:
        raise AssayError(f"These inputs are no numbers of one shape: {str(e).splitlines()[0]}; give an array.") from e
    return given if given.is_floating_point() else given.float()
