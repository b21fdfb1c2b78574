"""The card: front matter that a hub can read, numbers with their intervals, and text that cannot break out."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.finding import Finding, Measure
from assay.report.card import _yaml, card, front_matter


def read(text):
    """The subset of YAML that the card writes: block mappings and lists, JSON scalars."""
    lines = [(len(line) - len(line.lstrip(" ")), line.strip()) for line in text.split("\n") if line.strip()]

    def scalar(word):
        return json.loads(word)

    def key_of(line):
        found = re.match(r'("(?:[^"\\]|\\.)*"|[a-z][a-z_-]+):(?: |$)', line)
        assert found, line
        name = found.group(1)
        return json.loads(name) if name.startswith('"') else name, line[found.end() :]

    def block(i, indent):
        return listed(i, indent) if lines[i][1].startswith("- ") else mapping(i, indent)

    def mapping(i, indent):
        out = {}
        while i < len(lines) and lines[i][0] == indent and not lines[i][1].startswith("- "):
            name, rest = key_of(lines[i][1])
            assert name not in out
            i += 1
            if rest:
                out[name] = scalar(rest)
            else:
                out[name], i = block(i, lines[i][0])
        return out, i

    def listed(i, indent):
        out = []
        while i < len(lines) and lines[i][0] == indent and lines[i][1].startswith("- "):
            rest = lines[i][1][2:]
            if re.match(r'[a-z]|"(?:[^"\\]|\\.)*":', rest) and not rest.startswith(("true", "false", "null")):
                lines[i] = (indent + 2, rest)
                item, i = mapping(i, indent + 2)
            else:
                item, i = scalar(rest), i + 1
            out.append(item)
        return out, i

    found, end = mapping(0, 0)
    assert end == len(lines), lines[end]
    return found


def front(text):
    opening, matter, body = text.split("---\n", 2)
    assert opening == ""
    return matter, body


def test_the_front_matter_is_what_hubs_read(realistic):
    matter, _ = front(card(realistic))
    told = read(matter)
    (model,) = told["model-index"]
    assert model["name"] == "small CNN on Fashion-MNIST"
    (result,) = model["results"]
    assert result["task"] == {"type": "image-classification"}
    assert {"name", "type"} <= set(result["dataset"])
    measures = [m for row in realistic.rows if row.answer.finding for m in row.answer.finding.measures]
    assert [m["value"] for m in result["metrics"]] == [m.value for m in measures if m.value is not None]
    for metric in result["metrics"]:
        assert {"type", "name", "value", "args"} <= set(metric)
        assert "95% interval" in metric["name"]
        assert metric["args"]["low"] <= metric["value"] <= metric["args"]["high"]
        assert "verified" not in metric  # that is the hub's word


def test_a_full_yaml_reader_agrees(realistic, hostile):
    yaml = pytest.importorskip("yaml")
    for audit in (realistic, hostile):
        matter, _ = front(card(audit))
        assert yaml.safe_load(matter) == read(matter)


plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.text(), st.floats(allow_nan=False, allow_infinity=False)
)
trees = st.dictionaries(
    st.text(),
    st.recursive(
        plain,
        lambda inner: st.one_of(
            st.lists(plain, max_size=3),
            st.dictionaries(st.text(), inner, max_size=3),
            st.lists(st.dictionaries(st.text(), inner, min_size=1, max_size=2), max_size=2),
        ),
        max_leaves=8,
    ),
    min_size=1,
    max_size=3,
)


@given(trees)
@settings(max_examples=60, deadline=None)
def test_whatever_is_written_reads_back(tree):
    from assay.report.words import printable

    def shown(value):
        if isinstance(value, str):
            return printable(value)
        if isinstance(value, dict):
            return {printable(k): shown(v) for k, v in value.items()}
        return [shown(v) for v in value] if isinstance(value, list) else value

    if len({printable(k) for k in tree}) == len(tree) and "\ufffd" not in str(shown(tree)):
        assert read(_yaml(tree)) == shown(tree)


@pytest.mark.parametrize(
    ("value", "shown"), [(1e-05, "1.0e-05"), (1.5e-07, "1.5e-07"), (1e16, "1.0e+16"), (0.5, "0.5")]
)
def test_small_numbers_are_numbers_to_yaml_too(value, shown):
    assert _yaml({"value": value}) == f"value: {shown}\n"


def test_words_that_yaml_takes_for_something_else_are_quoted():
    assert _yaml({"no": 1, "n": 2, "1": 3}) == '"no": 1\n"n": 2\n"1": 3\n'
    assert _yaml({"a": "x\u2028y\x85"}) == '"a": "x\ufffdy\ufffd"\n'


def test_the_body_has_its_parts(realistic):
    _, body = front(card(realistic))
    parts = re.findall(r"^## (.*)$", body, flags=re.MULTILINE)
    assert parts == ["What was asked", "Alarms", "How it was measured", "Limits of this card"]
    rows = [line for line in body.split("\n") if line.startswith("|")]
    assert len(rows) == 2 + 7
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
    for row in realistic.rows:
        assert row.answer.question in body
    assert "89.0 % (86.0 to 91.5 %)" in body.replace("\u00a0", " ")
    assert realistic.alarms[0].says in body


def test_hostile_text_cannot_break_out_of_the_card(hostile):
    matter, body = front(card(hostile))
    read(matter)
    assert "<script" not in body
    assert "<img" not in body
    rows = [line for line in body.split("\n") if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
    assert "`rm`" not in body.replace("\\`", "")


def test_nothing_measured_is_no_index(build):
    audit = build.audit(build.unanswered("p", "Q?", "does not apply", "because"))
    assert "model-index" not in front_matter(audit)
    blank = Finding(says="s", measures=(Measure(name="m", value=1.0, better="higher"),))
    flat = build.audit(build.answered("p", "Q?", blank), subject=build.described(shape=(14,)))
    assert front_matter(flat)["model-index"][0]["results"][0]["task"] == {"type": "tabular-classification"}
    moved = build.audit(build.answered("p", "Q?", blank), subject=build.described(task="Regression", shape=(14,)))
    assert front_matter(moved)["tags"] == ["assay", "tabular-regression"]
    images = build.audit(build.answered("p", "Q?", blank), subject=build.described(task="Regression"))
    assert front_matter(images)["tags"] == ["assay", "other"]  # a hub has no word for a number out of an image
