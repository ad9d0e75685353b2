"""A training script as it runs on another host. It tells on standard output what it does, for the test to disturb it."""

import asyncio
import os
import sys

import art
from art.logs.parquet import read_trajectory_groups_parquet

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def rollout(model: art.TrainableModel, number: int) -> art.Trajectory:
    async with model.rollout() as run:
        trajectory = run.trajectory(reward=number / 4)
        messages: list = [{"role": "user", "content": "Say something."}]
        answer = await run.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=messages, max_tokens=8, temperature=1.0
        )
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}
        page = {"role": "tool", "tool_call_id": "c", "content": f"{number}" + "ä" * 2_500_000}
        trajectory.messages_and_choices = [*messages, answer.choices[0], image, page]
        return trajectory


async def use_the_rest(backend: art.RemoteBackend, model: art.TrainableModel, base_model: str) -> None:
    """What a script does beside training: streams, earlier versions, conversations, forks, deletions."""
    async with model.rollout(step=1) as run, run.trajectory() as trajectory:
        stream = await run.openai_client().chat.completions.create(
            model=model.get_inference_name(1),
            messages=[{"role": "user", "content": "Hi."}],
            max_tokens=4,
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
        await run.fill(trajectory)
    twin: art.TrainableModel = art.TrainableModel(
        name="twin", project="remote", base_model=base_model, report_metrics=[]
    )
    await backend._experimental_fork_checkpoint(twin, "far")
    await model.delete_checkpoints()
    kept = [checkpoint.step for checkpoint in await backend.list_checkpoints(model)]
    forked = (await backend.delete_model("remote", "twin")).step
    print("also", bool(chunks), len(trajectory.messages_and_choices), "twin", forked, "kept", kept, flush=True)


async def main(url: str, directory: str, base_model: str) -> None:
    model: art.TrainableModel = art.TrainableModel(
        name="far", project="remote", base_model=base_model, base_path=directory, report_metrics=[]
    )
    async with art.RemoteBackend(url, os.environ["KEY"], reconnect_s=120) as backend:
        await model.register(backend)
        for step in (1, 2):
            groups = await art.gather_trajectory_groups(
                [art.TrajectoryGroup(rollout(model, n) for n in range(4))], pbar_desc=None
            )
            print("training", step, flush=True)
            # The second step is long, so that a service killed in a moment dies in the midst of it.
            result = await backend.train(model, groups, learning_rate=1e-4, epochs=1 if step == 1 else 40)
            await model.log(groups, split="train", metrics=result.metrics, step=result.step)
            print("trained", result.step, flush=True)
            (logged,) = read_trajectory_groups_parquet(
                f"{directory}/remote/models/far/trajectories/train/{step:04d}.parquet"
            )
            last = logged.trajectories[3].messages_and_choices
            assert last[-1]["content"] == "3" + "ä" * 2_500_000
            assert PIXEL in last[-2]["content"]
        too_long: list = [{"role": "user", "content": "x" * 5_000_000}]
        answer = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=too_long
        )
        print("too long:", answer.choices[0].finish_reason, repr(answer.choices[0].message.content), flush=True)
        await use_the_rest(backend, model, base_model)
        rows = await backend.get_metrics("remote", "far")
        print("rows", len(rows), "step", await model.get_step(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
