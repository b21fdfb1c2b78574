r"""Does an error grow or die on its way through a network: two inputs, the same noise, how far apart their states are.

    e_t = h_t(x + d) - h_t(x),      exponent = (1 / T) log( ||e_T|| / ||e_0|| )

Both passes are driven by the same noise: without it e = 0 would be no solution, and e_t would hold the noise itself. In
an equation of depth `exponent` follows it. In any other network `stages` finds places through which everything flows,
and `norms` says how large state and error are at each of them.

With noise sigma h of ONE scalar Brownian motion and a drift of Lipschitz constant L, almost surely

    limsup (1 / t) log ||e_t||  <=  L - sigma^2 / 2

(Corollary 2.1). Networks draw one Brownian motion for each feature, and there it does not hold (8 features, tanh of a
matrix of norm 1, sigma = 2: -0.3, where the bound says -1). It is no guarantee for a network, and nothing prints it.

The mean of ||e_t|| over paths is ruled by rare huge ones: of dx = x dt + sigma x dB it is e^t for every sigma, while
nearly every path dies out where sigma^2 > 2. Medians and means of logarithms tell what happens.

Source: Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 2.3.3 (eq. 2.40, Definition 2.3.1,
    Corollary 2.1) and Fig. 2.17 (the tracer); the exponent with renormalisation: Benettin et al., Meccanica 1980.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.solve import DepthNoise, Drift, Scheme

MOST = 64  # modules that are tried, those nearest to the root
SAME = 1e-4  # of what two inputs differ by: closer is the same up to rounding


def exponent(
    drift: Drift,
    noise: DepthNoise,
    h: Tensor,
    e: Tensor,
    *,
    steps: int,
    span: float = 1.0,
    scheme: Scheme = "euler",
    scalar: bool = False,
) -> Tensor:  # n d, n d -> n
    """(1 / span) log( ||e_T|| / ||e_0|| ) of each path, the error brought back to its first size after each step.

    Fresh noise drives each path and its disturbed twin alike; `scalar`: one Brownian motion for all features. Minus
    infinity where the error is gone altogether.
    """
    if steps < 1 or not 0 < span < math.inf or h.shape != e.shape:
        raise AssayError(
            f"exponent got steps={steps}, span={span}, states {tuple(h.shape)} and errors {tuple(e.shape)}; it wants "
            "at least 1 step, a finite depth above 0, and an error for each state."
        )
    dt, start = span / steps, torch.linalg.vector_norm(e, dim=1, keepdim=True)
    total = torch.zeros_like(start)
    for k in range(steps):
        drawn = noise.draw(h[:, :1] if scalar else h, dt)
        near = h + e
        after, twin = (noise.step(at, drift(at, k * dt), dt, drawn, scheme) for at in (h, near))
        h, e = after, twin - after
        size = torch.linalg.vector_norm(e, dim=1, keepdim=True)
        total = total + (size / start).log()
        e = torch.where(size > 0, e * (start / size), 0.0)
    return torch.where(start > 0, total / span, -math.inf)[:, 0]


class Stage(NamedTuple):
    """A place inside a network: what a module gives when it is called for the `call`-th time in a pass."""

    name: str
    call: int
    size: int  # numbers in one state

    def __str__(self) -> str:
        return self.name if self.call == 0 else f"{self.name} ({self.call + 1})"


def stages(model: nn.Module, x: Tensor, *, seed: int = 0) -> tuple[Stage, ...]:  # n *d
    """The places through which everything flows, from the first to the last, input and answer left out.

    With what another input gives there put in its place, an input must get the other's answer. That finds the ends of
    residual blocks, and no place inside them, without knowing how a network is written. `x` are a few inputs, two or
    more; a random model is asked with the same `seed` each time. Modules of TorchScript take no hook and are none.
    """
    found: dict[tuple[float, ...], Stage] = {}
    runs: Counter[str] = Counter()

    def note(name: str, out: Tensor) -> None:
        if isinstance(out, Tensor) and out.ndim > 1 and len(out) == len(x) and out.is_floating_point():
            first = found.get(_print(out))
            if first is None or first.name.startswith(f"{name}."):  # a container gives what its last layer gives
                found.pop(_print(out), None)
                found[_print(out)] = Stage(name, runs[name], out[0].numel())
        runs[name] += 1

    with _hooked(dict(_modules(model)), note):
        answer = _pass(model, x, seed)
    for end in (x, answer):  # neither is inside
        found.pop(_print(end), None)
    other = x.roll(1, 0)
    target = _pass(model, other, seed)
    moved = float((answer - target).abs().max())
    if moved == 0:  # all places look alike to an answer that is always the same
        return ()
    few = set(sorted(found.values(), key=lambda stage: stage.name.count("."))[:MOST])
    return tuple(
        stage
        for stage in found.values()
        if stage in few and float((_patched(model, x, other, stage, seed) - target).abs().max()) <= SAME * moved
    )


def repeats(model: nn.Module, x: Tensor, *, seed: int = 0) -> bool:  # n *d
    """Whether two passes with one seed give the same answers, up to rounding: else no two passes share their noise."""
    first, again, other = (torch.nan_to_num(_pass(model, z, seed)) for z in (x, x, x.roll(1, 0)))
    return float((first - again).abs().max()) <= SAME * float((first - other).abs().max())


def _print(t: Tensor) -> tuple[float, ...]:
    return t.numel(), float(t.double().sum()), float(t.double().square().sum())


def _patched(model: nn.Module, x: Tensor, other: Tensor, stage: Stage, seed: int) -> Tensor:
    """The answer to `x` with the state of `other` at that place."""
    module, given, calls = {stage.name: model.get_submodule(stage.name)}, list[Tensor](), count()
    with _hooked(module, lambda _, out: given.append(out.clone())):
        _pass(model, other, seed)
    with _hooked(module, lambda _, out: given[stage.call] if next(calls) == stage.call else None):
        return _pass(model, x, seed)


class Norms(NamedTuple):
    """Sizes at the input, at each stage and of the answer."""

    state: Tensor  # n s
    error: Tensor  # k n s: of each changed input


def norms(
    model: nn.Module, x: Tensor, changed: Sequence[Tensor], at: Sequence[Stage], *, seed: int = 0
) -> Norms:  # n *d, k of n *d
    """l2 norms of the states of `x` and of what each of `changed` differs by, all passes under the same noise."""
    place = {(stage.name, stage.call): k + 1 for k, stage in enumerate(at)}
    modules = {stage.name: model.get_submodule(stage.name) for stage in at}

    def walk(of: Tensor, look: Callable[[int, Tensor], Tensor]) -> Tensor:  # n *d -> n s
        """What `look` makes of each state on the way."""
        seen = {0: look(0, torch.nan_to_num(of))}  # a missing cell has no size
        runs: Counter[str] = Counter()

        def note(name: str, out: Tensor) -> None:
            k = place.get((name, runs[name]))
            runs[name] += 1
            if k is not None:
                seen[k] = look(k, out)

        with _hooked(modules, note):
            answer = _pass(model, of, seed)
        seen[len(at) + 1] = look(len(at) + 1, answer)
        return torch.stack([seen[k] for k in range(len(at) + 2)], 1)

    kept: dict[int, Tensor] = {}

    def keep(k: int, state: Tensor) -> Tensor:
        kept[k] = state.clone()  # a later module may write in place
        return _size(state)

    state = walk(x, keep)
    errors = [walk(one, lambda k, other: _size(other - kept[k])) for one in changed]
    return Norms(state, torch.stack(errors) if errors else state.new_zeros(0, *state.shape))


def _size(t: Tensor) -> Tensor:  # n *d -> n
    size: Tensor = torch.linalg.vector_norm(t.detach().double().flatten(1), dim=1)
    return size


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, m) for name, m in model.named_modules() if name and not isinstance(m, torch.jit.ScriptModule))


@contextmanager
def _hooked(modules: Mapping[str, nn.Module], use: Callable[[str, Tensor], Tensor | None]) -> Iterator[None]:
    """`use` sees what these modules give, in the order of their calls, and may put something else in its place."""
    handles = [m.register_forward_hook(lambda _, __, out, name=n: use(name, out)) for n, m in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _pass(model: nn.Module, x: Tensor, seed: int) -> Tensor:  # n *d -> n *o
    """One pass with the noise of this seed, the same for every batch of this size."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if x.is_cuda:
            with torch.cuda.device(x.device):
                torch.cuda.manual_seed(seed)
        out: Tensor = model(x)
    return out
