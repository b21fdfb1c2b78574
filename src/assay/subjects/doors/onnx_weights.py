"""The files in which an ONNX model keeps its weights, read from the model's own bytes.

onnxruntime does not tell them, and the onnx package need not be here. An ONNX file is one protobuf message: fields of a
number, a kind and a value, where a value may be a message again. Only those fields are followed that lead to a tensor;
their numbers are those of onnx.proto. A field may stand in any order and more than once, and all of them are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""Of each kind of message, the fields that lead to a tensor kept elsewhere, and what they hold."""
DEEPEST = 200  # messages in messages; a loop in a condition in a loop is some twenty
NUMBER, EIGHT, TEXT, FOUR = 0, 1, 2, 5  # kinds of values


class Damaged(ValueError):
    """What is no protobuf message."""


def locations(content: bytes) -> set[str]:
    """The names of the files beside the model that its tensors say they are kept in."""
    found: set[str] = set()
    waiting = [("model", memoryview(content), 0)]
    while waiting:
        kind, message, depth = waiting.pop()
        if depth > DEEPEST:
            raise Damaged(f"messages are nested deeper than {DEEPEST}")
        if kind == "entry":
            found |= _location(message)
            continue
        inner = FIELDS[kind]
        waiting += [(inner[number], value, depth + 1) for number, value in _texts(message) if number in inner]
    return found


def _location(entry: memoryview) -> set[str]:
    """The value of an entry whose key is `location`; of a field that is given twice, readers take either."""
    parts = list(_texts(entry))
    if not any(number == 1 and bytes(value) == b"location" for number, value in parts):
        return set()
    return {bytes(value).decode("utf-8", "replace") for number, value in parts if number == 2}


def _texts(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and value of each field that has a length: texts, bytes and messages."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == NUMBER:
            _, at = _varint(message, at)
        elif kind in (EIGHT, FOUR):
            at += 8 if kind == EIGHT else 4
        elif kind == TEXT:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise Damaged("a field is longer than its message")
            yield tag >> 3, message[at : at + length]
            at += length
        else:
            raise Damaged(f"a field is of the kind {kind}, which ONNX does not have")
    if at > len(message):
        raise Damaged("a field is longer than its message")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte, at = message[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Damaged("a number does not end")
