"""JUnit: a case per question and limit, and XML whatever the names."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from assay.report.junit import junit


def test_each_verdict_is_what_a_build_server_calls_it(realistic):
    suite = ET.fromstring(junit(realistic)).find("testsuite")
    cases = {case.attrib["name"]: case for case in suite.findall("testcase")}
    kinds = {name: [child.tag for child in case if child.tag != "system-out"] for name, case in cases.items()}
    assert kinds == {
        "How often is the model right? [accuracy]": [],
        "How often is the model right? [worst class accuracy]": [],
        "Is its confidence worth what it says? [expected calibration error]": ["skipped"],
        "How many inputs survive an attacker who sees gradients? [worst-case accuracy]": ["failure"],
        "What do everyday changes cost? [mean corruption error]": [],
        "Has the test data leaked into training?": ["skipped"],
        "What can be proved?": ["error"],
    }
    assert {c.attrib["classname"] for c in cases.values()} == {"small CNN on Fashion-MNIST"}
    assert {k: suite.attrib[k] for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "7",
        "failures": "1",
        "errors": "1",
        "skipped": "2",
    }
    told = cases["Is its confidence worth what it says? [expected calibration error]"].find("skipped").attrib["message"]
    assert "more inputs would settle it" in told
    leaked = cases["Has the test data leaked into training?"].find("skipped").attrib["message"]
    assert "needs the training data" in leaked
    assert "out of memory" in cases["What can be proved?"].find("error").attrib["message"]


def test_times_add_up(realistic):
    suite = ET.fromstring(junit(realistic)).find("testsuite")
    total = sum(float(c.attrib["time"]) for c in suite.findall("testcase"))
    assert abs(total - float(suite.attrib["time"])) < 1e-6
    assert total == pytest.approx(3.2 + 3.2 + 83 + 3.2)


def test_it_is_xml_whatever_the_names(hostile):
    root = ET.fromstring(junit(hostile).encode("utf-8"))
    (case, *_) = root.iter("testcase")
    assert "</title><script>alert('x')</script>" in case.attrib["classname"]
    assert "\ufffd" in case.attrib["classname"]
