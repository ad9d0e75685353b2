"""Runs in a framework's own interpreter: two rollouts at once of the ``agent.py`` in the working directory.

Prints their trajectories as the last line, in JSON.
"""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

import art


async def main(url: str, api_key: str, base_model: str) -> None:
    spec = importlib.util.spec_from_file_location("agent", Path("agent.py"))
    assert spec is not None
    assert spec.loader is not None
    agent = importlib.util.module_from_spec(spec)
    sys.modules["agent"] = agent
    spec.loader.exec_module(agent)
    model = art.TrainableModel(name="m", project="p", base_model=base_model)
    await model.register(art.RemoteBackend(url, api_key))
    group = await art.TrajectoryGroup([agent.rollout(model, "Zürich") for _ in range(2)])
    for error in group.exceptions:
        print(error.traceback, file=sys.stderr)
    runs = [{"trajectory": t.model_dump(mode="json"), "messages": t.for_logging()["messages"]} for t in group]
    print(json.dumps(runs, default=str))


asyncio.run(main(*sys.argv[1:]))
