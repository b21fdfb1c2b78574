"""The dependency hypergraph of a network, read from the graph of torch.fx.

Every channel that a layer writes gets a number, and the numbers are followed through the graph: a sum joins those of
its terms, a concatenation puts them behind each other, a map that is laid flat repeats them, a grouped convolution
joins those at the same place of each group. Channels that meet an operation without a rule stay as they are; so do
those of the input and of the answer. Edges are the writers that share a channel (surgery.py says what for).

Source: Passov, David and Netanyahu, "Gator", 2022, for the hypergraph, whose vertices are sides of layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils._pytree import tree_leaves

from assay.errors import AssayError, SubjectError

Ids = NDArray[np.int64]
Layer = _ConvNd | nn.Linear


@dataclass(frozen=True, eq=False)
class Edge:
    """Channels that live and die together, in the order of the first writer's output; `name` is that writer's.

    `outputs` and `inputs` tell, for each place along a module's output or input, which channel of the edge stands
    there, -1 for a place that is not this edge's: `outputs["stem"]` is (out_channels), `inputs["head"]` (in_features).
    """

    name: str
    size: int
    writers: tuple[str, ...]  # convolutions and Linears whose output channels these are
    readers: tuple[str, ...]  # convolutions and Linears whose input channels these are
    norms: tuple[str, ...]  # normalisations, depthwise convolutions, PReLUs: they follow
    outputs: Mapping[str, Tensor]  # of writers and norms: places -> channel or -1
    inputs: Mapping[str, Tensor]  # of readers and norms: places -> channel or -1


class Reading(NamedTuple):
    """The edges that can be cut, and for each other writer why its channels must stay."""

    edges: tuple[Edge, ...]
    fixed: Mapping[str, str]


def ends(layer: Layer) -> tuple[int, int]:
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def is_depthwise(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd) and layer.groups == layer.in_channels > 1


def follows(module: nn.Module) -> int | None:
    """The channels of a module that follows its input; None for any other."""
    if isinstance(module, _BatchNorm | _InstanceNorm):
        return module.num_features
    if isinstance(module, nn.GroupNorm):
        return module.num_channels
    if isinstance(module, nn.PReLU) and module.num_parameters > 1:
        return module.num_parameters
    return None


@dataclass(frozen=True)
class _Value:
    """A tensor whose channels are followed: they lie along `dim`, and `ids` numbers them."""

    dim: int
    ids: Ids


class _Tracer(fx.Tracer):
    """Opens what it can; a module with decisions inside stays one call, whose channels are then left alone."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        for kind in KNOWN:
            if isinstance(m, kind):
                return all(getattr(type(m), of, None) is getattr(kind, of, None) for of in ("forward", "_conv_forward"))
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        last, stack = next(iter(reversed(self.graph.nodes)), None), self.module_stack.copy()
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:  # somebody's forward pass, which may do anything to what stands in for a tensor
            self.module_stack = stack
            for node in reversed(self.graph.nodes):
                if node is last:
                    break
                self.graph.erase_node(node)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)


class _Shapes(fx.Interpreter):
    """Runs the graph and notes the shape of each tensor."""

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        n.meta["shape"] = tuple(out.shape) if isinstance(out, Tensor) else None
        n.meta["shapes"] = (
            [tuple(t.shape) if isinstance(t, Tensor) else None for t in out] if isinstance(out, tuple | list) else None
        )
        n.meta["tensors"] = any(isinstance(t, Tensor) for t in tree_leaves(out))
        return out


