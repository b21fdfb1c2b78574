r"""Search fast, believe in full: a model whose gradients come from a bf16 copy and whose answers are its own.

An attack asks a model in two ways: for a gradient, to search, and without one, to verify. `Swift` answers the second by
the model itself, untouched. For the first it has a copy in eval mode whose batch normalisation is folded (folded.py),
whose weights are held in bf16 and channels-last, whose convolutions are fused with what follows them (fused.py), and
whose pass and way back are recorded (recorded.py). What z is worth beside the gradient is the attack's own affair, by
its `precision`:

    "bf16"      z and its gradient are the copy's: for attacks that climb, which are judged at the end
    "float32"   z is the model's, the gradient the copy's: for attacks whose answer is where z changes its sign

Where a model ends in a softmax or a sigmoid the copy gives what goes into it, and the same squash is put on top, where
an attack sees it and reads the logits (attacked.py): squashed in bf16 there would be no gradient left. Batches are cut
and padded to a few sizes, because each size is recorded by itself.

Nothing is believed of the copy: its answers and gradients are held against those of the float32 model first, and where
they differ, where the model is random, cannot be copied or recorded, or memory runs out, the model itself is searched.

On a CPU the copy is a `Twin`, folded and channels-last too, but not recorded, and it stays in float32 whatever is asked
for: it says what the model says but for rounding, so that attacks which look for the boundary may go by its z.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from assay.methods.attack.attacked import Model, Precision, are_probabilities
from assay.methods.attack.recorded import Pool, Recorded
from assay.nn.folded import CONVOLUTIONS, folded, hooked, whole_float32
from assay.nn.fused import fused
from assay.nn.read_as import BeforeSquash
from assay.nn.tally import COUNTED, Tally

SIZES = (128, 256, 512, 1024, 4096)
"""What batches are cut and padded to. A small network is filled by thousands of inputs only."""
CALL = 256  # inputs that pass in the time that it takes to start a pass

HELD = (nn.Linear, *CONVOLUTIONS, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
FEWEST = 8  # inputs, and layers, from which on a search is worth a copy
DEEP = 3
TRIED = 64  # inputs by which a copy is compared with its model
ALIKE, OFF = 0.8, 0.1  # least cosine of the median gradient, most error of an answer in units of the answers' spread
SAME, ROUNDING = 0.999, 1e-4  # of a copy that is to say what the model says

Ask = Callable[[Tensor], Tensor]  # n *d -> n *o
Squash = Callable[[Tensor], Tensor]  # n *o -> n *o


class Through(NamedTuple):
    """What an attack that follows gradients is given in the place of a model, and as its `precision`."""

    model: Model
    precision: Precision

    @property
    def boundary(self) -> Precision:
        """The `precision` of attacks whose answer is where z changes its sign."""
        return "bf16" if isinstance(self.model, Aside) else "float32"


def searching(model: Model, x: Tensor, *, draws: int = 1) -> Through:  # n *d
    """What to search these inputs through: a Swift on a GPU, an Aside on a CPU, the model where it allows neither.

    A copy is kept as long as its model and made anew where its weights or its numbers and words have changed. One whose
    numbers change by a pass, as a count of its calls does, has none: it may answer by them.
    """
    if len(x) < FEWEST or draws > 1 or not isinstance(model, nn.Module) or not _fit(model, x):
        return Through(model, "float32")
    state, like, held = _state(model), (x.shape[1:], x.dtype, x.device), _settings(model)
    known = _KEPT.get(model)
    if known is None or known.like != like or known.held not in (held, None) or not torch.equal(known.state, state):
        search: Search | Twin | None = None
        with contextlib.suppress(Exception):  # whatever a stranger's model does when it is copied
            search = Search(model, x) if _on_gpu(x) else Twin(model, x)
        still = _settings(model) == held
        known = _KEPT[model] = Kept(state, like, held if still else None, search if still else None)
    if known.search is None or known.search.off:
        return Through(model, "float32")
    if isinstance(known.search, Twin):
        return Through(Aside(model, known.search), "bf16")
    return Through(Swift(model, known.search), "bf16")


def let_go() -> None:
    """Drop all copies and what was recorded of them: memory has run out."""
    _KEPT.clear()


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def _fit(model: nn.Module, x: Tensor) -> bool:
    """Whether it is deep enough, in eval mode and in float32, takes images or the like, and nobody watches its layers.

    Numbers of a table may be large and are told apart by more than the eight bits of bf16.
    """
    parts = list(model.modules())
    if x.ndim < 3 or x.dtype != torch.float32 or sum(type(part) in HELD for part in parts) < DEEP:
        return False
    if any(part.training or hooked(part) or isinstance(part, torch.jit.ScriptModule) for part in parts):
        return False
    held = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    return all(t.dtype == torch.float32 and t.device == x.device for t in held)


def _state(model: nn.Module) -> Tensor:
    """Three sums over each of k tensors that a model holds, of which one knows what stands where: 3k float64."""

    def sums(t: Tensor) -> Tensor:
        wide = t.detach().double().flatten()
        return torch.stack([wide.sum(), wide.square().sum(), wide @ torch.linspace(0, 1, len(wide)).to(wide)])

    return torch.cat([sums(t) for t in (*model.parameters(), *model.buffers())])


def _settings(model: nn.Module) -> tuple[object, ...]:
    """What its parts hold besides, as a temperature or the name of a mode."""
    held = (v for part in model.modules() for v in vars(part).values())
    return tuple(v for v in held if isinstance(v, int | float | str))


class Search:
    """The copy of a model that gradients come from: n *d -> n *o, what goes into the squash at the end if there is one.

    It holds on to nothing of the model itself.
    """

    def __init__(self, model: nn.Module, x: Tensor, *, sizes: tuple[int, ...] = SIZES) -> None:
        self.sizes = tuple(sorted(sizes))
        x = x.detach()[:TRIED].clone()
        with whole_float32():
            self.squash = _squash(model, x)
            self._wanted = Lead.of(model if self.squash is None else partial(before, model), x)
            self.twin = folded(model, x).requires_grad_(False)
        for part in self.twin.modules():
            if type(part) in HELD:
                part.to(torch.bfloat16)
        self.twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._pools: list[Pool] = []
        self._slots: dict[tuple[int, int], Recorded] = {}
        whole = self.twin
        try:
            self.twin = fused(whole)
            self._check(self.ask)
        except Exception:  # whatever a stranger's model does when it is taken apart
            self.twin = whole
            self._check(self.ask)

    def __call__(self, x: Tensor) -> Tensor:  # n *d -> n *o
        out: Tensor = _Played.apply(x, self.parts)  # type: ignore[no-untyped-call]
        return out

    def ask(self, x: Tensor) -> Tensor:  # n *d -> n *o
        """One pass of the copy, as it is recorded."""
        # no cache: what is cast in one recording may not be taken for that of another
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            out: Tensor = self.twin(x) if self.squash is None else before(self.twin, x)
        return out.float()

    @property
    def off(self) -> bool:
        return not self.sizes

    def close(self, most: int = 0) -> None:
        """Go on with sizes of less than this, with none unless told; what was recorded is dropped."""
        self.sizes = tuple(size for size in self.sizes if size < most)
        self._slots.clear()
        self._pools.clear()

    def parts(self, x: Tensor) -> Iterator[tuple[slice, Recorded]]:
        """Which rows pass through which recording."""
        for place, (start, n, size) in enumerate(cuts(len(x), self.sizes)):
            try:
                with torch.autocast(x.device.type, enabled=False):  # a recording does not hang on who asks first
                    slot = self._slot(x, size, place)
            except torch.OutOfMemoryError:
                self.close(size)
                raise
            yield slice(start, start + n), slot

    def _slot(self, x: Tensor, size: int, place: int) -> Recorded:
        """The recording of this size for this place in a batch: what passes together has memory of its own."""
        while len(self._pools) <= place:
            self._pools.append(Pool(x.device))
        if (size, place) not in self._slots:
            self._slots[size, place] = self._made(x, size, place)
        return self._slots[size, place]

    def _made(self, x: Tensor, size: int, place: int) -> Recorded:
        slot = Recorded(self.ask, x, size, self._pools[place])

        def alone(x: Tensor) -> Tensor:
            out: Tensor = _Played.apply(x, lambda x: [(slice(0, len(x)), slot)])  # type: ignore[no-untyped-call]
            return out

        self._check(alone, size)
        return slot

    def _check(self, ask: Ask, most: int = TRIED) -> None:
        wanted = self._wanted.take(most)
        if not wanted.like(Lead.of(ask, wanted.x, wanted.v)):
            raise NotAlike


class NotAlike(Exception):
    """A copy does not stand for its model."""


class Lead(NamedTuple):
    """What a model says to some inputs, and the slope of a mix v of its answers that is the same for every model."""

    x: Tensor  # n *d
    v: Tensor  # n *o
    z: Tensor  # n *o
    g: Tensor  # n *d

    @classmethod
    def of(cls, ask: Ask, x: Tensor, v: Tensor | None = None) -> Lead:
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            z = ask(at)
            v = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z) if v is None else v
            (g,) = torch.autograd.grad(z, at, v)
        return cls(at.detach(), v, z.detach(), g)

    def take(self, most: int) -> Lead:
        return Lead(*(part[:most] for part in self))

    def like(self, other: Lead, *, most: float = OFF, least: float = ALIKE) -> bool:
        """Whether the other leads where this one does. Where there is no slope, neither may have one."""
        if self.z.shape != other.z.shape or not bool(self.z.isfinite().all()):
            return False
        off, spread = (other.z - self.z).square().mean().sqrt(), (self.z - self.z.mean()).square().mean().sqrt()
        a, b = self.g.flatten(1).double(), other.g.flatten(1).double()
        cosine = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
        cosine = torch.where((a == 0).all(1) & (b == 0).all(1), 1.0, cosine.nan_to_num(0.0))
        return bool(off <= most * spread) and float(cosine.median()) >= least


def before(model: nn.Module, x: Tensor) -> Tensor:
    """What goes into the softmax or sigmoid that the model ends in: n *d -> n *o."""
    with BeforeSquash() as seen:
        out: Tensor = model(x)
    z: Tensor | None = seen.input_of(out)
    if z is None:
        raise NotAlike
    return z


def _squash(model: nn.Module, x: Tensor) -> Squash | None:
    """The softmax or sigmoid that the model ends in, None where it does not.

    One that is not seen, and probabilities that come by another road, are refused: they want all of float32. So is a
    model that draws, or whose answers have no row for each input.
    """
    stood = _generators(x.device)
    with torch.enable_grad(), BeforeSquash() as seen:
        out = model(x.detach().requires_grad_())
    moved = any(not torch.equal(a, b) for a, b in zip(stood, _generators(x.device), strict=True))
    if moved or not isinstance(out, Tensor) or not out.is_floating_point() or len(out) != len(x):
        raise NotAlike
    last, z = type(out.grad_fn).__name__, seen.input_of(out)
    if last not in ("SoftmaxBackward0", "SigmoidBackward0"):
        if out.ndim == 2 and out.shape[1] > 1 and are_probabilities(out.detach()):
            raise NotAlike
        return None
    squash: Squash = torch.sigmoid if last == "SigmoidBackward0" else partial(torch.softmax, dim=1)
    if z is None or not torch.equal(squash(z), out):
        raise NotAlike
    return squash


def _generators(device: torch.device) -> list[Tensor]:
    """How those stand that a random model draws from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


