"""The one family of exceptions: a message is one line that says what was wrong, with the value, and how to mend it."""

from __future__ import annotations


class AssayError(ValueError):
    """Something the user can mend. The command line prints the message and ends with status 2."""


class ShapeError(AssayError):
    """A tensor came in a shape that the method cannot take."""


class SubjectError(AssayError):
    """The model or the data under test misbehaved: raised, returned NaN, the wrong shape, labels out of range."""


class MissingExtra(AssayError):
    """An optional package is needed; the message is the pip line to type."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> MissingExtra:
        return cls(f"{what} needs {package}: pip install 'assay[{extra}]'")