class Reader:
    """Numbers every channel that a layer writes, and follows the numbers through the graph.

    `pairs` are channels that must be the same one, `stays` those that must stay with the reason.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        if not isinstance(example, Tensor) or example.dim() < 2 or len(example) == 0:
            got = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
            raise AssayError(f"The surgery got the example {got}; it wants a tensor of at least one input, n first.")
        first = next((t for t in (*model.parameters(), *model.buffers())), None)
        self.example = example[:2].to(example.device if first is None else first.device)
        self.modules = dict(model.named_modules())
        self.count = 0
        self.pairs: list[tuple[Ids, Ids]] = []
        self.stays: list[tuple[Ids, str]] = []
        self.inputs: dict[str, Ids] = {}
        self.outputs: dict[str, Ids] = {}
        self.values: dict[fx.Node, _Value | list[_Value | None] | None] = {}
        try:
            traced = fx.GraphModule(model, _Tracer().trace(model))
        except Exception as e:  # as above
            why = (str(e).strip().splitlines() or ["no message"])[0]
            raise SubjectError(
                f"torch.fx cannot read the forward pass of {type(model).__name__} ({type(e).__name__}: {why}); move "
                "decisions that depend on values into a module of their own, or out of forward."
            ) from e
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                shapes = _Shapes(traced)
                shapes.extra_traceback = False  # what was raised is told in one line
                shapes.run(self.example)
        except Exception as e:  # as above
            why = (str(e).strip().splitlines() or ["no message"])[0]
            raise SubjectError(
                f"{type(model).__name__} fails on the example of shape {tuple(self.example.shape)} "
                f"({type(e).__name__}: {why}); give inputs that it takes."
            ) from e
        for node in traced.graph.nodes:
            self.values[node] = self.follow(node)
        self.untouchable()

    # What is known of one value.

    def fresh(self, size: int) -> Ids:
        self.count += size
        return np.arange(self.count - size, self.count, dtype=np.int64)

    def same(self, a: Ids, b: Ids) -> None:
        self.pairs.append((a, b))

    def stay(self, value: _Value | list[_Value | None] | None, why: str) -> None:
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                self.stays.append((each.ids, why))

    def value(self, node: Any) -> _Value | None:
        got = self.values.get(node) if isinstance(node, fx.Node) else None
        return got if isinstance(got, _Value) else None

    def known(self, node: fx.Node, dim: int) -> _Value:
        """The channels of this tensor along `dim`; where they are not followed, new ones that stay."""
        got = self.value(node)
        if got is not None and got.dim == dim:
            return got
        self.stay(got, f"{_called(node)} has them along another dimension")
        new = _Value(dim, self.fresh(node.meta["shape"][dim]))
        self.stay(new, "not a channel that a layer wrote")
        return new

    def refuse(self, node: fx.Node, why: str = "") -> None:
        """Whatever goes in stays as it is."""
        for each in node.all_input_nodes:
            self.stay(self.values.get(each), why or f"{_called(node)} reads them and has no rule")

    # One rule for each kind of operation.

    def follow(self, node: fx.Node) -> _Value | list[_Value | None] | None:
        shape = node.meta.get("shape")
        if node.op == "placeholder":
            if shape is None or len(shape) < 2:
                return None
            value = _Value(1, self.fresh(shape[1]))
            self.stay(value, "they meet the input itself")
            return value
        if node.op == "output":
            self.refuse(node, "they are the answer")
            return None
        if node.op == "get_attr":
            return None
        if node.op == "call_module":
            return self.module(node, self.modules[str(node.target)])
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        name = name.rstrip("_") if not name.startswith("__") else name
        if not node.meta.get("tensors"):
            return None  # a size, a type, a device
        if name in ELEMENTWISE:
            return self.elementwise(node)
        if name in PER_CHANNEL:
            return self.per_channel(node, name)
        if name in RESHAPES:
            return self.reshape(node, node.args[0], name)
        if name in ("cat", "concat", "concatenate"):
            return self.cat(node)
        if name in ("mean", "sum", "amax", "amin", "std", "var"):
            return self.reduce(node)
        if name in ("softmax", "log_softmax", "normalize"):
            return self.along(node, _argument(node, 1, "dim", 1 if name == "normalize" else None))
        if name in ("permute", "transpose", "swapaxes"):
            return self.permute(node, name)
        if name == "chunk":
            return self.chunk(node)
        if name == "getitem":
            return self.getitem(node)
        self.refuse(node)
        return None

    def module(self, node: fx.Node, module: nn.Module) -> _Value | None:
        name, shape = str(node.target), node.meta["shape"]
        one = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if not isinstance(one, fx.Node) or shape is None:
            self.refuse(node)
            return None
        if isinstance(module, nn.Linear | _ConvNd):
            return self.layer(node, name, module, one)
        if follows(module) is not None:
            value = self.known(one, 1)
            if isinstance(module, nn.GroupNorm):
                each = value.ids.reshape(module.num_groups, -1)
                self.same(each[:, :1].repeat(each.shape[1], 1).ravel(), each.ravel())
                if module.num_groups == 1 or not module.affine:
                    self.stay(value, f"{name!r} normalises them together")
            for sides in (self.inputs, self.outputs):
                self.side(sides, name, value.ids)
            return value
        if isinstance(module, ELEMENTWISE_MODULES):
            return self.value(one)
        if isinstance(module, nn.Flatten):
            return self.reshape(node, one, "flatten")
        if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmax2d):
            return self.along(node, getattr(module, "dim", 1))
        if isinstance(module, SPATIAL_MODULES):
            return self.spatial(node, one)
        self.refuse(node)
        return None

    def layer(self, node: fx.Node, name: str, module: Layer, one: fx.Node) -> _Value | None:
        own = module._parameters.get("weight") is not None and not hasattr(module, "parametrizations")
        dims = len(one.meta["shape"])
        at = dims - 1 if isinstance(module, nn.Linear) else 1
        value = self.value(one)
        if isinstance(module, nn.Linear) and value is not None and value.dim != at:
            return value  # it mixes another dimension, the same way in each channel
        value = self.known(one, at)
        if not own:
            why = f"the weight of {name!r} is made anew from others; remove its parametrisation first"
            self.stay(value, why)
            new = _Value(at, self.fresh(ends(module)[1]))
            self.stay(new, why)
            return new
        groups = 1 if isinstance(module, nn.Linear) else module.groups
        self.side(self.inputs, name, value.ids)
        if is_depthwise(module):
            out = value.ids.repeat(ends(module)[1] // groups)
        else:
            _tie(self, value.ids, groups)
            seen = self.outputs.get(name)
            out = self.fresh(ends(module)[1]) if seen is None else seen
            _tie(self, out, groups)
        self.side(self.outputs, name, out)
        return _Value(at, out)

    def side(self, sides: dict[str, Ids], name: str, ids: Ids) -> None:
        """A module that is called again has the same channels again."""
        if name in sides:
            self.same(sides[name], ids)
        else:
            sides[name] = ids

    def elementwise(self, node: fx.Node) -> _Value | None:
        """The terms broadcast; channels that meet are one. A single channel is spread over all: it stays."""
        result: _Value | None = None
        rank = len(node.meta["shape"]) if node.meta["shape"] is not None else 0
        terms = [each for each in node.all_input_nodes if each.meta.get("shape") is not None]
        if not rank:
            self.refuse(node)
            return None
        values = [value for each in terms if (value := self.value(each)) is not None]
        for each, value in ((each, self.value(each)) for each in terms):
            if value is not None and len(value.ids) == 1 and len(terms) > 1:
                self.stay(value, f"{_called(node)} spreads the one channel over others")
            elif value is not None and len(value.ids) > 1:
                at = value.dim + rank - len(each.meta["shape"])
                result = _Value(at, value.ids) if result is None else result
                if at != result.dim or len(value.ids) != len(result.ids):
                    self.stay(value, f"{_called(node)} joins them with another dimension")
                else:
                    self.same(result.ids, value.ids)
        if result is None:
            return values[0] if len(values) == 1 and len(terms) == 1 else None
        for each in terms:
            along = result.dim - rank + len(each.meta["shape"])
            if self.value(each) is None and along >= 0 and each.meta["shape"][along] > 1:
                self.stay(result, f"{_called(node)} joins them with {_called(each)}, which cannot be cut")
        if result.dim < rank and node.meta["shape"][result.dim] != len(result.ids):
            self.stay(result, f"{_called(node)} changes their number")
            return None
        return result

    def per_channel(self, node: fx.Node, name: str) -> _Value | None:
        one = node.args[0] if node.args else None
        if not isinstance(one, fx.Node) or (len(node.all_input_nodes) != 1 and name not in ("to", "type_as")):
            self.refuse(node)
            return None
        if name in ("pad",):
            reach = _argument(node, 1, "pad", ())
            value = self.value(one)
            if value is not None and len(reach) > 2 * (len(one.meta["shape"]) - 1 - value.dim):
                self.refuse(node)
                return None
        spatial = name == "interpolate" or name.endswith(("pool1d", "pool2d", "pool3d"))
        return self.spatial(node, one) if spatial else self.value(one)

    def spatial(self, node: fx.Node, one: fx.Node) -> _Value | None:
        """Pooling, enlarging and padding: the channels lie along dimension 1 and space comes after."""
        value, before, after = self.value(one), one.meta["shape"], node.meta["shape"]
        if value is None:
            return None
        if value.dim != 1 or len(before) < 3 or after is None or before[:2] != after[:2]:
            self.refuse(node)
            return None
        return value

    def along(self, node: fx.Node, dim: Any) -> _Value | None:
        value = self.value(node.args[0])
        if value is None:
            return None
        if not isinstance(dim, int) or dim % len(node.meta["shape"]) == value.dim:
            self.refuse(node, f"{_called(node)} mixes them")
            return None
        return value

    def reduce(self, node: fx.Node) -> _Value | None:
        value = self.value(node.args[0])
        if value is None or node.meta["shape"] is None:
            self.refuse(node)
            return None
        rank = len(cast(fx.Node, node.args[0]).meta["shape"])
        over = _argument(node, 1, "dim", None)
        over = [over] if isinstance(over, int) else over
        if not over or not all(isinstance(d, int) for d in over) or value.dim in [d % rank for d in over]:
            self.refuse(node, f"{_called(node)} mixes them")
            return None
        fewer = rank != len(node.meta["shape"])
        return _Value(value.dim - sum(d % rank < value.dim for d in over) * fewer, value.ids)

    def cat(self, node: fx.Node) -> _Value | None:
        parts = node.args[0] if node.args else node.kwargs.get("tensors")
        if not isinstance(parts, list | tuple) or not all(isinstance(p, fx.Node) for p in parts):
            self.refuse(node)
            return None
        terms = cast("list[fx.Node]", list(parts))
        dim = _argument(node, 1, "dim", 0)
        if not isinstance(dim, int):
            self.refuse(node)
            return None
        dim %= len(node.meta["shape"])
        followed = [value.dim for each in terms if (value := self.value(each)) is not None]
        if not followed:
            return None
        if dim in followed or dim == 1:
            return _Value(dim, np.concatenate([self.known(each, dim).ids for each in terms]))
        values = [self.known(each, followed[0]) for each in terms]
        for each in values[1:]:
            self.same(values[0].ids, each.ids)
        return values[0]

    def permute(self, node: fx.Node, name: str) -> _Value | None:
        value = self.value(node.args[0])
        if value is None:
            return None
        rank = len(node.meta["shape"])
        order = list(range(rank))
        rest: Any = list(node.args[1:])
        rest = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
        if not rest or not all(isinstance(d, int) for d in rest) or len(rest) != (rank if name == "permute" else 2):
            order = []
        elif name == "permute":
            order = [d % rank for d in rest]
        else:
            a, b = (d % rank for d in rest)
            order[a], order[b] = order[b], order[a]
        if value.dim not in order:
            self.refuse(node)
            return None
        return _Value(order.index(value.dim), value.ids)

    def reshape(self, node: fx.Node, one: Any, name: str) -> _Value | None:
        """A dimension that stays, one that is laid flat with those behind it, or one that is spread out in space."""
        value = self.value(one)
        if value is None:
            return None
        before, after, d = one.meta["shape"], node.meta["shape"], value.dim
        lead, size, trail = math.prod(before[:d]), before[d], math.prod(before[d + 1 :])
        result, at = None, -1
        order = sorted(range(len(after)), key=lambda e: abs(e - d))
        for e in order:
            if math.prod(after[:e]) != lead:
                continue
            if after[e] == size and math.prod(after[e + 1 :]) == trail:
                result, at = _Value(e, value.ids), e
                break
            if after[e] % size == 0 and trail % (after[e] // size) == 0 and after[e] > size:
                result, at = _Value(e, value.ids.repeat(after[e] // size)), e
                break
            if size % after[e] == 0 and 1 < after[e] < size and name != "flatten":
                rows = value.ids.reshape(after[e], -1)
                self.same(rows[:, :1].repeat(rows.shape[1], 1).ravel(), rows.ravel())
                result, at = _Value(e, rows[:, 0]), e
                break
        if result is None:
            self.refuse(node, f"{_called(node)} lays them out anew")
            return None
        if name in ("view", "reshape"):
            to = node.args[1:] if not (len(node.args) == 2 and isinstance(node.args[1], list | tuple)) else node.args[1]
            said = cast("Sequence[Any]", to)[at] if len(cast("Sequence[Any]", to)) == len(after) else None
            if isinstance(said, int) and said != -1 and len(result.ids) > 1:
                self.stay(value, f"{_called(node)} has their number {said} written in; write -1 or x.size({at})")
        if name in ("unflatten",):
            self.stay(value, f"{_called(node)} has their number written in")
        return result

    def chunk(self, node: fx.Node) -> list[_Value | None] | None:
        """Parts that stay of equal size: what is dropped is dropped in each."""
        value, parts, shapes = self.value(node.args[0]), _argument(node, 1, "chunks", None), node.meta["shapes"]
        if value is None:
            return None
        dim = _argument(node, 2, "dim", 0)
        rank = len(cast(fx.Node, node.args[0]).meta["shape"])
        if isinstance(dim, int) and dim % rank != value.dim:
            return [value] * len(shapes)
        if not isinstance(dim, int) or not isinstance(parts, int) or len(value.ids) % parts:
            self.refuse(node)
            return None
        _tie(self, value.ids, parts)
        return [_Value(value.dim, ids) for ids in value.ids.reshape(parts, -1)]

    def getitem(self, node: fx.Node) -> _Value | None:
        source, index = node.args
        many = self.values.get(source) if isinstance(source, fx.Node) else None
        if isinstance(many, list):
            return many[index] if isinstance(index, int) else None
        value = self.value(source)
        if value is None:
            return None
        index = index if isinstance(index, tuple) else (index,)
        rank = len(cast(fx.Node, source).meta["shape"])
        if not all(i is Ellipsis or isinstance(i, int | slice) for i in index):
            self.refuse(node)
            return None
        filled: list[Any] = []
        for i in index:
            filled += [slice(None)] * (rank - len(index) + 1) if i is Ellipsis else [i]
        filled += [slice(None)] * (rank - len(filled))
        if filled[value.dim] != slice(None):
            self.refuse(node, f"{_called(node)} picks some of them by number")
            return None
        return _Value(value.dim - sum(isinstance(i, int) for i in filled[: value.dim]), value.ids)

    # What comes of it.

    def untouchable(self) -> None:
        """Weights that two modules share, or that the forward code reads by itself, stay as they are."""
        owners: dict[int, list[str]] = {}
        for name, module in self.modules.items():
            for held in module._parameters.values():
                if held is not None:
                    owners.setdefault(id(held), []).append(name)
        loose: dict[str, str] = {}
        for names in owners.values():
            for name in names if len(names) > 1 else ():
                loose[name] = f"{names[0]!r} and {names[1]!r} share a weight"
        for node in self.values:
            if node.op == "get_attr":
                owner = str(node.target).rpartition(".")[0]
                loose[owner] = f"the forward code reads {str(node.target)!r} by itself"
        for name, why in loose.items():
            for sides in (self.inputs, self.outputs):
                if name in sides:
                    self.stays.append((sides[name], why))

    def classes(self) -> tuple[Ids, dict[int, str]]:
        """The class of each channel: those that must be the same one; and why some classes stay."""
        pairs = [np.concatenate([np.empty(0, np.int64), *side]) for side in zip(*self.pairs, strict=True)] or [
            np.empty(0, np.int64)
        ] * 2
        links = coo_matrix((np.ones(len(pairs[0]), np.int8), (pairs[0], pairs[1])), shape=(self.count, self.count))
        labels = connected_components(links, directed=False)[1].astype(np.int64)
        return labels, {int(c): why for ids, why in reversed(self.stays) for c in np.unique(labels[ids])}

    def edges(self) -> tuple[tuple[Edge, ...], dict[str, str]]:
        """Writers that share a channel share an edge; for the writers in none, why."""
        labels, stays = self.classes()
        layers = {
            name: labels[ids]
            for name, ids in self.outputs.items()
            if isinstance(self.modules[name], nn.Linear | _ConvNd) and not is_depthwise(self.modules[name])
        }
        group: dict[int, int] = {}  # class -> edge
        members: list[list[str]] = []
        for name, own in layers.items():
            met = sorted({group[c] for c in own.tolist() if c in group})
            to = met[0] if met else len(members)
            if not met:
                members.append([])
            members[to].append(name)
            for other in met[1:]:
                members[to] += members[other]
                members[other] = []
            group = {c: to if e in met else e for c, e in group.items()} if len(met) > 1 else group
            group.update((c, to) for c in own.tolist())
        found, fixed = [], {}
        for number, names in enumerate(members):
            if not names:
                continue
            names = [name for name in layers if name in names]
            order = dict.fromkeys(c for name in names for c in layers[name].tolist())
            why = next((stays[c] for c in order if c in stays), None)
            if why is not None:
                fixed.update(dict.fromkeys(names, why))
                continue
            place = np.full(labels.max() + 1, -1, np.int64)
            place[list(order)] = np.arange(len(order))
            sides: list[dict[str, Tensor]] = []
            for side in (self.outputs, self.inputs):
                at = {name: place[labels[ids]] for name, ids in side.items()}
                sides.append({name: torch.from_numpy(a) for name, a in at.items() if (a >= 0).any()})
            outputs, inputs = sides
            norms = tuple(name for name in inputs if name in outputs and name not in layers)
            readers = tuple(name for name in inputs if name in layers)
            assert all(group[c] == number for c in order)
            if not readers:
                fixed.update(dict.fromkeys(names, "no layer reads them"))
                continue
            found.append(Edge(names[0], len(order), tuple(names), readers, norms, outputs, inputs))
        return tuple(found), fixed


def _tie(reader: Reader, ids: Ids, groups: int) -> None:
    """The first channel of each group is one, the second, and so on."""
    if groups > 1:
        rows = ids.reshape(groups, -1)
        reader.same(rows[:1].repeat(groups, 0).ravel(), rows.ravel())


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _called(node: fx.Node) -> str:
    """What a node does, in words that the user's code has."""
    if node.op == "call_module":
        return f"module {str(node.target)!r}"
    if node.op == "get_attr":
        return f"{str(node.target)!r}"
    if node.op == "placeholder":
        return "the input"
    return f"{node.target if isinstance(node.target, str) else getattr(node.target, '__name__', node.target)}()"


