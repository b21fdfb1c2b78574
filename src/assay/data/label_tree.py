"""Label trees: which classes are alike, as somebody says it, in a file of JSON.

    {"animals": {"pets": ["cat", "dog"], "wild": ["deer", "frog"]}, "vehicles": ["car", "truck"]}

A name with a list or with more names in it is a group; what stands in a list is a class. A tree has a root above all,
and may be as deep as one likes, here more and there less; two groups of one name under different ones are two groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.plain_file import read_plain, some
from assay.errors import AssayError

MOST_BYTES = 2**20  # of a file
DEEPEST = 32  # groups in one another
MEND = 'write {"group": ["class", ...], ...}, groups in one another as you like'


@dataclass(frozen=True)
class LabelTree:
    """For each class, in the order of the labels, the names on the way to it from below the root."""

    paths: tuple[tuple[str, ...], ...]
    name: str = "the tree"

    def __post_init__(self) -> None:
        if not self.paths or not all(self.paths):
            raise AssayError(f"{self.name} has no classes; {MEND}.")
        if len({path[:1] for path in self.paths}) == 1:
            raise AssayError(f"{self.name} has all classes in the group {self.paths[0][0]!r}: it parts none; {MEND}.")
        if len(set(self.paths)) < len(self.paths):
            raise AssayError(f"{self.name} has two classes in one place; name each once.")

    @property
    def depth(self) -> int:
        """Levels, with the root and the classes: 3 where every class stands in one group."""
        return 1 + max(map(len, self.paths))

    @property
    def is_three_levels(self) -> bool:
        """Whether every class is two steps below the root: then the measures of a mistake are one number."""
        return {len(path) for path in self.paths} == {2}

    @property
    def groups(self) -> tuple[str, ...]:
        """What stands just below the root, in the order of the classes: groups, and classes that are in none."""
        return tuple(dict.fromkeys(path[0] for path in self.paths))

    def group_of(self) -> NDArray[np.int64]:  # -> k
        """For each class the place of its group."""
        place = {name: i for i, name in enumerate(self.groups)}
        return np.array([place[path[0]] for path in self.paths], dtype=np.int64)

    def lengths(self) -> NDArray[np.int64]:  # -> k
        """How many nodes lie on the way to each class, the root and itself with them."""
        return np.array([1 + len(path) for path in self.paths], dtype=np.int64)

    def shared(self) -> NDArray[np.int64]:  # -> k k
        """How many nodes the ways to two classes have in common, the root with them."""
        number: dict[tuple[str, ...], int] = {}
        nodes = np.full((len(self.paths), self.depth - 1), -1, dtype=np.int64)
        for c, path in enumerate(self.paths):
            nodes[c, : len(path)] = [number.setdefault(path[: d + 1], len(number)) for d in range(len(path))]
        common = np.ones((len(self.paths),) * 2, dtype=np.int64)
        for column in nodes.T:
            common += (column[:, None] == column) & (column[:, None] >= 0)
        return common

    def heights(self) -> NDArray[np.int64]:  # -> k k
        """How high the lowest common ancestor of two classes stands: the longest way from it down to a class."""
        below: dict[tuple[str, ...], int] = {}
        for path in self.paths:
            for d in range(len(path) + 1):
                below[path[:d]] = max(below.get(path[:d], 0), len(path) - d)
        shared = self.shared()
        return np.array(
            [[below[path[: s - 1]] for s in row] for path, row in zip(self.paths, shared, strict=True)], dtype=np.int64
        )


def grouped(names: Sequence[str], group_of: Sequence[int], name: str = "the tree") -> LabelTree:
    """The tree of three levels whose groups are numbered, each named after its classes."""
    members = {g: [c for c, own in zip(names, group_of, strict=True) if own == g] for g in dict.fromkeys(group_of)}
    called = {g: ", ".join(some_of[:3]) + (", ..." if len(some_of) > 3 else "") for g, some_of in members.items()}
    twice = len(set(called.values())) < len(called)
    return LabelTree(
        tuple((f"{called[g]} ({g})" if twice else called[g], c) for c, g in zip(names, group_of, strict=True)), name
    )


def tree_texts(sources: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The text of each tree; what is `known` by name stays as it is. A text that was cut at its commas is joined."""
    whole: list[str] = []
    for part in sources:
        if whole and _is_cut(whole[-1]):
            whole[-1] += "," + part
        else:
            whole.append(part)
    return tuple(each if each in known else tree_text(each) for each in whole)


