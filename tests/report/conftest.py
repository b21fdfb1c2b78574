"""Audits made by hand: what the report must be able to say, without a model in sight."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from assay.audit import Audit, Described, Judged
from assay.finding import (
    Alarm,
    Bars,
    Beside,
    Boxes,
    Curve,
    Exhibit,
    Finding,
    Gallery,
    Histogram,
    Line,
    Matrix,
    Measure,
    Panel,
    Scatter,
    Table,
    View,
)
from assay.probe import Answer
from assay.standard import Standard, judge

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
HOSTILE = (
    """</title><script>alert('x')</script><img src=x onerror="alert(1)"> ' " & {{ 7*7 }} \x00\x1b\u202e\u2066\u200f """
    """]]> --> $x_1$ | `rm`"""
)


def described(**changed: Any) -> Described:
    return dataclasses.replace(
        Described(
            name="small CNN on Fashion-MNIST",
            about="A convolutional network of four layers, trained on 10,000 grey "
            "pictures of clothes. It ships with Assay so that there is something to test at once.",
            task="Classification",
            classes=CLASSES,
            shape=(1, 28, 28),
            low=0.0,
            high=1.0,
            parameters=206_922,
            splits={"train": 10_000, "test": 2000},
            data={"train": "aa11", "test": "bb22"},
            draws=1,
            differentiable=True,
            origin=(),
            fingerprint="5f2c9f0e7d3b41aa9c06d1e2f3a4b5c6",
        ),
        **changed,
    )


def answered(
    probe: str,
    question: str,
    finding: Finding,
    *standards: Standard,
    seconds: float = 3.2,
    source: str = "Somebody et al., 2018, arXiv:1706.06083, sec. 2.1",
    **settings: Any,
) -> Judged:
    answer = Answer(
        probe=probe,
        question=question,
        source=source,
        settings=settings,
        key="00ff",
        status="asked",
        finding=finding,
        seconds=seconds,
        when="2025-05-02T14:03:11+00:00",
    )
    return Judged(answer=answer, judgements=tuple(judge(s, finding) for s in standards))


def unanswered(probe: str, question: str, status: Any, why: str) -> Judged:
    return Judged(
        judgements=(),
        answer=Answer(
            probe=probe,
            question=question,
            source="Somebody et al., 2019",
            settings={},
            key="00ff",
            status=status,
            why=why,
            when="2025-05-02T14:03:11+00:00",
        ),
    )


def of(*rows: Judged, subject: Described | None = None, **changed: Any) -> Audit:
    return dataclasses.replace(
        Audit(
            subject=subject or described(),
            rows=rows,
            seed=0,
            device="cpu",
            alarms=(),
            when="2025-05-02T14:05:00+00:00",
            budget={"name": "quick", "samples": 500, "steps": 20, "restarts": 1, "shown": 8},
            environment={
                "python": "3.11.9",
                "system": "Linux x86_64",
                "cores": "2",
                "assay": "0.1.0",
                "torch": "2.6.0",
                "numpy": "2.0.0",
            },
            source=("my models/subject.py:build",),
        ),
        **changed,
    )


def pictures(n: int) -> np.ndarray:  # n 28 28
    with (files("assay.data") / "bundled" / "fashion.npz").open("rb") as file, np.load(file) as npz:
        return npz["x_test"][:n] / 255.0


def broken(n: int, rng: np.random.Generator) -> Gallery:
    exhibits = []
    for i, x in enumerate(pictures(n)):
        changed = np.clip(x + rng.choice([-0.1, 0.1], x.shape), 0, 1)
        exhibits.append(
            Exhibit(
                index=37 * i,
                caption=f"{CLASSES[i % 10]}, then {CLASSES[(i + 3) % 10]} (confidence 0.{90 - i})",
                panels=(
                    Panel.of("clean", f"clean picture of a {CLASSES[i % 10]}", x[None]),
                    Panel.of("changed", "the same, changed", changed[None]),
                    Panel.of("difference", "what was added", (changed - x)[None], low=-0.1, high=0.1),
                ),
            )
        )
    return Gallery(
        name="broken",
        title="Inputs that broke the model",
        exhibits=tuple(exhibits),
        says="Eight of the 287 that broke within the radius, those with the highest confidence first.",
    )