class _Played(torch.autograd.Function):
    """All parts of a batch, and their way back into one gradient, which lies in memory as the inputs do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parts: Any) -> Tensor:  # type: ignore[override]
        ctx.parts, outs = [], []
        for rows, slot in list(parts(x)):
            z, turn = slot.go(x[rows])
            outs.append(z)
            ctx.parts.append((rows, slot, turn))
        ctx.save_for_backward(x)
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        g = torch.empty_like(x)
        for rows, slot, turn in ctx.parts:
            slot.come_back(x[rows], v[rows], turn, g[rows])
        return g, None


class _Worth(torch.autograd.Function):
    """The slope of the first with the value of the second."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return v, None


class Swift(nn.Module):
    """`model` as it is for answers; where a gradient is asked for, what `search` says of it.

    Its weights must stay as they are meanwhile. Where the search fails the model itself is searched, in float32.
    """

    def __init__(self, model: nn.Module, search: Search) -> None:
        super().__init__()
        self.model, self.search = model, search
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        squash = self.search.squash
        if not (torch.is_grad_enabled() and x.requires_grad):
            z = self._plain(x)
            return z if squash is None else squash(z)
        in_bf16, found = torch.is_autocast_enabled(x.device.type), self._searched(x)
        with torch.autocast(x.device.type, enabled=False):
            if found is None:
                out: Tensor = self.model(x)
                return out
            if not in_bf16:
                with torch.no_grad():
                    value = self._plain(x)
                found = _Worth.apply(found, value)  # type: ignore[no-untyped-call]
            return found if squash is None else squash(found)

    def _searched(self, x: Tensor) -> Tensor | None:
        if self.search.off or not len(x):
            return None
        try:
            out = self.search(x)
        except torch.OutOfMemoryError:  # smaller sizes may do
            return None
        except Exception:
            self.search.close()
            return None
        for tally in tallies(self.model):
            tally.slopes += len(x)
        return out

    def _plain(self, x: Tensor) -> Tensor:  # n *d -> n *o
        """What the model itself says, before a squash at its end.

        Answers are padded too: cuDNN takes 30 ms to plan for a batch size that it has not met (measured on an H200).
        """
        ask: Ask = self.model if self.search.squash is None else partial(before, self.model)
        if self.search.off or not len(x):
            return ask(x)
        outs = []
        for start, n, size in cuts(len(x), self.search.sizes):
            part = x[start : start + n]
            if size > n:
                part = torch.cat([part, part[:1].expand(size - n, *x.shape[1:])])
            outs.append(ask(part)[:n])
            for tally in tallies(self.model):
                tally.answers -= size - n  # nobody asked for those
        return outs[0] if len(outs) == 1 else torch.cat(outs)


