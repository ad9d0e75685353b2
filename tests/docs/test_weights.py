"""What docs/weights.md shows is what runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.long

PAGE = (Path(__file__).parents[2] / "docs" / "weights.md").read_text()


def test_the_script_and_the_commands_of_the_page_run(tmp_path, tiny_model_path):
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (commands,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "script.py").write_text(script.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(tiny_model_path)))
    (lesson,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "lessons.jsonl").write_text(lesson * 8)
    assert run(tmp_path, [sys.executable, "script.py"]) == "recomputed: 7 tokens\npupil begins at step 3\n"
    for command in commands.splitlines():
        program, *arguments = command.partition("#")[0].split()
        assert program == "art"
        run(tmp_path, [sys.executable, "-c", "from art.cli import main; main()", *arguments])
    for folder in ("exported-adapter", "exported-model"):
        AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        AutoTokenizer.from_pretrained(tmp_path / folder)


def run(directory: Path, command: list[str]) -> str:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=170, check=False, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
