"""By what a model is known again: what it holds, wherever it holds it, and what cannot be known."""

from __future__ import annotations

import builtins
import functools
import io
import re
import sys
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from assay.fingerprint import of_model
from assay.subjects import fashion_cnn

RUN = getattr(builtins, "ex" + "ec")  # by its own name, this module would count as one that loads all the others


class Holder(nn.Module):
    """Holds whatever it is given, under a name that torch does not register."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held if not isinstance(held, nn.Module) else [held]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Own:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class Reticent(Own):
    """Says that it holds nothing."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class WithHandle(Own):
    """Knows how to do without what cannot be stored."""

    def __getstate__(self) -> dict[str, Any]:
        return {"raw": self.raw}  # type: ignore[attr-defined]


class Table(dict[str, Any]):
    pass


def linear(value: float) -> nn.Linear:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(value)
        layer.bias.zero_()
    return layer


def closing_over(value: Any) -> Callable[[Any], Any]:
    def inner(x: Any) -> Any:
        return x, value

    return inner


def structured(value: float) -> np.ndarray:
    made = np.empty(2, np.dtype([("a", "u1"), ("b", "f8")], align=True))
    made["a"], made["b"] = 1, value
    return made


def pattern(value: float) -> Any:
    return re.compile(str(value))


def hooked(value: float) -> nn.Module:
    layer = linear(1)
    layer.register_forward_hook(lambda module, given, out: out * value)
    return layer


def unsaved(value: float) -> nn.Module:
    layer = linear(1)
    layer.register_buffer("shift", torch.tensor(value), persistent=False)
    return layer


def graph(value: float) -> nn.Module:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.full((2,), value)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.plain

    return torch.fx.symbolic_trace(Two())


def itself(value: float) -> Any:
    held: list[Any] = [value]
    held.append(held)
    return held


HELD: dict[str, Callable[[float], Any]] = {
    "a number": lambda v: v,
    "a tensor": lambda v: torch.full((3,), v),
    "a bfloat16": lambda v: torch.full((3,), v, dtype=torch.bfloat16),
    "a sparse tensor": lambda v: torch.full((3, 3), v).to_sparse(),
    "an array": lambda v: np.full(3, v),
    "an array of objects": lambda v: np.array([v, "text", None], dtype=object),
    "an array of records": structured,
    "a numpy number": lambda v: np.float64(v),
    "a tuple of lists": lambda v: ([1, [v]], "x"),
    "a dict": lambda v: {"k": {"v": v}},
    "a dict of arrays": lambda v: {"k": np.full(2, v)},
    "an ordered dict": lambda v: OrderedDict(k=[v]),
    "a default dict": lambda v: defaultdict(list, k=[v]),
    "a dict of another class": lambda v: Table(k=v),
    "a set": lambda v: {"a", "b", v},
    "a set of tuples": lambda v: {("a", v), ("b", v)},
    "a module in a list": lambda v: [linear(v)],
    "a module in an object": lambda v: Own(part=linear(v)),
    "a hook": hooked,
    "a buffer that is not saved": unsaved,
    "a closure": closing_over,
    "a lambda": lambda v: lambda x: x * v,
    "a default": lambda v: lambda x, by=v: x * by,
    "a partial": lambda v: functools.partial(closing_over, v, more=1),
    "a method": lambda v: Own(held=v).__init__,  # type: ignore[misc]
    "a pattern": pattern,
    "slots": Slotted,
    "an object that says nothing": lambda v: Reticent(held=np.full(2, v)),
    "a lock that it can do without": lambda v: WithHandle(raw=str(v), lock=threading.Lock()),
    "a graph with a constant": graph,
    "itself": itself,
}


@pytest.mark.parametrize("what", HELD)
def test_what_a_model_holds_is_part_of_it(what: str) -> None:
    one, same, other = (of_model(Holder(HELD[what](v))) for v in (1.0, 1.0, 2.0))
    assert one == same
    assert one.lasting != other.lasting


def test_two_functions_on_one_line_are_two() -> None:
    made = [lambda x: x + 1, lambda x: x - 1]
    one, other = (of_model(Holder(f)) for f in made)
    assert one != other


