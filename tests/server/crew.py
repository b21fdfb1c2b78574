"""Workers for tests: one process loads what they need and forks one for each line on stdin, `HOME URL`.

So a worker starts in milliseconds, and tests can kill as many as they like.
"""

import os
import sys
from pathlib import Path

import dbos  # noqa: F401  so that those who are forked have it

from assay.server import worker
from assay.server.book import Book, Quota
from assay.server.folders import GB

worker.BEAT, worker.WEIGH_EVERY = 0.2, 0.5
COMMAND = (sys.executable, "-S", "-E", str(Path(__file__).parent / "fake_command.py"), "{leash}")


def work(home: str, url: str) -> int:
    import signal

    book = Book(Path(home), url, Quota(disk=2_000_000 if "tight" in home else 50 * GB, free=0))
    hands = worker.Hands(book, command=COMMAND, told=lambda text: print(text, file=sys.stderr, flush=True))
    signal.signal(signal.SIGTERM, hands.end)
    return hands.work()


if __name__ == "__main__":
    for line in sys.stdin:
        while True:
            try:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    break
            except ChildProcessError:
                break
        home, _, url = line.strip().partition(" ")
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os._exit(work(home, url))
        print(pid, flush=True)
