"""A network as an ONNX graph, in floats and in onnxruntime's 8 bits: it answers alike, and what cannot be is said."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.compress import export, onnx_integers
from assay.methods.compress.export import to_onnx, to_program
from assay.methods.compress.quantise import quantise, seen_ranges, whole
from assay.nn.onnx_net import OnnxNet

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(
                nn.Conv2d(1, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.Conv2d(4, 4, 3, bias=False),
                nn.Sigmoid(),
            ),
            *(nn.Flatten(), nn.Linear(4 * 16, 5)),
        ).eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(24, 1, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def graph(net: nn.Module, x: Tensor) -> bytes:
    return to_onnx(net, x[:4])


def test_the_graph_answers_as_the_network_for_batches_of_any_length(net: nn.Module, graph: bytes, x: Tensor) -> None:
    made = OnnxNet(net, graph)
    with torch.no_grad():
        assert_close(made(x), net(x), atol=1e-5, rtol=1e-4)
        assert_close(made(x[:1]), net(x[:1]), atol=1e-5, rtol=1e-4)
    names = [node.op_type for node in onnx.load_from_string(graph).graph.node]
    assert "BatchNormalization" not in names  # merged into the convolution before it
    assert names.count("Conv") == 2


def test_slopes_are_those_of_the_network_and_values_those_of_the_graph(net: nn.Module, graph: bytes, x: Tensor) -> None:
    made = OnnxNet(net, onnx_integers.static(graph, [x]))
    given = x.clone().requires_grad_()
    out = made(given)
    with torch.no_grad():
        assert torch.equal(out, made(x))
        assert not torch.equal(out, net(x))
    slopes = [torch.autograd.grad(each(given).logsumexp(1).sum(), given)[0] for each in (made, net)]
    weight = [each(given).softmax(1).detach() for each in (made, net)]
    assert_close(slopes[0], slopes[1], atol=2 * float((weight[0] - weight[1]).abs().max()), rtol=0.1)
    y = net(x).argmax(1)
    (slope,) = torch.autograd.grad(F.cross_entropy(made(given), y), given)
    losses = [F.cross_entropy(made(each), y).item() for each in (x, (x + 0.3 * slope.sign()).detach())]
    assert losses[1] > losses[0]
    (second,) = torch.autograd.grad(
        torch.autograd.grad(made(given).square().sum(), given, create_graph=True)[0].square().sum(), given
    )
    assert second.isfinite().all()


def test_weights_are_ours_to_the_integer(net: nn.Module, graph: bytes, x: Tensor) -> None:
    """onnxruntime's per-channel int8 and `whole` are the same formula; its graph holds batch norm merged in."""
    made = onnx.load_from_string(onnx_integers.static(graph, [x]))
    held = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    merged = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(graph).graph.initializer}
    checked = 0
    for name, weight in merged.items():
        if weight.ndim < 2 or f"{name}_quantized" not in held:
            continue
        q, scale = held[f"{name}_quantized"], held[f"{name}_scale"]
        axis = 0 if len(scale) == weight.shape[0] else 1
        ours = whole(torch.from_numpy(np.moveaxis(weight, axis, 0).copy()).flatten(1))
        assert_close(torch.from_numpy(scale.copy()), ours.scale[:, 0], rtol=1e-5, atol=0)
        apart = np.abs(np.moveaxis(q, axis, 0).reshape(ours.q.shape).astype(int) - ours.q.numpy().astype(int))
        assert apart.max() <= 1  # a tie may fall either way
        assert (apart == 0).mean() > 0.99
        checked += 1
    assert checked == 3


def test_its_integers_answer_nearly_as_ours_do(net: nn.Module, graph: bytes, x: Tensor) -> None:
    ours = quantise(net, 8, ranges=seen_ranges(net, [x]))
    theirs = OnnxNet(net, onnx_integers.static(graph, [x]))
    with torch.no_grad():
        spread = float(net(x).std())
        off = [float((each(x) - net(x)).abs().max()) / spread for each in (ours, theirs)]
        assert float((ours(x) - theirs(x)).abs().max()) < 0.2 * spread
    assert 0 < min(off) <= max(off) < 0.2
    assert onnx_integers.static(graph, [x]) == onnx_integers.static(graph, [x])


def test_operators_in_integers_and_in_floats_are_told_apart(net: nn.Module, graph: bytes, x: Tensor) -> None:
    made = onnx_integers.static(graph, [x])
    whole_, rest = onnx_integers.kinds(graph, made)
    assert whole_["Conv"] == 2
    assert whole_["Gemm"] == 1
    alone = to_onnx(net, x[:4], alone=True)
    dynamic = onnx_integers.dynamic(alone)
    whole_, rest = onnx_integers.kinds(alone, dynamic)
    assert whole_ == {"ConvInteger": 2, "MatMulInteger": 1}
    assert rest["Sigmoid"] == 1
    assert "Mul" not in rest  # the quantiser's own
    answers = OnnxNet(net, dynamic)
    with torch.no_grad():
        assert torch.equal(answers(x)[:3], answers(x[:3]))  # whatever its company
        assert_close(answers(x), net(x), atol=0.1, rtol=0.1)


