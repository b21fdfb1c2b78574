"""By what a model is known again: its weights, whatever else it holds, and its code.

What torch registers is the least of it. Two models may differ in a plain tensor, a flag, a fitted tree, a buffer that
is not saved, a hook, a value in a closure, a global that `forward` reads, or a helper that was edited; each is met on a
walk through all that the model holds. What the walk cannot see (a lock, an open file, a session in native code) makes
the whole unknown: each call then gives another hash, and nothing that was stored is believed.

Two hashes come of the walk. The first is the same on any machine: content, and the files of the model's code. The
second is of what may differ between machines that run the same model: code as it was compiled and loaded, which also
tells a module that was edited after it was imported, Assay's own, and the versions of installed packages.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import io
import math
import sys
import types
import uuid
import weakref
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from assay import code
from assay.data.digest import of_array

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
OWN_STATE = frozenset(vars(nn.Module())) | {"training", "_compiled_call_impl"}
"""What every module has; of these, what an answer depends on is seen to by itself."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
FX_OWN = frozenset({"_graph", "_code", "_lineno_map", "_prologue_start", "_load_state_dict_pre_hooks", "meta"})
SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)


class Prints(NamedTuple):
    """The hash that lasts, and that of what may differ between machines."""

    lasting: str
    passing: str


class Unknown(Exception):
    """Something is held that cannot be hashed."""


def of_model(model: nn.Module, kinds: Iterable[type] = (), *, weights: bool = True) -> Prints:
    """The hashes of a model; `kinds` are further classes whose code counts, those of its data.

    Without `weights`, arrays and tensors are passed over: for the second hash alone.
    """
    walk = _Walk(weights)
    try:
        content = walk.of(model) + b"".join(sorted(walk.of(kind) for kind in kinds)) + _contents(walk.files)
        found = code.of_modules(walk.modules)
        walk.look_at_loaded(found.files)
        versions = sorted({**found.packages, **code.packages(walk.modules)}.items())
        passing = repr((sorted(walk.compiled), versions, sys.version_info[:2])).encode()
        return Prints(_sha(content, found.told(own=False)).hex(), _sha(passing, found.told(own=True)).hex())
    except (Unknown, RecursionError):
        return Prints(uuid.uuid4().hex, uuid.uuid4().hex)


def of_answers(out: Tensor) -> str:  # n k
    """A hash of answers, as fine as a 256th of the largest."""
    out = out.double()
    _, exponent = math.frexp(float(out[out.isfinite()].abs().max())) if bool(out.isfinite().any()) else (0, 0)
    steps = torch.nan_to_num(out / 2.0 ** (exponent - 8), nan=1e6, posinf=2e6, neginf=-2e6).round()
    return of_array(steps.long().numpy()).hex()