def _is_cut(text: str) -> bool:
    """Whether this opens as a tree and is not yet one; braces inside of names count for nothing."""
    if not _opens(text):
        return False
    if not text.rstrip().endswith("}"):
        return True
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False


def _opens(source: str) -> bool:
    return source.lstrip().startswith("{")


def tree_text(source: str) -> str:
    """The tree in the file of this name, or in the text itself, which opens with a brace: as JSON in one line."""
    if _opens(source):
        return json.dumps(_parsed(source, "The label tree"))
    try:
        text = read_plain(Path(source), MOST_BYTES).decode("utf-8-sig")
    except OSError as e:
        raise AssayError(
            f"Cannot read a label tree from {source!r}: {e.strerror}; give the path of a JSON file."
        ) from e
    except UnicodeDecodeError as e:
        raise AssayError(f"{source!r} is no text in UTF-8, so no label tree; give a JSON file.") from e
    except AssayError:
        raise
    except ValueError as e:  # a name that no file can have
        raise AssayError(f"Cannot read a label tree from {source!r}: {e}; give the path of a JSON file.") from e
    return json.dumps(_parsed(text, repr(source)))


def read_tree(text: str, classes: Sequence[str]) -> LabelTree:
    """The tree in this text, with its classes in the order of these; each must be there once, and no other.

    It opens no file, whatever the text is: `tree_text` reads what somebody typed.
    """
    name = "The label tree"
    found = {path[-1]: path for path in _leaves(_parsed(text, name), name, ())}
    known = set(classes)
    missing, strange = [c for c in classes if c not in found], [c for c in found if c not in known]
    if strange:
        raise AssayError(f"{name} has {some(strange)}, which the model does not know; its classes: {some(classes)}.")
    if missing:
        raise AssayError(f"{name} lacks {some(missing)} of the model's {len(classes)} classes; put each in a group.")
    return LabelTree(tuple(found[c] for c in classes), name)


def _parsed(text: str, name: str) -> dict[str, Any]:
    """The groups in one another, each class once."""
    try:
        stored = json.loads(text, object_pairs_hook=lambda pairs: _no_twice(pairs, name))
    except AssayError:
        raise
    except (ValueError, RecursionError) as e:
        raise AssayError(f"{name} is not JSON: {e}; {MEND}.") from e
    if not isinstance(stored, dict):
        raise AssayError(f"{name} has {json.dumps(stored)[:40]} at its top; {MEND}.")
    seen: set[str] = set()
    for path in _leaves(stored, name, ()):
        if path[-1] in seen:
            raise AssayError(f"{name} has the class {path[-1]!r} twice; a class stands in one place.")
        seen.add(path[-1])
    return stored


def _no_twice(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, below in pairs:
        if key in found:
            raise AssayError(f"{name} has the group {key!r} twice in one place; join them.")
        found[key] = below
    return found


def _leaves(part: Any, name: str, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    where = f"in {' / '.join(path)!r}" if path else "at its top"
    if len(path) > DEEPEST:
        raise AssayError(f"{name} has more than {DEEPEST} groups in one another; write a flatter tree.")
    if not isinstance(part, dict | list) or not part:
        raise AssayError(f"{name} has {json.dumps(part)[:40]} {where}; {MEND}.")
    if isinstance(part, list):
        for leaf in part:
            if not isinstance(leaf, str):
                raise AssayError(f"{name} has {json.dumps(leaf)[:40]} {where}, where a class's name should be; {MEND}.")
            yield (*path, leaf)
        return
    for key, below in part.items():
        yield from _leaves(below, name, (*path, key))
