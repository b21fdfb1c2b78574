"""A .pt2 archive from a stranger, made safe to load: a copy that holds weights and arithmetic and nothing else.

Read from the sources of torch 2.13 (`torch.export.load`, `torch/export/pt2_archive/_package.py`,
`torch/_export/serde/serialize.py`, `torch/utils/_pytree.py`). Loading an archive as it is can run its maker's code by

1. pickles: the sample inputs (`data/sample_inputs/*.pt`), weights or constants marked `use_pickle`, custom and opaque
   objects among the constants, weights and constants of older torch (`*.pt`), and the whole format of torch 2.7 and
   older. `torch.load` is tried with `weights_only=True` at most, and then again without;
2. native code: `data/aotinductor/` is loaded as a shared library;
3. text that is evaluated: sizes such as `Symbol('s0')` go through `sympy.sympify`, which is `eval`, and 9**9**9 is a
   size that nobody lives to see; `guards_code` becomes a function that is called with every batch;
4. operators by name: `torch.ops.aten.from_file` makes a file; any attribute of torch is looked up (`torch.os.system`),
   and only torch's own verifier keeps it from being called;
5. names: that of an input, for one, is pasted into generated Python as `def forward(self, NAME)`;
6. tree specifications, which import the module that they name.

So the archive is never handed on. It is read here with `zipfile`, everything is refused that is not on a list of what
classifiers need, what only helps debugging is dropped, and torch loads a new archive written from what is left; sample
inputs are dropped, too, so that no pickle remains. What this cannot promise: that no operator of torch can be
driven out of bounds by numbers that were chosen to do so.
"""

from __future__ import annotations

import ast
import io
import json
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from assay.data.archive import open_archive
from assay.errors import AssayError

MOST_MEMBERS = 100_000
MOST_TEXT = 64 * 2**20
"""Bytes of a program or a list of weights; Python makes some twenty times as much of it."""
DROPPED: dict[str, Any] = {"metadata": {}, "guards_code": [], "treespec_namedtuple_fields": {}}
"""Stack traces, checks of inputs (done by the loader of this package) and names of tuples."""

OPERATORS = re.compile(
    r"torch\.ops\.(?:aten|prims)\.(?!__)\w+\.(?!_)\w+"
    r"|torch\.ops\.higher_order\.(?:cond|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|_operator\.(?:getitem|eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|lshift|rshift)"
    r"|math\.trunc|torch\.sym_(?:not|int|float|ite|max|min|sqrt)"
)
FILES = ("save", "from_file")  # of aten; they write and read files

WORD = re.compile(r"[\w.+-]*")
DOTTED = re.compile(r"[\w. -]*")  # names of parameters; any that could end a string literal is refused
NAMES = {"name", "as_name", "forward_arg_names", "user_input_name"}
PATHS = {"fqn", "parameter_name", "buffer_name", "tensor_constant_name"}
MAPS = {"config": "fqn", "range_constraints": "name", "opset_version": "name"}
"""Fields that map names of the maker's own choice, and what such a name must be."""
OBJECTS = {"custom_obj", "as_custom_obj", "as_string_to_argument"}
FREE = {"as_string", "as_strings"}  # arguments of operators, such as padding="same"; quoted where they are pasted

FUNCTIONS = {
    "Symbol",
    "Integer",
    "Float",
    "Rational",
    "Add",
    "Mul",
    "Pow",
    "Max",
    "Min",
    "Mod",
    "floor",
    "ceiling",
    "Equality",
    "Unequality",
    "LessThan",
    "StrictLessThan",
    "GreaterThan",
    "StrictGreaterThan",
    "And",
    "Or",
    "Not",
    "FloorDiv",
    "ModularIndexing",
    "Where",
    "PythonMod",
    "CleanDiv",
    "CeilDiv",
    "CeilToInt",
    "FloorToInt",
    "LShift",
    "RShift",
    "PowByNatural",
    "FloatPow",
    "FloatTrueDiv",
    "IntTrueDiv",
    "TruncToFloat",
    "TruncToInt",
    "RoundToInt",
    "RoundDecimal",
    "ToFloat",
    "Identity",
}
"""What sizes are written with: sympy's names for arithmetic and torch's own."""

SPELLED = {"Symbol": re.compile(r"[A-Za-z_]\w{0,60}"), "Float": re.compile(r"-?[\d.]{1,40}(?:e[+-]?\d{1,3})?")}

