from __future__ import annotations

import pytest

from assay.errors import AssayError
from assay.finding import Alarm, Finding, Measure
from assay.standard import Standard, judge, read_standards


def found(value, low, high, n=100, alarms=()):
    return Finding(
        says="", measures=(Measure(name="m", value=value, low=low, high=high, n=n, better="higher"),), alarms=alarms
    )


@pytest.mark.parametrize(
    ("low", "value", "high", "standard", "verdict"),
    [
        (0.5, 0.6, 0.7, Standard(at_least=0.5), "pass"),
        (0.5, 0.6, 0.7, Standard(at_least=0.65), "cannot tell"),
        (0.5, 0.6, 0.7, Standard(at_least=0.71), "fail"),
        (0.5, 0.6, 0.7, Standard(at_least=0.7), "cannot tell"),
        (0.5, 0.6, 0.7, Standard(at_most=0.7), "pass"),
        (0.5, 0.6, 0.7, Standard(at_most=0.6), "cannot tell"),
        (0.5, 0.6, 0.7, Standard(at_most=0.49), "fail"),
        (None, 0.6, None, Standard(at_least=0.6), "pass"),
        (None, 0.6, None, Standard(at_least=0.61), "fail"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low, value, high, standard, verdict):
    assert judge(standard, found(value, low, high)).verdict == verdict


def test_what_straddles_says_how_many_more_would_settle_it():
    judgement = judge(Standard(at_least=0.55), found(0.6, 0.5, 0.7, n=100))
    assert judgement.more == 300  # half-width 0.1 must shrink to 0.05: four times the inputs
    assert "about 300 more inputs" in judgement.why
    assert judge(Standard(at_least=0.6), found(0.6, 0.5, 0.7)).more is None


def test_limits_are_said_in_the_measures_own_unit():
    share = Finding(says="", measures=(Measure.proportion("m", [1] * 90 + [0] * 10, better="higher"),))
    assert judge(Standard(at_least=0.5), share).why == "the whole interval is at least 50 %"
    assert judge(Standard(at_least=0.99), share).why == "none of the interval is at least 99 %"
    assert judge(Standard(at_most=0.05), found(0.6, 0.5, 0.7)).why == "none of the interval is at most 0.05"


def test_a_doubted_number_cannot_pass_but_can_fail():
    alarm = (Alarm("masked gradients", ("m",)),)
    doubted = judge(Standard(at_least=0.1), found(0.6, 0.5, 0.7, alarms=alarm))
    assert doubted.verdict == "cannot tell"
    assert "masked gradients" in doubted.why
    assert judge(Standard(at_least=0.9), found(0.6, 0.5, 0.7, alarms=alarm)).verdict == "fail"
    assert judge(Standard(at_least=0.1), found(0.6, 0.5, 0.7, alarms=(Alarm("x", ("other",)),))).verdict == "pass"


def test_what_was_not_measured_cannot_be_told():
    assert judge(Standard(at_least=0.1), found(None, None, None, alarms=(Alarm("why"),))).verdict == "cannot tell"


def test_a_standard_is_one_finite_limit():
    with pytest.raises(AssayError, match="exactly one of at_least and at_most"):
        Standard(at_least=0.1, at_most=0.2)
    with pytest.raises(AssayError, match="exactly one of at_least and at_most"):
        Standard()
    with pytest.raises(AssayError, match="finite number, got inf"):
        Standard(at_least=float("inf"))


def test_a_toml_file_sets_limits_and_settings(tmp_path):
    path = tmp_path / "assay.toml"
    path.write_text(
        "[probes.worst-case-accuracy]\nradius = 0.03\n[standards.worst-case-accuracy]\nat_least = 0.4\n"
        '[standards.confidence."Brier score"]\nat_most = 0.3\n'
    )
    standards = read_standards(path)
    assert standards.settings == {"worst-case-accuracy": {"radius": 0.03}}
    assert standards.limits == {
        "worst-case-accuracy": (Standard(at_least=0.4),),
        "confidence": (Standard(measure="Brier score", at_most=0.3),),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[standards.accuracy]\nat_lest = 0.4", "unknown key 'at_lest' in .standards.accuracy."),
        ("[standards.accuracy]\nat_least = 'high'", "a limit is a number"),
        ("[standards.accuracy]\nat_least = true", "a limit is a number"),
        ("[standards.accuracy.m]\nat_least = 0.1\nat_most = 0.2", "exactly one of"),
        ("[probs.accuracy]\nx = 1", "unknown section 'probs'"),
        ("[standards]\naccuracy = 0.4", "write a section .standards.accuracy."),
        ("[standards", "is not TOML"),
        ("audit = 5", "write a section .audit."),
        ("[audit]\nimputs = 5", "unknown key 'imputs' in .audit."),
        ("[audit]\ninputs = 0", "inputs = 0 in .audit.; give a whole number of at least 1"),
        ("[audit]\ninputs = 2.5", "inputs = 2.5 in .audit.; give a whole number of at least 1"),
    ],
)
def test_a_slip_in_the_toml_is_named(tmp_path, text, words):
    path = tmp_path / "assay.toml"
    path.write_text(text)
    with pytest.raises(AssayError, match=words):
        read_standards(path)
    with pytest.raises(AssayError, match="Cannot read standards"):
        read_standards(tmp_path / "missing.toml")
