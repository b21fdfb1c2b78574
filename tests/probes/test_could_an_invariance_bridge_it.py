"""Which invariance it has: known domains on a plane, whose features are the inputs, and every degenerate case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.held_out import Part
from assay.finding import Finding
from assay.probe import put
from assay.probes.steady.could_an_invariance_bridge_it import CONFLICT, GAP, SUPPORT, CouldAnInvarianceBridgeIt
from assay.run import Budget, Run
from assay.standard import judge
from assay.subject import Subject

Set = tuple[np.ndarray, np.ndarray]
MIDDLE, WIDE = 10.0, 20.0  # inputs on [-10, 10] are brought to [0, 1]


class Sided(nn.Module):
    """Says 1 where the first coordinate is above `edge`; what enters its last layer is the input, times `unit`."""

    def __init__(self, edge: float = 0.0, unit: float = 1.0) -> None:
        super().__init__()
        self.unit = unit
        self.head = nn.Linear(2, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[0.0, 0.0], [WIDE / (unit or 1), 0.0]]))
            self.head.bias.copy_(torch.tensor([0.0, -MIDDLE - edge]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x * self.unit)
        return out


def drawn(seed: int, means: tuple[float, float], *, sd: float = 0.8, share: float = 0.5, n: int = 110) -> Set:
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(np.int64)
    x = np.stack([rng.normal(np.where(y, means[1], means[0]), sd), rng.normal(0, 1, n)], 1)
    return ((x + MIDDLE) / WIDE).clip(0, 1).astype(np.float32), y


def asked(
    run: Run, domains: dict[str, Set | np.ndarray], model: nn.Module | None = None, home: dict[str, Set] | None = None
) -> Finding:
    data = {"train": drawn(0, (-2, 2)), "test": drawn(1, (-2, 2)), **(home or {})}
    subject = Subject.classifier(model or Sided(), data, domains=domains, classes=("left", "right"))
    answer = put(CouldAnInvarianceBridgeIt(), subject, replace(run, debug=True))
    assert answer.status == "asked", answer.why
    assert answer.finding is not None
    return answer.finding


def verdicts(finding: Finding) -> dict[str, str]:
    return {j.measure: j.verdict for j in (judge(s, finding) for s in CouldAnInvarianceBridgeIt.standards)}


def value(finding: Finding, name: str) -> float:
    found = finding.measure(name).value
    assert found is not None
    return found


def doubts(finding: Finding, measure: str) -> list[str]:
    return [alarm.says for alarm in finding.alarms if alarm.about(measure)]


@pytest.fixture
def run() -> Run:
    from assay.engine.local import ThisProcess

    return Run(engine=ThisProcess(), budget=Budget("few", samples=110, steps=5, restarts=1))


def test_domains_that_look_different_and_are_answered_alike(run: Run) -> None:
    found = asked(run, {"near": drawn(2, (-3, 1.5), sd=0.6), "far": drawn(3, (-1.5, 3), sd=0.6)})
    assert verdicts(found) == {GAP: "pass", CONFLICT: "pass", SUPPORT: "pass"}
    assert all((found.measure(f"class-conditional gap on {d}").low or 0) > 0 for d in ("near", "far"))
    assert all(value(found, f"class-agnostic gap on {d}") > 0.005 for d in ("near", "far"))
    assert "one hypothesis serves them, though the features of 'near', 'far' are told apart" in found.says
    assert found.views[0].rows == ("test", "near", "far")  # type: ignore[union-attr]
    assert not found.alarms


def test_other_labels_for_the_same_inputs_cannot_be_bridged(run: Run) -> None:
    x, y = drawn(2, (-2, 2))
    found = asked(run, {"turned": (x, 1 - y)})
    assert verdicts(found)[CONFLICT] == "fail"
    assert verdicts(found)[GAP] == "fail"
    assert "no invariance can bridge that" in found.says
    assert any("no invariance can bridge" in says for says in doubts(found, GAP))
    assert value(found, f"{CONFLICT} on turned") > 0.5
    assert value(found, "class-agnostic gap on turned") < 0.02
    assert value(found, "accuracy on turned") < 0.05


def test_prior_shift_alone_is_no_conditional_gap_and_no_conflict(run: Run) -> None:
    found = asked(run, {"rare": drawn(2, (-2, 2), share=0.9)})
    assert found.measure("class-conditional gap on rare").low <= 0  # type: ignore[operator]
    assert value(found, "class-agnostic gap on rare") > 0.02
    assert value(found, "prior gap on rare") == pytest.approx(0.4, abs=0.1)
    assert verdicts(found)[CONFLICT] != "fail"
    assert "aligned whatever the class would pay" in found.says


def test_prior_shift_of_classes_that_overlap_is_no_conflict_and_swapped_labels_under_it_are(run: Run) -> None:
    home = {"train": drawn(0, (-1, 1), n=200), "test": drawn(1, (-1, 1))}
    x, y = drawn(2, (-1, 1), share=0.9, n=200)
    wide = replace(run, budget=Budget("few", 200, 5, 1))
    found = asked(wide, {"rare": (x, y)}, home=home)
    assert verdicts(found)[CONFLICT] != "fail"
    assert "only labels from there" not in found.says
    assert not any("have other labels" in alarm.says for alarm in found.alarms)
    turned = asked(wide, {"rare": (x, 1 - y)}, home=home)
    assert any("have other labels" in alarm.says for alarm in turned.alarms)
    assert "only labels from there" in turned.says


def test_training_rows_in_a_domain_are_found_and_doubted(run: Run) -> None:
    found = asked(run, {"copied": drawn(0, (-2, 2))})
    for name in (GAP, CONFLICT, SUPPORT, f"{GAP} on copied", "accuracy on copied"):
        assert any("stand in the training data too" in says for says in doubts(found, name))
    assert "pass" not in verdicts(found).values()


def test_hypotheses_that_differ_are_not_passed_for_want_of_labels(run: Run) -> None:
    rng = np.random.default_rng(0)
    sets = []
    for edge in (-2.0, -2.0, 4.0):  # the best answers differ on 30 % of inputs
        x = rng.uniform(-10, 10, (110, 2)) * [1, 0.01]
        y = (rng.random(110) < 1 / (1 + np.exp(-0.15 * (x[:, 0] - edge)))).astype(np.int64)
        sets.append((((x + MIDDLE) / WIDE).astype(np.float32), y))
    found = asked(run, {"later": sets[2]}, home={"train": sets[0], "test": sets[1]})
    gap = found.measure(GAP)
    assert gap.low is not None
    assert gap.high is not None
    assert gap.low <= 0.3 <= gap.high
    assert verdicts(found)[GAP] == "cannot tell"
    assert any("Halves of 'later' differ from each other" in says for says in doubts(found, GAP))


def test_wide_inputs_are_fewer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.probes.steady.could_an_invariance_bridge_it.HELD_BYTES", 2 * 3 * (4 * 2 + 8 * 2) * 50)
    found = asked(run, {"near": drawn(2, (-3, 1.5))})
    assert found.measure("accuracy on near").n == 50


def test_disjoint_supports_cannot_be_told(run: Run) -> None:
    found = asked(run, {"moon": drawn(2, (7.0, 8.5), sd=0.2)})
    assert verdicts(found) == {GAP: "cannot tell", CONFLICT: "cannot tell", SUPPORT: "fail"}
    assert any("hypothesis invariance is empty there" in says for says in doubts(found, GAP))
    assert "a guess beyond its data" in found.says
    assert found.measure(GAP).value is None


def test_a_constant_representation_is_flagged(run: Run) -> None:
    found = asked(run, {"near": drawn(2, (-3, 1.5))}, Sided(unit=0.0))
    assert any("same features for every input" in says for says in doubts(found, GAP))
    assert "pass" not in verdicts(found).values()
    assert value(found, "class-agnostic gap on near") == pytest.approx(0, abs=1e-9)
    assert value(found, "class-conditional gap on near") == pytest.approx(0, abs=1e-9)
    assert value(found, "sufficiency gap on near") > 0.3  # half of all is the most there is
    assert "none of them is worth anything" in found.says


def test_random_labels_do_not_pass(run: Run) -> None:
    rng = np.random.default_rng(0)
    sets = [(drawn(seed, (-2, 2))[0], rng.integers(0, 2, 110)) for seed in (4, 5, 6)]
    found = asked(run, {"noise": sets[0]}, home={"train": sets[1], "test": sets[2]})
    assert verdicts(found)[GAP] == "cannot tell"
    assert verdicts(found)[CONFLICT] != "fail"
    assert value(found, GAP) < 0.2


def test_random_labels_doubt_the_gap_where_it_is_not_right(run: Run) -> None:
    x, y = drawn(2, (-2, 2), share=0.8)
    found = asked(run, {"low": (x, y)}, Sided(edge=8.0))  # it always says left
    assert any("no more than always saying the commonest class" in says for says in doubts(found, GAP))
    assert verdicts(found)[GAP] != "pass"


def test_a_class_that_is_missing_and_a_domain_that_is_small_are_flagged(run: Run) -> None:
    x, y = drawn(2, (-2, 2))
    subject = Subject.classifier(
        Sided(),
        {
            "train": drawn(0, (-2, 2)),
            "test": drawn(1, (-2, 2)),
            "one-sided": (x[y == 1], y[y == 1]),
            "few": (x[:9], y[:9]),
        },
        classes=("left", "right"),
    )
    found = put(CouldAnInvarianceBridgeIt(), subject, replace(run, debug=True)).finding
    assert found is not None
    said = " ".join(alarm.says for alarm in found.alarms)
    assert "Only one of 'train' and 'one-sided' has inputs of 1 of 2 (50 %) classes ('left')" in said
    assert "Fewer than 30 inputs in 'few'" in said
    assert "pass" not in verdicts(found).values()
    assert all("few" not in m.name for m in found.measures)


def test_a_domain_without_labels_is_asked_where_it_lies_and_what_it_is_made_of(run: Run) -> None:
    mixed = np.concatenate([drawn(7, (-2, 2), n=77)[0], drawn(8, (-6, 6), n=33)[0]])
    found = asked(run, {"other": drawn(2, (-6, 6)), "unseen": mixed})
    alpha = [value(found, f"weight of {source} in unseen") for source in ("train", "other")]
    assert alpha == pytest.approx([0.7, 0.3], abs=0.08)
    assert value(found, f"{SUPPORT} on unseen") > 0.8
    assert not any(name.endswith("on unseen") for name in (m.name for m in found.measures) if "accuracy" in name)
    assert f"'unseen' looks like {100 * alpha[0]:.0f} % 'train'" in found.says
    alone = asked(run, {"unseen": mixed})
    assert verdicts(alone)[GAP] == "cannot tell"
    assert any("has labels" in says for says in doubts(alone, GAP))


def test_domains_in_an_order_are_found_so(run: Run) -> None:
    found = asked(run, {f"angle-{a}": drawn(a, (-2 + a / 10, 2 + a / 10), n=40) for a in (0, 10, 20, 30, 40)})
    assert value(found, "domain order") > 0.9
    assert "keep the order of the domains" in found.says
    few = asked(run, {f"angle-{a}": drawn(a, (-2 + a / 10, 2 + a / 10), n=40) for a in (0, 10, 20, 30)})
    assert "4 domains are too few to tell whether they keep an order" in few.says
    named = asked(run, {name: drawn(i, (-2 + i, 2 + i), n=40) for i, name in enumerate("bdac")})
    assert value(named, "domain order, residual") == 0


def test_other_units_of_the_features_change_no_verdict(run: Run) -> None:
    domains: dict[str, Set | np.ndarray] = {"near": drawn(2, (-3, 1.5), share=0.8)}
    plain, scaled = (asked(run, domains, Sided(unit=unit)) for unit in (1.0, 1000.0))
    assert verdicts(plain) == verdicts(scaled)
    for m in plain.measures:
        assert scaled.measure(m.name).value == pytest.approx(m.value, abs=0.02)


def test_a_model_without_a_linear_layer_is_read_by_its_answers(run: Run) -> None:
    from sklearn.tree import DecisionTreeClassifier

    x, y = drawn(0, (-2, 2))
    tree = DecisionTreeClassifier(min_samples_leaf=20, random_state=0).fit(x, y)
    subject = Subject.of(tree, {"train": (x, y), "test": drawn(1, (-2, 2)), "near": drawn(2, (-3, 1.5))})
    answer = put(CouldAnInvarianceBridgeIt(), subject, replace(run, debug=True))
    assert answer.finding is not None
    assert "(its answers)" in answer.finding.measure(f"{SUPPORT} on near").about


def test_without_a_domain_it_does_not_apply_and_settings_are_checked(run: Run) -> None:
    subject = Subject.classifier(Sided(), {"test": drawn(1, (-2, 2))}, classes=("left", "right"))
    answer = put(CouldAnInvarianceBridgeIt(), subject, run)
    assert answer.status == "does not apply"
    assert "--domain NAME=PATH" in answer.why
    with pytest.raises(Exception, match="must be a number of at least 30"):
        CouldAnInvarianceBridgeIt(inputs=5)


def test_domains_that_are_parts_of_home_are_compared_with_the_rest_of_it(run: Run) -> None:
    near, far = drawn(0, (-2, 2)), drawn(1, (2, 6))
    whole = Arrays(np.concatenate([near[0], far[0]]), np.concatenate([near[1], far[1]]), ("left", "right"))
    parts = {"near": Part(whole, np.arange(110)), "far": Part(whole, np.arange(110, 220))}
    subject = Subject.classifier(Sided(), {"test": whole}, domains=parts, classes=("left", "right"))
    answer = put(CouldAnInvarianceBridgeIt(), subject, replace(run, debug=True))
    assert answer.finding is not None, answer.why
    beside = asked(run, {"far": far}, home={"train": near})
    support = f"{SUPPORT} on far"
    assert value(answer.finding, support) == pytest.approx(value(beside, support), abs=0.05)
    assert value(answer.finding, support) < 0.9  # beside its own rows all of it lies where home has inputs
