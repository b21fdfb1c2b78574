"""The audit as JUnit XML, which every build server shows: one test case per question and limit."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from assay.audit import Audit, Judged
from assay.finding import Measure
from assay.report import words
from assay.report.page import says, why
from assay.standard import Judgement


def junit(audit: Audit) -> str:
    """`fail` is a failure, a question that broke an error; cannot tell and not asked are skipped, and say why."""
    suite = ET.Element("testsuite")
    for row in audit.rows:
        _cases(suite, audit, row)
    counts = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    root = ET.Element("testsuites")
    for element in (root, suite):
        _set(
            element,
            name=f"assay: {audit.subject.name}",
            time=f"{sum(r.answer.seconds for r in audit.rows):.3f}",
            **{k: str(v) for k, v in counts.items()},
        )
    _set(suite, timestamp=audit.when)
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _set(element: ET.Element, **attributes: str) -> None:
    for name, text in attributes.items():
        element.set(name, words.printable(text))


def _cases(suite: ET.Element, audit: Audit, row: Judged) -> None:
    answer, finding = row.answer, row.answer.finding
    if finding is None:
        case = _case(suite, audit, answer.question, answer.seconds)
        kind = "error" if answer.status == "failed" else "skipped"
        untested = [f"{j.measure} to be {words.limit(j.standard, '')}" for j in row.judgements]
        _set(
            ET.SubElement(case, kind), message="; ".join([answer.why, *(f"not put to the test: {u}" for u in untested)])
        )
        return
    measures = {m.name: m for m in finding.measures}
    alarms = [f"Alarm: {a.says}" for a in finding.alarms]
    judged: tuple[Judgement | None, ...] = row.judgements or (None,)
    for i, judgement in enumerate(judged):
        name = judgement.measure if judgement else finding.measures[0].name
        # The time is the question's; only its first case carries it, so that the cases add up to the audit.
        case = _case(suite, audit, f"{answer.question} [{name}]", answer.seconds if i == 0 else 0.0)
        if judgement and judgement.verdict != "pass":
            kind = "failure" if judgement.verdict == "fail" else "skipped"
            message = f"{judgement.verdict}: {_held(measures.get(name), judgement)}"
            _set(ET.SubElement(case, kind), message=message)
        out = ET.SubElement(case, "system-out")
        lines = [says(row), f"{name}: {words.in_full(measures[name]) if name in measures else 'not measured'}", *alarms]
        out.text = words.printable("\n".join(lines))


def _held(measure: Measure | None, judgement: Judgement) -> str:
    limit = words.limit(judgement.standard, measure.unit if measure else "")
    return f"{words.in_full(measure) if measure else judgement.measure}, to be {limit}; {why(judgement)}"


def _case(suite: ET.Element, audit: Audit, name: str, seconds: float) -> ET.Element:
    case = ET.SubElement(suite, "testcase")
    _set(case, classname=audit.subject.name, name=name, time=f"{seconds:.3f}")
    return case
