"""The one family of exceptions: a message is one line that says what was wrong, with the value, and how to mend it."""

from __future__ import annotations

import errno
import os

FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT))
"""As the system says it; not everything that writes raises an OSError (safetensors has its own)."""


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


def in_words(e: BaseException) -> str:
    """What was raised, as one line."""
    if isinstance(e, AssayError):
        return str(e)
    if isinstance(e, SystemExit):
        return f"the subject's code called sys.exit({e.code!r}); take that out"
    if isinstance(e, Exception) and any(says in str(e) for says in FULL):
        return f"{type(e).__name__}: {e}; free some space and run the same command again, or write elsewhere with --out"
    if isinstance(e, Exception):
        return f"{type(e).__name__}: {e}; --debug shows where"
    return f"the subject's code raised {type(e).__name__}, with which a program is stopped; take that out"