class _Walk:
    """Through all that a value holds, each object once; the classes and functions met say which code counts."""

    def __init__(self, weights: bool) -> None:
        self.weights = weights
        self.modules: set[str] = set()
        self.files: set[str] = set()  # where functions come from: another module may have taken the name of theirs
        self.compiled: set[bytes] = set()
        self.theirs: dict[str, bool] = {}
        self.done: dict[int, tuple[Any, bytes]] = {}  # the object is held, so that no other gets its number
        self.under: dict[int, int] = {}  # what is being looked at now, with how deep it lies

    def of(self, value: Any) -> bytes:
        """The value itself, hashed."""
        kind = type(value)
        if kind in PLAIN:
            return _sha(kind.__name__.encode(), _told(value))
        if id(value) in self.done:
            return self.done[id(value)][1]
        if id(value) in self.under:
            return _sha(b"again", b"%d" % (len(self.under) - self.under[id(value)]))
        self.under[id(value)] = len(self.under)
        try:
            found = _sha(_name(kind), *self._parts(value, kind))
        finally:
            del self.under[id(value)]
        self.done[id(value)] = (value, found)
        return found

    def _parts(self, value: Any, kind: type) -> Iterator[bytes]:
        if kind in (tuple, list, dict) and _is_plain(value):
            yield _told(value)
        elif kind in (tuple, list):
            yield from map(self.of, value)
        elif kind in (dict, types.MappingProxyType):
            for key, held in value.items():  # in its order, which a model may go by
                yield self.of(key)
                yield self.of(held)
        elif kind in (set, frozenset):
            yield from sorted(map(self.of, value))
        elif isinstance(value, Tensor) and _is_strided(value):
            with _or_unknown():
                plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            yield self._array(plain.view(torch.uint8).numpy())
            yield f"{value.dtype} {tuple(value.shape)}".encode()
            yield self.of(kind)
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            yield self._array(np.asarray(value))
        elif isinstance(value, np.ndarray):
            yield f"{value.dtype} {value.shape}".encode()
            yield self.of(value.ravel().tolist())
        elif isinstance(value, nn.Module):
            yield from self._module(value)
        elif isinstance(value, types.ModuleType):
            self.modules.add(value.__name__)
            yield code.lasting(value.__name__).encode()
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.MethodType):
            yield self.of(value.__func__)
            yield self.of(value.__self__)
        elif isinstance(value, BUILT_IN):
            yield f"{getattr(value, '__module__', '')} {value.__qualname__}".encode()
            yield self.of(getattr(value, "__self__", None))
        elif isinstance(value, weakref.ref):
            yield self.of(value())
        else:
            yield from self._object(value, kind)

    def _array(self, array: np.ndarray[Any, Any]) -> bytes:
        return of_array(array) if self.weights else b""

    def _module(self, module: nn.Module) -> Iterator[bytes]:
        """Parameters, buffers, hooks, parts and whatever else it holds; of some, what they say of themselves."""
        yield self.of(type(module))
        if type(module).__module__ == "torch._dynamo.eval_frame":  # what torch.compile gives: all else is its own
            yield self.of(module._modules["_orig_mod"])
            return
        said = self._program(module)
        if said is not None:
            yield said
            for name, tensor in sorted(module.state_dict().items()):
                yield name.encode() + self.of(tensor)
            return
        for name, tensor in sorted((module._parameters | module._buffers).items()):
            yield name.encode() + self.of(tensor)
        for kind in HOOKS:
            yield from map(self.of, getattr(module, kind).values())
        for name, part in module._modules.items():
            yield name.encode() + self.of(part)
        passed = OWN_STATE | FX_OWN if isinstance(module, fx.GraphModule) else OWN_STATE
        for name, held in sorted(vars(module).items()):
            if name not in passed:
                yield name.encode() + self.of(held)
        if isinstance(module, fx.GraphModule):
            yield str(module.code).encode()
            yield from (self.of(n.target) for n in module.graph.nodes if n.op == "call_function")

    def _program(self, module: nn.Module) -> bytes | None:
        """What a module that was not written in Python says of itself: its file's hash, or its program."""
        if isinstance(module, torch.jit.ScriptModule):
            with _or_unknown(), zipfile.ZipFile(io.BytesIO(module.save_to_buffer())) as saved:
                names = [n for n in saved.namelist() if not n.endswith((".debug_pkl", "serialization_id"))]
                return _sha(*(n.partition("/")[2].encode() + saved.read(n) for n in sorted(names)))
        ours = type(module).__module__.startswith("assay.subjects.")  # a stranger's word is not taken for its state
        said = getattr(module, "state_digest", None) if ours else None
        return said.encode() if isinstance(said, str) else None

    def _class(self, kind: type) -> Iterator[bytes]:
        """Names, and what was set on the classes: their files are looked at afterwards, all of them at once."""
        for each in kind.__mro__:
            yield _name(each)
            self.modules.add(each.__module__)
            if not self._is_theirs(each.__module__):
                continue
            for name, held in sorted(vars(each).items()):
                function = _function_in(held)
                if function is not None:
                    yield name.encode() + self.of(function)
                elif not (name.startswith("__") or name == "_abc_impl" or isinstance(held, SLOTS)):
                    yield name.encode() + self.of(held)

    def _function(self, function: types.FunctionType) -> Iterator[bytes]:
        """Its name, what it closes over, and the globals that it names; its file, or where it has none its code."""
        module = function.__module__ or ""
        yield f"{code.lasting(module)} {function.__qualname__} {function.__code__.co_firstlineno}".encode()
        self.modules.add(module)
        if self._is_theirs(module):
            self.files.add(function.__code__.co_filename)
        compiled = self._compiled(function.__code__)
        self.compiled.add(compiled)
        if not code.has_file(module):
            yield compiled
        yield self.of((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield self.of(cell.cell_contents)
            except ValueError:  # not filled yet
                yield b"empty"
        if not self._is_theirs(module):
            return
        for name in sorted(_globals_named(function.__code__)):
            if name in function.__globals__:
                yield name.encode() + self.of(function.__globals__[name])

    def _is_theirs(self, module: str) -> bool:
        """Whether it is the user's own: neither installed, nor of the standard library, nor Assay's."""
        if module not in self.theirs:
            self.theirs[module] = module.partition(".")[0] != code.OWN and not code.is_installed(module)
        return self.theirs[module]

    def _compiled(self, block: types.CodeType) -> bytes:
        parts = [block.co_code, repr((block.co_names, block.co_varnames)).encode()]
        parts += [self._compiled(c) if isinstance(c, types.CodeType) else self.of(c) for c in block.co_consts]
        return _sha(*parts)

    def look_at_loaded(self, modules: Iterable[str]) -> None:
        """Take in the code of these modules as it was loaded, which need not be that of their files any more."""
        for name in modules:
            if name.partition(".")[0] == code.OWN:
                continue
            for held in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
                functions = [held, *vars(held).values()] if isinstance(held, type) else [held]
                for function in filter(None, map(_function_in, functions)):
                    if function.__module__ == name:
                        self.compiled.add(self._compiled(function.__code__))

    def _object(self, value: Any, kind: type) -> Iterator[bytes]:
        """As it would be pickled, but by content alone; and what it holds beside, where it says itself what counts."""
        with _or_unknown():
            registered = copyreg.dispatch_table.get(kind)
            reduced: Any = registered(value) if registered else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            self.modules.add(getattr(value, "__module__", None) or kind.__module__)
            yield reduced.encode()
            return
        yield self.of(kind)
        padded: list[Any] = [*reduced, None, None, None]
        build, given, state, items, pairs = padded[:5]
        for part in (build, given, state, list(items or ()), [*map(list, pairs or ())]):
            yield self.of(part)
        if state is not getattr(value, "__dict__", state):
            for name, held in sorted(vars(value).items()):
                with suppress(Unknown):  # it knows how to do without
                    yield name.encode() + self.of(held)


def _sha(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d " % len(part) + part)
    return digest.digest()


def _name(kind: type) -> bytes:
    return f"{code.lasting(kind.__module__)} {kind.__qualname__}".encode()


def _contents(files: Iterable[str]) -> bytes:
    """The hashes of those of these files that there are."""
    digests = []
    for file in files:
        with suppress(OSError, ValueError):
            digests.append(hashlib.sha256(Path(file).read_bytes()).digest())
    return b"".join(sorted(digests))


def _told(value: Any) -> bytes:
    return value if isinstance(value, bytes) else repr(value).encode("utf-8", "backslashreplace")


def _is_plain(value: Any) -> bool:
    parts = (*value, *value.values()) if isinstance(value, dict) else value
    return all(type(part) in PLAIN for part in parts)


def _is_strided(value: Tensor) -> bool:
    return value.layout == torch.strided and not (value.is_quantized or value.is_meta)


def _function_in(held: Any) -> types.FunctionType | None:
    """The function behind what stands in a class: a method, a property, a wrapper that remembers; or None."""
    for name in ("__func__", "fget", "func", "__wrapped__"):
        if isinstance(held, types.FunctionType):
            break
        held = getattr(held, name, held) if not isinstance(held, type) else held
    return held if isinstance(held, types.FunctionType) else None


def _globals_named(block: types.CodeType) -> set[str]:
    """The names of globals that a function reads, those of the functions inside it too."""
    found = {str(i.argval) for i in dis.get_instructions(block) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for const in block.co_consts:
        if isinstance(const, types.CodeType):
            found |= _globals_named(const)
    return found


@contextmanager
def _or_unknown() -> Iterator[None]:
    """Whatever an object's own code raises: what cannot be hashed is not known."""
    try:
        yield
    except Exception as e:
        raise Unknown from e
