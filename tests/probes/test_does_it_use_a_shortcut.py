"""A model that reads a cue and one that does not, where the cue holds, where it does not, and where nobody can tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.coloured_digits import Coloured, domain
from assay.data.npz import Npz
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.inputs.row import Row
from assay.probe import configure, put
from assay.probes.steady.does_it_use_a_shortcut import FOLLOWED, LOST, SPEAKS, DoesItUseAShortcut
from assay.run import Run
from assay.subject import Subject


class Reads(nn.Module):
    """Two logits off one channel: 0 shows the label's pixel, 1 the cue's."""

    def __init__(self, channel: int) -> None:
        super().__init__()
        self.channel, self.scale = channel, nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        said = self.scale * (x[:, self.channel, 0, 0] - 0.5)
        return torch.stack([-said, said], 1)


def cued(agreement: float, n: int = 300, seed: int = 0) -> Coloured:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    cue = np.where(np.arange(n) < round(agreement * n), y, 1 - y)
    x = rng.random((n, 2, 2, 2)).astype(np.float32)
    x[:, 0, 0, 0], x[:, 1, 0, 0] = y, cue
    return Coloured(x, y, cue, ("no", "yes"))


def subject(model: nn.Module, **domains: float) -> Subject:
    elsewhere = {name: cued(rate, seed=i + 2) for i, (name, rate) in enumerate(domains.items())}
    return Subject.classifier(model, {"train": cued(0.95), "test": cued(0.95, seed=1), **elsewhere})


def asked(of: Subject):
    answer = put(DoesItUseAShortcut(), of, Run(engine=ThisProcess(), debug=True))
    assert answer.finding is not None, answer.why
    return answer.finding


def value(found, name: str) -> float:
    return next(m.value for m in found.measures if m.name == name)


def test_one_that_reads_the_cue_falls_where_it_is_wrong_and_both_numbers_stand() -> None:
    found = asked(subject(Reads(1), flipped=0.1))
    assert value(found, LOST) == 1
    assert value(found, FOLLOWED) == 1
    assert value(found, "right with the cue, test") == 1
    assert value(found, "right against the cue, flipped") == 0
    assert value(found, "association of cue and label, train") == pytest.approx(0.9, abs=0.02)
    assert value(found, "association of cue and label, flipped") == pytest.approx(0.8, abs=0.02)
    assert not [a for a in found.alarms if LOST in a.doubts]


def test_one_that_reads_the_label_loses_nothing() -> None:
    found = asked(subject(Reads(0), flipped=0.1))
    assert value(found, LOST) == 0
    assert value(found, FOLLOWED) == 0


def test_a_tie_that_is_weaker_in_use_is_told() -> None:
    told = [a.says for a in asked(subject(Reads(0), loose=0.6)).alarms]
    assert any("association of cue and label, loose" in says and "does not hold" in says for says in told)
    assert not [a for a in asked(subject(Reads(0))).alarms if "does not hold" in a.says]


def test_a_cue_that_is_turned_round_is_told_although_it_is_as_tied_as_at_home() -> None:
    found = asked(subject(Reads(0), flipped=0.05))
    home, there = (value(found, f"association of cue and label, {name}") for name in ("train", "flipped"))
    assert there == pytest.approx(home, abs=0.02)
    assert value(found, f"{SPEAKS}, train") == pytest.approx(0.95)
    assert value(found, f"{SPEAKS}, flipped") == pytest.approx(0.05)
    told = [a.says for a in found.alarms]
    assert any("5 % of 'flipped', and of 95 % at home" in says and "turned round" in says for says in told)
    assert not [says for says in told if "'test'" in says and "does not hold" in says]


def test_a_cue_that_holds_more_than_at_home_raises_no_alarm() -> None:
    found = asked(subject(Reads(0), more=1.0))
    assert not [a for a in found.alarms if "does not hold" in a.says]
    assert "In 'more' the cue holds more than at home: for 100 %, and 95 %." in found.says


def test_a_cue_that_is_not_tied_at_home_cannot_cease_to_hold() -> None:
    """Nine in ten labels at home are "no": any cue speaks for most of them, and for half of balanced ones."""
    rng = np.random.default_rng(0)
    home = cued(0.5)
    rare = (rng.random(300) < 0.1).astype(np.int64)
    data = {"train": Coloured(home.x, rare, rng.integers(0, 2, 300), ("no", "yes")), "test": cued(0.5, seed=1)}
    found = asked(Subject.classifier(Reads(0), data))
    assert value(found, f"{SPEAKS}, train") > 0.85
    assert value(found, f"{SPEAKS}, test") < 0.6
    assert not [a for a in found.alarms if "does not hold" in a.says]


def test_a_harder_domain_with_other_cues_is_no_shortcut() -> None:
    """A model that never sees the cue; where the cue is turned round, three in ten of the labels' pixels are wrong."""
    hard = cued(0.2, n=500, seed=5)
    bad = np.random.default_rng(0).random(len(hard)) < 0.3
    hard.x[bad, 0, 0, 0] = 1 - hard.x[bad, 0, 0, 0]
    found = asked(Subject.classifier(Reads(0), {"train": cued(0.95), "test": cued(0.85, seed=1), "elsewhere": hard}))
    lost = found.measure()
    assert lost.name == LOST
    assert lost.low < 0 < lost.high
    assert abs(lost.value) < 0.06


