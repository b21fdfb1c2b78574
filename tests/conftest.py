"""What several test files share: one thread per test process, a subject that trains in a second, the command."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from assay.run import Run
    from assay.subject import Subject

# Nothing large is imported at the top: the process that only hands tests to others would load it before they start.

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell has it behind an &; what tests start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Modules and tests stay to the end: the garbage collector need not look through them again and again."""
    if not session.config.getoption("numprocesses", None):  # this process runs the tests
        import torch

        torch.set_num_threads(1)  # pytest-xdist runs one process per core
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_runtest_setup() -> None:
    """A library that gave torch more threads makes all later tests ten times as slow: the threads wait by spinning."""
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes starts first, so that no process waits for it at the end."""
    items.sort(key=lambda item: "tutorial" not in item.name)


@pytest.fixture(scope="session", autouse=True)
def _as_users_have_it() -> None:
    """Which plugins this pytest loads is its own affair: tests start others, which find Assay's by themselves."""
    os.environ.pop("PYTEST_DISABLE_PLUGIN_AUTOLOAD", None)


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power. That files are synchronised before they are named is seen where it is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_seed_is_kept_for_devices_that_are_not_there() -> Iterator[None]:
    """`torch.manual_seed` writes down its stack for each kind of device that may yet start: a millisecond or two."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            if not kind.is_available():
                patch.setattr(kind, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture
def run() -> Run:
    from assay.engine.local import ThisProcess
    from assay.run import Budget, Run

    return Run(engine=ThisProcess(), budget=Budget("tiny", samples=100, steps=5, restarts=1, shown=3))


@pytest.fixture(scope="session")
def digits_model() -> tuple[nn.Module, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """A small CNN on scikit-learn's 8x8 digits, and its data in [0, 1]."""
    import numpy as np
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1200], order[1200:]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        )
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(60):
            rows = torch.randint(0, len(train), (128,))
            loss = nn.functional.cross_entropy(model(torch.tensor(x[train])[rows]), torch.tensor(y[train])[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        optimiser.zero_grad()
    return model.eval(), {"train": (x[train], y[train]), "test": (x[test], y[test])}


@pytest.fixture
def digits(digits_model: tuple[nn.Module, dict[str, tuple[np.ndarray, np.ndarray]]]) -> Subject:
    from assay.subject import Subject

    model, data = digits_model
    return Subject.classifier(model, data, name="digits")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports hold no drawings, which take most of an audit's time where the question is small."""
    monkeypatch.setattr("assay.report.page.draw", lambda view, key: f"<svg><!-- {view.name} --></svg>")


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.out.rstrip("\n").splitlines()[-1]

    @property
    def complaints(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("assay: ")]


Command = Callable[..., Ended]


@cache
def parsers() -> Callable[..., object]:
    """Makes the parser of the command line, which a process builds once and a test would build for each command."""
    import typer

    return cache(typer.main.get_command)


@pytest.fixture
def assay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The console script with these words, in a folder of its own; what native code prints is seen too."""
    from assay import cli

    built = parsers()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")  # pytest-xdist sets 80, where cells of tables fold

    def command(*words: str) -> Ended:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["assay", *words])
            patch.setattr("typer.main.get_command", built)
            with pytest.raises(SystemExit) as ended:
                cli.main(guarded=False)
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capfd.readouterr())

    return command