@pytest.fixture(scope="session")
def realistic() -> Audit:
    """Four questions that were answered, pass, fail, cannot tell and without a standard, and two that were not."""
    rng = np.random.default_rng(0)
    n, index = 500, np.arange(0, 2000, 4)
    hit = rng.random(n) < 0.912
    confusion = tuple(
        tuple(float(c) for c in row)
        for row in (np.eye(10) * 44 + (rng.random((10, 10)) < 0.3) * rng.integers(0, 5, (10, 10)))
    )
    accuracy = Finding(
        says="The model is right on 91 of 100 inputs; it confuses shirts with T-shirts most.",
        measures=(
            Measure.proportion(
                "accuracy",
                hit,
                better="higher",
                column="hit",
                about="share of inputs answered right",
                beside=(Beside("always the most frequent class", 0.1),),
            ),
            Measure.proportion(
                "worst class accuracy", hit[:50] & (np.arange(50) % 4 > 0), better="higher", about="Shirt"
            ),
            Measure.mean(
                "log loss",
                rng.exponential(0.28, n),
                better="lower",
                seed=0,
                unit="nats",
                column="loss",
                beside=(Beside("uniform guessing", 2.3026),),
            ),
        ),
        samples=Table("test", {"index": index, "hit": hit, "loss": rng.exponential(0.28, n)}),
        views=(
            Bars(
                name="per-class",
                title="Accuracy per class",
                y_label="accuracy",
                labels=CLASSES,
                unit_y=True,
                values=tuple(np.linspace(0.72, 0.99, 10)),
                low=tuple(np.linspace(0.58, 0.9, 10)),
                high=tuple(np.linspace(0.84, 1.0, 10)),
                marks=(Beside("all classes", 0.912), Beside("guessing", 0.1)),
                says="Bars are 95 % intervals.",
            ),
            Matrix(
                name="confusion",
                title="Confusion",
                row_label="truth",
                column_label="answer",
                rows=CLASSES,
                columns=CLASSES,
                values=confusion,
                says="Rows are the truth, columns what the model said.",
            ),
        ),
    )
    radii = tuple(np.linspace(0, 0.06, 9))
    falls = tuple(0.91 * np.exp(-40 * np.array(radii)))
    worst = Finding(
        says="Changes of at most 8/255 per pixel, too small to see, turn 57 of 100 right answers wrong.",
        measures=(
            Measure.proportion(
                "worst-case accuracy",
                np.arange(n) % 100 < 34,
                better="higher",
                column="held",
                beside=(Beside("clean", 0.912),),
            ),
            Measure(name="median radius", value=0.0213, low=0.0201, high=0.0231, n=n, better="higher"),
        ),
        alarms=(
            Alarm(
                "The loss of 12 of 500 inputs has no gradient at the start: the attack may be blind there.",
                doubts=("worst-case accuracy",),
            ),
        ),
        samples=Table("test", {"index": index, "held": np.arange(n) % 100 < 34}),
        views=(
            Curve(
                name="radii",
                title="Accuracy against the size of the change",
                x_label="radius (largest change of a pixel)",
                y_label="accuracy",
                unit_y=True,
                marks=(Beside("8/255, asked about", 8 / 255),),
                lines=(
                    Line(
                        label="cross-entropy",
                        x=radii,
                        y=falls,
                        low=tuple(np.array(falls) * 0.93),
                        high=tuple(np.array(falls) * 1.06),
                    ),
                    Line(label="margin", x=radii, y=tuple(np.array(falls) * 0.85)),
                ),
            ),
            broken(8, rng),
        ),
    )
    confidence = Finding(
        says="When it says 90 % it is right in 84 of 100 cases; the gap is near what the limit allows.",
        measures=(
            Measure(
                name="expected calibration error",
                value=0.0472,
                low=0.0331,
                high=0.0651,
                n=n,
                better="lower",
                unit="%",
                beside=(Beside("a perfectly calibrated model at n = 500", 0.0214),),
            ),
            Measure.mean("Brier score", rng.random(n) * 0.3, better="lower", seed=0),
        ),
        views=(
            Curve(
                name="reliability",
                title="Reliability",
                x_label="confidence",
                y_label="share right",
                unit_y=True,
                diagonal=True,
                lines=(
                    Line(
                        label="the model",
                        x=(0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.97),
                        y=(0.31, 0.36, 0.5, 0.55, 0.66, 0.8, 0.95),
                        low=(0.1, 0.2, 0.36, 0.42, 0.55, 0.71, 0.92),
                        high=(0.6, 0.55, 0.65, 0.68, 0.76, 0.87, 0.97),
                    ),
                ),
            ),
            Histogram(
                name="confidence",
                title="How sure it is",
                x_label="confidence",
                edges=tuple(np.linspace(0, 1, 11)),
                counts=(
                    ("right", (0.0, 0.0, 1.0, 3.0, 8.0, 13.0, 20.0, 32.0, 60.0, 319.0)),
                    ("wrong", (0.0, 0.0, 2.0, 4.0, 7.0, 9.0, 8.0, 6.0, 5.0, 3.0)),
                ),
            ),
        ),
    )
    everyday = Finding(
        says="Noise costs most: at severity 3 of 5 the model is right on 61 of 100.",
        measures=(
            Measure.mean("mean corruption error", rng.random(n) * 0.6, better="lower", seed=0, unit="%"),
            Measure(name="relative robustness", value=None, better="higher"),
        ),
        alarms=(Alarm("Relative robustness was not measured: it needs a reference model."),),
        views=(
            Curve(
                name="severity",
                title="Accuracy against severity",
                x_label="severity",
                y_label="accuracy",
                unit_y=True,
                lines=tuple(
                    Line(label=name, x=(1, 2, 3, 4, 5), y=tuple(0.9 - 0.03 * (k % 5) - 0.01 * k * np.arange(5)))
                    for k, name in enumerate(
                        (
                            "Gaussian noise",
                            "blur",
                            "contrast",
                            "fog",
                            "pixelate",
                            "JPEG",
                            "rotation",
                            "translation",
                            "occlusion",
                        )
                    )
                ),
            ),
        ),
    )
    return of(
        answered(
            "accuracy",
            "How often is the model right?",
            accuracy,
            Standard(at_least=0.85),
            Standard(measure="worst class accuracy", at_least=0.5),
            bins=15,
        ),
        answered("confidence", "Is its confidence worth what it says?", confidence, Standard(at_most=0.05), bins=15),
        answered(
            "worst-case-accuracy",
            "How many inputs survive an attacker who sees gradients?",
            worst,
            Standard(at_least=0.4),
            seconds=83.0,
            norm="linf",
            radius=8 / 255,
            radii=(0.01, 0.02),
            targeted=False,
            stop=None,
        ),
        answered("everyday-change", "What do everyday changes cost?", everyday),
        unanswered(
            "leaked-data",
            "Has the test data leaked into training?",
            "does not apply",
            "it needs the training data, and the subject has only ['test']",
        ),
        unanswered("certified", "What can be proved?", "failed", "RuntimeError: out of memory; --debug shows where"),
        alarms=(Alarm("The model answers differently each time it is asked the same; give draws=n."),),
    )