class Twin:
    """The copy of a model that is asked on a CPU: folded, in float32, channels-last where it can be asked so.

    A pass and its gradient of 64 inputs take 0.56 of the model's own of the bundled network and 0.70 of a ResNet-18
    (two cores of x86_64 with AVX-512).
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        x, self.off = x.detach()[:TRIED].clone(), False
        _squash(model, x)
        wanted, rows = Lead.of(model, x), folded(model, x).requires_grad_(False)
        for twin in (copy.deepcopy(rows).to(memory_format=torch.channels_last), rows):  # type: ignore[call-overload]
            with contextlib.suppress(RuntimeError):  # what views its activations wants them in rows
                if wanted.like(Lead.of(twin, x, wanted.v), most=ROUNDING, least=SAME):
                    self.net: nn.Module = twin
                    return
        raise NotAlike


class Aside(nn.Module):
    """`model` as it is; where a gradient is asked for in bf16, its twin. Its weights must stay as they are."""

    def __init__(self, model: nn.Module, twin: Twin) -> None:
        super().__init__()
        self.model, self.twin = model, twin
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        searched = torch.is_autocast_enabled(x.device.type) and torch.is_grad_enabled() and x.requires_grad
        with torch.autocast(x.device.type, enabled=False):
            if searched and not self.twin.off:
                try:
                    found: Tensor = self.twin.net(x)
                except Exception:  # whatever a stranger's model does
                    self.twin.off = True
                else:
                    for tally in tallies(self.model):
                        tally.slopes += len(x)
                    return found
            out: Tensor = self.model(x)
            return out


def tallies(model: nn.Module) -> list[Tally]:
    """Where passes of this model are counted."""
    parts = set(model.modules()) if COUNTED else set()
    return [tally for counted, tally in COUNTED if counted in parts]


class Kept(NamedTuple):
    """A search, what the model held when it was made, and for which inputs; `held` is None where a pass changes it."""

    state: Tensor
    like: tuple[object, ...]
    held: tuple[object, ...] | None
    search: Search | Twin | None


_KEPT: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()


def cuts(n: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Start, length and padded length of each part of n inputs, for the least padding and the fewest calls together."""
    start = 0
    while start < n:
        size = cheapest(n - start, sizes)[1]
        yield start, min(n - start, size), size
        start += size


@lru_cache(maxsize=100_000)
def cheapest(n: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """The cost of n inputs, in inputs that pass, and the first size to take; the largest first while there are many."""
    if n <= 0:
        return 0, 0
    if n > 2 * sizes[-1]:
        return n, sizes[-1]
    cost, size = min((size + CALL + cheapest(n - size, sizes)[0], -size) for size in sizes)  # of equals, the larger
    return cost, -size
