"""Kinds of jobs: what is typed into a form arrives in the command's options, every field of it, or is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.errors import AssayError
from assay.server import kinds
from assay.server.kinds import Field, Kind

FOLDER = Path("/jobs/one")
LEAST: dict[str, dict[str, Any]] = {
    "cure": {"remedy": "arml"},
    "rank": {"data": "given.zip"},
    "claims": {"claim": ["co2021/jacobian-similarity"]},
    "study": {"subject": "fashion-cnn"},
}
"""What a kind cannot do without."""
SPECIAL: dict[str, Any] = {
    "subject": "digits-mlp", "budget": "full", "bounds": "0 255", "set": ["radius=8/255"], "pair": "12 40",
    "probe": ["accuracy"], "remedy": "weight-gradient-centralization", "claim": ["co2021/sweep-fashion-mnist"],
    "function": "make", "model": "given.py", "builder": "given.py", "original": "given.onnx",
    "standards": "given.toml", "image": "given.png", "low": 1, "high": 9, "thresholds": "0.3,0.6",
}  # fmt: skip
TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    ("explain", "to"): {"pair": "1 2"},
    ("explain", "decoder"): {"pair": "1 2"},
    ("explain", "set"): {"pair": "1 2"},
    ("rank", "low"): {"high": 9},
    ("rank", "high"): {"low": 1},
    ("claims", "all"): {"claim": None},
    ("rank", "data"): {"data": "given.png"},
    **{(kind, "function"): {"model": "given.py"} for kind in ("audit", "cure", "explain")},
}
FILES = ("given.py", "given.onnx", "given.toml", "given.png", "given.zip")
OURS = ("audit", "cure", "explain", "rank", "claims", "translate", "study")


def other(field: Field) -> Any:
    """A value that is not the field's default."""
    if field.name in SPECIAL:
        return SPECIAL[field.name]
    match field.type:
        case "whole" | "number":
            return 7 if field.high is None or field.high > 7 else field.high
        case "yes":
            return not field.default
        case "choice":
            return field.options()[-1]
        case "several":
            return [field.options()[0] if field.choices else "x=1"]
        case "file":
            return "given.zip"
        case "files":
            return ["given.zip"]
    return "something"


@cache
def whole_command() -> Any:
    from typer.main import get_command

    from assay.cli import app

    return get_command(app)


def parsed(words: list[str]) -> dict[str, Any]:
    """What the command line understands; it raises where it does not know an option."""
    command = whole_command().commands[words[0]]
    if words[0] == "claims":
        return command.commands["test"].make_context("test", words[4:]).params
    if words[0] == "study":
        command, words = command.commands[words[1]], words[1:]
    return command.make_context(words[0], words[1:]).params


@pytest.mark.parametrize("name", OURS)
def test_every_field_reaches_the_command(name: str) -> None:
    """The published page had a dropout that was collected and never passed on."""
    kind = kinds.load(name)
    for field in kind.fields:
        base, value = {**LEAST.get(name, {}), **TOGETHER.get((name, field.name), {})}, other(field)
        settings = {**base, field.name: value, **({"data": "given.zip"} if field.name == "model" else {})}
        assert kind.check(settings, FILES) == [], field
        words = kind.argv(settings, FOLDER)
        assert field.name == "all" or words != kind.argv(base, FOLDER), field
        understood = str(parsed(words))
        if field.name == "who":  # which of a study's commands it is
            continue
        for part in value if isinstance(value, list) else str(value).split():
            assert part.removesuffix(".0") in understood, field


def test_a_study_has_the_name_that_was_typed() -> None:
    for who in ("simulated", "people"):
        words = kinds.load("study").argv({"title": "<b>ours</b>", "who": who}, FOLDER)
        assert parsed(words)["title"] == "<b>ours</b>"


@pytest.mark.parametrize("name", OURS)
def test_a_form_left_alone_can_be_submitted(name: str) -> None:
    kind = kinds.load(name)
    settings, wrong = kind.read({each.name: "" for each in kind.fields})
    assert wrong == []
    settings |= LEAST.get(name, {})
    assert kind.check(settings, FILES) == []
    words = kind.argv(settings, FOLDER)
    parsed(words)
    assert str(FOLDER / "run") in " ".join(words)
    assert not {"--allow-pickle", "--no-sandbox", "--trust", "--environment"} & set(words)


def test_what_is_needed_is_asked_for() -> None:
    assert kinds.load("cure").check({}) == ["Remedy: is needed."]
    assert kinds.load("rank").check({}) == ["Images with a number each: is needed."]
    assert kinds.load("claims").check({}) == ["Name the claims to test, or take all of them; not both."]
    with pytest.raises(AssayError, match="There is no kind of job 'nothing'; choose from audit, claims"):
        kinds.load("nothing")
    with pytest.raises(AssayError, match="There is no kind of job '_opening'"):
        kinds.load("_opening")


SLIDER = Kind(
    title="t",
    about="a",
    fields=(
        Field("rate", "Learning rate", "number", 1e-3, low=1e-4, high=1e-2),
        Field("members", "Members", "whole", 3, low=1, high=10),
        Field("plain", "Plain", "yes", False),
    ),
    words=lambda settings, folder: ["train", str(settings["rate"]), str(settings["members"])],
)


