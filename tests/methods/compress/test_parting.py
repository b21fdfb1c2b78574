"""Where two networks part: planted in one layer, found there, of modules, programs and ONNX graphs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from assay.methods.compress.parting import Parting, inner, onnx_inner, parting, said


def net() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(6 * 36, 5),
    )  # fmt: skip
    made[1].running_mean.uniform_(-1, 1)  # type: ignore[operator, union-attr]
    made[1].running_var.uniform_(0.5, 2)  # type: ignore[operator, union-attr]
    return made.eval()


X = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def other(layer: str) -> nn.Sequential:
    """The same network with one layer's weights moved by a hundredth."""
    made = copy.deepcopy(net())
    with torch.no_grad():
        made.get_submodule(layer).weight.mul_(1.01)  # type: ignore[union-attr, operator]
    return made


def test_what_is_inside_is_kept_in_order_as_it_was_before_it_was_changed_in_place() -> None:
    model, found = net(), inner(net(), X)
    assert list(found) == list("0123456")
    expected = model[0](X)
    torch.testing.assert_close(found["0"], expected)  # the rectifier behind it has not touched this copy
    torch.testing.assert_close(found["6"], model(X))
    assert not any(m._forward_hooks for m in model.modules())


def test_a_module_that_is_called_again_has_a_number() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.step(self.step(x)))

    assert list(inner(Twice(), torch.rand(3, 2))) == ["step", "step#2"]


@pytest.mark.parametrize("layer", ["0", "3", "6"])
def test_of_two_modules_the_first_layer_that_was_changed_is_found(layer: str) -> None:
    found = parting(inner(net(), X), inner(other(layer), X))
    assert found.by_name
    first = found.first()
    assert first is not None
    assert (first.name, first.other) == (layer, layer)
    assert first.relative == pytest.approx(0.01, rel=0.5)
    assert f"It opens at {layer}: " in said(found)
    assert all(layer.gap == 0 for layer in found.layers[: int(layer)])


def test_the_same_network_parts_nowhere() -> None:
    assert said(parting(inner(net(), X), inner(net(), X))).startswith("No layer parts by more than 0.1 %")


def test_of_a_cut_network_the_first_layer_of_another_width_is_named() -> None:
    small = net()
    small[3], small[6] = nn.Conv2d(4, 3, 3, padding=1), nn.Linear(3 * 36, 5)
    found = parting(inner(net(), X), inner(small.eval(), X))
    assert found.resized == ("3", (6, 6, 6), (3, 6, 6))
    assert "The network was cut: 3 gives 6 x 6 x 6 in the one and 3 x 6 x 6 in the other" in said(found)


class Steps(nn.Module):
    """The same network without modules inside, as torch.export writes it."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.of = {name.replace(".", "_"): value for name, value in model.state_dict().items()}
        for name, value in self.of.items():
            self.register_buffer(f"p{name}", value)

    def forward(self, x: Tensor) -> Tensor:
        p = {name: getattr(self, f"p{name}") for name in self.of}
        x = F.conv2d(x, p["0_weight"], p["0_bias"], padding=1)
        x = F.relu(F.batch_norm(x, p["1_running_mean"], p["1_running_var"], p["1_weight"], p["1_bias"]))
        x = F.relu(F.conv2d(x, p["3_weight"], p["3_bias"], padding=1))
        return F.linear(x.flatten(1), p["6_weight"], p["6_bias"])


def test_a_program_without_modules_is_followed_step_by_step() -> None:
    found = parting(inner(net(), X), inner(fx.symbolic_trace(Steps(other("3"))), X))
    assert not found.by_name
    first = found.first()
    assert first is not None
    assert first.name == "3"
    assert len(found.layers) == 7


@pytest.mark.parametrize("layer", [None, "3"])
def test_an_onnx_graph_is_followed_node_by_node_though_normalisation_was_merged(layer: str | None) -> None:
    pytest.importorskip("onnx")
    from assay.methods.compress.export import to_onnx
    from assay.nn.onnx_net import session

    graph = to_onnx(net() if layer is None else other(layer), X)
    found = parting(inner(net(), X), onnx_inner(graph, session, X))
    assert not found.by_name
    assert "0" not in [each.name for each in found.layers]  # its batch normalisation went into it
    assert [each.name for each in found.layers][-1] == "6"
    first = found.first()
    assert (None if first is None else first.name) == layer


def test_a_graph_of_one_input_at_a_time_is_shown_them_one_by_one() -> None:
    pytest.importorskip("onnx")
    from assay.methods.compress.export import to_onnx
    from assay.nn.onnx_net import session

    found = onnx_inner(to_onnx(net(), X, alone=True), session, X)
    torch.testing.assert_close(list(found.values())[-1], net()(X), rtol=1e-4, atol=1e-5)


def test_where_nothing_corresponds_it_cannot_be_said() -> None:
    strange = {"a": torch.rand(3, 9), "b": torch.rand(3, 8)}
    found = parting(inner(net(), X), strange)
    assert found == Parting((), False, (7, 2), behind=7)
    assert "cannot be said" in said(found)


def test_a_tensor_that_is_not_a_number_parts() -> None:
    sick = {name: value.clone() for name, value in inner(net(), X).items()}
    sick["3"][0] = torch.nan
    first = parting(inner(net(), X), sick).first()
    assert first is not None
    assert first.name == "3"


def test_what_is_infinite_in_both_is_no_gap_and_hides_none() -> None:
    a = torch.tensor([[1.0, torch.inf], [2.0, -torch.inf]])
    same, off = (parting({"x": a, "y": a}, {"x": a, "y": b}).layers[1] for b in (a.clone(), a + 0.5))
    assert (same.gap, same.relative) == (0, 0)
    assert (off.gap, off.relative) == pytest.approx((0.5, 0.25))
    lost = parting({"x": a, "y": a}, {"x": a, "y": torch.full((2, 2), torch.nan)})
    assert "It opens at y: values there are not finite" in said(lost)
    assert parting({"x": a * torch.nan}, {"x": a * torch.nan}).layers[0].parts()


@pytest.mark.parametrize("end", [5, 7])
def test_where_nothing_agrees_behind_a_layer_it_opens_after_that(end: int) -> None:
    """Under other names, all behind the first is another network's; then the answers are compared all the same."""
    rng = torch.Generator().manual_seed(3)
    values = [torch.rand(9, size, generator=rng) for size in (4, 6, 5)]
    others = [values[0], torch.rand(9, 6, generator=rng), torch.rand(9, end, generator=rng)]
    found = parting(dict(zip("abc", values, strict=True)), dict(zip("pqr", others, strict=True)))
    assert "It opens after a: nothing behind it has a counterpart that agrees" in said(found, answers=0.5)
    assert [(each.name, each.other) for each in found.layers] == [("a", "p"), ("c", "r")][: 2 if end == 5 else 1]
