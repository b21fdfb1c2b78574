"""Dataclasses of options: what typer sees of them, and what the command gets."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from assay.cli.flat import flat

Place = Annotated[str, typer.Option("--place", help="Where it is done.")]


@dataclass(frozen=True, kw_only=True)
class Work:
    seed: Annotated[int, typer.Option("--seed", help="The same seed, the same numbers.")] = 0
    bounds: Annotated[tuple[float, float] | None, typer.Option("--bounds")] = None
    names: Annotated[list[str] | None, typer.Option("--name")] = None
    hard: Annotated[bool, typer.Option("--hard/--soft")] = True


@dataclass(frozen=True)
class Key:
    path: Annotated[str, typer.Option("--key")]


@dataclass(frozen=True)
class More(Key):
    twice: Annotated[bool, typer.Option("--twice")] = False


GOT: list[dict[str, Any]] = []


@flat
def act(
    *,
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument()] = "cnn",
    work: Work,
    place: Place = "here",
    key: More,
) -> None:
    """Do it."""
    GOT.append({"ctx": ctx, "subject": subject, "work": work, "place": place, "key": key})


@pytest.fixture
def app() -> typer.Typer:
    GOT.clear()
    made = typer.Typer(rich_markup_mode=None)
    made.command()(act)
    return made


def test_the_fields_stand_in_the_place_of_the_dataclass_with_their_defaults() -> None:
    seen = inspect.signature(act).parameters
    assert list(seen) == ["ctx", "subject", "seed", "bounds", "names", "hard", "place", "path", "twice"]
    assert (seen["seed"].default, seen["place"].default, seen["path"].default) == (0, "here", inspect.Parameter.empty)
    assert act.__doc__ == "Do it."


def test_values_are_packed_back_and_those_left_out_are_the_defaults(app: typer.Typer) -> None:
    words = [
        "mlp",
        "--seed",
        "7",
        "--bounds",
        "0",
        "2",
        "--name",
        "a",
        "--name",
        "b",
        "--soft",
        "--key",
        "k",
        "--twice",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (got,) = GOT
    assert got["work"] == Work(seed=7, bounds=(0.0, 2.0), names=["a", "b"], hard=False)
    assert (got["subject"], got["place"], got["key"]) == ("mlp", "here", More("k", twice=True))
    assert got["ctx"].params["seed"] == 7
    assert CliRunner().invoke(app, ["--key", "k"]).exit_code == 0
    assert (GOT[1]["work"], GOT[1]["key"], GOT[1]["subject"]) == (Work(), More("k"), "cnn")


def test_a_field_without_a_default_is_required_and_a_wrong_value_is_a_usage_error(app: typer.Typer) -> None:
    for words, says in ([], "Missing option '--key'"), (["--key", "k", "--seed", "x"], "Invalid value for '--seed'"):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, GOT) == (2, [])
        assert says in done.output


def test_help_has_each_option_once_in_the_order_of_the_signature(app: typer.Typer) -> None:
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    places = [told.index(f"  --{name}") for name in ("seed", "bounds", "name", "hard", "place", "key", "twice")]
    assert places == sorted(places)
    assert told.count("The same seed, the same numbers.") == 1


def test_an_option_of_two_dataclasses_is_refused_when_it_is_declared() -> None:
    def wrong(*, work: Work, seed: Annotated[int, typer.Option()] = 1) -> None: ...

    with pytest.raises(TypeError, match=r"^wrong declares seed twice$"):
        flat(wrong)
