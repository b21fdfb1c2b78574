from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from scipy.stats import t as student
from small_models import digits
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError, ShapeError
from assay.methods.explain.maps import explain
from assay.methods.explain.sanity import (
    Shuffled,
    Verdict,
    curve,
    layers,
    likeness,
    needs_the_model,
    randomised,
    retrained,
)
from assay.methods.train.fit import Rows, fit


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)),
        ).eval()


def learn(model: nn.Module, data: Rows) -> None:
    fit(model, data, epochs=6, lr=0.01, optimiser="adam", batch=64, rng=seeded(0))


@pytest.fixture(scope="module")
def data() -> Arrays:
    x, y = digits()
    return Arrays(x[:800], y[:800])


@pytest.fixture(scope="module")
def model(data: Arrays) -> nn.Module:
    net = network()
    learn(net, data)
    return net


@pytest.fixture(scope="module")
def twin(model: nn.Module, data: Arrays) -> nn.Module:
    return retrained(model, data, labels="true", rng=seeded(1), train=learn)


@pytest.fixture(scope="module")
def by_heart(model: nn.Module, data: Arrays) -> nn.Module:
    return retrained(model, data, labels="shuffled", rng=seeded(2), train=learn)


def held() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x[1200:1240], y[1200:1240]


class Backwards(nn.Module):
    """Its layers are written down in another order than they run."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.norm = nn.LayerNorm(4)
        self.first = nn.Linear(3, 4)
        self.unused = nn.Linear(9, 9)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.first(x)))
        return out


def test_layers_come_as_they_run_with_their_normalisation() -> None:
    assert layers(Backwards(), torch.zeros(2, 3)) == [("first", "norm"), ("head",)]
    assert layers(network(), torch.zeros(1, 1, 8, 8)) == [("0", "1"), ("3",), ("7",)]
    with pytest.raises(AssayError, match="nothing to randomise"):
        layers(nn.ReLU(), torch.zeros(1, 3))


def changed(a: nn.Module, b: nn.Module) -> list[str]:
    other = b.state_dict()
    return [name for name, value in a.state_dict().items() if not torch.equal(value, other[name])]


def test_a_cascade_goes_from_the_top_down_and_keeps_what_it_drew(model: nn.Module) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    steps = list(randomised(model, held()[0], rng=seeded(0)))
    assert [step.layer for step in steps] == ["7", "3", "0"]
    tops = [{name.split(".")[0] for name in changed(model, step.model)} for step in steps]
    assert tops == [{"7"}, {"7", "3"}, {"7", "3", "0", "1"}]
    assert set(changed(steps[0].model, steps[1].model)) == {"3.weight", "3.bias"}
    norm = steps[2].model.get_submodule("1")
    assert torch.equal(norm.get_buffer("running_mean"), torch.zeros(8))
    assert float(norm.get_buffer("running_var").sum()) == 8
    assert not steps[2].model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    again = list(randomised(model, held()[0], rng=seeded(0)))
    assert changed(again[2].model, steps[2].model) == []
    assert changed(next(randomised(model, held()[0], rng=seeded(1))).model, steps[0].model) != []


def test_independent_randomisation_touches_one_layer_at_a_time(model: nn.Module) -> None:
    steps = randomised(model, held()[0], rng=seeded(0), independent=True)
    assert [{n.split(".")[0] for n in changed(model, s.model)} for s in steps] == [{"7"}, {"3"}, {"0", "1"}]
    alone = nn.Linear(3, 2).eval()  # the model is its own only layer
    assert changed(alone, next(randomised(alone, torch.zeros(1, 3), rng=seeded(0))).model) == ["weight", "bias"]


def test_shuffled_labels_change_places_and_inputs_do_not(data: Arrays) -> None:
    other = Shuffled(data, seeded(0))
    index = np.array([5, 0, 799])
    x, y = other.take(index)
    assert torch.equal(torch.as_tensor(x), torch.as_tensor(data.take(index)[0]))
    assert torch.equal(y, other.labels[[5, 0, 799]])
    assert len(other) == 800
    true = torch.as_tensor(data.take(np.arange(800))[1])
    assert torch.equal(other.labels.sort().values, true.sort().values)
    assert float((other.labels == true).float().mean()) < 0.2


def test_another_seed_learns_as_well_and_shuffled_labels_teach_nothing(
    model: nn.Module, twin: nn.Module, by_heart: nn.Module
) -> None:
    x, y = held()
    right = [float((net(x).argmax(1) == y).float().mean()) for net in (model, twin, by_heart)]
    assert right[0] > 0.8
    assert right[1] > 0.8
    assert right[2] < 0.4
    assert len(changed(model, twin)) == len(model.state_dict()) - 1  # all but the count of batches


def test_without_a_training_function_fit_does_it(data: Arrays) -> None:
    few = Arrays(*data.take(np.arange(64))[:2])
    net = retrained(network(), few, labels="true", rng=seeded(0), epochs=1, lr=0.01)
    assert not net.training
    assert changed(network(), net)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_likeness_is_spearmans_and_sees_signs_only_where_it_says(seed: int) -> None:
    a = torch.randn(3, 2, 9, 9, generator=seeded(seed), dtype=torch.float64)
    b = torch.randn(3, 2, 9, 9, generator=seeded(seed + 1), dtype=torch.float64)
    found, mirrored, own = likeness(a, b), likeness(a, -b), likeness(a, a)
    for row in range(3):
        want = spearmanr(a[row].sum(0).flatten(), b[row].sum(0).flatten()).statistic
        assert float(found.signed[row]) == pytest.approx(want, abs=1e-9)
        want = spearmanr(a[row].abs().sum(0).flatten(), b[row].abs().sum(0).flatten()).statistic
        assert float(found.absolute[row]) == pytest.approx(want, abs=1e-9)
    assert_close(mirrored.signed, -found.signed)
    assert_close(mirrored.absolute, found.absolute)
    assert found.ssim is not None
    assert own.ssim is not None
    assert mirrored.ssim is not None
    assert_close(mirrored.ssim, found.ssim)
    assert (found.ssim < 0.5).all()
    for part in own:
        assert part is not None
        assert_close(part, torch.ones(3, dtype=torch.float64))


def test_tables_have_no_ssim_and_shapes_must_agree() -> None:
    a = torch.randn(4, 6, generator=seeded(0))
    found = likeness(a, a.exp())  # ranks do not see it
    assert found.ssim is None
    assert_close(found.signed, torch.ones(4))
    with pytest.raises(ShapeError, match=r"\(4, 6\) and \(4, 5\) cannot be compared"):
        likeness(a, a[:, :5])


def test_maps_that_ignore_the_model_are_found_out(model: nn.Module, twin: nn.Module) -> None:
    x = held()[0]

    def edges(net: nn.Module, at: Tensor) -> Tensor:
        return explain(net, at, None, "edges").values

    def noise(net: nn.Module, at: Tensor) -> Tensor:
        return explain(net, at, None, "random", rng=seeded(0)).values

    for blind in (edges, noise):
        steps = curve(model, x, blind, rng=seeded(0))
        assert [layer for layer, _ in steps] == ["7", "3", "0"]
        for _, alike in steps:
            assert_close(alike.absolute, torch.ones(len(x)))
        seed = likeness(blind(model, x), blind(twin, x)).absolute
        assert needs_the_model(steps[-1][1].absolute, seed).says == "does not need the model"
        assert needs_the_model(steps[-1][1].absolute).says == "does not need the model"


def test_a_gradient_needs_the_model_and_its_input_hides_that(
    model: nn.Module, twin: nn.Module, by_heart: nn.Module
) -> None:
    x, y = held()

    def gradient(net: nn.Module, at: Tensor) -> Tensor:
        return explain(net, at, y, "gradient").values

    own, seed = gradient(model, x), likeness(gradient(model, x), gradient(twin, x))
    steps = curve(model, x, gradient, rng=seeded(0))
    assert needs_the_model(steps[-1][1].signed, seed.signed).says == "needs the model"
    assert needs_the_model(likeness(own, gradient(by_heart, x)).signed, seed.signed).says == "needs the model"

    def times_input(net: nn.Module, at: Tensor) -> Tensor:
        return explain(net, at, y, "gradient-input").values

    hidden = curve(model, x, times_input, rng=seeded(0))[-1][1].absolute
    assert float(hidden.mean()) > float(steps[-1][1].absolute.mean()) + 0.3  # zeros of the input stay zeros


@settings(max_examples=30, deadline=None)
@given(mean=st.floats(-1, 1), other=st.floats(0.2, 1), n=st.integers(3, 40), seed=st.integers(0, 1000))
def test_the_rule_is_students_interval_against_half(mean: float, other: float, n: int, seed: int) -> None:
    after = mean + 0.1 * torch.randn(n, generator=seeded(seed), dtype=torch.float64)
    found = needs_the_model(after, torch.full_like(after, other))
    e = (after - other / 2).numpy()
    low, high = student.interval(0.95, n - 1, e.mean(), e.std(ddof=1) / np.sqrt(n))
    assert found.low == pytest.approx(low)
    assert found.high == pytest.approx(high)
    want = "needs the model" if high < 0 else "does not need the model" if low > 0 else "cannot tell"
    assert found == Verdict(want, found.excess, found.low, found.high, n)  # type: ignore[arg-type]


def test_where_seeds_do_not_agree_there_is_nothing_to_tell() -> None:
    after = torch.zeros(20) + 0.01 * torch.randn(20, generator=seeded(0))
    assert needs_the_model(after).says == "needs the model"
    assert needs_the_model(after, after.roll(1)).says == "cannot tell"
    assert needs_the_model(after - 1, after.roll(1)).says == "cannot tell"
    with pytest.raises(ShapeError, match=r"two inputs at least, got \(1,\)"):
        needs_the_model(torch.ones(1))
    with pytest.raises(AssayError, match="between 0 and 1, got 1.5"):
        needs_the_model(torch.ones(4), confidence=1.5)
