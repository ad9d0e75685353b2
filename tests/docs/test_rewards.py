"""What docs/rewards.md shows is what runs."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/rewards.md").read_text()


def test_the_judge_of_the_page_scores_its_group():
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[0.2, 0.9]\n", "")


def test_names_of_the_page_exist():
    from art.rewards import RewardModel, RewardReport

    for call in re.findall(r"RewardModel\.(\w+)|reward_model\.(\w+)", PAGE):
        name = call[0] or call[1]
        assert name in vars(RewardModel) or name == "report"
    assert "accuracy_low" in RewardReport.model_fields
