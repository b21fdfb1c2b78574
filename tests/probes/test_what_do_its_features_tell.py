"""Attributes planted in features: read where they are, not where they are not, and not counted twice for the label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Finding
from assay.probe import configure, put
from assay.probes.private.what_do_its_features_tell import WhatDoItsFeaturesTell, _halves
from assay.run import Run
from assay.subject import Subject

N = 600
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, N)
SEEN, HIDDEN = RNG.integers(0, 2, N), RNG.integers(0, 2, N)
TIED = np.where(RNG.random(N) < 0.9, Y, 1 - Y)
WHO = RNG.integers(0, 20, N)
X = np.clip(
    0.5 + 0.15 * RNG.normal(size=(N, 4)) + np.stack([0.3 * (Y - 0.5), 0.3 * (SEEN - 0.5), 0 * Y, 0 * Y], 1), 0, 1
).astype(np.float32)


class Net(nn.Module):
    """Features are the inputs times a sign; the answer reads the first alone."""

    def __init__(self, signs: tuple[float, ...] = (1, 1, 1, 1)) -> None:
        super().__init__()
        self.register_buffer("signs", torch.tensor(signs))
        self.head = nn.Linear(4, 2)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.weight[1, 0] = 10.0 * signs[0]
            self.head.bias.copy_(torch.tensor([5.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x * self.signs)
        return logits


def subject(model: nn.Module | None = None, **attributes: np.ndarray) -> Subject:
    given = attributes or {"seen": SEEN, "hidden": HIDDEN, "tied": TIED}
    return Subject.of((model or Net()).eval(), Arrays(X, Y), attributes=given, name="net")


def asked(of: Subject, open: object = None, **settings: object) -> Finding:
    run = Run(engine=ThisProcess(), debug=True, open=open)
    answer = put(configure(WhatDoItsFeaturesTell, settings), of, run)
    assert answer.finding is not None, answer.why
    return answer.finding


@pytest.fixture(scope="module", autouse=True)
def few_steps() -> Iterator[None]:
    """All that is planted here is linear: the attacker with a layer need not learn for long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assay.methods.private.attacker.STEPS", 20)
        yield


@pytest.fixture(scope="module")
def found() -> Finding:
    return asked(subject())


def test_what_is_in_the_features_is_read_and_stands_first(found):
    beyond, read = found.measures[0], found.measure("seen read off the features")
    assert beyond.name == "seen read beyond the label"
    assert beyond.low > 0.8  # by the formula Phi(0.3 / 0.15 / sqrt 2) = 0.92
    assert read.low > 0.75  # Phi(1) = 0.84
    assert {b.label for b in read.beside} == {"commonest value", "the label alone", "the inputs"}
    assert found.measure("seen gained over the label by the features").low > 0.2


def test_what_is_not_in_them_is_not_read(found):
    for name, chance in (("hidden read beyond the label", 0.5), ("hidden told apart by the features", 0.5)):
        measure = found.measure(name)
        assert measure.low - 0.03 <= chance <= measure.high + 0.03


def test_what_goes_with_the_label_is_read_with_it_and_not_beyond_it(found):
    assert found.measure("tied read off the features").low > 0.6
    assert found.measure("tied read off the label").value > 0.85
    beyond = found.measure("tied read beyond the label")
    assert beyond.low - 0.03 <= 0.5 <= beyond.high + 0.03
    gained = found.measure("tied gained over the label by the features")
    assert gained.high < 0.06


def test_the_answers_tell_less_than_the_features(found):
    assert found.measure("seen read off the logits").high < found.measure("seen read off the features").low


def test_rows_that_judge_had_no_part_in_learning(found):
    columns = found.samples.columns
    assert columns["seen judged"].sum() == N // 2
    assert not (columns["seen read"] & ~columns["seen judged"]).any()


def test_a_defence_that_only_fools_an_attacker_of_before_is_called_apparent():
    cured = replace(subject(seen=SEEN), model=Net((1, -1, 1, 1)), name="net+sign", origin=("sign",))
    told = asked(cured, open=lambda name: subject(seen=SEEN))
    assert told.measure("seen read by an attacker of before").high < 0.6  # the sign moves them off his scale
    assert told.measure("seen read off the features").low > 0.75
    assert any("is apparent" in a.says for a in told.alarms)


def test_a_defence_whose_model_of_before_is_not_known_is_told():
    cured = replace(subject(hidden=HIDDEN), origin=("sign",), name="net+sign")
    assert any("--set plain=MODEL" in a.says for a in asked(cured).alarms)


def test_nobody_is_in_both_halves_where_it_is_said_who_they_are():
    told = asked(subject(seen=SEEN, who=WHO), attribute="seen", people="who")
    judged = told.samples.columns["seen judged"]
    assert 0.35 < judged.mean() < 0.65
    assert not set(WHO[judged]) & set(WHO[~judged])


@pytest.mark.parametrize("sizes", [(501, 499), (600, 200, 200, 200), (3, 500, 500, 1)])
def test_large_people_leave_both_halves_with_rows(sizes: tuple[int, ...]) -> None:
    who = np.repeat(np.arange(len(sizes)), sizes)
    for seed in range(4):
        learn, judge = _halves(np.zeros(len(who), dtype=np.int64), who, seed)
        assert abs(len(learn) - len(judge)) <= 4
        assert sorted([*learn, *judge]) == list(range(len(who)))
        assert not set(who[learn]) & set(who[judge])


def test_a_model_of_before_with_another_width_is_told_and_ends_nothing() -> None:
    class Wide(Net):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(torch.cat([x, x], 1))
            return logits

    of = replace(subject(seen=SEEN), origin=("dp-training",))
    before = replace(subject(Wide(), seen=SEEN), name="net")
    (alarm,) = (a for a in asked(of, open=lambda name: before).alarms if "not known here" in a.says)
    assert "had 8 values and have 4 now" in alarm.says
    with pytest.raises(AssayError, match="had 8 values and have 4 now"):
        asked(of, open=lambda name: before, plain="net")


def test_few_of_a_value_are_left_out_and_with_one_value_left_nothing_is_told():
    rare = np.where(np.arange(N) % 20 == 0, 1, 0)
    told = asked(subject(rare=rare))
    assert told.measures[0].value is None
    assert any("nothing can be said" in a.says for a in told.alarms)


@pytest.mark.parametrize("layer", ["logits", "head"])
def test_another_layer_is_read_by_its_name(layer):
    told = asked(subject(seen=SEEN), layer=layer)
    assert told.measure(f"seen read off the {layer}").high < 0.65


def test_without_attributes_it_says_how_to_give_one():
    bare = Subject.of(Net().eval(), Arrays(X, Y))
    assert "--sensitive COLUMN" in str(WhatDoItsFeaturesTell().why_not(bare))
    assert "attribute=age names none" in str(WhatDoItsFeaturesTell(attribute="age").why_not(subject()))
    assert "people=nobody names none" in str(WhatDoItsFeaturesTell(people="nobody").why_not(subject()))
