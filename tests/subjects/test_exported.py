from __future__ import annotations

import contextlib
import copy
import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export.pt2_archive import constants as pt2_constants
from torch.testing import assert_close

from assay.errors import AssayError
from assay.subjects import Source, open_subject
from assay.subjects.doors.intake import Intake


def opened(forms, path, **options):
    return open_subject(Source(str(path), str(forms.npz), **options))


@pytest.mark.parametrize("form", ["pt2", "pt2_of_four"])
@pytest.mark.parametrize("n", [0, 1, 3, 4, 10])
def test_answers_and_gradients_are_those_of_the_model_itself(forms, form, n):
    model = opened(forms, getattr(forms, form)).model
    x, again = (forms.x[:n].clone().requires_grad_() for _ in range(2))
    out, wanted = model(x), forms.model(again)
    assert_close(out, wanted, rtol=0, atol=1e-5)
    weights = torch.linspace(-1, 1, 3)
    (gradient,) = torch.autograd.grad((out * weights).sum(), x)
    (gradient_wanted,) = torch.autograd.grad((wanted * weights).sum(), again)
    assert_close(gradient, gradient_wanted, rtol=0, atol=1e-5)
    assert gradient.abs().sum() > 0 or n == 0


def test_what_the_subject_says_of_itself(forms):
    subject = opened(forms, forms.pt2)
    assert (subject.name, subject.about, subject.differentiable) == (
        "any.pt2",
        "any.pt2, a torch.export program.",
        True,
    )
    assert subject.task.classes == ("0", "1", "2")
    assert not any(p.grad is not None for p in subject.model.parameters())


def test_modes_and_copies_do_no_harm(forms):
    model = nn.Sequential(opened(forms, forms.pt2).model)
    before = model(forms.x)
    assert_close(model.train()(forms.x), before, rtol=0, atol=0)
    assert_close(model.eval()(forms.x), before, rtol=0, atol=0)
    assert_close(copy.deepcopy(model)(forms.x), before, rtol=0, atol=0)


def test_the_fingerprint_covers_the_program(forms, tmp_path):
    """Two programs with the same weights: only the constant that is added differs."""
    first, again = opened(forms, forms.pt2).fingerprint(), opened(forms, forms.pt2).fingerprint()
    assert first == again
    other = rewritten(
        forms.pt2,
        tmp_path,
        lambda program: rename(program, "torch.ops.aten.relu.default", "torch.ops.aten.sigmoid.default"),
    )
    assert opened(forms, other).fingerprint() != first


@pytest.mark.parametrize(
    ("fewest", "most", "n", "calls"),
    [
        (1, None, 5, [5]),
        (4, 4, 5, [4, 4]),
        (4, 8, 3, [4]),
        (4, 8, 6, [6]),
        (4, 8, 18, [8, 8, 4]),
        (2, None, 0, [2]),
        (1, 1, 3, [1, 1, 1]),
    ],
)
def test_batches_are_cut_and_filled_up(fewest, most, n, calls):
    seen = []

    def answer(x):
        seen.append(len(x))
        return x * 2

    x = torch.arange(float(n * 2)).view(n, 2)
    assert_close(Intake("m", (2,), fewest, most).feed(answer, x), x * 2)
    assert seen == calls


# What is refused.


def rewritten(path: Path, folder: Path, change=None, *, replaced=None, added=None) -> Path:
    """A copy of the archive with its program changed, members replaced (by how their name ends), or added."""
    target = folder / "changed.pt2"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            for end, other in (replaced or {}).items():
                if name.endswith(end):
                    content = other(content) if callable(other) else other
            if change and name.endswith("models/model.json"):
                program = json.loads(content)
                change(program)
                content = json.dumps(program).encode()
            new.writestr(name, content)
        for name, content in (added or {}).items():
            new.writestr(name, content)
    return target


def nodes(program):
    return program["graph_module"]["graph"]["nodes"]


def rename(program, old, new):
    next(n for n in nodes(program) if n["target"] == old)["target"] = new


