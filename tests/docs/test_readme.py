"""What the README shows is what runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.long
def test_the_script_of_the_readme_runs_and_resumes(tmp_path, tiny_model_path):
    (script,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    script = script.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(tiny_model_path))
    (tmp_path / "script.py").write_text(script)
    assert _run(tmp_path) == ["1", "2", "3", "4"]
    assert len(list((tmp_path / ".art/readme/models/guesser/checkpoints").iterdir())) == 4
    assert _run(tmp_path) == [], "four steps are done, so there is nothing left to do"


def _run(directory: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=directory, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    return re.findall(r"^step (\d+): reward ", done.stdout, re.MULTILINE)


def test_links_and_make_targets_exist():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text()
    for command in re.findall(r"^make ([a-z-]+)", README, re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), command
    for module in re.findall(r"^python -m (benchmarks\.\w+)", README, re.MULTILINE):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
