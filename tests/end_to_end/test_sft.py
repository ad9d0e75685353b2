"""Supervised fine-tuning and offline data through the whole product, on a tiny random model."""

import asyncio
import json
import random

import psutil
import pytest
from tests.support.waiting import until_held

import art
from art.errors import BackendError, BadRequestError, NoTrainingDataError
from art.utils.sft import train_sft_from_file

pytestmark = pytest.mark.long

QUESTION = {"role": "user", "content": "Which word?"}
ANSWER = "yes"


def lesson(answer=ANSWER):
    return art.Trajectory(messages_and_choices=[QUESTION, {"role": "assistant", "content": answer}])


def make_model(tiny_model_path):
    return art.TrainableModel(name="pupil", project="test", base_model=str(tiny_model_path))


async def ask(model):
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[QUESTION], max_tokens=len(ANSWER), temperature=0
    )
    return answer.choices[0].message.content


async def test_a_file_is_learned_and_served_and_the_run_may_be_killed_at_any_time(tmp_path, tiny_model_path):
    file = tmp_path / "lessons.jsonl"
    file.write_text("".join(json.dumps({"messages": lesson().messages()}) + "\n" for _ in range(120)))
    path = str(tmp_path / "art")
    backend = art.LocalBackend(path=path)
    model = make_model(tiny_model_path)
    await model.register(backend)
    await train_sft_from_file(model, file, batch_size=2, peak_lr=1e-2, warmup_ratio=0.1, final_step=20)
    assert await model.get_step() == 1

    task = asyncio.ensure_future(train_sft_from_file(model, file, epochs=20, batch_size=2, peak_lr=1e-2))
    health = await backend.get_health()
    service = psutil.Process(health.processes[0].pid).parent()
    await until_held(backend, task)
    service.kill()
    with pytest.raises(BackendError):
        await task
    await backend.close()

    async with art.LocalBackend(path=path) as again:
        model = make_model(tiny_model_path)
        await model.register(again)
        assert await model.get_step() == 1, "the call that was killed left nothing"
        await train_sft_from_file(model, file, batch_size=2, peak_lr=1e-2, initial_step=20)
        assert await model.get_step() == 2
        assert model.get_inference_name() == "pupil@2"
        assert await ask(model) == ANSWER
    rows = [json.loads(line) for line in (tmp_path / "art/test/models/pupil/history.jsonl").open()]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0]["loss/sft_first_batch"] > rows[1]["loss/sft_last_batch"]
    assert rows[1]["data/step_num_gradient_steps"] == 40
    assert rows[1]["loss/learning_rate"] == 0.0, "the schedule ends here"


async def test_offline_trajectories_are_trained_when_asked_for_and_bad_lessons_are_named(
    tmp_path, tiny_model_path, capsys
):
    async with art.LocalBackend(path=str(tmp_path / "art")) as backend:
        model = make_model(tiny_model_path)
        await model.register(backend)
        chance = random.Random(0)
        groups = [art.TrajectoryGroup([lesson(chance.choice("abc")) for _ in range(4)])]
        for reward, trajectory in enumerate(groups[0]):
            trajectory.reward = reward
        with pytest.raises(NoTrainingDataError, match="allow_training_without_logprobs"):
            await backend.train(model, groups)
        result = await backend.train(model, groups, learning_rate=1e-3, allow_training_without_logprobs=True)
        assert result.step == 1
        assert result.metrics["data/step_recomputed_tokens"] == result.metrics["data/step_trainer_tokens"] == 8
        assert "4 trajectories came without sampling log-probabilities" in capsys.readouterr().err

        with pytest.raises(NoTrainingDataError, match="Trajectory 1 has no message of the assistant"):
            await model.train_sft([lesson(), art.Trajectory(messages_and_choices=[QUESTION])])
        wrong = art.Trajectory(messages_and_choices=[{"role": "owl", "content": "hu"}, *lesson().messages()])
        with pytest.raises(BadRequestError, match=r"examples\.1\.conversations\.0: messages\.0\.role: must be one of"):
            await model.train_sft([lesson(), wrong])
        with pytest.raises(BadRequestError, match="Give one rate per batch"):
            await model.train_sft([lesson()], art.TrainSFTConfig(learning_rate=[1e-3, 1e-3]))
        with pytest.raises(TypeError, match="unknown options: warmup"):
            await model.train_sft([lesson()], None, {"warmup": 3})
        assert await model.get_step() == 1


async def test_what_was_sampled_here_is_learned_by_its_exact_tokens(tmp_path, tiny_model_path):
    """A random model says bytes that are no text, so spelling its words again would give other tokens."""
    async with art.LocalBackend(path=str(tmp_path / "art")) as backend:
        model = make_model(tiny_model_path)
        await model.register(backend)

        async def sample(client, **options):
            answer = await client.chat.completions.create(
                model=model.name, messages=[QUESTION], max_tokens=8, seed=3, **options
            )
            return answer.choices[0]

        async def sampled_ids(rollout_id, turn=None):
            nodes = (await backend.get_rollout(rollout_id)).nodes
            (ids,) = [node.token_ids for node in nodes if node.sampled and turn in (None, node.id)]
            return ids

        choice = await sample(model.openai_client(), temperature=1.0)
        assert "\ufffd" in choice.message.content
        reference = choice.model_extra["art"]
        said = art.Trajectory(messages_and_choices=[QUESTION, choice])
        async with model.rollout() as greedy:
            # nothing for reinforcement learning, but as good an example as any
            await sample(greedy.openai_client(), temperature=0.0)
        unlearnable = art.TrajectoryGroup([art.Trajectory(rollout_id=greedy.id, reward=1.0)])
        with pytest.raises(BadRequestError, match=r"groups\.0\.trajectories\.0: no token to train on.*temperature=0"):
            await backend.train(model, [unlearnable])

        lessons = [said, art.Trajectory(rollout_id=greedy.id)]
        metrics = (await backend.train_sft(model, lessons, art.TrainSFTConfig(learning_rate=0.0))).metrics
        assert metrics["data/step_trainer_tokens"] == 16, "8 ids each, however many their words would be spelled with"
        assert metrics["data/step_num_examples_trained"] == 2

        await model.train_sft([said] * 80, art.TrainSFTConfig(learning_rate=1e-2))
        async with model.rollout() as after:
            await sample(after.openai_client(), temperature=0.0)
        assert await sampled_ids(after.id) == await sampled_ids(reference["rollout"], reference["turn"])
