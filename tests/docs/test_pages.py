"""On every page, code fences are closed, and the Python that it shows fits the signatures that it calls."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "examples").rglob("*.md"))]
REFERENCE = ROOT / "docs/reference"
"""Signatures, under headings, are no Python; examples are run by tests/docs/test_examples.py, and use names that they leave out."""

GIVEN = """\
import art

model = art.TrainableModel(name="m", project="p", base_model="b")
backend = art.LocalBackend()
groups: list[art.TrajectoryGroup] = []
"""
"""What a page may use without making it."""

RULES = {"reportCallIssue", "reportUndefinedVariable"}
"""What pyright calls an argument that no parameter takes, or a parameter without one, and a name that nothing defines."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_fences_are_closed(page):
    opened = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if fence := re.match(r" *```+", line):
            assert opened is None or line.strip() == fence[0].strip(), f"line {opened}: not closed before line {number}"
            opened = number if opened is None else None
    assert opened is None, f"line {opened}: never closed"


def test_python_fits_the_signatures_that_it_calls(tmp_path):
    for page in [ROOT / "README.md", *DOCS]:
        write_modules(page, tmp_path / "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_"))
    settings = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "off", **dict.fromkeys(RULES, "error")}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > len(list(tmp_path.iterdir()))
    wrong = [
        f"{Path(found['file']).relative_to(tmp_path)}: {found['message']}"
        for found in report["generalDiagnostics"]
        if found.get("rule") in RULES - ({"reportUndefinedVariable"} if "docs_reference" in found["file"] else set())
    ]
    assert wrong == []


def write_modules(page: Path, directory: Path) -> None:
    """Write the Python of a page: a block that names its file in the first line there, the others one after the other."""
    directory.mkdir()
    (directory / "given.py").write_text(GIVEN)
    text = ["from .given import art, backend, groups, model\n"]
    for block in re.findall(r"(?<!`\n\n)```python\n(.*?)```", page.read_text(), re.DOTALL):
        ast.parse(block, str(page))
        if named := re.match(r"# (\S+\.py)\n", block):
            file = directory / named[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(block)
        else:
            text.append(block)
    (directory / "page.py").write_text("\n".join(text))
