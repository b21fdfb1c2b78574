"""Cure: audit a subject, apply a remedy, audit what came of it, and compare.

    runs/cure-<subject>+<remedy>-<key>/
      cure.html  weights.safetensors

The cured weights are kept under a key of subject, remedy, settings, seed and budget: a cure that was killed goes on
without training again. They are believed only if the subject they make has the fingerprint that was stored with them.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay import shelf, store
from assay.audit import Audit, Judged, audit, open_audit
from assay.errors import AssayError
from assay.probe import Probe, configure
from assay.remedy import Remedy
from assay.report.diff import Change, compare, render_diff
from assay.run import Engine, Progress, Run, silent
from assay.run import budget as budget_named
from assay.standard import Standards, read_standards

if TYPE_CHECKING:
    from assay.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Cure:
    """The same questions asked before and after, what changed, and where the page and the cured weights are."""

    before: Audit
    after: Audit
    changes: tuple[Change, ...]
    price: str
    folder: Path

    @property
    def page(self) -> Path:
        return self.folder / "cure.html"

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"


def cure(
    remedy: str | Remedy,
    subject: Subject,
    *,
    settings: Mapping[str, Any] | None = None,
    probes: Sequence[str | Probe] | None = None,
    budget: str = "quick",
    standards: str | Path | Standards | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: str | Path = "runs",
    engine: Engine | None = None,
    progress: Progress = silent,
    told: Callable[[Judged, bool], None] = lambda row, asked: None,
    source: tuple[str, ...] = (),
    debug: bool = False,
) -> Cure:
    """Audit `subject`, apply the remedy, audit again; `settings` are those of a remedy that is given by name."""
    from assay.engine.local import ThisProcess

    if not isinstance(standards, Standards):
        standards = read_standards(Path(standards)) if standards is not None else Standards()
    kind: type[Remedy] = type(remedy) if isinstance(remedy, Remedy) else shelf.load("remedies", remedy)
    chosen = remedy if isinstance(remedy, Remedy) else configure(kind, settings or {})
    reason = chosen.why_not(subject)
    if reason is not None:
        raise AssayError(f"The remedy {chosen.name()!r} cannot be applied to {subject.name!r}: {reason}.")
    run = Run(
        engine=engine or ThisProcess(),
        budget=budget_named(budget),
        seed=seed,
        device=device,
        progress=progress,
        debug=debug,
    )

    def asked(of: Subject, named: tuple[str, ...]) -> Audit:
        done = audit(
            of,
            probes=probes,
            budget=budget,
            standards=standards,
            seed=seed,
            device=device,
            out=out,
            engine=engine,
            progress=progress,
            told=told,
            source=named,
            debug=debug,
        )
        assert done.folder is not None  # it has an `out`
        return open_audit(done.folder, whole=True)  # a paired comparison needs the samples of resumed answers too

    before = asked(subject, source)
    key = _key(chosen, before.subject.fingerprint, run)
    folder = Path(out) / f"cure-{store.slug(subject.name)}+{chosen.name()}-{key[:8]}"
    kept = _stored(folder / "weights.safetensors", key, subject, chosen)
    if kept is None:
        start = time.perf_counter()
        cured = chosen.apply(subject, run)
        seconds = time.perf_counter() - start
        _keep(folder / "weights.safetensors", key, cured, seconds)
    else:
        cured, seconds = kept
    price = _price(chosen, subject, cured, seconds, run)
    after = asked(cured, ())
    changes = compare(before, after)
    store.write_atomically(folder / "cure.html", render_diff(before, after, price=price))
    return Cure(before=before, after=after, changes=changes, price=price, folder=folder)


def _price(remedy: Remedy, subject: Subject, cured: Subject, seconds: float, run: Run) -> str:
    """What the cure costs: by its settings, and as measured here."""
    passes = [_pass_seconds(each, run) for each in (subject, cured)]
    stated = remedy.cost()
    words = (
        ""
        if stated is None
        else f"By its settings {remedy.name()} takes {stated.training:.3g} times the plain training and "
        f"{stated.inference:.3g} times the plain answer. "
    )
    return f"{words}Measured here: cured in {seconds:.1f} s; an answer takes {passes[1] / passes[0]:.2f} times as long."


def _pass_seconds(subject: Subject, run: Run) -> float:
    """Seconds of one answer to a batch: the median of five, after one that does not count."""
    import numpy as np
    import torch

    subject.model.to(run.device)
    x, _ = subject.data["test"].take(np.arange(min(256, len(subject.data["test"]))))
    x = x.to(run.device)
    taken = []
    for _ in range(6):
        start = time.perf_counter()
        subject.predict(x)
        if torch.device(run.device).type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def _key(remedy: Remedy, fingerprint: str, run: Run) -> str:
    parts = [fingerprint, remedy.name(), remedy.version, remedy.settings(), run.seed, dataclasses.asdict(run.budget)]
    return blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def _keep(path: Path, key: str, cured: Subject, seconds: float) -> None:
    from safetensors.torch import save

    state = {name: t.detach().cpu().clone().contiguous() for name, t in cured.model.state_dict().items()}
    about = {"key": key, "fingerprint": cured.fingerprint(), "seconds": repr(seconds)}
    store.write_atomically(path, save(state, metadata=about))


def _stored(path: Path, key: str, subject: Subject, remedy: Remedy) -> tuple[Subject, float] | None:
    """The cured subject of an earlier run and how long it took, or None where it must be made anew.

    The weights go into the remedy's `frame`; the fingerprint, which covers code and layers too, says whether it is the
    subject that was stored.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as f:
            about = f.metadata() or {}
            state = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118  (not a mapping)
    except (OSError, SafetensorError) as e:
        raise AssayError(f"Cannot read the cured weights {str(path)!r}: {e}; delete that file and cure again.") from e
    if about.get("key") != key:
        return None
    cured = remedy.frame(subject)
    try:
        cured.model.load_state_dict(state)
    except RuntimeError:
        return None
    return (cured, float(about.get("seconds", "nan"))) if cured.fingerprint() == about.get("fingerprint") else None
