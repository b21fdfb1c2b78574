"""The study of fronts, small: trials side by side, volumes, extremes, verdicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.claim import judged
from assay.claims import zhang2021_fair_moel as study
from assay.finding import Measure
from assay.methods.fair.entropy import from_error
from assay.methods.fair.population import drawn


def people():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 2, 200)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = (x[:, 0] - 0.8 * groups + 0.5 * rng.normal(size=200) > 0).astype(np.int64)
    return x, y, groups.astype(np.int64)


@pytest.fixture(scope="module")
def trials():
    return study.evolved(*people(), hidden=4, generations=3, seed=0, device="cpu", trials=2, size=6)


def test_trials_are_tied_to_the_error(trials):
    assert trials.last.shape == (2, 4, 6, 3)
    for (mse, within, between), mean in zip(trials.last.reshape(-1, 3), trials.mean_error.ravel(), strict=True):
        assert within + between == pytest.approx(from_error(mse, mean), abs=study.EXACT)


def test_the_printed_form_has_the_mean_of_all(trials):
    """f_I with print's mean, person by person, where groups have unequal means; it is not the corrected one."""
    x, y, groups = people()
    *_, test = study._parts(x, y, groups, 2, 0, "cpu")
    rng = torch.Generator().manual_seed(0)
    population = drawn(8, 3, 3, 4, rng)
    scores, of = population.scores(test.x).double().numpy()[5, 1], (test.y[5].numpy(), test.groups[5].numpy())
    b = scores - of[0] + 1
    within = 0.0
    for g in (0, 1):
        inside = b[of[1] == g]
        entropy = ((inside / b.mean()) ** 2 - 1).sum() / (2 * len(inside))
        within += len(inside) / len(b) * (inside.mean() / b.mean()) ** 2 * entropy
    assert study.as_printed(population, test)[5, 1].item() == pytest.approx(within)
    assert trials.printed.shape == (2, 4, 6)
    assert np.abs(trials.printed - trials.last[..., 1]).max() > 1e-6


def made(rng, *, printed=1e-3, corrected=0.0, error=1.0, rise=0.0):
    """Trials whose f_I is the identity's and as far beside it as is said; `error`: in shares of print's."""

    def of(name):
        mse = error * study.ERROR_ALONE[name] * rng.uniform(1, 1.02, (15, 4, 6))
        mean, between = rng.uniform(-0.05, 0.05, mse.shape), np.full(mse.shape, 1e-3)
        within = np.vectorize(from_error)(mse, mean) - between
        last = np.stack([mse, within + corrected, between], -1)
        first = last + rng.uniform(0.5, 1.5, last.shape) * [1e-2, 1e-2 - rise, 1e-2]
        return study.Trials(first, last, mean, within + printed * rng.uniform(-1.5, 1.5, mse.shape))

    found = {name: of(name) for name in study.HIDDEN}
    return lambda name, seed, device: found[name]


def asked(name, evidence):
    return judged(next(c for c in study.SHELVED if c.name == name), evidence)


@pytest.mark.parametrize(
    ("beside", "held"), [({}, "holds"), ({"printed": 1e-12}, "fails"), ({"corrected": 1e-6}, "fails")]
)
def test_the_tie_is_exact_as_corrected_and_not_as_printed(monkeypatch, run, beside, held):
    monkeypatch.setattr(study, "_trials", made(np.random.default_rng(0), **beside))
    monkeypatch.setattr(study, "_table", lambda name: (None, np.array([0, 1]), None))
    evidence = study.tied(run)
    assert asked("unfairness-is-tied-to-error", evidence).verdict == held
    values = {m.name: m for m in evidence.measures}
    assert len(values) == len(evidence.measures)
    for name in study.HIDDEN:
        assert values[f"largest gap, corrected, {name}"].value == pytest.approx(beside.get("corrected", 0), abs=1e-12)
        gap = values[f"gap, as printed, {name}"]
        assert gap.low < gap.value < gap.high
        assert gap.value == pytest.approx(0.75 * beside.get("printed", 1e-3), rel=0.1)
    assert "compas" in evidence.says
    assert "adult" in evidence.says


def test_a_gap_in_one_trial_alone_tells_nothing(monkeypatch, run):
    trials = made(np.random.default_rng(0))
    for name in study.HIDDEN:
        of = trials(name, 0, "cpu")
        of.printed[1:] = of.last[1:, ..., 1]
    monkeypatch.setattr(study, "_trials", trials)
    monkeypatch.setattr(study, "_table", lambda name: (None, np.array([0, 1]), None))
    assert study.tied(run).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("beside", "held"),
    [({}, "holds"), ({"rise": 2e-2}, "fails"), ({"error": 1.2}, "cannot tell"), ({"error": 0.9}, "holds")],
)
def test_error_alone_is_judged_of_networks_as_good_as_print(monkeypatch, run, beside, held):
    monkeypatch.setattr(study, "_trials", made(np.random.default_rng(0), **beside))
    evidence = study.error_alone(run)
    found = asked("error-alone-is-fairer", evidence)
    assert found.verdict == held
    assert [gate.printed for gate in evidence.gates] == [0.22362, 0.12556]  # F_E's in print, and not F_EIG's
    assert ("not those in print" in found.says) == (beside.get("error", 1) > 1.1)


@pytest.mark.parametrize(("error", "missed"), [(1.05, False), (1.2, True)])
def test_the_front_is_gated_by_the_error_of_the_run_for_error_alone(error, missed):
    found = made(np.random.default_rng(0))("adult", 0, "cpu")
    found.last[:, 3, :, 0] *= error
    gate = study._gate("adult", found)
    assert gate.values == pytest.approx(found.last[:, 3, :, 0].min(1))
    assert bool(gate.missed()) == missed


def test_volumes_share_one_scale_and_extremes_are_the_best(trials):
    volume = study.volumes(trials.last)
    assert volume.shape == (2, 4)
    assert ((volume >= 0) & (volume < 1)).all()
    assert study.volumes(trials.last * [2, 3, 5]) == pytest.approx(volume)  # units do not matter
    worse = trials.last.copy()
    worse[0, 1] = 1.1 * trials.last[0, 0]  # dominated, so that the scale of all is made by the others
    assert study.volumes(worse)[0, 1] < study.volumes(worse)[0, 0]
    front = trials.last[0, 0]
    assert np.diag(study.extremes(front)) == pytest.approx(front.min(0))


def gain(low, high):
    return Measure(name="g", value=(low + high) / 2, low=low, high=high, better="higher", n=15)


@pytest.mark.parametrize(
    ("ends", "held"),
    [
        ([(1, 2), (1, 2), (1, 2)], "holds"),
        ([(1, 2), (-1, 2), (1, 2)], "holds"),  # print is not clear about EG either
        ([(-1, 2), (1, 2), (1, 2)], "cannot tell"),
        ([(1, 2), (-2, 1), (1, 2)], "cannot tell"),
        ([(1, 2), (-2, -1), (1, 2)], "fails"),
    ],
)
def test_verdicts(ends, held):
    gains = {run: gain(*end) for run, end in zip(("EI", "EG", "E"), ends, strict=True)}
    assert study.verdict(gains, ("EI", "E")) == held