@pytest.fixture(scope="session")
def hostile() -> Audit:
    """Every text that a user, a data set or a third party's probe can set is an attack on the page."""
    x = HOSTILE
    views: tuple[View, ...] = (
        Curve(
            name=x,
            title=x,
            x_label=x,
            y_label=x,
            says=x,
            marks=(Beside(x, 0.5),),
            lines=(Line(label=x, x=(0, 1), y=(0, 1)), Line(label="_" + x, x=(0, 1), y=(1, 0))),
        ),
        Scatter(name="s", title=x, x_label=x, y_label=x, says=x, lines=(Line(label=x, x=(0, 1), y=(0, 1)),) * 2),
        Bars(name="b", title=x, y_label=x, labels=(x, "b"), values=(0.1, 0.2), says=x, marks=(Beside(x, 0.1),)),
        Boxes(
            name="o",
            title=x,
            x_label=x,
            y_label=x,
            labels=(x, "b"),
            values=((1, 2, 5), (3,)),
            says=x,
            marks=(Beside(x, 2),),
        ),
        Histogram(name="h", title=x, x_label=x, edges=(0, 1, 2), counts=((x, (1, 2)), ("_", (2, 1))), says=x),
        Matrix(
            name="m",
            title=x,
            row_label=x,
            column_label=x,
            rows=(x, "b"),
            columns=(x, "b"),
            values=((1, None), (0.5, -2)),
            says=x,
        ),
        Gallery(
            name="g",
            title=x,
            says=x,
            exhibits=(Exhibit(index=3, caption=x, panels=(Panel.of(x, x, np.zeros((3, 8, 8))),)),),
        ),
    )
    finding = Finding(
        says=x,
        views=views,
        alarms=(Alarm(x, doubts=(x,)),),
        measures=(
            Measure(
                name=x, value=0.5, low=0.4, high=0.6, n=9, better="higher", unit=x, about=x, beside=(Beside(x, 1),)
            ),
            Measure(name="blank", value=None, better="neither"),
        ),
    )
    row = answered(x, x, finding, Standard(at_least=0.1), Standard(measure="blank", at_most=1), source=x, **{"key": x})
    return of(
        row,
        unanswered("no", x, "does not apply", x),
        unanswered("broke", x, "failed", x),
        subject=described(
            name=x, about=x, classes=(x, x), origin=(x,), fingerprint=x, splits={x: 3}, data={x: x}, task=x
        ),
        alarms=(Alarm(x, (x,)),),
        environment={x: x, "assay": x},
        source=(x,),
        device=x,
        when=x,
        budget={"name": x, "samples": None, "steps": 1, "restarts": 2},
    )