ARITHMETIC = (ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator, ast.keyword, ast.expr_context)

LONGEST = 4000  # characters of a size; those of large models have a few hundred
MOST_BITS = 4096  # of any number on the way to a size: a size itself has 63
UNKNOWN = 63  # bits of a symbol, which stands for a size
STEP = 64  # the largest power, shift and number of decimals that is written down
RAISED = {"Pow", "PowByNatural", "FloatPow", "LShift", "RShift", "RoundDecimal", "pow", "lshift", "rshift"}
"""Functions whose second argument may make a number of any length; it must be written down, and small."""

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
ONE_IN = [
    1,
    {
        "type": "builtins.tuple",
        "context": "null",
        "children_spec": [
            {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF]},
            {"type": "builtins.dict", "context": "[]", "children_spec": []},
        ],
    },
]
ONE_OUT = [1, LEAF]


class Distrusted(Exception):
    """What the archive holds that may run code."""


def disarmed(path: Path) -> io.BytesIO:
    """A copy of the archive in memory with nothing in it that runs, or an error that says what is in the way."""
    try:
        members = _members(path)
        program = json.loads(members["models/model.json"])
        kept = {
            "archive_format": b"pt2",
            "archive_version": members["archive_version"],
            "byteorder": members.get("byteorder", b"little"),
            ".data/version": b"6",
            "data/sample_inputs/model.pt": b"",
            "models/model.json": _dump(_cleaned_program(program, path)),
        }
        for folder, prefix in (("weights", "weight_"), ("constants", "tensor_")):
            name = f"data/{folder}/model_{folder}_config.json"
            config = json.loads(members[name])
            for told in config["config"].values():
                payload = str(told["path_name"])
                if told["use_pickle"] is not False or not re.fullmatch(rf"{prefix}\d+", payload):
                    raise Distrusted(f"the pickled object {payload!r} in data/{folder}")
                kept[f"data/{folder}/{payload}"] = members[f"data/{folder}/{payload}"]
            kept[name] = _dump(_cleaned(config, ""))
    except AssayError:
        raise
    except Distrusted as e:
        raise AssayError(
            f"{str(path)!r} holds {e}, and loading it could run code or never end; save it again with "
            f"torch.export.save from a plain model, or insist with --allow-pickle."
        ) from e
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError, OSError) as e:
        raise AssayError(
            f"{str(path)!r} is not a whole torch.export archive ({type(e).__name__}: {e}); write it again: "
            f"torch.export.save(torch.export.export(model.eval(), (x,)), {path.name!r})."
        ) from e
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as archive:
        for name, content in kept.items():
            archive.writestr(f"model/{name}", content)
    copy.seek(0)
    return copy