class Waves(nn.Module):
    """Two convolutions with a sine between them, which onnxruntime's quantiser has no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.sin(self.first(x))).flatten(1)
        return out


def test_what_the_quantiser_has_no_rule_for_is_in_floats_though_its_neighbours_are_not(x: Tensor) -> None:
    graph = to_onnx(Waves().eval(), x[:4])
    made = onnx_integers.static(graph, [x])
    nodes = onnx.load_from_string(made).graph.node
    (sine,) = (node for node in nodes if node.op_type == "Sin")
    assert [node.op_type for node in nodes if sine.input[0] in node.output] == ["DequantizeLinear"]  # the neighbour's
    assert onnx_integers.kinds(graph, made) == ({"Conv": 2}, {"Sin": 1})
    loaded = onnx.load_from_string(export.optimised(made)).graph.node  # as a session has it
    assert "Sin" in [node.op_type for node in loaded]


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(9, 4), nn.Parameter(torch.rand(6, 4)), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head((self.words((8 * x).long()) + self.places).flatten(1))
        return out


def test_a_sum_that_reads_an_embedding_out_of_8_bits_is_taken_in_floats(x: Tensor) -> None:
    alone = to_onnx(Embeds().eval(), x[:4, 0, 0], alone=True)
    whole_, rest = onnx_integers.kinds(alone, onnx_integers.dynamic(alone))
    assert whole_ == {"MatMulInteger": 1}
    assert rest["Add"] == 1


class LooksUp(nn.Module):
    """Weights that are looked up, and no product."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.words((8 * x).long())).sum(1)


def test_an_embedding_is_kept_in_8_bits_where_nothing_is_computed_so(x: Tensor) -> None:
    alone = to_onnx(LooksUp().eval(), x[:4, 0, 0], alone=True)
    made = onnx_integers.dynamic(alone)
    whole_, rest = onnx_integers.kinds(alone, made)
    assert len(made) < 0.5 * len(alone)
    assert not whole_
    assert rest["Sin"] == 1


def test_a_network_of_a_file_is_copied_and_loaded_with_it(net: nn.Module, graph: bytes, x: Tensor) -> None:
    made = OnnxNet(net, graph)
    first = made(x)
    assert made.file() == graph
    assert torch.equal(copy.deepcopy(made)(x), first)
    empty = OnnxNet(net)
    empty.load_state_dict(made.state_dict())
    assert empty.file() == graph
    assert torch.equal(empty(x), first)
    with pytest.raises(TypeError, match="not Proxy"):
        torch.fx.symbolic_trace(made)  # onnxruntime given a Proxy ends the process
    made.set(onnx_integers.static(graph, [x]))
    assert not torch.equal(made(x), first)


class Strange(nn.Module):
    """A step that ONNX has no operator for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(self.layer(x))


class Decides(nn.Module):
    """Python that looks at how many inputs there are: a trace holds one way alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if len(x) > 2 else -self.layer(x)


def test_what_does_not_export_says_which_operator(monkeypatch: pytest.MonkeyPatch, x: Tensor) -> None:
    rows = x.flatten(1)[:4, :4]

    def lacks(*given: object) -> bytes:  # seconds of torch.export are spared
        raise RuntimeError("No ONNX function found for aten.bessel.\nMore words.")

    monkeypatch.setattr(export, "_through_export", lacks)
    with pytest.raises(AssayError, match=r"Strange does not export to ONNX .*bessel_j0.*; write that step") as e:
        to_onnx(Strange(), rows)
    assert "\n" not in str(e.value)
    decides = Decides().train()
    with pytest.raises(AssayError, match=r"answers 1 inputs otherwise, by") as e:
        to_onnx(decides, rows)
    assert decides.training  # untouched
    with pytest.raises(AssayError, match=r"Looks does not export to ONNX \(its graph answers 1 inputs otherwise, by"):
        to_onnx(Looks(), torch.tensor([[1.0] * 4, [-1.0] * 4]), alone=True)
    with pytest.raises(AssayError, match=r"No operator of the graph has an integer form \(it has 1 Relu\)"):
        onnx_integers.static(to_onnx(nn.ReLU(), rows), [rows])
    with pytest.raises(AssayError, match="no input to calibrate on"):
        onnx_integers.static(to_onnx(nn.Linear(4, 2), rows), [])


class Looks(nn.Module):
    """Python that looks at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.sum()) > 0 else -self.layer(x)


def test_a_program_that_depends_on_values_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match="Looks does not export as a program") as e:
        to_program(Looks(), torch.zeros(2, 4))
    assert "\n" not in str(e.value)


class Folds(nn.Module):
    """Python that looks at how many inputs there are, and is the same function either way."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.layer, self.at = nn.Linear(4, 2), at

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if len(x) > self.at else self.layer(2 * x) - self.layer(x) + self.layer.bias


@pytest.mark.parametrize("at", [2, 5])
def test_a_program_for_some_lengths_alone_is_refused_in_one_line(at: int) -> None:
    with pytest.raises(AssayError, match=r"Folds does not .* fails on \d inputs: .*how many inputs") as e:
        to_program(Folds(at), torch.ones(4, 4))
    assert "\n" not in str(e.value)


class Views(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(x.shape[0], -1))


def test_a_length_that_is_followed_exports() -> None:
    assert to_program(Views(4, 2), torch.ones(4, 2, 2))


def test_a_program_that_answers_otherwise_once_loaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = nn.Linear(4, 2), nn.Linear(4, 2)
    monkeypatch.setattr(export, "exported", lambda model, x, made=export.exported: made(wrong, x))
    with pytest.raises(AssayError, match="Linear does not export as a program .* answers 4 inputs otherwise, by"):
        to_program(right, torch.ones(4, 4))