class Touch:
    """What a malicious pickle does: a file appears where it was loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def saved(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def pickled_weight(content: bytes) -> bytes:
    config = json.loads(content)
    next(iter(config["config"].values()))["use_pickle"] = True
    return json.dumps(config).encode()


def opaque_constant(content: bytes) -> bytes:
    config = json.loads(content)
    next(iter(config["config"].values())).update(path_name="opaque_obj_0", use_pickle=True)
    return json.dumps(config).encode()


def touching(mark: Path) -> str:
    return f"__import__('pathlib').Path({str(mark)!r}).touch()"


def evaluated_size(program, mark):
    size = program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0]
    size["as_expr"]["expr_str"] = f"{touching(mark)} or Symbol('s0')"


def file_operator(program, mark):
    given = {"filename": {"as_string": str(mark)}, "shared": {"as_bool": True}, "size": {"as_int": 8}}
    nodes(program)[0].update(
        target="torch.ops.aten.from_file.default", inputs=[{"name": k, "arg": v, "kind": 1} for k, v in given.items()]
    )


def pasted_name(program, mark):
    """The input's name, wherever it stands: it becomes `def forward(self, x=...):`, and the default is evaluated."""
    name = json.dumps(f"x={touching(mark)}")
    text = json.dumps(program).replace('"name": "x"', f'"name": {name}').replace('"x": {', f"{name}: {{")
    program.update(json.loads(text))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("pickled weight", r"the pickled object 'weight_0' in data/weights"),
        ("opaque constant", r"the pickled object 'opaque_obj_0' in data/constants"),
        ("older weights", r"the pickle 'data/weights/model.pt'"),
        ("evaluated size", r"a size that is more than arithmetic"),
        ("file operator", r"a call of 'torch.ops.aten.from_file.default', which is not among torch's operators"),
        ("pasted name", r"a name that is not one \(.x=__import__"),
    ],
)
def test_code_in_an_archive_is_refused_and_runs_only_where_the_user_insists(forms, tmp_path, how, says):
    mark = tmp_path / "code-ran"
    bad = {
        "pickled weight": {"replaced": {"weights_config.json": pickled_weight, "weights/weight_0": saved(Touch(mark))}},
        "opaque constant": {
            "replaced": {"constants_config.json": opaque_constant},
            "added": {"any/data/constants/opaque_obj_0": pickle.dumps(Touch(mark))},
        },
        "older weights": {"added": {"any/data/weights/model.pt": saved(Touch(mark))}},
        "evaluated size": {"change": lambda program: evaluated_size(program, mark)},
        "file operator": {"change": lambda program: file_operator(program, mark)},
        "pasted name": {"change": lambda program: pasted_name(program, mark)},
    }[how]
    path = rewritten(forms.pt2, tmp_path, **bad)
    with pytest.raises(AssayError, match=says + r".*; save it again .* or insist with --allow-pickle") as caught:
        opened(forms, path)
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    if how == "opaque constant" and not hasattr(pt2_constants, "OPAQUE_OBJ_FILENAME_PREFIX"):
        return  # this torch does not know such constants, so nothing would run; what a newer one reads is refused
    with contextlib.suppress(AssayError):
        opened(forms, path, allow_pickle=True)
    assert mark.exists()  # so there was something to refuse


