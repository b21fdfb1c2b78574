"""Write the pages that are made from the registries: docs/methods.md and docs/claims.md.

python tools/make_docs.py            write them
python tools/make_docs.py --check    end with 1 if they are not what would be written
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from assay import shelf
from assay.jobs.claims import page_markdown

ROOT = Path(__file__).parents[1]


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def paragraph(docstring: str, opening: str) -> str:
    """The paragraph of a docstring that opens with a word such as 'Source:', without that word."""
    lines = docstring.splitlines()
    for i, line in enumerate(lines):
        if line.strip().startswith(opening):
            taken = [line.strip().removeprefix(opening)]
            for more in lines[i + 1 :]:
                if not more.strip() or more.strip().split()[0].endswith(":"):
                    break
                taken.append(more.strip())
            return " ".join(taken).strip()
    return ""


def methods() -> list[tuple[str, ...]]:
    """One row per public function of a method's file: what it does, its source, and whether it departs from print."""
    rows = []
    for path in sorted((ROOT / "src/assay/methods").rglob("*.py")):
        if path.name == "__init__.py":
            continue
        module = ast.parse(path.read_text(encoding="utf-8"))
        whole = ast.get_docstring(module) or ""
        for node in module.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            own = ast.get_docstring(node) or ""
            source = paragraph(own, "Source:") or paragraph(own, "Sources:")
            if own and source:
                departs = "yes" if "Departs from print" in own else "no"
                rows.append((f"`{path.parent.name}.{node.name}`", own.splitlines()[0], source, departs))
        if whole and (source := paragraph(whole, "Source:") or paragraph(whole, "Sources:")):
            departs = "yes" if "Departs from print" in whole else "no"
            rows.append((f"`{path.parent.name}/{path.name}`", whole.splitlines()[0], source, departs))
    return rows


def methods_page() -> str:
    probes = [(f"`{n}`", (p := shelf.load("probes", n)).question(), p.source) for n in shelf.names("probes")]
    remedies = [(f"`{n}`", (r := shelf.load("remedies", n)).promise(), r.source) for n in shelf.names("remedies")]
    subjects = [(f"`{n}`", (s := shelf.load("subjects", n)).says, s.source) for n in shelf.names("subjects")]
    return "\n\n".join([
        "# What there is",
        "Made by `make docs` from the registries and the docstrings; do not edit.",
        "## Probes: questions to ask", table(("name", "question", "source"), probes),
        "## Remedies: what to do about it", table(("name", "what it does", "source"), remedies),
        "## Subjects that come along", table(("name", "what it is", "source"), subjects),
        "## Methods", table(("name", "what it does", "source", "departs from print"), methods()),
    ]) + "\n"  # fmt: skip


def main() -> None:
    pages = {"docs/methods.md": methods_page(), "docs/claims.md": page_markdown()}
    stale = [name for name, text in pages.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    if "--check" in sys.argv:
        sys.exit(f"{', '.join(stale)} would change; run `make docs`" if stale else 0)
    for name in stale:
        (ROOT / name).write_text(pages[name], encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
