"""What `assay check` says it understood, and that it is what an audit does then."""

from __future__ import annotations

import re

import numpy as np
import pytest

from assay import shelf
from assay.data.arrays import Arrays
from assay.domain import Domain
from assay.errors import AssayError
from assay.jobs.audit.effort import seconds_of
from assay.jobs.audit.rounds import budget_of, in_words
from assay.jobs.check import _asked, _domain, check
from assay.subjects import Source, open_subject

NUMBERS = """
import numpy as np
import torch
from assay import Regression, Subject


class Affine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([[1.0], [2.0]]))

    def forward(self, x):
        return x @ self.w


def build():
    x = np.random.default_rng(0).random((60, 2)).astype(np.float32)
    y = x @ np.array([1.0, 2.0])
    return Subject.of(Affine(), (x, y + np.where(np.arange(60) < 15, 5.0, 0.0)), Regression(("rent",), (0.5,)))
"""


def test_it_tells_task_inputs_data_score_and_questions():
    told = dict(check(Source("digits-mlp")).lines)
    assert told["task"] == "Classification of 10: 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    assert told["inputs"] == "1 x 8 x 8 images between 0 and 1"
    assert told["data"] == "train 1,300, test 497 inputs"
    assert "domains" not in told
    right, of = map(int, re.match(r"(\d+) of (\d+) good enough", told["score"]).groups())  # type: ignore[union-attr]
    assert of == 100
    assert 88 <= right <= 100
    assert told["gradients"] == "yes"
    assert told["next"] == "assay audit digits-mlp"


def test_it_tells_domains_with_their_sizes_and_whether_they_have_labels():
    told = dict(check(Source("rotated-digits")).lines)
    assert told["data"] == "train 1,000, test 250 inputs"
    assert told["domains"] == "rotated-0 300 with labels, rotated-75 247 without labels"


def test_where_a_domain_was_told_to_lie_is_told_where_its_name_does_not():
    def told(name, at):
        return _domain(Domain(name, Arrays(np.zeros((30, 1)), np.zeros(30, dtype=int)), True, at))

    assert told("2013", 2013.0) == "2013 30 with labels"
    assert told("2013", 3.0) == "2013 at 3 30 with labels"  # whose digits it has


def test_every_question_is_asked_or_has_its_reason():
    understood = check(Source("digits-mlp"))
    subject = open_subject(Source("digits-mlp"))
    reasons = [says.split(": ", 1) for about, says in understood.lines if about == "not asked"]
    left = {name: why for names, why in reasons for name in names.split(", ")}
    for name, why in left.items():
        probe = shelf.load("probes", name)()
        assert (probe.why_not(subject) or "long: --budget standard asks them") == why
        assert why.startswith("long") is (probe.why_not(subject) is None and not probe.in_quick)
    count = int(re.match(r"(\d+) questions", dict(understood.lines)["asked"])[1])  # type: ignore[index]
    assert count + len(left) == len(shelf.names("probes"))


def test_numbers_and_rankers_are_told_as_what_they_are(tmp_path):
    (tmp_path / "rent.py").write_text(NUMBERS)
    told = dict(check(Source(f"{tmp_path / 'rent.py'}:build")).lines)
    assert told["task"].startswith("Regression: (n, d) numbers")
    assert told["score"].startswith("45 of 60 good enough, mean closeness 0.75; one that always says the median: ")
    assert dict(check(Source("digits-ranker")).lines)["inputs"] == "2 x 1 x 8 x 8 pairs of images between 0 and 1"


def test_the_command_prints_it_and_ends_with_0(assay):
    ended = assay("check", "digits-mlp", "--budget", "standard")
    assert ended.status == 0
    assert "Classification of 10" in ended.out
    assert "assay audit digits-mlp --budget standard" in ended.out
    refused = assay("check", "nothing-here")
    assert refused.status == 2
    assert refused.err.count("\n") == 1


def test_the_time_is_the_sum_of_what_each_question_takes_at_this_pace():
    names, there = ("accuracy", "everyday-change", "worst-case-accuracy"), 3000
    for text, bound in (("quick", None), ("full", None), ("full", 100)):
        chosen = budget_of(text, bound)
        told = _asked(names, chosen, 1e-3, there)
        total = sum(seconds_of(name, chosen, 1e-3, there) for name in names)
        assert told == f"3 questions in about {in_words(total)}"
    told = _asked(names, budget_of("30s"), 1e-2, there)
    assert re.fullmatch(r"3 questions, a first look at each in about \d+ min: 1 of them fit into 30s", told)


def test_a_bound_and_a_time_are_in_the_line_that_comes_next(assay):
    ended = assay("check", "digits-mlp", "--budget", "10m", "--inputs", "40")
    assert ended.status == 0
    assert "assay audit digits-mlp --budget 10m --inputs 40" in ended.out
    assert re.search(r"\d+ questions, a first look at each in about", ended.out)


def test_an_unknown_budget_is_refused():
    with pytest.raises(AssayError, match="There is no budget 'endless'"):
        check(Source("digits-mlp"), "endless")