@pytest.fixture(scope="session")
def small(realistic: Audit) -> Audit:
    """Little to draw, for tests that are about something else: one curve and one gallery."""
    rows = []
    for row in realistic.rows:
        finding = row.answer.finding
        if finding is not None:
            keep = tuple(v for v in finding.views if v.name in ("radii", "broken"))
            finding = dataclasses.replace(finding, views=keep)
        rows.append(dataclasses.replace(row, answer=dataclasses.replace(row.answer, finding=finding)))
    return dataclasses.replace(realistic, rows=tuple(rows))


@pytest.fixture(scope="session")
def rendered(realistic: Audit, hostile: Audit) -> dict[str, str]:
    """The pages that several tests look at, made once."""
    from assay.jobs.compare import page as compared
    from assay.report.page import render

    return {
        "realistic": render(realistic),
        "hostile": render(hostile),
        "comparison": compared(realistic, realistic),
        "hostile comparison": compared(hostile, hostile),
    }


@pytest.fixture(scope="session")
def build() -> SimpleNamespace:
    """The hands that make audits, for tests that want one of their own."""
    return SimpleNamespace(audit=of, answered=answered, unanswered=unanswered, described=described, hostile=HOSTILE)


LAUNCHED = ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """One browser serves the tests of this folder that follow each other, and no other test runs beside it."""
    yield
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        tab.cache_clear()
        launched.cache_clear()
        LAUNCHED.close()


@cache
def launched():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name)))
    if (chromium := next(found, None)) is None:
        pytest.skip("no chromium on this machine")
    play = LAUNCHED.enter_context(playwright.sync_playwright())
    browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
    LAUNCHED.callback(browser.close)
    return browser


@cache
def tab():
    """One page for all visits: a context of its own costs a second or two, and a visit loads all anew anyway."""
    return launched().new_page()


@pytest.fixture
def visit():
    """Opens a page from disk and, at the end, insists that it was quiet and asked for nothing but itself.

    Another visit takes the page of the one before it, except where the context must be another.
    """
    heard, asked, visited, leave = [], [], set(), ExitStack()
    hear = {
        "console": lambda message: heard.append(message.text),
        "pageerror": lambda error: heard.append(str(error)),
        "dialog": lambda dialog: (heard.append(f"dialog {dialog.message}"), dialog.dismiss()),
        "request": lambda request: asked.append(request.url),
    }

    def go(path, viewport=None, color_scheme="light", **context):
        page = leave.enter_context(launched().new_context(**context)).new_page() if context else tab()
        for event, handler in hear.items():
            page.on(event, handler)
            leave.callback(page.remove_listener, event, handler)
        page.set_viewport_size(viewport or {"width": 1280, "height": 720})
        page.emulate_media(media="screen", color_scheme=color_scheme)
        visited.add(path.as_uri())
        page.goto(path.as_uri())
        return page

    with leave:
        yield go
    assert heard == []
    assert {url for url in asked if not url.startswith("data:")} <= visited
