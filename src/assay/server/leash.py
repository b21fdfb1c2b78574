"""A command tied to the process that started it: when that is gone, however it went, the command ends too.

    python -m assay.server.leash DESCRIPTOR MODULE WORDS...

runs `python -m MODULE WORDS...` in this very process. DESCRIPTOR is the reading end of a pipe of which the other
process alone holds the writing end: it closes when that process ends, by whatever signal, on any system.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PATIENCE = 15.0  # seconds in which what is asked to end may do so by itself


@contextmanager
def leash() -> Iterator[int]:
    """The descriptor to hand to a child (`pass_fds`), which is tied as long as this lasts and this process lives."""
    its, ours = os.pipe()
    try:
        yield its
    finally:
        os.close(ours)
        os.close(its)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """What a command that may open a stranger's model is told: not how to reach the database, nor to send mail."""
    return {name: value for name, value in environment.items() if not name.startswith(("ASSAY_QUEUE", "ASSAY_MAIL_"))}


def main() -> None:
    descriptor, module, *words = sys.argv[1:]
    threading.Thread(target=_end_with, args=(int(descriptor),), daemon=True).start()
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(descriptor: int) -> None:
    while os.read(descriptor, 1):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
