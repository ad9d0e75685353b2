"""The frontend with the oldest versions that pyproject.toml allows: recording, scopes and the client of the service."""

import os
import re
import subprocess
import tomllib

import pytest
from tests.frameworks.pages import MADE, ROOT

REQUIREMENTS = (ROOT / "tests/frameworks/requirements/oldest.txt").read_text()


def test_the_oldest_are_those_that_are_allowed():
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = dict(re.match(r"([\w-]+)>=([\d.]+)", one).groups() for one in allowed)
    tested = dict(line.split("==") for line in REQUIREMENTS.splitlines() if "==" in line)
    short = {name: re.sub(r"(\.0)+$", "", version) for name, version in tested.items()}
    assert {name: short[name] for name in bounds} == bounds


@pytest.mark.parametrize("tests", ["test_capture", "test_exchanges", "test_scopes", "test_remote", "test_signatures"])
def test_they_work(tests):
    command = [MADE / "oldest/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--confcutdir", "tests/art"]
    # the one test left out reads a log through a fixture that stands beside the models of other tests
    command += ["-o", "addopts=", "-k", "not is_kept_and_told", f"tests/art/{tests}.py"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d+ passed", done.stdout)
