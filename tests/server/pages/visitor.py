"""Who visits the pages in tests, and what stands for the command line and for what it leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

    from assay.server.book import Job

UNDERSTOOD = {"lines": [["model", "a small <net>"], ["task", "Classification of 2"], ["next", "assay audit"]],
              "doubts": ["it answers at random"]}  # fmt: skip


class Said:
    """Stands for the command line: keeps what it was asked, and says what it was told to."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.status, self.out, self.err = 0, json.dumps(UNDERSTOOD), ""

    def __call__(self, words: Sequence[str], folder: Path, seconds: float) -> tuple[int, str, str]:
        self.asked.append(list(words))
        return self.status, self.out, self.err


class Browser:
    """A client with the cookies of one visitor, whose forms carry the token of the page that they came from."""

    def __init__(self, app: Any) -> None:
        from fastapi.testclient import TestClient

        self.client: TestClient = TestClient(app, follow_redirects=False, raise_server_exceptions=False)

    def get(self, address: str, **how: Any) -> Any:
        return self.client.get(address, **how)

    def token(self) -> str:
        from assay.server.safety import COOKIE

        if COOKIE not in self.client.cookies:
            self.client.get("/help")
        return str(self.client.app.state.desk.seal.of("form", self.client.cookies[COOKIE]))  # type: ignore[attr-defined]

    def post(self, address: str, _files: Any = None, **fields: Any) -> Any:
        return self.client.post(address, data={"csrf": self.token(), **fields}, files=_files)

    def sign_in(self, name: str, password: str = "correct horse") -> Any:
        return self.post("/sign-in", name=name, password=password)


def leave_run(job: Job, *, ended: bool = True, hostile: str = "<script>alert(1)</script>") -> Path:
    """What an audit leaves of two questions; of one that still runs, of the first alone."""
    run = job.folder / "run" / "20260301-120000-net"
    (run / "findings").mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text(json.dumps({"key": "00", "probes": ["accuracy", "confidence"]}))
    row = {"probe": "accuracy", "question": "How often is it right?", "status": "asked"}
    (run / "findings" / "accuracy.json").write_text(json.dumps({**row, "finding": {"says": "It is <b>right</b>."}}))
    if ended:
        rows = [
            {**row, "verdict": "pass", "says": "It is <b>right</b>."},
            {"probe": "confidence", "question": "Is it sure?", "status": "asked", "verdict": "fail", "says": "No."},
        ]
        (run / "audit.json").write_text(json.dumps({"rows": rows}))  # fmt: skip
        (run / "report.html").write_text(f"<!doctype html><title>report</title><h1>The report</h1>{hostile}")
    return run


def nothing_serious(page: Any) -> None:
    """Nor anything wider than the window."""
    import pytest

    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(page).response["violations"]
    serious = [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")]
    assert not serious, serious
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
