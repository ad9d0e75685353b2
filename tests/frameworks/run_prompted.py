"""Runs in a framework's own interpreter: one rollout of ``weather_agent`` of the ``agent.py`` in the working directory, by a model that
is not trained. Prints what its trajectory holds as the last line, in JSON.
"""

import asyncio
import json
import sys
from importlib import import_module

import art
from art.langgraph import wrap_rollout


async def main(url: str, api_key: str) -> None:
    sys.path.insert(0, ".")
    agent = import_module("agent")
    model = art.Model(name="m", project="p", inference_base_url=url, inference_api_key=api_key)
    trajectory = await wrap_rollout(model, agent.weather_agent)("Zürich")
    print(json.dumps({"reward": trajectory.reward, "messages": trajectory.messages(), "tools": trajectory.tools}))


asyncio.run(main(*sys.argv[1:]))
