"""How bad mistakes are: milder than chance, as bad, or worse, under a tree that is given or found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.probe import Answer, configure, put
from assay.probes.right.how_bad_are_its_mistakes import ONE_NUMBER, SEVERITY, SHUFFLED, HowBadAreItsMistakes
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject

NAMES = tuple(str(c) for c in range(6))
PAIRS = '{"a": ["0", "1"], "b": ["2", "3"], "c": ["4", "5"]}'
DEEP = '{"x": {"a": ["0", "1"], "b": ["2", "3"]}, "c": ["4", "5"]}'


class Reads(nn.Module):
    """An input is the logits that it should give, and a linear layer that leaves them as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6, bias=False)
        nn.init.eye_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


def saying(said: np.ndarray, true: np.ndarray) -> Subject:
    """A model that says `said` where `true` is true."""
    x = np.eye(6, dtype=np.float32)[said]
    learnt = np.concatenate([np.eye(6, dtype=np.float32)] * 2)
    data = {"test": (x, true), "train": (learnt, np.tile(np.arange(6), 2))}
    return Subject.classifier(Reads().eval(), data, classes=NAMES, name="saying")


def mistaken(kind: str, n: int = 600) -> Subject:
    """Half of it wrong: within the pairs, at random, or never within them."""
    rng = np.random.default_rng(0)
    true = np.arange(n) % 6
    near = true ^ 1
    away = (true + rng.integers(1, 6, n)) % 6
    far = np.where((away // 2) == (true // 2), (true + 2) % 6, away)
    said = {"mild": near, "random": away, "severe": far}[kind]
    return saying(np.where(np.arange(n) // 6 % 2 == 0, true, said), true)


def asked(subject: Subject, run: Run, **settings: object) -> Answer:
    answer = put(HowBadAreItsMistakes(**settings), subject, run)  # type: ignore[arg-type]
    assert answer.status == "asked", answer.why
    return answer


@pytest.mark.parametrize(("kind", "verdict"), [("mild", "pass"), ("random", "cannot tell"), ("severe", "fail")])
def test_its_mistakes_are_compared_with_wrong_classes_at_random(kind: str, verdict: str, run: Run) -> None:
    finding = asked(mistaken(kind), run, trees=(PAIRS,)).finding
    assert finding is not None
    severity, outside, shuffled, height = finding.measures
    assert shuffled.value == pytest.approx(severity.value, abs=0.05)  # it says all classes as often
    expected = {"mild": 1 / 1.8, "random": 1.0, "severe": 2 / 1.8}[kind]  # at random: one in five within the pair
    assert severity.value == pytest.approx(expected, abs=0.05)
    assert outside.value == pytest.approx({"mild": 0.0, "random": 0.8, "severe": 1.0}[kind], abs=0.1)
    assert outside.beside[0].value == pytest.approx(0.8)
    assert judge(HowBadAreItsMistakes.standards[0], finding).verdict == verdict
    assert finding.says.endswith(ONE_NUMBER)
    assert finding.samples is not None
    right = np.asarray(finding.samples.columns["label"]) == np.asarray(finding.samples.columns["said"])
    assert severity.n == outside.n == (~right).sum()
    assert height.value == pytest.approx(2 - right.mean() - (1 - finding.samples.columns["outside"].mean()))


def test_on_a_deeper_tree_the_three_are_told_and_several_trees_are_averaged(run: Run) -> None:
    deep = asked(mistaken("random"), run, trees=(DEEP,)).finding
    assert deep is not None
    assert [m.name for m in deep.measures[4:]] == ["steps in the tree", "F of the paths"]
    assert ONE_NUMBER not in deep.says
    flat, both = (asked(mistaken("random"), run, trees=t).finding for t in ((PAIRS,), (PAIRS, DEEP)))
    assert flat is not None
    assert both is not None
    mean = (flat.measure("height of the common ancestor").value, deep.measure("height of the common ancestor").value)
    assert both.measure("height of the common ancestor").value == pytest.approx(np.mean(mean))  # type: ignore[arg-type]
    assert "averaged over 2 trees" in both.says


def test_a_tree_is_found_from_the_inputs_and_one_of_its_own_features_is_doubted(digits: Subject, run: Run) -> None:
    found = asked(digits, run).finding
    assert found is not None
    assert "a tree found from the inputs with 3 groups" in found.measures[0].about
    assert not any("own features" in alarm.says for alarm in found.alarms)
    own = asked(digits, run, trees=("features",), groups=4).finding
    assert own is not None
    assert "own features with 4 groups" in own.measures[0].about
    (doubt,) = [alarm for alarm in own.alarms if "own features" in alarm.says]
    assert doubt.about("severity of a mistake, of one at random")
    assert "give a tree with trees=FILE" in doubt.says


def test_without_a_mistake_nothing_is_measured(run: Run) -> None:
    true = np.arange(60) % 6
    finding = asked(saying(true, true), run, trees=(PAIRS,)).finding
    assert finding is not None
    assert finding.measures[0].value is None
    assert finding.says.startswith("It made no mistake on 60 inputs.")
    assert judge(HowBadAreItsMistakes.standards[0], finding).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("wrong", "within", "verdict"),
    [(1, True, "cannot tell"), (1, False, "cannot tell"), (20, True, "cannot tell"), (20, False, "fail")],
)
def test_a_few_mistakes_are_not_judged_though_they_are_alike(wrong: int, within: bool, verdict: str, run: Run) -> None:
    """All within the pair, or none: at random 4 of 5 are outside, and so are 20 in a row one time in 87."""
    true = np.arange(60) % 6
    said = np.where(np.arange(60) < wrong, true ^ 1 if within else (true + 2) % 6, true)
    finding = asked(saying(said, true), run, trees=(PAIRS,)).finding
    assert finding is not None
    (alarm,) = [a for a in finding.alarms if a.about(SEVERITY) and "too few" in a.says]
    assert f"It made only {wrong} mistake{'s' if wrong > 1 else ''}, too few" in alarm.says
    low, high = finding.measure().low, finding.measure().high
    assert low is not None
    assert high is not None
    assert low < high
    assert judge(HowBadAreItsMistakes.standards[0], finding).verdict == verdict


def test_always_the_same_answer_is_no_mild_mistake_where_groups_are_uneven(run: Run) -> None:
    true = np.arange(300) % 6
    subject = saying(np.zeros(300, dtype=np.int64), true)
    uneven = '{"a": ["0", "1", "2", "3"], "b": ["4", "5"]}'
    finding = asked(subject, run, trees=(uneven,)).finding
    assert finding is not None
    assert (finding.measure().high or 1) < 1
    assert finding.measure(SHUFFLED).value == pytest.approx(1)
    assert any(alarm.about(SEVERITY) and "shuffled" in alarm.says for alarm in finding.alarms)
    assert judge(HowBadAreItsMistakes.standards[0], finding).verdict == "cannot tell"


def test_a_file_is_read_once_and_its_text_is_the_setting(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "tree.json"
    file.write_text(PAIRS)
    probe = configure(HowBadAreItsMistakes, {"trees": str(file)})
    key = probe.key("", run)
    file.write_text(DEEP)
    assert probe.trees == (PAIRS,)
    assert configure(HowBadAreItsMistakes, json.loads(json.dumps(probe.settings()))) == probe
    assert configure(HowBadAreItsMistakes, {"trees": str(file)}).key("", run) != key


def test_what_does_not_apply_or_fit_is_told_in_one_line(run: Run) -> None:
    subject = mistaken("mild", 60)
    two = Subject.classifier(nn.Linear(6, 2), (torch.rand(4, 6), torch.arange(4) % 2), classes=("a", "b"))
    assert HowBadAreItsMistakes().why_not(two) == "with two classes every mistake is as bad as any other"
    headless = replace(subject, layers={"last_conv": "none"})
    assert "the model has none" in str(HowBadAreItsMistakes(trees=("features",)).why_not(headless))
    assert "no mean" in str(HowBadAreItsMistakes().why_not(replace(subject, tokens=True)))
    x, five = np.eye(6, dtype=np.float32)[np.arange(60) % 5], np.arange(60) % 5
    lacks = replace(Subject.classifier(Reads().eval(), (x, five), classes=NAMES), name="lacks")
    assert str(HowBadAreItsMistakes().why_not(lacks)).endswith("there is none of '5'; give trees=FILE")
    assert HowBadAreItsMistakes(trees=(PAIRS,)).why_not(lacks) is None
    answer = put(HowBadAreItsMistakes(trees=(PAIRS.replace('"5"', '"6"'),)), subject, run)
    assert (answer.status, answer.why.count("\n")) == ("failed", 0)
    assert "has '6', which the model does not know; its classes: '0', '1'" in answer.why
    with pytest.raises(AssayError, match="wants a label tree"):
        HowBadAreItsMistakes(trees=())
    with pytest.raises(AssayError, match=r"groups=1 .* must be a number of at least 2"):
        HowBadAreItsMistakes(groups=1)
