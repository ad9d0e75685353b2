"""The notebook runs from its first cell to its last, here with a tiny model and few games."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_the_notebook_runs(tmp_path, tiny_model_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    notebook = nbformat.read(ROOT / "examples/game_2048/notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    assert re.findall(r"^[A-Z_, ]+(?= =)", parameters.source, re.MULTILINE) == [
        "BASE_MODEL",
        "STEPS, GROUPS, GROUP_SIZE, EPISODES",
    ]
    parameters.source = f"BASE_MODEL = {str(tiny_model_path)!r}\nSTEPS, GROUPS, GROUP_SIZE, EPISODES = 2, 2, 3, 4"
    client = NotebookClient(
        notebook, timeout=350, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    await client.async_execute()
    text = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert re.findall(r"^step (\d): reward", text, re.MULTILINE) == ["1", "2"]
    assert "better by" in text
    assert (tmp_path / ".art/2048/models/notebook/checkpoints").is_dir()
