from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.methods.train.fit import Diverged
from assay.nn.continuous import Continuous, ContinuousNet, quiet
from assay.nn.members import Drawn
from assay.nn.solve import DepthNoise
from assay.probe import configure, undisturbed
from assay.remedies._retraining import PlainRetraining
from assay.remedies.neural_sde import NeuralOde, NeuralSde
from assay.run import Run
from assay.subject import Subject


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


@pytest.fixture
def residual(digits: Subject) -> Subject:
    """Two residual blocks over the pixels."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), Around(), Around(), nn.Linear(16, 10))
    return replace(digits, model=model.eval(), name="residual", layers={})


def right(subject: Subject, run: Run, n: int = 300) -> float:
    x, y = subject.data["test"].take(np.arange(n))
    with undisturbed(subject.model, run):
        return float((subject.predict(x).argmax(1) == y).float().mean())


def surprise(model: nn.Module, subject: Subject) -> float:
    x, y = subject.data["train"].take(np.arange(128))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x), y))


def test_residual_blocks_become_equations_and_the_old_model_stays(residual: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in residual.model.state_dict().items()}
    cured, again = (NeuralSde(epochs=4, draws=8, sigma=1.0).settled(residual).apply(residual, run) for _ in range(2))
    assert all(torch.equal(v, before[k]) for k, v in residual.model.state_dict().items())
    assert (cured.origin, cured.draws) == (("neural-sde",), 8)
    assert isinstance(cured.model, Drawn)
    assert cured.model.rows_apart
    assert not any(m.training for m in cured.model.modules())
    depths = [m for m in cured.model.modules() if isinstance(m, Continuous)]
    assert [(d.steps, d.noise) for d in depths] == [(1, DepthNoise("gaussian-dropout", sigma=1.0))] * 2
    assert cured.fingerprint() == again.fingerprint()
    assert right(cured, run) > 0.85
    x, _ = cured.data["test"].take(np.arange(100))
    with undisturbed(cured.model, run):
        assert float(cured.model.members(x).std(0).mean()) > 0.02
    told = NeuralSde(epochs=4, draws=8, sigma=1.0).remarks(cured, run)
    assert told[0] == "2 of its blocks are continuous now, in 1 step each."
    assert "8 passes averaged, it is right on" in told[1]
    x, y = cured.data["test"].take(run.pick(cured.data["test"]))
    with torch.no_grad():
        still = 100 * float((quiet(cured.model.net)(x).argmax(1) == y).float().mean())
    assert told[1].endswith(f"with the noise turned off on {still:.1f} %.")
    assert "members answer differently" in told[2]


def test_the_number_without_noise_is_that_of_the_quiet_net(residual: Subject, run: Run) -> None:
    """Weights of a training without noise, asked under so much of it that little is left."""
    without = NeuralSde(epochs=3, noise="none").apply(residual, run)
    loud = NeuralSde(noise="additive", sigma=30.0, draws=2)
    cured = loud.frame(residual)
    assert isinstance(cured.model, Drawn)
    cured.model.net.load_state_dict(without.model.state_dict())
    told = loud.remarks(cured, run)[1]
    x, y = cured.data["test"].take(run.pick(cured.data["test"]))
    with torch.no_grad():
        still = 100 * float((quiet(cured.model.net)(x).argmax(1) == y).float().mean())
    assert told.endswith(f"with the noise turned off on {still:.1f} %.")
    assert still > 80 > 60 > float(told.split("it is right on ")[1].split(" %")[0])


def test_fine_tuning_begins_at_the_model_itself(residual: Subject, run: Run) -> None:
    tuned = NeuralSde(epochs=1, lr=1e-9, start="weights", noise="none").apply(residual, run)
    x, _ = residual.data["test"].take(np.arange(20))
    assert tuned.draws == 1
    assert torch.allclose(tuned.model(x), residual.model(x), atol=1e-4)
    assert NeuralSde(start="weights").learning_rate == pytest.approx(NeuralSde().learning_rate / 10)


def test_images_without_blocks_get_a_small_continuous_net_and_it_is_said(digits: Subject, run: Run) -> None:
    few = digits.data["train"].take(np.arange(128))
    digits = replace(digits, data=digits.data | Subject.classifier(digits.model, {"test": few, "train": few}).data)
    remedy = NeuralSde(epochs=4, width=4, grid=0.5, noise="multiplicative", sigma=0.3, draws=4)
    cured = remedy.apply(digits, run)
    assert isinstance(cured.model, Drawn)
    net = cured.model.net
    assert isinstance(net, ContinuousNet)
    assert net.depth.steps == 2
    assert net.depth.noise == DepthNoise("multiplicative", sigma=0.3)
    begun = NeuralSde(epochs=4, lr=1e-9, width=4, grid=0.5, noise="none").apply(digits, run).model
    assert surprise(quiet(net), digits) < surprise(begun, digits) - 0.01  # a few steps go down
    told = remedy.remarks(cured, run)[0]
    assert "no residual block" in told
    assert "the architecture as well as the noise" in told
    frame = remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    assert not frame.model.training


def test_the_control_is_the_same_net_without_noise_or_a_plain_training(digits: Subject, residual: Subject) -> None:
    remedy = NeuralSde(epochs=3, noise="dropout", drop=0.2, grid=0.5, start="weights", width=4)
    ode = remedy.control()
    assert isinstance(ode, NeuralOde)
    assert ode.name() == "neural-ode"
    assert ode == NeuralOde(epochs=3, noise="none", grid=0.5, start="weights", width=4)
    assert NeuralSde(sigma=0.1, draws=4).control() == NeuralSde(sigma=0.9, noise="dropout").control()
    assert ode.control() is None
    assert ode.frame(residual).draws == 1
    assert ode.frame(residual).origin == ("neural-ode",)
    plain = replace(remedy, against="plain").control()
    assert isinstance(plain, PlainRetraining)
    assert (plain.start, plain.learning_rate) == (remedy.start, remedy.learning_rate)
    assert NeuralSde().settled(residual).grid == 1.0
    assert NeuralSde().settled(digits).grid == 0.25
    assert NeuralSde(grid=0.1).settled(digits).grid == 0.1


def test_rate_scheme_and_the_printed_jump_reach_every_block_or_the_small_net(
    digits: Subject, residual: Subject
) -> None:
    jumps = NeuralSde(noise="dropout", drop=0.2, rate=2.0, as_published=True, grid=0.25, width=2)
    milstein = NeuralSde(noise="multiplicative", sigma=0.3, scheme="milstein", grid=0.5, width=2)
    for subject, count in ((digits, 1), (residual, 2)):
        for remedy, noise, scheme in (
            (jumps, DepthNoise("dropout", sigma=0.5, drop=0.2, rate=2.0, as_published=True), "euler"),
            (milstein, DepthNoise("multiplicative", sigma=0.3), "milstein"),
        ):
            parts = [m for m in remedy.frame(subject).model.modules() if isinstance(m, Continuous)]
            assert [(part.noise, part.scheme) for part in parts] == [(noise, scheme)] * count
            assert remedy.control() == NeuralOde(noise="none", grid=remedy.grid, width=2)


def test_noise_may_be_in_training_alone(residual: Subject, run: Run) -> None:
    """The same training, whose weights answer without noise and once."""
    loud = NeuralSde(epochs=3, sigma=1.0)
    silent = replace(loud, test_noise=False)
    noisy, still = (remedy.apply(residual, run) for remedy in (loud, silent))
    assert isinstance(noisy.model, Drawn)
    assert_close(still.model.state_dict(), noisy.model.net.state_dict(), rtol=0, atol=0)
    x, _ = residual.data["test"].take(np.arange(50))
    assert still.draws == 1
    assert torch.equal(still.model(x), still.model(x))
    assert_close(still.model(x), quiet(noisy.model.net).eval()(x))
    assert not torch.equal(noisy.model(x), noisy.model(x))
    frame = silent.frame(residual)
    frame.model.load_state_dict(still.model.state_dict())
    assert frame.fingerprint() == still.fingerprint()
    assert silent.remarks(still, run) == (
        "2 of its blocks are continuous now, in 1 step each.",
        "Noise was there in training alone (gaussian-dropout): one pass answers, without it.",
    )
    assert silent.control() == loud.control()
    assert replace(silent, draws=1).draws == 1  # nothing is averaged


def test_building_the_net_leaves_the_global_generator_alone(digits: Subject, run: Run) -> None:
    remedy = NeuralSde(epochs=1, width=2, grid=1.0, draws=2)
    before = torch.get_rng_state()
    remedy.frame(digits)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_training_that_broke_off_leaves_fits_the_frame(residual: Subject, run: Run) -> None:
    remedy = NeuralSde(epochs=3, lr=1e30, draws=2)
    with pytest.raises(Diverged) as caught:
        remedy.apply(residual, run)
    assert isinstance(caught.value.model, Drawn)
    remedy.frame(residual).model.load_state_dict(caught.value.model.state_dict())


def test_settings_are_read_and_what_cannot_be_is_refused_in_a_line(
    digits: Subject, residual: Subject, run: Run
) -> None:
    read = configure(NeuralSde, {"noise": "stochastic-depth", "grid": "1/4", "draws": "3", "against": "plain"})
    assert read == NeuralSde(noise="stochastic-depth", grid=0.25, draws=3, against="plain")
    for settings, words in (
        ({"noise": "salt"}, "noise='salt'"),
        ({"sigma": "-1"}, r"sigma=-1\.0; it is a standard deviation"),
        ({"drop": "2", "noise": "dropout"}, r"drop=2\.0"),
        ({"draws": "1"}, "draws=1 of 'neural-sde' must be at least 2"),
        ({"grid": "0"}, r"grid=0\.0 of 'neural-sde' is a share of the depth"),
        ({"grid": "2"}, r"grid=2\.0"),
        ({"grid": "1e-12"}, "grid=1e-12 of 'neural-sde' makes more than 1000 steps"),
        ({"width": "0"}, "width=0"),
        ({"noise": "dropout", "rate": "-1"}, r"rate=-1\.0"),
        (
            {"noise": "dropout", "rate": "3", "grid": "0.5"},
            "rate=3 .* more jumps than there are steps, 2, .* grid=0.333",
        ),
        ({"scheme": "heun"}, "scheme='heun'"),
        ({"scheme": "milstein"}, "and gaussian-dropout depends on all of them through f; use 'euler'"),
        ({"as_published": "true"}, "noise=gaussian-dropout has none; leave it out"),
    ):
        with pytest.raises(AssayError, match=words) as told:
            configure(NeuralSde, settings)
        assert "\n" not in str(told.value)
    assert configure(NeuralSde, {"noise": "none", "draws": "1"}).draws == 1  # a neural ODE answers once
    with pytest.raises(AssayError, match=r"rate=2 .* more jumps than there are steps, 1, .* set grid=0\.5"):
        cure("neural-sde", residual, settings={"noise": "dropout", "rate": "2"})  # of its own blocks one step each
    with pytest.raises(AssayError, match="no split 'train'"):
        cure("neural-sde", replace(digits, data={"test": digits.data["test"]}))
    with pytest.raises(AssayError, match="no weights to go on from; leave start=weights out"):
        cure("neural-sde", digits, settings={"start": "weights"})

    class Single(nn.Linear):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise RuntimeError("there is only one")

    assert "has no residual block" in str(NeuralSde(start="weights").why_not(replace(digits, model=Single(64, 10))))
    long = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).eval()
    thin = (torch.rand(20, 1, 1, 64), torch.arange(20) % 2)
    with pytest.raises(AssayError, match=r"one of shape \(1, 1, 64\) vanishes so"):
        cure("neural-sde", Subject.classifier(long, {"test": thin, "train": thin}))
    flat = nn.Sequential(nn.Linear(13, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    rows = (torch.rand(20, 13), torch.arange(20) % 2)
    with pytest.raises(AssayError, match=r"is for images; an input here has shape \(13,\)"):
        cure("neural-sde", Subject.classifier(flat, {"test": rows, "train": rows}))
