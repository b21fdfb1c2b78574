"""Does an error grow: known where the network is linear, under noise that both share, and told where it cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.finding import Finding
from assay.methods.attack.error_growth import Stage
from assay.nn.continuous import as_continuous, with_draws
from assay.nn.solve import DepthNoise
from assay.probe import configure, put
from assay.probes.steady import does_an_error_grow as probe
from assay.probes.steady.does_an_error_grow import DoesAnErrorGrow
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject

RNG = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def flat() -> tuple[Tensor, Tensor]:
    """Sixty inputs that differ in the first of two values alone."""
    x = torch.full((60, 2), 0.5)
    x[:, 0] = torch.linspace(0.1, 0.9, 60)
    return x, (x[:, 0] > 0.5).long()


class Scaled(nn.Module):
    """The first value as it is, the second so many times; a shift that no share of a distance sees."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.stretch, self.shift = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
        self.stretch.weight.data = torch.diag(torch.tensor([1.0, times]))
        self.shift.weight.data, self.shift.bias.data = 7 * torch.eye(2), torch.full((2,), 100.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.shift(self.stretch(x))
        return out


def asked(subject: Subject, run: Run, **settings: float) -> Finding:
    answer = put(DoesAnErrorGrow(**settings), subject, replace(run, debug=True))  # type: ignore[arg-type]
    assert answer.status == "asked", answer.why
    assert answer.finding is not None
    return answer.finding


def verdict(found: Finding) -> str:
    return judge(DoesAnErrorGrow.standards[0], found).verdict


@pytest.mark.parametrize(("times", "said"), [(0.1, "pass"), (30.0, "fail")])
def test_an_error_across_the_data_dies_or_grows_as_the_network_scales_it(times: float, said: str, run: Run) -> None:
    found = asked(Subject.classifier(Scaled(times), flat()), run, inputs=60, radius=0.01)
    samples = found.samples
    assert samples is not None
    # the two inputs differ by 0.01 (cos a, sin a): log sqrt(cos^2 + times^2 sin^2), whatever the shift and the 7
    rate = found.measure().value
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 20000)
    assert rate == pytest.approx(
        float(np.median(np.log(np.hypot(np.cos(angle), times * np.sin(angle))))), abs=0.5 if times > 1 else 0.25
    )
    assert verdict(found) == said
    assert found.measure("exponent of the worst error").value == pytest.approx(max(0.0, math.log(times)), abs=0.05)


def test_a_network_that_only_turns_and_scales_changes_nothing(run: Run) -> None:
    x = torch.rand(40, 6)
    net = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
    for layer in net:
        layer.weight.data = 3 * torch.linalg.qr(torch.randn(6, 6)).Q
    found = asked(Subject.classifier(net, (x, (net(x).argmax(1)))), run, inputs=40, radius=0.01)
    curve = found.views[0]
    assert curve.name == "depth"
    for line in curve.lines:  # type: ignore[union-attr]
        assert line.y == pytest.approx([0.0] * 4, abs=2e-3)
    assert "Stages: 0 the input, 1 0, 2 1, 3 the answer." in curve.says


