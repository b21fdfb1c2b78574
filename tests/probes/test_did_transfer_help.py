"""Four starts: one that knows the target gains, more where there is less to learn, and a source of opposites loses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Finding, Measure
from assay.methods.shift.transfer import STARTS, Held, compared, learnt, over_seeds, shuffled, started
from assay.methods.train.fit import fit
from assay.probe import configure, put
from assay.probes.steady.did_transfer_help import GAIN, DidTransferHelp
from assay.run import Run
from assay.subject import Subject

TRUTH = np.random.default_rng(5).normal(size=20)


def rows(n: int, seed: int, conflict: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which a line in twenty dimensions tells the class; under conflict the other way round."""
    x = np.random.default_rng(seed).random((n, 20)).astype(np.float32)
    y = ((x - 0.5) @ TRUTH > 0).astype(np.int64)
    return x, 1 - y if conflict else y


def held(n: int, seed: int) -> Held:
    x, y = rows(n, seed)
    return Held(torch.from_numpy(x), torch.from_numpy(y))


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
        fit(net, held(500, 0), epochs=8, lr=1e-2, batch=50, optimiser="adam", rng=torch.Generator().manual_seed(0))
    return net.eval()


def subject(net: nn.Module, *, conflict: bool, n: int = 300) -> Subject:
    data = {"train": Arrays(*rows(120, 1)), "test": Arrays(*rows(50, 2)), "target": Arrays(*rows(n, 3, conflict))}
    return Subject.classifier(net, data)


def asked(of: Subject, **settings: object) -> Finding:
    probe = configure(DidTransferHelp, {"epochs": 5, "lr": 2e-2, "seeds": 5, **settings})
    answer = put(probe, of, Run(engine=ThisProcess(), debug=True))
    assert answer.finding is not None, answer.why
    return answer.finding


def gains(of: Subject, **settings: object) -> list[Measure]:
    return [m for m in asked(of, **settings).measures if m.name.startswith(GAIN)]


def test_a_source_like_the_target_gains_and_more_where_there_is_less_to_learn(trained: nn.Module) -> None:
    most, few = gains(subject(trained, conflict=False))
    assert most.value > 0
    assert few.value > most.value
    assert few.low > 0


def test_a_source_with_the_opposite_labels_loses(trained: nn.Module) -> None:
    most, _ = gains(subject(trained, conflict=True), epochs=3)
    assert most.high < 0


def drawn(seeds: int, inputs: int, by_seed: float, rng: np.random.Generator) -> np.ndarray:  # -> 2 seeds inputs
    """Answers, right or wrong, of two kinds of training that do not differ but by what a seed adds to the logits."""
    logit = rng.normal(1, 1.5, inputs) + rng.normal(0, by_seed, (2, seeds, 1))
    return (rng.random((2, seeds, inputs)) < 1 / (1 + np.exp(-logit))).astype(float)


@pytest.mark.parametrize("by_seed", [0.0, 0.3, 0.8])
def test_scratch_gains_nothing_over_scratch(by_seed: float) -> None:
    """An interval of inputs alone excludes 0 in a third of all cases at 0.3, in two of three at 0.8."""
    rng, excluded = np.random.default_rng(0), 0
    for _ in range(150):
        one, other = drawn(5, 300, by_seed, rng)
        low, high = over_seeds(one - other)
        excluded += not low <= 0 <= high
    assert excluded <= 14  # of 150; 5 % is 7.5


def test_the_interval_of_seeds_and_inputs_in_closed_form() -> None:
    values = np.array([[1.0, 0, 1, 0], [1, 1, 1, 1]])  # means 0.5 and 1, of inputs 1, 0.5, 1, 0.5
    reach = 12.7062047 * np.sqrt(0.125 / 2 + (1 + 4 / 16) / 16)
    assert reach > 1
    assert over_seeds(values) == (-1, 1)
    many = np.repeat(values, 20, axis=0)
    reach = 2.0226909 * np.sqrt(40 / 39 / 16 / 40 + (1 + 4 / 16) / 16)
    assert over_seeds(many)[0] == pytest.approx(0.75 - reach)
    with pytest.raises(AssayError, match="got 1 training; .* at least 2"):
        over_seeds(values[:1])


