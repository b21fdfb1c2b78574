from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.methods.private.dp_sgd import epsilon_of
from assay.remedies.dp_training import DpTraining
from assay.run import Run
from assay.subject import Subject

pytestmark = pytest.mark.skipif(find_spec("opacus") is None, reason="opacus is not installed")


def test_it_trains_privately_and_says_what_it_spent(digits: Subject, run: Run) -> None:
    dense = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)).eval()
    subject = replace(digits, model=dense, layers={})
    remedy = DpTraining(epsilon=20.0, epochs=6, lr=0.5)
    cured = remedy.apply(subject, run)
    x, y = digits.data["test"].take(np.arange(300))
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.2  # 0.1 by chance; 0.61 by 20 trainings, sd 0.06
    assert cured.origin == ("dp-training",)
    assert not any(isinstance(m, nn.BatchNorm1d) for m in cured.model.modules())
    framed = remedy.frame(subject)
    framed.model.load_state_dict(cured.model.state_dict())
    torch.testing.assert_close(framed.model.eval()(x), cured.model(x))
    spent, _, groups = remedy.remarks(cured, run)
    n = len(digits.data["train"])
    value = float(spent.split("epsilon ")[1].split(" ")[0])
    assert 19 < value <= 20
    noise = float(spent.split("a noise of ")[1].split(" ")[0])
    steps = 6 * -(-n // 256)
    assert value == pytest.approx(epsilon_of(noise, 256 / n, steps, 1e-5), rel=0.02)
    assert groups.startswith("1 normalisations")


def test_its_control_is_the_same_training_without_clipping_and_noise(digits: Subject) -> None:
    control = DpTraining(epochs=3, lr=0.2).control()
    assert control is not None
    assert (control.name(), control.epochs, control.lr, control.batch) == ("plain-retraining", 3, 0.2, 256)


def test_little_noise_promises_next_to_nothing_and_says_so(digits: Subject, run: Run) -> None:
    told = DpTraining(noise=0.01, epochs=1).remarks(digits, run)
    assert any("promises next to nothing" in each for each in told)


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting epsilon takes seconds, and is not what is asked."""
    monkeypatch.setattr("assay.remedies.dp_training.epsilon_of", lambda *_: 1.0)


@pytest.mark.usefixtures("uncounted")
def test_what_is_frozen_is_refused_by_name_and_buffers_are_told(digits: Subject, run: Run) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    model[1].weight.requires_grad_(False)
    with pytest.raises(AssayError, match=r"The parameter '1.weight' is frozen"):
        DpTraining(noise=1.0, epochs=1, batch=500).apply(replace(digits, model=model.eval(), layers={}), run)
    model.requires_grad_(False)  # all of it: then all of it is drawn anew and trained
    model.register_buffer("mean_of_all", torch.zeros(1))
    subject = replace(digits, model=model, layers={})
    cured = DpTraining(noise=1.0, epochs=1, batch=500).apply(subject, run)
    assert not any(torch.equal(p, q) for p, q in zip(cured.model.parameters(), model.parameters(), strict=True))
    (told,) = (each for each in DpTraining(noise=1.0, epochs=1, batch=500).remarks(cured, run) if "Buffers" in each)
    assert "mean_of_all" in told


@pytest.mark.usefixtures("uncounted")
def test_no_seed_tells_the_noise(digits: Subject, run: Run) -> None:
    """Two trainings by one seed: were the noise the same, the difference of two data sets would show bare."""
    subject = replace(digits, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval(), layers={})
    remedy = DpTraining(noise=1.0, epochs=1, batch=500)
    first, second = (remedy.apply(subject, run).model[1].weight for _ in range(2))
    assert not torch.allclose(first, second)
    assert any("not from the seed" in each for each in remedy.remarks(subject, run))


@pytest.mark.usefixtures("uncounted")
def test_delta_is_far_below_one_in_n_and_more_is_told(digits: Subject, run: Run) -> None:
    n = len(digits.data["train"])
    assert "at delta 1e-05" in DpTraining(noise=2.0, epochs=1).remarks(digits, run)[0]
    assert DpTraining()._delta(range(10**6)) == pytest.approx(1e-7)  # type: ignore[arg-type]
    few, many = (DpTraining(noise=2.0, epochs=1, delta=d).remarks(digits, run) for d in (0.9 / n, 1 / n))
    assert not any("one in" in each for each in few)
    assert any("give at most 1e-05" in each for each in many)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epsilon": 0.0}, "epsilon=0; give a number above 0"),
        ({"epsilon": -1.0}, "epsilon=-1"),
        ({"noise": 0.0}, "noise=0"),
        ({"clip": -2.0}, "clip=-2"),
        ({"delta": 1.5}, "delta=1.5"),
        ({"epsilon": 1.0, "noise": 1.0}, "Both epsilon=1 and noise=1"),
    ],
)
def test_settings_that_promise_nothing_are_refused(settings: dict[str, float], says: str) -> None:
    with pytest.raises(AssayError, match=says):
        DpTraining(**settings)


def test_without_training_data_it_says_why_not(digits: Subject) -> None:
    alone = replace(digits, data={"test": digits.data["test"]})
    assert "no split 'train'" in str(DpTraining().why_not(alone))