def _members(path: Path) -> dict[str, bytes]:
    """The members by their name below the archive's one folder, after a look at names, number and sizes."""
    mend = f"write it with torch.export.save(torch.export.export(model.eval(), (x,)), {path.name!r})"
    try:
        with open_archive(path) as archive:
            entries = archive.infolist()
            names = [e.filename for e in entries]
            if len(entries) > MOST_MEMBERS:
                raise AssayError(f"{str(path)!r} has {len(entries)} members, more than {MOST_MEMBERS}; {mend}.")
            strange = [n for n in names if n.startswith("/") or "\\" in n or ".." in PurePosixPath(n).parts]
            strange += [n for n, times in Counter(names).items() if times > 1]
            if strange:
                raise AssayError(f"{str(path)!r} has a member {strange[0]!r} outside it or twice; {mend}.")
            # torch stores members as they are; compressed or overlapping ones could be any size when unpacked.
            texts = [e for e in entries if e.filename.endswith(".json") and e.file_size > MOST_TEXT]
            if texts:
                size, name = texts[0].file_size, texts[0].filename
                raise AssayError(f"{str(path)!r} has {size:,} bytes in {name!r}, over {MOST_TEXT:,}; {mend}.")
            size = sum(e.file_size for e in entries)
            if size > path.stat().st_size:
                raise AssayError(f"{str(path)!r} unpacks to {size} bytes, more than it has itself; {mend}.")
            packed = [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED]
            if packed:
                raise AssayError(f"{str(path)!r} has a packed member {packed[0]!r}; {mend}.")
            if "serialized_exported_program.json" in names:
                raise Distrusted("the pickled weights of torch 2.7 or older")
            split = {n: n.partition("/") for n in names}
            root = split[names[0]][0] if names else ""
            if any(s[0] != root for s in split.values()) or f"{root}/archive_format" not in split:
                raise AssayError(f"{str(path)!r} is a zip archive, but not one of torch.export; {mend}.")
            if any(s[2].startswith("data/aotinductor/") for s in split.values()):
                raise Distrusted("compiled native code (data/aotinductor)")
            pickled = [s[2] for s in split.values() if re.fullmatch(r"data/(weights|constants)/.*\.pt", s[2])]
            if pickled:
                raise Distrusted(f"the pickle {pickled[0]!r}")
            return {s[2]: archive.read(n) for n, s in split.items()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, struct.error) as e:
        raise AssayError(f"{str(path)!r} is not a .pt2 file ({e}); {mend}.") from e


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def _cleaned_program(program: Mapping[str, Any], path: Path) -> Any:
    """The program with one tensor in and one out, and only the signature of the whole model."""
    module = dict(program["graph_module"])
    calls = module["module_call_graph"][:1]
    signature = calls[0]["signature"]
    for spec, wanted, says in (("in_spec", ONE_IN, "takes"), ("out_spec", ONE_OUT, "returns")):
        if json.loads(signature[spec]) != wanted:
            raise AssayError(
                f"{str(path)!r} {says} something other than one tensor; export a model that takes a batch as its only "
                f"positional argument and returns the logits alone."
            )
        signature[spec] = json.dumps(wanted)
    cleaned = _cleaned({**program, "graph_module": {**module, "module_call_graph": calls}}, "")
    _check_numbers(cleaned["graph_module"]["graph"])
    return cleaned


def _cleaned(value: Any, key: str) -> Any:
    """A copy without what is dropped; raises on what is not on the lists. `key` is the field that holds the value."""
    if isinstance(value, dict) and (key.endswith("_values") or key in MAPS):
        for name in value:
            _check_text(name, "name" if key.endswith("_values") else MAPS[key])
        return {name: _cleaned(v, "") for name, v in value.items()}
    if isinstance(value, dict):
        objects = OBJECTS.intersection(value)
        if objects:
            raise Distrusted(f"an argument that is not plain ({objects.pop()})")
        return {k: DROPPED[k] if k in DROPPED else _cleaned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(v, key) for v in value]
    if isinstance(value, str):
        _check_text(value, key)
    return value


def _check_text(text: str, key: str) -> None:
    if key in ("in_spec", "out_spec") or key in FREE:
        return
    if key == "expr_str":
        _check_expression(text)
    elif key in ("target", "as_operator"):
        _check_operator(text)
    elif key in NAMES:
        if text and not text.isidentifier():
            raise Distrusted(f"a name that is not one ({text!r:.60})")
    elif not (DOTTED if key in PATHS else WORD).fullmatch(text):
        raise Distrusted(f"text that is not plain ({text!r:.60}) in the field {key!r}")


def _check_operator(name: str) -> None:
    """An operator on tensors or sizes; one of `torch.ops` must be what it says, not some other attribute."""
    import torch

    if OPERATORS.fullmatch(name):
        _, *parts = name.split(".")
        if len(parts) < 4:
            return
        _, family, operator, overload = parts
        found = getattr(getattr(getattr(torch.ops, family), operator, None), overload, None)
        if isinstance(found, torch._ops.OpOverload) and operator not in FILES:
            return
    raise Distrusted(f"a call of {name!r:.80}, which is not among torch's operators on tensors")


def _check_expression(text: str) -> None:
    """A size: numbers, symbols and arithmetic. Strings may only name a symbol or spell a number.

    A string anywhere else would be evaluated in its turn. No number on the way may be longer than MOST_BITS.
    """
    if len(text) > LONGEST:
        raise Distrusted(f"a size that is too long ({text!r:.60})")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
        raise Distrusted(f"a size that is no expression ({text!r:.60})") from e
    spelled: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
            plain = all(k.arg and isinstance(k.value, ast.Constant) for k in node.keywords)
            if not known or not plain:
                raise Distrusted(f"a size that calls something ({text!r:.60})")
            spelled.add(node.func)
            wanted = SPELLED.get(ast.unparse(node.func))
            spelled |= {a for a in node.args[:1] if wanted and wanted.fullmatch(str(getattr(a, "value", "")))}
        elif isinstance(node, ast.Name):
            if node not in spelled and not re.fullmatch(r"[a-z]+\d+|true|false", node.id):
                raise Distrusted(f"a size with a name that is no symbol ({text!r:.60})")
        elif isinstance(node, ast.Constant):
            if node not in spelled and not isinstance(node.value, bool | int | float):
                raise Distrusted(f"a size with text in it ({text!r:.60})")
        elif not isinstance(node, ARITHMETIC):
            raise Distrusted(f"a size that is more than arithmetic ({text!r:.60})")
    if _bits(tree) > MOST_BITS:
        raise Distrusted(f"a size that may become too large a number ({text!r:.60})")


