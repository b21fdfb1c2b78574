"""Job: what is asked of which subject, in words and numbers that another process can read. Needs no torch."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay import shelf
from assay.audit import Audit, open_audit
from assay.errors import AssayError
from assay.jobs.audit import Planned, plan
from assay.jobs.audit.rounds import seconds_named
from assay.probe import Probe, configure, spelled
from assay.standard import Standard, Standards
from assay.store.chain import refuse_changed
from assay.store.files import JSON_BYTES, read, read_json
from assay.subjects import Source, beside
from assay.tuning import Tuning

if TYPE_CHECKING:
    from assay.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Job:
    """As it was typed on the command line, standards read."""

    source: Source
    probes: tuple[str, ...] | None = None
    """None: all that there are."""
    settings: Mapping[str, str] | None = None
    """Of the one probe, as they were typed; the subjects that they name may then run their code."""
    standards: Standards = field(default_factory=Standards)
    budget: str = "quick"
    inputs: int | None = None
    """The most that a question looks at; None: what the budget has."""
    seed: int = 0
    device: str = "cpu"
    debug: bool = False
    profile: bool = False
    """Whether to tell where the time went, on a page of its own."""
    tuned: Tuning | None = None
    """What went into tuning the subject, as it is told in the report."""
    engine: str = "here"
    """Where it is computed: here, ray, or a cluster's address."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Job:
        limits = {n: tuple(Standard(**s) for s in some) for n, some in told["standards"]["limits"].items()}
        return cls(
            **{
                **told,
                "source": Source(**{name: _tuples(value) for name, value in told["source"].items()}),
                "probes": _tuples(told["probes"]),
                "standards": Standards(**{**told["standards"], "limits": limits}),
                "tuned": None if told.get("tuned") is None else Tuning(**told["tuned"]),
            }
        )

    def asked(self) -> Sequence[str | Probe] | None:
        """The probes, as `audit` takes them."""
        if self.probes is None or self.settings is None:
            return self.probes
        return [configure(shelf.load("probes", name), self.settings) for name in self.probes]

    def plan(self) -> list[Planned]:
        """What is asked, with the probes' code; an unknown name or setting is told before a subject is opened."""
        return plan(self.asked(), self.standards, self.budget)

    def further(self, open: Callable[[Source], Subject]) -> Callable[[str], Subject]:
        """Opens the further subjects that settings name, each once: those that were typed, and the bundled ones."""
        typed = {part for value in (self.settings or {}).values() for part in value.split(",")}

        @cache
        def opened(name: str) -> Subject:
            if name not in shelf.names("subjects") and name not in typed:
                raise AssayError(
                    f"The model {name!r} is named in a file; its code runs only if you type it: assay ask PROBE --set "
                    f"others={name}."
                )
            return open(beside(self.source, name))

        return opened

    def reads(self) -> list[Path]:
        """What of the user's files the asking has to read: the subject's folder, the data, further typed subjects."""
        told = (self.source.data, self.source.builder, self.source.environment, self.source.train, self.source.gallery)
        words = [self.source.subject, *(word or "" for word in told)]
        words += [*self.source.domain, self.source.domains or "", *self.source.groups, self.source.original or ""]
        words += [part for value in (self.settings or {}).values() for part in value.split(",")]
        return named_paths(words)


def continued(folder: Path, more: str, debug: bool = False) -> tuple[Job, Path]:
    """The job that goes on with a run that had a time limit, for so long, and where its runs are kept.

    No code is taken from a run: a model that comes with Assay is opened by its name, any other has to be typed.
    """
    if seconds_named(more, "--more") is None:
        raise AssayError(f"--more {more!r} is no time; write it like --more 30m.")
    refuse_changed(folder)
    stored = open_audit(folder)
    if not stored.budget.get("seconds"):
        raise AssayError(
            f"{str(folder)!r} was made with --budget {stored.budget.get('name')}, which asks once; --more goes on with "
            "a run that had a time: start one with --budget 10m."
        )
    asked = read_json(read(folder, "run.json", JSON_BYTES)).get("probes")
    probes = tuple(map(str, asked)) if isinstance(asked, list) else None
    name = next((name for name in shelf.ours("subjects") if stored.source == (name,)), None)
    if name is None:
        raise AssayError(f"No code is taken from a run: {_typed_again(stored, folder, more, probes)}")
    rows = [row for row in stored.rows if row.answer.probe in shelf.names("probes")]
    standards = Standards(
        limits={row.answer.probe: row.standards for row in rows if row.standards}
        if stored.limits is None
        else {name: each for name, each in stored.limits.items() if name in shelf.names("probes")},
        settings={row.answer.probe: row.answer.settings for row in rows},
        inputs=stored.budget.get("inputs"),
    )
    job = Job(
        source=Source(name),
        probes=probes,
        standards=standards,
        budget=more,
        inputs=standards.inputs,
        seed=stored.seed,
        device=stored.device,
        debug=debug,
        tuned=stored.tuned,
    )
    return job, folder.resolve().parent  # of '.', or of a link to a run, too


