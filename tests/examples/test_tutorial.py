"""The tutorial, followed word for word: an example is copied into an empty folder, changed, trained and evaluated."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_copied_example_is_changed_and_trained(service, tmp_path, tiny_model_path):
    commands = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    install, copy, train, listing, reading, evaluate = (command.partition("  #")[0].rstrip() for command in commands)
    assert install.startswith("pip install")
    assert copy == "cp -r path/to/ART/examples/game_2048 my_agent"
    shutil.copytree(ROOT / "examples/game_2048", tmp_path / "my_agent", ignore=shutil.ignore_patterns("__pycache__"))
    snippets = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert len(snippets) == PAGE.count("```python\n") == 4
    for path, text in snippets:
        assert (tmp_path / path).exists(), "the tutorial replaces files of the example"
        (tmp_path / path).write_text(text)
    backend = f"--backend {service.read_ready()} --api-key {service.api_key}"
    few = f" --base-model {tiny_model_path} --steps 1 --episodes 5 --output run {backend}"
    told = [_run(command + few, tmp_path) for command in (train, evaluate)]
    assert "training from step 0 of 1" in told[0]
    assert "careful player" in told[1]
    art = "python -c 'from art.cli import main; main()'"
    shown = [
        _run(command.replace("art", art, 1).replace(" 12", " 1").replace("runs/examples", "run"), tmp_path)
        for command in (listing, reading)
    ]
    assert "said last" in shown[0]
    assert "rollout 3 of 64 (group 1)" in shown[1]
    assert "system\n  Come close to 12, not over it. Reply with draw or stop.\n" in shown[1]
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert [player["name"] for player in results["players"]] == ["base model", "trained", "careful player"]
    assert (tmp_path / "run/reward.png").stat().st_size > 1000


def _run(command: str, directory: Path) -> str:
    python, *words = shlex.split(command)
    assert python == "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}  # the copy does not see the examples
    done = subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    for page in (ROOT / "examples").rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
