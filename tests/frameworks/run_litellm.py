"""Runs where a litellm is installed: two rollouts through the model's own endpoint, and a step of training on what they kept.

The first trajectory keeps choices as ``convert_litellm_choice_to_openai`` gives them, the second as litellm does, the third after
a trip through JSON. Prints what was sampled and trained as the last line, in JSON.
"""

import asyncio
import json
import sys

import litellm

import art
from art.utils.litellm import convert_litellm_choice_to_openai

KEPT = {
    "converted": convert_litellm_choice_to_openai,
    "as it came": lambda choice: choice,
    "JSON": lambda choice: json.loads(choice.model_dump_json()),
}


async def main(url: str, api_key: str, base_model: str, provider: str) -> None:
    backend = art.RemoteBackend(url, api_key)
    model = art.TrainableModel(name="m", project="p", base_model=base_model, base_path="logs")
    await model.register(backend)
    sampled = 0

    async def rollout(kept: str, reward: float) -> art.Trajectory:
        nonlocal sampled
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "Hi."}], reward=reward)
        for _ in range(2):
            arguments = model.litellm_completion_params()
            arguments["model"] = arguments["model"].replace("hosted_vllm/", provider)
            answer = await litellm.acompletion(**arguments, messages=trajectory.messages(), max_tokens=8)
            sampled += answer.usage.completion_tokens
            trajectory.messages_and_choices.append(KEPT[kept](answer.choices[0]))
            trajectory.messages_and_choices.append({"role": "user", "content": "More."})
        return trajectory

    group = await art.TrajectoryGroup([rollout(kept, reward=i) for i, kept in enumerate(KEPT)])
    roles = [[message["role"] for message in trajectory.messages()] for trajectory in group]
    result = await backend.train(model, [group], learning_rate=1e-3)
    print(json.dumps({"step": result.step, "sampled": sampled, "roles": roles, "metrics": result.metrics}))


asyncio.run(main(*sys.argv[1:]))
