"""The reference is what the source says, and says something about every public name."""

import ast
import subprocess
import sys

from tests.docs.reference import ROOT, make_reference

import art

REFERENCE = ROOT / "docs/reference"


def test_the_reference_is_current():
    command = [sys.executable, str(ROOT / "docs/make_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_of_the_package_is_in_it():
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    # modules and aliases have no entry
    without = {"LocalTrainResult", "dev", "Messages", "MessagesAndChoices", "Tools"}
    missing = [name for name in art.__all__ if name not in without and f" `{name}" not in text]
    assert missing == []


def test_every_public_function_and_class_of_the_pages_is_documented():
    undocumented = [
        f"{module}.{node.name}"
        for _, modules in make_reference.PAGES.values()
        for module in modules
        for node in make_reference.documented(module)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not ast.get_docstring(node)
    ]
    assert undocumented == []