def test_the_text_of_a_slider_is_the_number_that_trains() -> None:
    """The published slider posted 1.0 and trained with 1.0, where its label said 1.0e-3."""
    for text in ("1.0e-3", "0.001", " 1e-3 "):
        settings, wrong = SLIDER.read({"rate": text, "members": "4"})
        assert (settings, wrong) == ({"rate": 0.001, "members": 4}, [])
        assert SLIDER.argv(settings, FOLDER) == ["train", "0.001", "4"]
    assert SLIDER.argv({}, FOLDER) == ["train", "0.001", "3"]
    third, _ = SLIDER.read({"rate": repr(1 / 300)})
    assert float(SLIDER.argv(third, FOLDER)[1]) == 1 / 300  # to the last digit


@pytest.mark.parametrize(
    ("posted", "says"),
    [
        ({"rate": "1.0"}, "Learning rate: 1 is out of range; give from 0.0001 to 0.01."),
        ({"rate": "fast"}, "Learning rate: 'fast' is no number."),
        ({"rate": "nan"}, "Learning rate: nan is no number."),
        ({"rate": "inf"}, "Learning rate: inf is no number."),
        ({"rate": "0x10"}, "Learning rate: '0x10' is no number."),
        ({"members": "2.5"}, "Members: 2.5 is no whole number."),
        ({"members": "0"}, "Members: 0 is out of range; give from 1 to 10."),
        ({"members": "1e99"}, "Members: 1e+99 is out of range; give from 1 to 10."),
        ({"plain": "perhaps"}, "Plain: 'perhaps' is neither yes nor no."),
    ],
)
def test_what_is_out_of_range_is_told_in_one_line(posted: dict[str, str], says: str) -> None:
    settings, wrong = SLIDER.read(posted)
    assert (wrong or SLIDER.check(settings)) == [says]


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        ("explain", {"input": "/etc/passwd"}, "looks like a file of the server's"),
        ("explain", {"input": "../../other/files/x.png"}, "looks like a file of the server's"),
        ("explain", {"pair": "12 /etc/x.png"}, "is not two numbers"),
        ("explain", {"to": 0.5}, "are for two inputs"),
        ("cure", {"remedy": "arml", "set": ["teacher=/etc/x.py:f"]}, "is not NAME=VALUE with a number or a plain name"),
        ("cure", {"remedy": "arml", "set": ["--no-sandbox"]}, "is not NAME=VALUE"),
        ("cure", {"remedy": "../x"}, "there is no '../x'"),
        ("audit", {"subject": "mine.py:build"}, "There is no model 'mine.py:build'"),
        ("audit", {"subject": "--no-sandbox"}, "There is no model '--no-sandbox'"),
        ("audit", {"model": "given.onnx"}, "needs data"),
        ("audit", {"model": "given.png", "data": "given.zip"}, "it has to end in .onnx"),
        ("audit", {"budget": "0s"}, "is no time to ask in"),
        ("audit", {"function": "a.b()", "model": "given.py"}, "is no name of a function"),
        ("audit", {"target": "a\nb"}, "is more than one line"),
        ("audit", {"target": ["a"]}, "is no text"),
        ("audit", {"target": "x" * 3000}, "is too long"),
        ("audit", {"seed": True}, "True is no number"),
        ("claims", {"claim": ["co2021/x", "--all"]}, "There is no claim '--all'"),
        ("claims", {"claim": ["os/system"]}, "There is no claim 'os/system'"),
        ("rank", {"data": "given.zip", "low": 3}, "go together"),
    ],
)
def test_what_reaches_further_than_it_may_is_refused(kind: str, settings: dict[str, Any], says: str) -> None:
    (line, *_) = kinds.load(kind).check(settings, FILES)
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("typed", ["--no-sandbox", "--allow-pickle", "-h", "--", "--out=/elsewhere"])
def test_no_text_of_a_form_becomes_an_option(name: str, typed: str) -> None:
    """Each is refused, or is the value of its own option."""
    kind = kinds.load(name)
    for field in kind.fields:
        if field.type not in ("text", "choice", "several"):
            continue
        value = [typed] if field.type == "several" else typed
        base = {**LEAST.get(name, {}), **TOGETHER.get((name, field.name), {})}
        settings = {**base, field.name: value}
        if kind.check(settings, FILES):
            continue
        told = parsed(kind.argv(settings, FOLDER))
        plain = parsed(kind.argv(base, FOLDER))
        assert told.keys() == plain.keys(), field
        (changed,) = (key for key in told if told[key] != plain[key])
        assert typed in str(told[changed]), field


def test_progress_is_read_off_the_run(tmp_path: Path) -> None:
    from assay.server.kinds.audit import progress

    assert progress(tmp_path) is None
    run = tmp_path / "run" / "now-x"
    (run / "findings").mkdir(parents=True)
    (run / "run.json").write_text('{"probes": ["a", "b", "c", "d"]}')
    (run / "findings" / "a.json").write_text("{}")
    assert progress(tmp_path) == 0.25
    (run / "run.json").write_text("half of i")
    assert progress(tmp_path) is None