@pytest.mark.parametrize("how", ["sample inputs", "guards"])
def test_what_is_not_needed_is_left_out_and_never_run(forms, tmp_path, how):
    mark = tmp_path / "code-ran"
    bad = {
        "sample inputs": {"replaced": {"sample_inputs/model.pt": saved(Touch(mark))}},
        "guards": {"change": lambda program: program.update(guards_code=[f"{touching(mark)} is None"])},
    }[how]
    path = rewritten(forms.pt2, tmp_path, **bad)
    assert_close(opened(forms, path).model(forms.x), forms.model(forms.x))
    assert not mark.exists()
    with contextlib.suppress(AssayError):
        opened(forms, path, allow_pickle=True)
    assert mark.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.load",
        "torch.os.system",
        "torch.hub.load",
        "torch.ops.load_library",
        "torch.ops.aten.save.default",
        "torch.ops.aten.from_file.out",
        "torch.ops.aten.relu.__class__",
        "torch.ops.aten.relu.op",
        "torch.ops.prim.Print.default",
        "math.sin.__call__",
        "_operator.attrgetter",
        "os.system",
        "#x:y",
        "torch.ops.higher_order.inline_asm_elementwise",
    ],
)
def test_operators_that_are_not_of_tensors_are_refused(forms, tmp_path, target):
    path = rewritten(forms.pt2, tmp_path, lambda program: rename(program, "torch.ops.aten.relu.default", target))
    with pytest.raises(AssayError, match="which is not among torch's operators on tensors"):
        opened(forms, path)