# Operations by name, as functions, methods and operators have them; a trailing _ (in place) is the same.
ELEMENTWISE = frozenset(
    ("add", "iadd", "sub", "isub", "mul", "imul", "div", "truediv", "itruediv", "multiply", "subtract", "divide",
     "true_divide", "maximum", "minimum", "pow")
)  # fmt: skip
PER_CHANNEL = frozenset(
    ("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
     "hardtanh", "sigmoid", "logsigmoid", "tanh", "softplus", "softsign", "tanhshrink", "softshrink", "hardshrink",
     "threshold", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "neg", "abs",
     "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "square", "sin", "cos", "sign", "clamp", "clamp_min", "clamp_max",
     "clip", "contiguous", "clone", "detach", "float", "double", "half", "bfloat16", "to", "type_as", "interpolate",
     "pad", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
     "adaptive_avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
     "adaptive_max_pool3d")
)  # fmt: skip
RESHAPES = frozenset(("view", "reshape", "flatten", "squeeze", "unsqueeze", "unflatten"))
KNOWN = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
         nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # fmt: skip
ELEMENTWISE_MODULES: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh, nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Softshrink,
    nn.Hardshrink, nn.Threshold, nn.PReLU, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
SPATIAL_MODULES: tuple[type[nn.Module], ...] = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    nn.LPPool1d, nn.LPPool2d, nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, nn.ZeroPad2d,
    nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ConstantPad1d,
    nn.ConstantPad2d,
)  # fmt: skip
