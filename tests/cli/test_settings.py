"""What `assay probes NAME` says of settings: read off fields, strings below them, and docstrings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from assay import shelf
from assay.cli.settings import Setting, paragraphs, settings_of, shown, takes
from assay.data.corruptions import CORRUPTIONS
from assay.errors import AssayError
from assay.methods.explain.maps import METHODS
from assay.probe import configure
from assay.tasks import OURS

Loss = Literal["hinge", "square"]


@dataclass
class Base:
    """It trains.

    `epochs` left out are ten. Nothing else is said of them.
    """

    epochs: int | None = None
    rate: float = 0.1


@dataclass
class Trained(Base):
    """Trains it again.

    The size is at most `radius` in each value. `radius` is a share of the range, `far` that of another. It is a
    search, cf. Someone 2020. With `clip` inputs stay inside.

    `names` may be any.
    """

    radius: float = 8 / 255
    far: float = 0.25
    clip: bool = True
    """Whether they
    stay inside."""
    names: tuple[str, ...] = ("a", "b", "c")
    loss: Loss | Literal["best"] = "best"
    sizes: tuple[int, ...] = field(default_factory=tuple)


def test_each_setting_has_its_type_its_default_and_its_line() -> None:
    assert settings_of(Trained) == [
        Setting("epochs", "whole number | none", "none", "`epochs` left out are ten."),
        Setting("rate", "number", "0.1", ""),
        Setting("radius", "number", "8/255", "`radius` is a share of the range, `far` that of another."),
        Setting("far", "number", "0.25", "see radius"),
        Setting("clip", "true | false", "true", "Whether they stay inside."),
        Setting("names", "text,...", "a,b,c", "`names` may be any."),
        Setting("loss", "hinge | square | best", "best", ""),
        Setting("sizes", "whole number,...", "", ""),
    ]


def test_what_is_told_in_the_table_leaves_the_text_and_nothing_else_does() -> None:
    assert paragraphs(Trained) == [
        "The size is at most `radius` in each value. It is a search, cf. Someone 2020. With `clip` inputs stay inside."
    ]


def test_a_class_without_fields_or_docstring_has_nothing_to_tell() -> None:
    @dataclass
    class Bare:
        pass

    @dataclass
    class Told:
        """A question?

        `this` is no setting.
        """

    assert (settings_of(Bare), shown(Bare)) == ([], "")
    assert paragraphs(Told) == ["`this` is no setting."]


def test_what_was_made_without_a_file_is_told_by_its_docstring() -> None:
    told: dict[str, Any] = {"__annotations__": {"k": int}, "k": 1, "__doc__": "A question?\n\n`k` is how many."}
    assert settings_of(dataclass(type("Made", (), told))) == [Setting("k", "whole number", "1", "`k` is how many.")]


@pytest.mark.parametrize(
    ("hint", "says"), [(Literal[1, 2], "1 | 2"), (dict, "dict"), (tuple[float, ...] | None, "number,... | none")]
)
def test_a_type_in_words(hint: Any, says: str) -> None:
    assert takes(hint) == says


def test_the_example_is_of_its_own_settings_first_and_of_a_list_two() -> None:
    @dataclass
    class Few(Base):
        names: tuple[str, ...] = ("a", "b", "c")

    @dataclass
    class Only:
        inputs: int | None = None

    assert (shown(Trained), shown(Few), shown(Only)) == ("radius=8/255", "names=a,b", "inputs=100")


@dataclass
class Inherited(Base):
    steps: int | None = None


def test_without_a_value_of_its_own_the_example_is_inherited() -> None:
    assert shown(Inherited) == "rate=0.1"


HYPHENS = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def test_every_name_that_is_typed_has_hyphens() -> None:
    kinds = [shelf.load(kind, name) for kind in ("probes", "remedies") for name in shelf.names(kind)]
    typed = {*shelf.names("probes"), *shelf.names("remedies"), *shelf.names("subjects"), *OURS, *METHODS, *CORRUPTIONS}
    for kind in kinds:
        for each in settings_of(kind):
            typed |= {each.name, *(each.takes.split(" | ") if " | " in each.takes else ())}
    strange = {name for name in typed if " " not in name and "," not in name and not HYPHENS.fullmatch(name)}
    assert not strange


def test_a_setting_is_understood_as_it_is_typed_and_as_it_is_in_python() -> None:
    kind = shelf.load("remedies", "pgd-training")
    assert configure(kind, {"weight-decay": "0.1"}) == configure(kind, {"weight_decay": 0.1})
    with pytest.raises(AssayError, match="The setting weight-decay of 'pgd-training' is given twice; give it once"):
        configure(kind, {"weight-decay": "0.1", "weight_decay": "0.1"})
    with pytest.raises(AssayError, match=r"has no setting 'weight-loss'; its settings: epochs, lr, weight-decay"):
        configure(kind, {"weight-loss": "1"})