def _typed_again(stored: Audit, folder: Path, more: str, probes: tuple[str, ...] | None) -> str:
    """What goes on with a run whose model has to be typed: a command, or a call where the audit was made in Python."""
    bound = stored.budget.get("inputs")
    chosen = probes if probes is not None and set(probes) != set(shelf.names("probes")) else ()
    settings = _own_settings(stored, chosen)
    if not stored.source:
        told = {"budget": more, "inputs": bound, "seed": stored.seed, "device": stored.device}
        told |= {"out": str(folder.parent)}
        given = [f"probes=[{', '.join(_made(name, settings.get(name, {})) for name in chosen)}]"] if chosen else []
        given += [f"{name}={value!r}" for name, value in told.items() if value is not None]
        return (
            "this audit was made in Python and goes on there, with the same standards: "
            f"assay.audit(subject, {', '.join(given)})"
        )
    time = ["--budget", more, *(["--inputs", str(bound)] if bound else [])]
    where = ["--seed", str(stored.seed), "--device", stored.device, "--out", str(folder.parent)]
    if len(chosen) == 1 and settings and not stored.limits and not stored.tuned:
        given = [word for name, value in settings[chosen[0]].items() for word in ("--set", _typed(name, value))]
        command = shlex.join(["assay", "ask", chosen[0], *stored.source, *given, *time, *where])
        return f"type what was asked, and it goes on. {command}"
    words = ["assay", "audit", *stored.source, *time, *(word for probe in chosen for word in ("--probe", probe))]
    words += [*(["--tuned", stored.tuned.typed] if stored.tuned else []), *where]
    held = "; ".join(f"{name} {' '.join(_typed(*pair) for pair in each.items())}" for name, each in settings.items())
    file = f"FILE, which sets {held}" if settings else "FILE where it had one"
    return f"type what was audited, and it goes on, with the same --standards {file}. {shlex.join(words)}"


def _own_settings(stored: Audit, probes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The settings with which these questions were asked, where they are not the probe's own."""
    found = {}
    for answer in (row.answer for row in stored.rows):
        if answer.probe in probes and answer.probe in shelf.names("probes"):
            kind = shelf.load("probes", answer.probe)
            plain, asked = kind().settings(), configure(kind, answer.settings).settings()
            found[answer.probe] = {name: value for name, value in asked.items() if value != plain[name]}
    return {probe: settings for probe, settings in found.items() if settings}


def _typed(name: str, value: Any) -> str:
    """A setting as `configure` reads it: radius=0.03."""
    text = ",".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else str(value)
    return f"{spelled(name)}={text}"


def _made(probe: str, settings: Mapping[str, Any]) -> str:
    """A question as Python takes it: by its name or, with settings, as what stands on the shelf."""
    if not settings:
        return repr(probe)
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"assay.shelf.load('probes', {probe!r})({given})"


def named_paths(words: Sequence[str]) -> list[Path]:
    """The files and folders among these words, of a model the folder that it lies in: its weights may lie beside it.

    Also those behind a name, as in --domain NAME=PATH. Where ASSAY_DATA names a folder, that too.
    """
    paths = []
    behind = [word.partition("=")[2] for word in words if "=" in word]
    for word in (*words, *behind, os.environ.get("ASSAY_DATA", "")):
        path = Path(word.rpartition(":")[0] if ".py:" in word else word)
        if word and _is_there(path):
            model = path.suffix.lower() in (".py", ".pt2", ".onnx", ".pt", ".pth", ".pkl", ".ckpt", ".bin")
            paths.append(path.resolve().parent if model else path.resolve())
    return paths


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long for the name of a file: a word that is none
        return False


def _tuples(value: Any) -> Any:
    """What JSON made lists of, as it was."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