class Hiss(nn.Module):
    """Noise that is a hundred times as large as the error."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_both_inputs_have_the_same_noise(run: Run) -> None:
    plain, noisy = nn.Sequential(Scaled(0.1)), nn.Sequential(Hiss(), Scaled(0.1))
    quiet = asked(Subject.classifier(plain, flat()), run, inputs=60, radius=0.01)
    loud = asked(Subject.classifier(noisy, flat(), draws=4), run, inputs=60, radius=0.01)
    name = "exponent of a random error"
    assert loud.measure(name).value == pytest.approx(quiet.measure(name).value, abs=0.01)


def test_noise_in_depth_goes_through_with_a_stage_for_each_step(run: Run) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + self.inner(x)
            return out

    x, y = flat()
    net = as_continuous(nn.Sequential(Around(), nn.Linear(2, 2)), x, DepthNoise("multiplicative", sigma=0.5), grid=0.25)
    found = asked(Subject.classifier(with_draws(net, x, 6).eval(), (x, y), draws=6), run, inputs=20)
    assert found.views[0].says.startswith(
        "Stages: 0 the input, 1 net.0.state (2), 2 net.0.state (3), 3 net.0.state (4), 4 net.0, 5 the answer."
    )
    assert "guarantee" not in found.says
    assert not any("bound" in m.about or "guarantee" in m.about for m in found.measures)


def test_a_classifier_of_images_by_hand(digits: Subject, run: Run) -> None:
    found = asked(digits, run, inputs=30, steps=4)
    assert [m.name for m in found.measures] == [
        "exponent of a random error",
        "exponent of the worst error",
        "worst errors that grow",
    ]
    random, worst = (m.value for m in found.measures[:2])
    assert random is not None
    assert worst is not None
    assert worst > random
    assert found.samples is not None
    assert set(found.samples.columns) == {"index", "label", "random", "worst", "size of the worst"}
    assert found.samples.columns["size of the worst"].max() <= 0.1 + 1e-6
    assert np.median(found.samples.columns["worst"]) == pytest.approx(worst, abs=0.2)
    assert f"{math.exp(np.median(found.samples.columns['worst'])):.3g} times as large" in found.says
    again = asked(digits, run, inputs=30, steps=4)
    assert again.measures == found.measures


def test_a_random_error_stays_in_the_box_with_its_size_and_leaves_what_is_fixed() -> None:
    x, rng = torch.rand(50, 3, 4).round(), torch.Generator().manual_seed(0)  # every value at an end of the range
    free = torch.ones(50, 3, 4, dtype=torch.bool)
    free[:, 0] = False
    got = probe._random_error(x, 0.3, free, (0.0, 1.0), rng)
    assert bool(((got >= 0) & (got <= 1)).all())
    assert torch.equal(got[:, 0], x[:, 0])
    assert (got - x).flatten(1).norm(dim=1) == pytest.approx(np.full(50, 0.3), rel=1e-5)


def test_what_cannot_be_followed_is_said(run: Run) -> None:
    x, y = flat()

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            bad = (x[:, :1] > 0.7) & (x[:, 1:] != 0.5)  # no number as soon as the second value moves
            return torch.where(bad, torch.nan, x)

    found = asked(Subject.classifier(Broken(), (x, y)), run, inputs=60, radius=0.01)
    assert any("of the inputs the change is nought or a state is no number" in a.says for a in found.alarms)
    assert any("only input and answer are compared" in a.says for a in found.alarms)
    assert found.views[0].says.startswith("Stages: 0 the input, 1 the answer. ")
    many = tuple(Stage(f"s{k}", 0, 1) for k in range(40))
    flat_path = {name: np.zeros((3, 42)) for name in ("worst", "random")}
    assert (
        "23 s22, 17 more, 41 the answer."
        in probe._curve(flat_path, np.ones(3, dtype=bool), np.ones((3, 42)), many, 0).says
    )
    assert verdict(found) != "pass"
    nothing = probe._nothing(7)
    assert nothing.measure().value is None
    assert verdict(nothing) == "cannot tell"
    good, ends = np.ones(30, dtype=bool), {"worst": np.zeros(30), "random": np.ones(30)}
    (masked,) = probe._alarms((Stage("a", 0, 1),), good, ends)
    assert "may be masked" in masked.says
    assert masked.doubts == ("exponent of the worst error",)


def test_two_inputs_are_too_few_to_pass_by(run: Run) -> None:
    found = asked(Subject.classifier(Scaled(0.1), flat()), run, inputs=2, radius=0.01)
    assert any("at 2 inputs alone, too few to judge by" in a.says for a in found.alarms)
    assert verdict(found) != "pass"


def test_the_interval_holds_what_the_usual_distance_varies_by_too() -> None:
    """True exponent 0: logs of errors and of distances at the answer both vary; 95 in 100 intervals should hold it."""
    rng, held = np.random.default_rng(0), 0
    for seed in range(200):
        grown, far = rng.normal(0, 0.3, 20), np.exp(rng.normal(0, 0.6, (20, 2)))
        ends = grown - math.log(np.median(far[:, 1])) + math.log(np.median(far[:, 0]))
        m = probe._median("m", ends, np.ones(20, dtype=bool), far, seed)
        assert m.low is not None
        assert m.high is not None
        assert m.low <= (m.value or 0.0) <= m.high
        held += m.low <= 0 <= m.high
    assert held >= 180


def test_medians_of_resamples_are_those_of_the_rows_written_out() -> None:
    rng = np.random.default_rng(0)
    values, held = rng.normal(size=9), np.arange(9) % 4 > 0
    counts = rng.multinomial(9, np.full(9, 1 / 9), size=50).astype(np.float64)
    ours = probe._middles(values, held, counts)
    theirs = [np.median(np.repeat(values[held], row[held].astype(int))) for row in counts]
    np.testing.assert_allclose(ours, theirs)
    alone = np.zeros((1, 9))
    alone[0, 0] = 9  # none that is held
    assert probe._middles(values, held, alone)[0] == np.median(values[held])


def test_noise_that_no_seed_reaches_is_told_and_not_measured(run: Run) -> None:
    class OwnNoise(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + 0.1 * torch.randn(x.shape, generator=RNG))

    found = asked(Subject.classifier(OwnNoise(0.1), flat(), draws=4), run, inputs=20)
    assert found.measure().value is None
    assert "differently with the same seed" in found.says
    assert verdict(found) == "cannot tell"


def test_without_a_gradient_only_the_random_error_is_followed(run: Run) -> None:
    class Cut(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    whole, cut = (asked(Subject.classifier(net(0.1), flat()), run, inputs=60, radius=0.01) for net in (Scaled, Cut))
    assert [m.name for m in cut.measures] == [probe.HEADLINE]
    assert cut.measure().value == pytest.approx(whole.measure().value, abs=0.3)
    assert any("could not be searched for" in a.says for a in cut.alarms)
    assert [line.label for line in cut.views[0].lines] == ["random error"]  # type: ignore[union-attr]


def test_one_input_alone_has_no_other_to_be_far_from(run: Run) -> None:
    found = asked(Subject.classifier(Scaled(1.0), flat()), run, inputs=1)
    assert found.measure().value is None
    assert "the usual distance of two inputs, and one input is asked about" in found.says


def test_where_it_does_not_apply_it_says_so_in_a_line(run: Run) -> None:
    x, y = flat()
    script = nn.Sequential(torch.jit.script(Scaled(1.0)))  # type: ignore[no-untyped-call]
    assert "TorchScript cannot be watched" in put(DoesAnErrorGrow(), Subject.classifier(script, (x, y)), run).why
    blind = Subject.classifier(Scaled(1.0), (x, y), differentiable=False)
    assert "needs gradients" in put(DoesAnErrorGrow(), blind, run).why
    for settings, words in (({"radius": "0"}, "radius=0"), ({"inputs": "0"}, "inputs=0"), ({"steps": "0"}, "steps=0")):
        with pytest.raises(AssayError, match=words):
            configure(DoesAnErrorGrow, settings)
