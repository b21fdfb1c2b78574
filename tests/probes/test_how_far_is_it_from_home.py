"""How far is it from home: domains of which it is known what moved, and what must then be said of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.held_out import Part
from assay.data.texts import Texts
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Finding, Gallery, Matrix, Measure
from assay.inputs import Channel, Column, Row, Series
from assay.probe import put
from assay.probes.steady import how_far_is_it_from_home
from assay.probes.steady.how_far_is_it_from_home import ALPHA, FARTHEST, HALVES, HowFarIsItFromHome, enough_deals
from assay.run import Budget, Run
from assay.subject import Subject

RUN = Run(engine=ThisProcess(), budget=Budget("tiny", samples=150, steps=5, restarts=1, shown=4), debug=True)
PROBE = HowFarIsItFromHome(deals=199)
PATTERN = np.indices((6, 6)).sum(0) % 2  # a chequered board, and its negative


def pictures(n: int, seed: int, *, second: float = 0.5, brighter: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes of 6 by 6 pixels, a share of the `second`, and all of them that much `brighter`."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < second).astype(np.int64)
    board = np.where(y[:, None, None] == 1, PATTERN, 1 - PATTERN)
    x = 0.3 + 0.2 * board + 0.08 * rng.normal(size=(n, 6, 6)) + brighter
    return x[:, None].clip(0, 1).astype(np.float32), y


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, 2))


def asked(subject: Subject, probe: HowFarIsItFromHome = PROBE, run: Run = RUN) -> Finding:
    answer = put(probe, subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


@pytest.fixture(scope="module")
def found() -> Finding:
    data = {"train": pictures(320, 0), "test": pictures(200, 1)}
    domains = {
        "next door": pictures(200, 2),
        "summer": pictures(200, 3, brighter=0.05),
        "one kind": pictures(200, 4, second=0.9),
        "night": pictures(200, 5, brighter=-0.08)[0],
    }
    return asked(Subject.of(net(), data, name="boards", domains=domains))


def told(found: Finding, name: str) -> Measure:
    measure = found.measure(name)
    assert measure.value is not None
    return measure


@pytest.mark.parametrize("on", ["features", "inputs"])
def test_a_domain_that_did_not_move_is_home_as_two_halves_of_home_are(found: Finding, on: str) -> None:
    for name in ("next door", HALVES, "test"):
        area = told(found, f"AUC, {on}, {name}")
        assert area.low <= 0.5 <= area.high
        assert told(found, f"p-value, {on}, {name}").value > 0.05
    squared = told(found, f"MMD squared, {on}, next door")
    assert squared.low <= 0 <= squared.high


@pytest.mark.parametrize("on", ["features", "inputs"])
def test_one_that_moved_is_told_from_home_with_and_without_labels(found: Finding, on: str) -> None:
    for name in ("summer", "night"):
        assert told(found, f"AUC, {on}, {name}").low > 0.6
        assert told(found, f"p-value, {on}, {name}").value == 1 / 200
        assert told(found, f"MMD squared, {on}, {name}").low > 0
    control = told(found, f"AUC, {on}, {HALVES}").value
    assert (HALVES, control) in [(b.label, b.value) for b in told(found, f"AUC, {on}, night").beside]


def test_the_headline_is_the_farthest_and_holds_for_all_domains_at_once(found: Finding) -> None:
    head, night = found.measures[0], told(found, "AUC, features, night")
    assert head.value == max(told(found, f"AUC, features, {n}").value for n in ("next door", "summer", "night"))
    assert head.low < night.low
    assert head.high > night.high
    assert "'night' is the farthest of 4 domains from 'train'" in found.says
    assert "'next door'" not in found.says
    assert not HowFarIsItFromHome.standards  # a shift is no fault of the model


def test_where_priors_alone_moved_nothing_is_left_within_a_class(found: Finding) -> None:
    assert told(found, "AUC, features, one kind").low > 0.6
    within = told(found, "AUC within a class, one kind")
    assert within.low <= 0.5 <= within.high
    assert told(found, "p-value within a class, one kind").value > 0.05
    gap = told(found, "prior gap, one kind")
    assert gap.low < 0.4 < gap.high
    assert told(found, "p-value, priors, one kind").value < 0.01
    moved = told(found, "AUC within a class, summer")
    assert moved.low > 0.6
    assert told(found, "p-value within a class, summer").value <= 0.05
    assert told(found, "p-value, priors, summer").value > 0.05
    (classes,) = (v for v in found.views if isinstance(v, Matrix) and v.name == "classes")
    assert classes.rows == ("next door", "summer", "one kind")
    assert classes.values[2][0] is None  # a tenth of 150 is too few to ask of
    (shares,) = (v for v in found.views if isinstance(v, Matrix) and v.name == "shares")
    assert shares.values[3][1] == pytest.approx(0.9, abs=0.05)
    assert any("'one kind' no class with fewer than 30" in a.says for a in found.alarms)


def test_nobody_reads_the_labels_of_a_domain_that_has_none(found: Finding) -> None:
    names = {m.name for m in found.measures}
    assert not {"prior gap, night", "AUC within a class, night", "p-value, priors, night"} & names
    assert found.samples is not None
    assert found.samples.split == "night"
    assert "label" not in found.samples.columns
    galleries = {v.name: v for v in found.views if isinstance(v, Gallery)}
    assert "labelled" not in "".join(e.caption for e in galleries["farthest, night"].exhibits)
    assert all("labelled" in e.caption for e in galleries["farthest, summer"].exhibits)


def test_the_inputs_on_show_are_those_that_moved_the_farthest_first() -> None:
    x, y = pictures(120, 5)
    x[:20] = np.clip(x[:20] + 0.4, 0, 1)
    found = asked(Subject.of(net(), {"test": pictures(200, 1)}, domains={"mixed": (x, y)}))
    (gallery,) = (v for v in found.views if isinstance(v, Gallery))
    assert len(gallery.exhibits) == RUN.budget.shown
    assert all(e.index < 20 and e.panels for e in gallery.exhibits)
    assert found.samples is not None
    witness = dict(zip(found.samples.columns["index"], found.samples.columns["witness, features"], strict=True))
    shown = [witness[e.index] for e in gallery.exhibits]
    assert shown == sorted(witness.values())[: len(shown)]
    assert f"witness {shown[0]:.3f}" in gallery.exhibits[0].caption
    assert "AUC, features, test" not in {m.name for m in found.measures}  # home is the test data here


def test_a_small_domain_without_a_shift_says_what_it_would_have_seen() -> None:
    data, domains = {"test": pictures(200, 1)}, {"few": pictures(30, 2)}
    found = asked(Subject.of(net(), data, domains=domains))
    (alarm,) = (a for a in found.alarms if "No shift was found" in a.says)
    area = told(found, "AUC, features, few")
    least = {b.label: b.value for b in area.beside}["the least that would be seen"]
    assert f"with 30 inputs against 150 none is seen for sure below an AUC of {least:.2f}" in alarm.says
    assert least > 0.65
    assert {"AUC, features, few", "AUC of the farthest domain"} <= set(alarm.doubts)
    moved = asked(Subject.of(net(), data, domains={"few": pictures(30, 2, brighter=0.2)}))
    assert not [a for a in moved.alarms if "No shift" in a.says]


def test_one_of_under_30_is_left_out_and_by_itself_refused() -> None:
    whole = {"test": pictures(200, 1), "tiny": pictures(12, 2)}
    found = asked(Subject.of(net(), {**whole, "summer": pictures(60, 3)}))
    assert any("'tiny' has 12 inputs and was left out" in a.says for a in found.alarms)
    assert not [m for m in found.measures if "tiny" in m.name]
    with pytest.raises(AssayError, match=r"No domain has 30 inputs \('tiny' has 12\); give more"):
        put(PROBE, Subject.of(net(), whole), RUN)


def test_without_a_domain_it_is_not_asked() -> None:
    answer = put(PROBE, Subject.of(net(), {"test": pictures(40, 1)}), RUN)
    assert answer.status == "does not apply"
    assert "it needs a domain beside train and test" in answer.why


def test_features_that_never_change_are_an_alarm() -> None:
    model = net()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    found = asked(Subject.of(model, {"test": pictures(80, 1)}, domains={"night": pictures(60, 2, brighter=0.2)}))
    assert told(found, "p-value, features, night").value == 1
    assert told(found, "AUC, features, night").value == 0.5
    (alarm,) = (a for a in found.alarms if "are equal" in a.says)
    assert "All features of 'night' and 'test' are equal" in alarm.says
    assert "AUC of the farthest domain" in alarm.doubts


class Remembers(nn.Module):
    """What it has seen in training lights up one of its features."""

    def __init__(self, known: np.ndarray) -> None:
        super().__init__()
        self.known: Tensor
        self.register_buffer("known", torch.from_numpy(known.reshape(len(known), -1)))
        self.head = nn.Linear(37, 2)

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.cdist(x.flatten(1), self.known).amin(1, keepdim=True) < 1e-3
        out: Tensor = self.head(torch.cat([x.flatten(1), 4.0 * seen], 1))
        return out


def test_a_model_that_remembers_its_training_inputs_is_told_of() -> None:
    train = pictures(160, 0)
    data = {"train": train, "test": pictures(120, 1)}
    found = asked(Subject.of(Remembers(train[0]), data, domains={"next door": pictures(120, 2)}))
    assert told(found, "AUC, features, test").low > 0.85
    assert told(found, "AUC, inputs, test").low <= 0.5
    (alarm,) = (a for a in found.alarms if "remembers" in a.says)
    assert "The test data can be told from 'train' too, by features, in 9" in alarm.says


def test_of_a_model_without_layers_the_answers_stand_for_features() -> None:
    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.flatten(1).sum(1), 18 - x.flatten(1).sum(1)], 1)

    found = asked(Subject.of(Sums(), {"test": pictures(80, 1)}, domains={"night": pictures(60, 2, brighter=0.1)}))
    assert told(found, "AUC, features, night").low > 0.6
    assert any("its answers stand in the place of features" in a.says for a in found.alarms)


ROW = Row(
    (
        Column("income", "number", 0.0, 1e5, 5e4),
        Column("colour", "category", 0, 2, 0, categories=("blue", "green", "red")),
    )
)


def rows(n: int, seed: int, *, richer: float = 1.0, red: float = 1 / 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    income = rng.uniform(2e4, 8e4, n) * richer
    colour = rng.choice(3, n, p=[(1 - red) / 2, (1 - red) / 2, red])
    return np.stack([income, colour], 1).astype(np.float32), rng.integers(0, 2, n)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x / torch.tensor([1e5, 2.0]))
        return out


def test_of_rows_numbers_and_categories_count_alike_and_cells_are_told() -> None:
    domains = {"same": rows(120, 2), "reds": rows(120, 3, red=0.9), "rich": rows(120, 4, richer=1.2)}
    bounds = ((0.0, 0.0), (1e5, 2.0))
    subject = Subject.of(Table(), {"test": rows(160, 1)}, kind=ROW, bounds=bounds, domains=domains)
    found = asked(subject)
    assert told(found, "p-value, inputs, same").value > 0.05
    for name in ("reds", "rich"):
        assert told(found, f"p-value, inputs, {name}").value == 1 / 200
        assert told(found, f"AUC, inputs, {name}").low > 0.6
    galleries = {v.name: v for v in found.views if isinstance(v, Gallery)}
    assert all("colour" in e.caption and not e.panels for e in galleries["farthest, reds"].exhibits)


def test_series_of_a_regression_are_compared_without_classes() -> None:
    kind = Series(6, (Channel("heat", 0.0, 5.0), Channel("push", -1.0, 1.0)))

    def heard(n: int, seed: int, hotter: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        x = np.stack([rng.uniform(1, 3, (n, 6)) + hotter, rng.uniform(-1, 1, (n, 6))], 2).astype(np.float32)
        return x, x[:, :, 0].mean(1)

    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
    low, high = (tuple(each.flatten().tolist()) for each in (kind.edges()[0], sum(kind.edges())))
    domains = {"same": heard(60, 2), "heatwave": heard(60, 3, hotter=1.0)}
    found = asked(Subject.of(model, {"test": heard(120, 1)}, kind=kind, bounds=(low, high), domains=domains))
    assert told(found, "AUC, inputs, heatwave").low > 0.7
    assert told(found, "p-value, inputs, same").value > 0.05
    assert not [m for m in found.measures if "class" in m.name or "prior" in m.name]


class Letters:
    pad_token_id = 0

    def __len__(self) -> int:
        return 128

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.table, self.head = nn.Embedding(128, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(x.long()).mean(1))
        return out


def test_texts_are_compared_by_features_alone_and_shown_as_written() -> None:
    def texts(letters: str, seed: int) -> Texts:
        rng = np.random.default_rng(seed)
        written = ["".join(rng.choice(list(letters), 8)) for _ in range(60)]
        frame = {"text": written, "label": ["a", "b"] * 30}
        return Texts(frame, tokenizer=Letters(), length=8, classes=("a", "b"))

    data = {"test": texts("abcdef", 0), "elsewhere": texts("defghi", 1)}
    found = asked(Subject.of(Bag(), data))
    assert told(found, "AUC, features, elsewhere").low > 0.6
    assert not [m for m in found.measures if "inputs" in m.name]
    (gallery,) = (v for v in found.views if isinstance(v, Gallery))
    assert data["elsewhere"].strings(np.array([gallery.exhibits[0].index]))[0] in gallery.exhibits[0].caption


def test_settings_that_no_test_can_have_are_refused() -> None:
    with pytest.raises(AssayError, match="deals=5"):
        HowFarIsItFromHome(deals=5)
    with pytest.raises(AssayError, match="inputs=12"):
        HowFarIsItFromHome(inputs=12)


def test_there_are_deals_enough_for_as_many_domains_as_there_are() -> None:
    assert enough_deals(500, 24) == 500
    assert enough_deals(500, 26) == 519  # 13 domains, by features and by inputs
    for tests in range(1, 101):
        assert 1 / (1 + enough_deals(19, tests)) <= ALPHA / tests * (1 + 1e-12)
    subject = Subject.of(net(), {"test": pictures(200, 1)}, domains={"night": pictures(60, 2, brighter=0.3)[0]})
    found = asked(subject, HowFarIsItFromHome(deals=19))
    assert found.says.endswith("Chance does not explain it.")
    assert told(found, "p-value, inputs, night").value == pytest.approx(1 / 40)
    assert not [a for a in found.alarms if "Chance alone" in a.says]


def test_where_no_number_of_deals_is_enough_the_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(how_far_is_it_from_home, "DEALS", 30)
    subject = Subject.of(net(), {"test": pictures(200, 1)}, domains={"night": pictures(60, 2, brighter=0.3)[0]})
    found = asked(subject, HowFarIsItFromHome(deals=19))
    assert found.says.endswith("Chance does not explain it.")
    (alarm,) = (a.says for a in found.alarms if "Chance alone" in a.says)
    assert "in up to 6 of 100 audits, not in 5: 30 deals know no smaller p-value. Set deals=39." in alarm


def test_a_domain_of_training_inputs_raises_the_alarm() -> None:
    train = pictures(100, 0)
    seen = np.concatenate([train[0][:20], pictures(40, 2)[0]])
    subject = Subject.of(
        net(), {"train": train, "test": pictures(100, 1)}, domains={"seen": seen, "new": pictures(60, 3)[0]}
    )
    found = asked(subject, HowFarIsItFromHome(deals=19))
    (alarm,) = (a for a in found.alarms if "stand in the training data too" in a.says)
    assert "'seen'" in alarm.says
    assert {FARTHEST, "AUC, features, seen", "p-value, inputs, seen", "MMD squared, inputs, seen"} <= {*alarm.doubts}
    assert not [name for name in alarm.doubts if name.endswith("new")]


def test_no_more_inputs_are_compared_than_it_is_given() -> None:
    subject = Subject.of(net(), {"test": pictures(200, 1)}, domains={"night": pictures(100, 2)})
    found = asked(subject, replace(PROBE, inputs=40))
    assert found.measures[0].n == 40
    assert found.samples is not None
    assert len(found.samples) == 40


def test_a_domain_that_is_a_part_of_home_is_compared_with_the_rest_of_it() -> None:
    """As with --domain-column and no training data: beside its own rows it would look nearer than it is."""
    (near, y), (far, z) = pictures(100, 0), pictures(100, 1, brighter=0.08)
    whole = Arrays(np.concatenate([near, far]), np.concatenate([y, z]), ("0", "1"))
    parts = {"near": Part(whole, np.arange(100)), "far": Part(whole, np.arange(100, 200))}
    within = asked(Subject.of(net(), {"test": whole}, name="boards", domains=parts))
    beside = asked(Subject.of(net(), {"test": (near, y)}, name="boards", domains={"far": (far, z)}))
    assert told(within, "AUC, inputs, far").value == pytest.approx(told(beside, "AUC, inputs, far").value, abs=0.03)
    assert told(within, "AUC, inputs, far").value > 0.9