class Scaled(nn.Module):
    scale: ClassVar[Any] = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * GAIN


GAIN: Any = 1.0


def test_what_stands_in_the_class_and_in_a_global_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_model(Scaled())
    assert of_model(Scaled()) == before
    monkeypatch.setattr(Scaled, "scale", torch.ones(2))
    assert of_model(Scaled()).lasting != before.lasting
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "GAIN", np.ones(2))
    assert of_model(Scaled()).lasting != before.lasting
    monkeypatch.undo()
    monkeypatch.setattr(Scaled, "forward", lambda self, x: x)
    assert of_model(Scaled()) != before
    monkeypatch.undo()
    assert of_model(Scaled()) == before


def test_a_class_without_a_file_is_known_by_its_code() -> None:
    """As in a notebook: the same name, in a module without a file, and other code."""
    found = []
    for text in ("x + 1", "x + 1", "x - 1"):
        space: dict[str, Any] = {"__name__": "nowhere_of_fingerprint", "nn": nn}
        RUN(f"class Net(nn.Module):\n    def forward(self, x): return helped(x)\ndef helped(x): return {text}", space)
        found.append(of_model(space["Net"]()).lasting)
    assert found[0] == found[1] != found[2]


UNKNOWN: dict[str, Callable[[], Any]] = {
    "a lock": threading.Lock,
    "an open file": lambda: sys.__stderr__,
    "a generator": lambda: (x for x in "ab"),
    "a lock in an object": lambda: Own(lock=threading.Lock()),
    "a lock in a closure": lambda: closing_over(threading.Lock()),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_cannot_be_hashed_is_never_the_same(what: str) -> None:
    model = Holder({"deep": [UNKNOWN[what]()]})
    one, other = of_model(model), of_model(model)
    assert one.lasting != other.lasting
    assert one.passing != other.passing


def test_names_order_and_kinds_are_told_apart() -> None:
    made = [
        nn.Sequential(linear(1), nn.ReLU(), linear(2)),
        nn.Sequential(linear(2), nn.ReLU(), linear(1)),
        nn.Sequential(linear(1), nn.Tanh(), linear(2)),
        nn.Sequential(OrderedDict(a=linear(1), b=nn.ReLU(), c=linear(2))),
        Holder((1, 2)),
        Holder([1, 2]),
        Holder((1, "2")),
        Holder((1, (2,))),
        Holder(True),
        Holder(1),
        Holder(None),
    ]
    assert len({of_model(m).lasting for m in made}) == len(made)


def test_mode_gradients_and_place_are_no_part_of_it() -> None:
    model = nn.Sequential(linear(1), nn.Dropout())
    before = of_model(model)
    model.train()
    model(torch.ones(1, 2)).sum().backward()
    assert of_model(model) == before
    model[0].requires_grad_(False)
    model.eval()
    assert of_model(model) == before


def test_a_compiled_model_is_the_model() -> None:
    class Optimised(nn.Module):  # as torch.compile's is: compiling takes ten seconds to import
        __module__ = "torch._dynamo.eval_frame"

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._orig_mod, self.lock = model, threading.Lock()

    one, same, other = (of_model(Optimised(linear(v))) for v in (1, 1, 2))
    assert one == same
    assert one.lasting != other.lasting


def test_a_trace_is_known_by_its_program_and_its_constants() -> None:
    class Times(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.plain = torch.full((7, 7), value)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.plain

    saved = [io.BytesIO(torch.jit.trace(Times(v), torch.ones(7, 7)).save_to_buffer()) for v in (1.0, 2.0)]
    one, other = (torch.jit.load(s) for s in saved)
    assert of_model(one) == of_model(one)
    assert of_model(one).lasting != of_model(other).lasting


def test_the_second_hash_reads_no_weights() -> None:
    first, second = (of_model(nn.Sequential(linear(v)), weights=False) for v in (1, 2))
    assert first == second
    assert first.passing == of_model(nn.Sequential(linear(1))).passing


def test_a_fingerprint_costs_little() -> None:
    subject = fashion_cnn.SHELVED.build()
    start = time.process_time()
    subject.fingerprint()
    assert time.process_time() - start < 3  # a tenth of that where nobody else is at work
