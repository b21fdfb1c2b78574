"""Label trees: read from a file or text, fitted to the classes, and refused in one line where they do not fit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from assay.data.label_tree import LabelTree, grouped, read_tree, tree_text, tree_texts
from assay.errors import AssayError

ANIMALS = '{"animals": {"pets": ["cat", "dog"], "wild": ["deer"]}, "vehicles": ["car", "truck"]}'
CLASSES = ("car", "cat", "deer", "dog", "truck")


def test_a_tree_from_a_file_or_a_text_has_its_classes_in_the_order_of_the_labels(tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    file.write_text(ANIMALS)
    tree = read_tree(tree_text(str(file)), CLASSES)
    assert tree.paths == read_tree(ANIMALS, CLASSES).paths
    assert tree.paths[:3] == (("vehicles", "car"), ("animals", "pets", "cat"), ("animals", "wild", "deer"))
    assert (tree.depth, tree.is_three_levels, tree.groups) == (4, False, ("vehicles", "animals"))
    assert tree.group_of().tolist() == [0, 1, 1, 1, 0]
    assert tree.lengths().tolist() == [3, 4, 4, 4, 3]


def test_a_text_that_was_cut_at_its_commas_is_joined_again(tmp_path: Path) -> None:
    """As a command line cuts settings; what a report says to type is such a text."""
    file = tmp_path / "tree.json"
    file.write_text(ANIMALS + "\n")
    cut = f"features,{ANIMALS},{file},inputs".split(",")
    assert tree_texts(cut, ("features", "inputs")) == ("features", ANIMALS, ANIMALS, "inputs")


def test_ways_and_heights_by_hand() -> None:
    tree = read_tree(ANIMALS, CLASSES)
    assert tree.shared().tolist() == [
        [3, 1, 1, 1, 2],
        [1, 4, 2, 3, 1],
        [1, 2, 4, 2, 1],
        [1, 3, 2, 4, 1],
        [2, 1, 1, 1, 3],
    ]
    assert tree.heights().tolist() == [  # the root is 3 above the pets
        [0, 3, 3, 3, 1],
        [3, 0, 2, 1, 3],
        [3, 2, 0, 2, 3],
        [3, 1, 2, 0, 3],
        [1, 3, 3, 3, 0],
    ]


def test_groups_of_one_name_under_different_ones_are_two() -> None:
    tree = read_tree('{"a": {"small": ["x", "y"]}, "b": {"small": ["z"], "b": ["w"]}}', ("x", "y", "z", "w"))
    assert tree.shared()[0].tolist() == [4, 3, 1, 1]
    assert tree.group_of().tolist() == [0, 0, 1, 1]


def test_numbered_groups_are_named_after_their_classes() -> None:
    tree = grouped(["a", "b", "c", "d", "e"], [4, 4, 1, 4, 4])
    assert tree.groups == ("a, b, d, ...", "c")
    assert tree.is_three_levels
    assert np.array_equal(tree.group_of(), [0, 0, 1, 0, 0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": ["cat"], "b": ["car"]}', "lacks 'deer', 'dog', 'truck' of the model's 5 classes; put each in a group"),
        (ANIMALS.replace("truck", "lorry"), "has 'lorry', which the model does not know; its classes: 'car', 'cat'"),
        (ANIMALS.replace("truck", "cat"), "has the class 'cat' twice; a class stands in one place"),
        ('{"a": ["cat"], "a": ["car"]}', "^The label tree has the group 'a' twice in one place; join them"),
        ('{"all": ["car", "cat", "deer", "dog", "truck"]}', "has all classes in the group 'all': it parts none"),
        ('{"a": [], "b": ["car"]}', r"has \[\] in 'a'; write"),
        ("{}", r"has {} at its top; write"),
        ('{"a": ["cat", 3]}', "has 3 in 'a', where a class's name should be"),
        ('{"a": "cat"}', "has \"cat\" in 'a'; write"),
        ('{"a": ["cat"', "is not JSON: "),
        ("{" * 100_000, "is not JSON: "),
        ('{"a": ' * 50 + '["cat"]' + "}" * 50, "has more than 32 groups in one another; write a flatter tree"),
    ],
)
def test_what_is_no_tree_of_these_classes_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(AssayError, match=says) as caught:
        read_tree(text, CLASSES)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_brace_in_a_name_joins_no_two_sources() -> None:
    odd = '{"a{": ["cat", "dog"], "b": ["car"]}'
    assert tree_texts([*odd.split(","), "inputs"], ("inputs",)) == (odd, "inputs")
    assert tree_texts([odd, odd.replace("a{", "}a")], ()) == (odd, odd.replace("a{", "}a"))


def test_a_file_is_opened_once_and_what_it_holds_is_never_a_path(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(ANIMALS)
    for held, says in (
        (str(tmp_path / "other.json"), "is not JSON: "),
        (json.dumps(str(tmp_path / "other.json")), "at its top; write"),
        ('["cat", "dog"]', r'has \["cat", "dog"\] at its top; write'),
        ("", "is not JSON: "),
    ):
        (tmp_path / "tree.json").write_text(held)
        with pytest.raises(AssayError, match=says):
            tree_texts([str(tmp_path / "tree.json")], ("inputs",))
    with pytest.raises(AssayError, match="is not JSON: "):
        read_tree(str(tmp_path / "other.json"), CLASSES)
    (tmp_path / "tree.json").write_bytes(b"\xef\xbb\xbf" + ANIMALS.replace("}, ", "},\n").encode())
    assert tree_text(str(tmp_path / "tree.json")) == ANIMALS
    with pytest.raises(AssayError, match="Cannot read a label tree from .*null"):
        tree_text("a\0b")


def test_what_is_no_file_of_a_tree_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="Cannot read a label tree from 'there.json': No such file"):
        tree_text("there.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AssayError, match="^'[^']*' is a pipe; give a plain file"):
        tree_text(str(tmp_path / "pipe"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(AssayError, match="is no text in UTF-8"):
        tree_text(str(tmp_path / "bytes"))
    (tmp_path / "large").write_text(json.dumps({"a": ["x" * 2**20]}))
    with pytest.raises(AssayError, match="more than 1,048,576 bytes"):
        tree_text(str(tmp_path / "large"))
    with pytest.raises(AssayError, match="two classes in one place"):
        LabelTree((("a", "x"), ("a", "x"), ("b", "y")))
    with pytest.raises(AssayError, match="has no classes"):
        LabelTree(())