def test_a_split_with_few_of_one_kind_does_not_count_beside_one_with_enough() -> None:
    class Turned(Reads):
        """Reads the cue where the mark is set, the label elsewhere."""

        def forward(self, x: Tensor) -> Tensor:
            marked = (x[:, 0, 1, 1] >= 1).float()
            said = self.scale * (marked * x[:, 1, 0, 0] + (1 - marked) * x[:, 0, 0, 0] - 0.5)
            return torch.stack([-said, said], 1)

    few = cued(0.95, seed=1)  # 15 against the cue
    few.x[:, 0, 1, 1] = 1
    of = Subject.classifier(Turned(0), {"train": cued(0.95), "test": few, "enough": cued(0.5, seed=2)})
    assert value(asked(of), LOST) == 0
    both = Subject.classifier(Turned(0), {"train": cued(0.95), "test": few, "other": cued(0.95, seed=2)})
    found = asked(both)
    assert value(found, LOST) == 0.5
    assert [a for a in found.alarms if LOST in a.doubts]


def test_of_splits_with_one_kind_each_nothing_is_told() -> None:
    of = Subject.classifier(Reads(1), {"train": cued(0.95), "test": cued(1.0, seed=1), "turned": cued(0.0, seed=2)})
    found = asked(of)
    assert found.measure().value is None
    assert [a for a in found.alarms if LOST in a.doubts]
    assert value(found, FOLLOWED) == 1


def test_what_few_conflicts_show_is_doubted_and_none_is_not_measured() -> None:
    few = asked(subject(Reads(1)))  # 15 conflicting test inputs
    assert [a for a in few.alarms if LOST in a.doubts and "15 inputs" in a.says]
    none = Subject.classifier(Reads(1), {"train": cued(1.0), "test": cued(1.0, seed=1)})
    found = asked(none)
    assert found.measure().value is None
    assert [a for a in found.alarms if LOST in a.doubts]


def test_a_cue_may_be_any_word_and_speaks_as_it_does_at_home() -> None:
    of = subject(Reads(1), flipped=0.1)
    for data in of.data.values():
        data.cue = np.array(["stick", "none"])[data.cue]
    assert value(asked(of), LOST) == 1


def test_coloured_digits_with_a_model_of_colour_alone() -> None:
    class Hue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(5.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x.mean((2, 3))

    data = {"train": domain(0, 400, 0.95, classes=2, channels=2)}
    data |= {"test": domain(1, 300, 0.95, classes=2, channels=2, part="test")}
    data |= {"flipped": domain(2, 300, 0.05, classes=2, channels=2, part="test")}
    assert value(asked(Subject.classifier(Hue(), data)), LOST) > 0.95


def test_a_file_carries_its_cue(tmp_path: Path) -> None:
    given = cued(0.9)
    x, _ = given.take(np.arange(len(given)))
    np.savez(tmp_path / "a.npz", x=x.numpy(), y=given.labels, cue=given.cue)
    assert (Npz(tmp_path / "a.npz").cue == given.cue).all()
    np.savez(tmp_path / "b.npz", x=x.numpy(), y=given.labels, cue=given.cue[:5])
    with pytest.raises(AssayError, match=r"cue in .*b.npz has shape \(5,\)"):
        Npz(tmp_path / "b.npz")


def test_a_column_may_be_the_cue() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    aid = np.where(rng.random(400) < 0.9, y, 1 - y)
    x = np.stack([rng.random(400), aid], 1).astype(np.float32)
    kind = Row.of({"age": x[:, 0], "aid": np.array(["no", "yes"])[aid]})
    net = nn.Linear(2, 2)
    net.weight.data, net.bias.data = torch.tensor([[0.0, -4.0], [0.0, 4.0]]), torch.tensor([2.0, -2.0])
    data = {"train": Arrays(x[:200], y[:200]), "test": Arrays(x[200:], y[200:])}
    of = replace(Subject.classifier(net, data), kind=kind)
    run = Run(engine=ThisProcess(), debug=True)
    found = put(configure(DoesItUseAShortcut, {"cue": "aid"}), of, run).finding
    assert value(found, LOST) == 1
    assert "no column 'sex'" in put(configure(DoesItUseAShortcut, {"cue": "sex"}), of, run).why
    broken = put(configure(DoesItUseAShortcut, {"cue": "age"}), of, Run(engine=ThisProcess()))
    assert "values for 200 inputs; a cue has a few" in broken.why


def test_a_cue_of_more_values_than_a_few_is_refused_however_many_inputs_there_are() -> None:
    given = cued(0.9, n=1500)
    given.cue = np.arange(1500) % 101
    of = Subject.classifier(Reads(1), {"train": given, "test": cued(0.9)})
    why = put(DoesItUseAShortcut(), of, Run(engine=ThisProcess())).why
    assert "has 101 values for 1500 inputs; a cue has a few" in why


def test_without_a_cue_it_says_how_to_give_one() -> None:
    x = np.zeros((4, 2, 2, 2), dtype=np.float32)
    x[:, 0, 0, 0] = (0, 1, 0, 1)
    of = Subject.classifier(Reads(0), {"test": Arrays(x, np.arange(4) % 2)})
    answer = put(DoesItUseAShortcut(), of, Run(engine=ThisProcess()))
    assert answer.status == "does not apply"
    assert "an array 'cue' beside x and y" in answer.why
    assert "names a column" in put(configure(DoesItUseAShortcut, {"cue": "aid"}), of, Run(engine=ThisProcess())).why
