"""The import contract, and what must stay light."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_imports_point_down():
    tool = Path(sys.executable).with_name("lint-imports")
    if not tool.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run([str(tool), "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "module", ["assay", "assay.cli", "assay.pytest_plugin", "assay.store", "assay.report", "assay.jobs.audit.guarded"]
)
def test_nothing_heavy_is_imported_before_it_is_needed(module):
    heavy = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "pyarrow", "jinja2", "onnxruntime")
    code = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_takes_half_a_second_to_load_is_loaded_where_it_is_used():
    """`assay check` loads every question and asks none."""
    slow = re.compile(r"^(?:from|import) (?:scipy\.(?:stats|optimize|spatial)|sklearn|torch\._dynamo)", re.M)
    rooms = [path for room in ("probes", "methods") for path in (ROOT / "src/assay" / room).rglob("*.py")]
    assert len(rooms) > 100
    assert [str(path.relative_to(ROOT)) for path in rooms if slow.search(path.read_text())] == []
