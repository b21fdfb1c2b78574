"""Stands for the command line in tests: `fake_command.py LEASH audit SUBJECT --seed S --inputs N --size MS ...`

It takes N steps of so many milliseconds, keeps what it has after each, and goes on from there: the last number is the
same however often it was killed. With --draws K it waits after K steps for a file run/go. --budget standard breaks;
full is a verdict (status 1).
"""

import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

leash, words = int(sys.argv[1]), sys.argv[2:]
given = {words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--")}
out, steps, each = Path(given["--out"]), int(given.get("--inputs", 1)), int(given.get("--size", 0)) / 1000
held = int(given.get("--draws", steps))  # the step at which it waits for a file


def tied() -> None:
    while os.read(leash, 1):
        continue
    os._exit(137)


threading.Thread(target=tied, daemon=True).start()
# Not by print, which cannot be begun again where a signal comes in the middle of it; a line may be half out by then.
signal.signal(signal.SIGTERM, lambda *a: (os.write(1, b"\nassay: stopped\n"), os._exit(130)))
if given.get("--budget") == "standard":
    print("loading", flush=True)
    print("assay: It broke <on purpose>; mend it.", flush=True)
    sys.exit(2)
if given.get("--device") == "cuda":  # takes more than it may
    (out / "much").write_bytes(bytes(3_000_000))
    time.sleep(30)
if given.get("--device") == "auto":
    os.kill(os.getpid(), signal.SIGKILL)
(out / "words").write_text("\n".join(words))
kept = out / "kept"
done = kept.read_text().splitlines() if kept.exists() else []
with open(out / "starts", "a") as f:
    f.write(f"{os.getpid()} {time.time()} {len(done)}\n")
number = done[-1] if done else given["--seed"]
for step in range(len(done), steps):
    while step >= held and not (out / "go").exists():
        time.sleep(0.02)
    time.sleep(each)
    number = hashlib.sha256(f"{number} {step}".encode()).hexdigest()[:16]
    new = out / "kept.new"
    new.write_text("\n".join([*done, number]))
    new.rename(kept)
    done.append(number)
    print(f"stepping: {step + 1} of {steps}", flush=True)
(out / "result").write_text(number)
with open(out / "ends", "a") as f:
    f.write(f"{os.getpid()} {time.time()}\n")
sys.exit(1 if given.get("--budget") == "full" else 0)