def _bits(node: ast.expr) -> int:
    """How long the number may be that comes of this, in bits; more than MOST_BITS where there is no telling."""
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        if any(isinstance(k.value, ast.Constant) and _length(k.value.value) > 10 for k in node.keywords):
            return MOST_BITS + 1  # of a Float: how many bits to compute
        if node.func.id in ("Symbol", "Float"):
            return UNKNOWN
        return _grown(node.func.id, node.args)
    if isinstance(node, ast.BinOp):
        name = {ast.Pow: "pow", ast.LShift: "lshift", ast.RShift: "rshift"}.get(type(node.op), "")
        return _grown(name, [node.left, node.right])
    if isinstance(node, ast.UnaryOp):
        return _bits(node.operand)
    return _length(node.value) if isinstance(node, ast.Constant) else UNKNOWN


def _grown(function: str, arguments: Sequence[ast.expr]) -> int:
    """No arithmetic makes a number longer than its arguments together, but for powers and shifts."""
    if function not in RAISED:
        return sum(map(_bits, arguments)) + len(arguments)
    if len(arguments) != 2:
        return MOST_BITS + 1
    step = _written(arguments[1])
    return MOST_BITS + 1 if step is None else _raised(function, _bits(arguments[0]), step)


def _written(node: ast.expr) -> int | None:
    """The whole number that is written here, as 3, -3 or Integer(3)."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func) == "Integer":
        node = node.args[0]
    sign = 1
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign, node = (-sign if isinstance(node.op, ast.USub) else sign), node.operand
    return sign * node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _raised(function: str, base: int, step: int) -> int:
    """Bits of a number of so many bits that is raised, shifted or rounded by this."""
    if abs(step) > STEP:
        return MOST_BITS + 1
    return base * max(1, abs(step)) if "pow" in function.lower() else base + 4 * abs(step)


def _length(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else UNKNOWN


def _check_numbers(graph: Mapping[str, Any], known: Mapping[str, int] | None = None) -> None:
    """Refuse nodes that compute numbers which grow beyond MOST_BITS, as squares of squares do."""
    bits = dict(known or {})  # of the numbers that nodes gave so far
    for node in graph["nodes"]:
        given = [_told(i["arg"], bits) for i in node["inputs"]]
        for inner in _graphs(node["inputs"]):
            _check_numbers(inner, bits)
        family, _, function = str(node["target"]).rpartition(".")
        if family != "_operator" or function == "getitem":
            continue
        made = sum(length for length, _ in given) + len(given)
        if function in RAISED:
            step = given[1][1] if len(given) == 2 else None
            made = MOST_BITS + 1 if step is None else _raised(function, given[0][0], step)
        if made > MOST_BITS:
            raise Distrusted(f"a number that may become too large ({function} in node {node['name']!r:.60})")
        for out in node["outputs"]:
            for kind, value in out.items():
                if kind in ("as_sym_int", "as_sym_float") and isinstance(value, dict) and "as_name" in value:
                    bits[value["as_name"]] = made


def _told(argument: Any, bits: Mapping[str, int]) -> tuple[int, int | None]:
    """How long the number is that an argument gives, and the number, where it is written down."""
    while isinstance(argument, dict) and len(argument) == 1:
        ((kind, argument),) = argument.items()
        if kind == "as_name":
            return bits.get(argument, UNKNOWN), None
    return (argument.bit_length(), argument) if isinstance(argument, int) else (UNKNOWN, None)


def _graphs(value: Any) -> Iterator[Any]:
    """The graphs among arguments: the branches of a condition."""
    if isinstance(value, dict):
        if "nodes" in value:
            yield value
        else:
            for inner in value.values():
                yield from _graphs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _graphs(inner)