def test_equal_answers_are_not_sure() -> None:
    low, high = over_seeds(np.zeros((5, 30)))
    assert high == -low == pytest.approx(2.776445 / 30)


def test_a_domain_of_training_inputs_is_told_and_its_gain_doubted(trained: nn.Module) -> None:
    x, y = rows(120, 1)
    data = {"train": Arrays(x, y), "test": Arrays(*rows(50, 2)), "known": Arrays(x[:80], y[:80])}
    data |= {"new": Arrays(*rows(60, 3))}
    found = asked(Subject.classifier(trained, data), epochs=1, seeds=2)
    (leak,) = (a for a in found.alarms if "stand in the training data too" in a.says)
    assert "80 of 80" in leak.says
    names = [m.name for m in found.measures if "known" in m.name]
    assert f"{GAIN}, known" in names
    assert set(leak.doubts) == set(names)


def test_a_model_that_is_random_is_declined(trained: nn.Module) -> None:
    of = replace(subject(trained, conflict=False), draws=4)
    answer = put(DidTransferHelp(), of, Run(engine=ThisProcess()))
    assert answer.status == "does not apply"
    assert "this one is random" in answer.why


def test_the_starts_are_what_they_say(trained: nn.Module) -> None:
    source = held(100, 1)
    made = {s: started(trained, s, source, "2", epochs=1, lr=1e-3, batch=50, seed=3) for s in STARTS}
    own = trained.state_dict()
    assert all(torch.equal(v, own[k]) for k, v in made["source"].state_dict().items())
    assert not torch.equal(made["scratch"][0].weight, trained[0].weight)
    assert torch.equal(made["scratch"][0].weight, made["random features"][0].weight)
    assert not torch.equal(made["scratch"][0].weight, made["shuffled source"][0].weight)
    assert [n for n, p in made["random features"].named_parameters() if p.requires_grad] == ["2.weight", "2.bias"]
    assert all(p.requires_grad for s in STARTS[:3] for p in made[s].parameters())
    rng = torch.Generator().manual_seed(0)
    other = shuffled(source, rng)
    assert torch.equal(other.x, source.x)
    assert torch.equal(other.y.sort().values, source.y.sort().values)
    assert not torch.equal(other.y, source.y)


def test_learning_leaves_the_start_alone_and_a_seed_repeats_it(trained: nn.Module) -> None:
    before = {k: v.clone() for k, v in trained.state_dict().items()}
    told = {"epochs": 2, "lr": 1e-2, "batch": 20, "seed": 1}
    first = learnt(trained, held(40, 3), held(60, 4), **told)
    assert (first == learnt(trained, held(40, 3), held(60, 4), **told)).all()
    assert all(torch.equal(v, before[k]) for k, v in trained.state_dict().items())


def test_every_start_gets_as_many_steps_at_every_size(trained: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    real = fit

    def counted(model: nn.Module, data: Held, **told: object) -> object:
        steps.append(told["epochs"] * -(-len(data) // told["batch"]))
        return real(model, data, **told)

    monkeypatch.setattr("assay.methods.shift.transfer.fit", counted)
    told = {"sizes": (16, 64), "epochs": 2, "lr": 1e-3, "batch": 16, "seeds": (0, 1)}
    found = compared(trained, held(64, 1), held(64, 3), held(20, 4), "2", **told)
    assert set(steps) == {8}
    assert {hits.shape for hits in found.values()} == {(2, 20)}


@pytest.mark.parametrize(
    ("settings", "n", "why"),
    [
        ({"domain": "nowhere"}, 160, "the domain 'nowhere' with labels"),
        ({}, 59, "at least 60 inputs; with labels there are: target 59"),
    ],
)
def test_it_says_what_it_wants(trained: nn.Module, settings: dict[str, str], n: int, why: str) -> None:
    answer = put(configure(DidTransferHelp, settings), subject(trained, conflict=False, n=n), Run(engine=ThisProcess()))
    assert answer.status == "does not apply"
    assert why in answer.why


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"lr": "0"}, {"epochs": "0"}, {"seeds": "1"}):
        with pytest.raises(AssayError, match=r"did-transfer-help.*must"):
            configure(DidTransferHelp, wrong)
