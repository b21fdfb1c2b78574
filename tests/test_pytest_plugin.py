"""The plugin, as somebody's test suite meets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import assay.engine.local
from assay import shelf

pytest_plugins = "pytester"


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """pytester unloads what a session has loaded, and numpy does not load twice."""
    assert assay.engine.local
    for name in ("accuracy", "worst-case-accuracy"):
        shelf.load("probes", name)


SUITE = """
import pytest
import torch
from assay import AssayError, Subject

class Bright(torch.nn.Module):
    '''Says 1 where an input is brighter than a half on average.'''
    def forward(self, x):
        margin = x.flatten(1).mean(1) - 0.5
        return 20 * torch.stack([-margin, margin], 1)

def subject(wrong=0, differentiable=True):
    y = torch.arange(200) % 2
    x = 0.4 * torch.rand(200, 1, 6, 6, generator=torch.Generator().manual_seed(0)) + 0.6 * y.view(-1, 1, 1, 1)
    y[:wrong] = 1 - y[:wrong]
    return Subject.classifier(Bright(), (x, y), name="bright", differentiable=differentiable)
"""


def outcome(pytester: pytest.Pytester, body: str) -> tuple[bool, str]:
    pytester.makepyfile(SUITE + body)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    outcomes = result.parseoutcomes()
    assert outcomes.get("errors", 0) == 0, result.stdout.str()
    return {k: n for k, n in outcomes.items() if k != "warnings"} == {"passed": 1}, result.stdout.str()


def test_a_limit_that_holds_passes(pytester: pytest.Pytester) -> None:
    passed, said = outcome(
        pytester,
        """
def test_it(assay):
    assay(subject()).ask("accuracy").at_least(0.9).at_least(0.9, measure="weakest class")
""",
    )
    assert passed, said


def test_a_limit_that_is_missed_fails_with_the_whole_story_in_one_paragraph(pytester: pytest.Pytester) -> None:
    passed, said = outcome(
        pytester,
        """
def test_it(assay):
    assay(subject(wrong=100)).ask("accuracy").at_least(0.9)
""",
    )
    assert not passed
    line = next(line for line in said.splitlines() if "bright, accuracy()" in line)
    for part in ("How often is it right", "fail: accuracy is 50.0 %", "43.1 to 56.9 %", "wanted at least 90 %"):
        assert part in line, part
    assert "Traceback" not in said


def test_at_most_looks_from_the_other_side(pytester: pytest.Pytester) -> None:
    passed, said = outcome(
        pytester,
        """
def test_it(assay):
    asked = assay(subject(wrong=100)).ask("accuracy")
    asked.at_most(0.6)
    with pytest.raises(pytest.fail.Exception, match="at most 40"):
        asked.at_most(0.4)
""",
    )
    assert passed, said


def test_cannot_tell_is_not_a_pass(pytester: pytest.Pytester) -> None:
    passed, said = outcome(
        pytester,
        """
def test_it(assay):
    assay(subject(wrong=20)).ask("accuracy").at_least(0.89)
""",
    )
    assert not passed
    assert "cannot tell: accuracy is 90.0 % (85.1 to 93.4 %), wanted at least 89 %;" in said


def test_a_question_that_does_not_apply_fails_and_says_why(pytester: pytest.Pytester) -> None:
    passed, said = outcome(
        pytester,
        """
def test_it(assay):
    assay(subject(differentiable=False)).ask("one-change-for-all", radius=8/255).at_most(0.1)
""",
    )
    assert not passed
    assert "could not be asked: it needs gradients" in said


def test_a_question_that_breaks_fails_and_says_why(pytester: pytest.Pytester) -> None:
    passed, said = outcome(
        pytester,
        """
def test_it(assay):
    broken = subject()
    few = lambda x: len(x.flatten(1).unique(dim=0)) < 5  # as many as the door looks at
    broken.model.forward = lambda x: Bright.forward(broken.model, x) if few(x) else x.no_such_thing
    assay(broken).ask("accuracy").at_least(0.1)
""",
    )
    assert not passed
    assert "was not answered" in said
    assert "no_such_thing" in said


def test_settings_seed_and_budget_reach_the_question(pytester: pytest.Pytester) -> None:
    passed, said = outcome(
        pytester,
        """
def test_it(assay):
    asked = assay(subject()).ask("worst-case-accuracy", radius="8/255", steps=2)
    assert (asked.answer.settings["radius"], asked.answer.settings["steps"]) == (8 / 255, 2)
    keys = {assay(subject(), budget=budget, seed=seed).ask("accuracy").answer.key
            for budget in ("quick", "full") for seed in (3, 4)}
    assert len(keys) == 4
    with pytest.raises(AssayError, match="no setting 'radios'"):
        assay(subject()).ask("worst-case-accuracy", radios=1)
    with pytest.raises(AssayError, match="did you mean 'accuracy'"):
        assay(subject()).ask("acuracy")
    with pytest.raises(AssayError, match="no budget 'quik'"):
        assay(subject(), budget="quik").ask("accuracy")
    with pytest.raises(AssayError, match=r"got a Bright; wrap it with Subject\\.classifier"):
        assay(Bright())
    with pytest.raises(AssayError, match="no measure 'speed'"):
        assay(subject()).ask("accuracy").at_least(0.1, measure="speed")
""",
    )
    assert passed, said


def test_a_session_that_asks_nothing_does_not_load_torch() -> None:
    code = (
        "import sys, assay.pytest_plugin; "
        "print([m for m in ('torch', 'numpy', 'matplotlib', 'pyarrow', 'jinja2', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