@pytest.mark.parametrize(
    "text",
    [
        "eval('1')",
        "Symbol('s0').__class__",
        "Add('__import__(0)', 1)",
        "(lambda: 1)()",
        "[1][0]",
        "s0 if s0 else 1",
        "Symbol('s0', integer='x')",
        "Symbol('a b')",
        "Float('exit()')",
        "print",
        "Integer(*[1])",
        "f'{s0}'",
        "1 +",
        "xyz",
        "Symbol(Symbol('a'), **s0)",
    ],
)
def test_sizes_that_are_more_than_arithmetic_are_refused(text):
    from assay.subjects.doors.untrusted_pt2 import Distrusted, _check_expression

    with pytest.raises(Distrusted, match="a size"):
        _check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s77', positive=True, integer=True)",
        "2*s0 + 1",
        "-s0 // 2",
        "Float('1.5', precision=53)",
        "FloorDiv(Add(Symbol('s77', positive=True, integer=True), Integer(-1)), Integer(2))",
    ],
)
def test_sizes_as_torch_writes_them_pass(text):
    from assay.subjects.doors.untrusted_pt2 import _check_expression

    _check_expression(text)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("any/../../evil", "outside it or twice"),
        ("/etc/evil", "outside it or twice"),
        ("any/..\\evil", "outside it or twice"),
        ("any/archive_format", "'any/archive_format' outside it or twice"),
        ("other/file", "not one of torch.export"),
        ("any/data/aotinductor/model/x.so", "compiled native code"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_strange_members_are_refused(forms, tmp_path, name, says):
    with pytest.raises(AssayError, match=says):
        opened(forms, rewritten(forms.pt2, tmp_path, added={name: b"x"}))


def test_archives_that_grow_when_unpacked_are_refused(forms, tmp_path):
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("any/archive_format", b"pt2" * 100_000)
    with pytest.raises(AssayError, match=r"bomb.pt2' unpacks to 300000 bytes, more than it has itself"):
        opened(forms, path)


def test_broken_files_are_one_line(forms, tmp_path):
    whole = forms.pt2.read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.pt2").write_text("hello")
    (tmp_path / "empty.pt2").write_bytes(b"")
    flipped = bytearray(whole)
    flipped[whole.index(b"pt2", whole.index(b"archive_format"))] ^= 1
    (tmp_path / "flipped.pt2").write_bytes(flipped)
    for name in ("cut", "text", "empty", "flipped"):
        with pytest.raises(AssayError, match=rf"{name}.pt2' is not a .pt2 file \(.*\); write it with torch"):
            opened(forms, tmp_path / f"{name}.pt2")
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("notes/readme.txt", "hello")
    with pytest.raises(AssayError, match="is a zip archive, but not one of torch.export"):
        opened(forms, tmp_path / "other.pt2")
    with pytest.raises(AssayError, match=r"not a whole torch.export archive \(JSONDecodeError"):
        opened(forms, rewritten(forms.pt2, tmp_path, replaced={"models/model.json": b"{"}))
    with pytest.raises(AssayError, match=r"not a whole torch.export archive \(KeyError"):
        opened(forms, rewritten(forms.pt2, tmp_path, replaced={"models/model.json": b"{}"}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, so nothing is wrong")
def test_a_program_of_another_device_is_one_line(forms, tmp_path):
    path = rewritten(
        forms.pt2,
        tmp_path,
        replaced={"weights_config.json": lambda content: content.replace(b'"type": "cpu"', b'"type": "cuda"')},
    )
    with pytest.raises(AssayError, match=r"cannot be loaded by torch .*; export model.cpu\(\).eval\(\)") as caught:
        opened(forms, path)
    assert "\n" not in str(caught.value)


def test_an_unknown_operator_name_of_another_torch_is_refused(forms, tmp_path):
    def change(program):
        rename(program, "torch.ops.aten.relu.default", "torch.ops.aten.relu_of_the_future.default")

    with pytest.raises(AssayError, match="relu_of_the_future"):
        opened(forms, rewritten(forms.pt2, tmp_path, change))


def test_the_format_of_older_torch_is_called_pickled(forms, tmp_path):
    with zipfile.ZipFile(tmp_path / "old.pt2", "w") as archive:
        for name in ("version", "serialized_exported_program.json", "serialized_state_dict.pt"):
            archive.writestr(name, b"8.1")
    with pytest.raises(AssayError, match="the pickled weights of torch 2.7 or older"):
        opened(forms, tmp_path / "old.pt2")


def test_a_program_in_training_mode_is_refused(forms, tmp_path):
    def change(program):
        for node in nodes(program):
            for given in node["inputs"]:
                if given["name"] == "train":
                    given["arg"]["as_bool"] = True

    with pytest.raises(AssayError, match=r"exported in training mode \(aten::dropout is on\); export model.eval\(\)"):
        opened(forms, rewritten(forms.pt2, tmp_path, change))


def test_more_than_one_output_is_refused(forms, tmp_path):
    def change(program):
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        leaf = {"type": None, "context": None, "children_spec": []}
        signature["out_spec"] = json.dumps(
            [1, {"type": "builtins.tuple", "context": "null", "children_spec": [leaf, leaf]}]
        )

    with pytest.raises(AssayError, match="returns something other than one tensor; export a model"):
        opened(forms, rewritten(forms.pt2, tmp_path, change))


# Pickles as such.


def test_a_pickle_is_refused_with_the_way_out(forms, tmp_path):
    torch.save(forms.model, tmp_path / "net.pth")
    says = r"is a pickle, which can run any code .*torch.export.save\(program, 'net.pt2'\).*insist with --allow-pickle"
    with pytest.raises(AssayError, match=says):
        opened(forms, tmp_path / "net.pth")
    subject = opened(forms, tmp_path / "net.pth", allow_pickle=True)
    assert_close(subject.predict(forms.x), forms.model(forms.x).detach())
    assert subject.differentiable


@pytest.mark.parametrize("suffix", [".pt", ".pkl", ".ckpt", ".bin", ".PTH"])
def test_no_pickle_runs_by_its_name(forms, tmp_path, suffix):
    mark, path = tmp_path / "code-ran", tmp_path / f"net{suffix}"
    path.write_bytes(saved(Touch(mark)))
    with pytest.raises(AssayError, match="is a pickle"):
        opened(forms, path)
    assert not mark.exists()


def test_other_pickles_say_what_they_hold(forms, tmp_path):
    torch.save(forms.model.state_dict(), tmp_path / "net.pth")
    with pytest.raises(AssayError, match=r"holds weights or settings \(conv.weight, conv.bias, norm.weight, ...\)"):
        opened(forms, tmp_path / "net.pth", allow_pickle=True)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(AssayError, match=r"list.pt' holds list, not a torch.nn.Module"):
        opened(forms, tmp_path / "list.pt", allow_pickle=True)
    (tmp_path / "broken.pt").write_bytes(b"hello")
    with pytest.raises(AssayError, match=r"broken.pt' cannot be unpickled \(") as caught:
        opened(forms, tmp_path / "broken.pt", allow_pickle=True)
    assert "\n" not in str(caught.value)
