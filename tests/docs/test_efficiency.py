"""What docs/efficiency.md shows is what runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PAGE = (Path(__file__).parents[2] / "docs/efficiency.md").read_text()


def test_the_script_runs(tmp_path, tiny_model_path):
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "script.py").write_text(script.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(tiny_model_path)))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "8 in 2 groups, 0 failed" in done.stdout
    history = (tmp_path / ".art/docs/models/guesser/history.jsonl").read_text()
    assert [int(step) for step in re.findall(r'"step": (\d+),', history)] == [1, 2, 3]
    told = set(re.findall(r"`((?:throughput|time|pipeline|offpolicy)/[a-z_0-9/]+)`", PAGE))
    missing = {name for name in told if f'"{name}"' not in history}
    assert missing <= {"offpolicy/staleness_"}, missing
