"""``art.train`` on a real service: what overlaps, and what must come out the same."""

import asyncio
import itertools
import os
import sys
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file
from tests.support.rows import equal_rows
from tests.support.waiting import until

import art
from art_backend.models.compute import choose_device, choose_dtype

pytestmark = pytest.mark.asyncio(loop_scope="module")


def make_model(tiny_model_path, tmp_path, name="agent"):
    return art.TrainableModel(name=name, project="test", base_model=str(tiny_model_path), base_path=str(tmp_path))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tmp_path_factory):
    """One service for all tests here."""
    backend = art.LocalBackend(path=str(tmp_path_factory.mktemp("art")))
    yield backend
    await backend.close()


async def ask(model, rollout, messages, **options):
    answer = await rollout.openai_client().chat.completions.create(
        model=model.name, messages=messages, max_tokens=4, **options
    )
    messages += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "?"}]


async def test_environments_work_while_the_trainer_does_and_no_call_fails(
    backend, tiny_model_path, tmp_path, read_history
):
    """The first scenario's agents make their second call in the middle of the first step: it is held, then answered by the
    new version."""
    model = make_model(tiny_model_path, tmp_path)
    await model.register(backend)
    rollouts, members = {}, itertools.count()
    held, first_answers = asyncio.Event(), []

    async def rollout(model, scenario):
        member = next(members)
        if scenario > 3:  # these begin after the first step
            await held.wait()
        async with model.rollout() as run:
            rollouts.setdefault(scenario, []).append(run.id)
            messages = [{"role": "user", "content": f"{scenario}"}]
            await ask(model, run, messages)
            if scenario == 0:
                first_answers.append(member)
                while (await backend.get_health()).processes[0].state != "paused":
                    await asyncio.sleep(0.005)
                held.set()
            await until(lambda: len(first_answers) >= 2)
            await ask(model, run, messages)
            return run.trajectory(reward=float(member % 2))

    done = await art.train(
        model,
        rollout,
        range(6),
        groups_per_step=2,
        group_size=2,
        max_staleness=1,
        learning_rate=1e-3,
        rollout_timeout_s=60,
        show_progress=False,
    )
    rows = [row for row in read_history(model) if "train/reward" in row]
    assert (done.step, [row["step"] for row in rows]) == (3, [1, 2, 3])
    assert [row["train/exception_rate"] for row in rows] == [0, 0, 0]
    rows_held = [row for one in rollouts[0] for row in (await backend.get_rollout_rows(one)).rows]
    versions = [
        [v for v, sampled in zip(row.policy_versions, row.sampled, strict=True) if sampled] for row in rows_held
    ]
    assert all(set(found) == {0, 1} and found == sorted(found) for found in versions), versions
    for row in rows:
        shares = [row[f"throughput/engine_{part}_share"] for part in ("busy", "idle", "paused")]
        assert sum(shares) == pytest.approx(1)
        assert min(shares) > 0
        assert row["pipeline/staleness_max"] <= 1
        assert row["offpolicy/staleness_max"] <= 1
    assert rows[0]["pipeline/held_calls_mean"] > 0
    assert 0 < max(row.get("offpolicy/staleness_1_share", 0) for row in rows) < 1
    assert max(row["offpolicy/logprob_gap_row_max"] for row in rows if row["offpolicy/staleness_max"] == 0) < 0.03
    assert rows[-1]["time/cum/engine_busy_s"] == pytest.approx(sum(row["time/step_engine_busy_s"] for row in rows))


async def test_without_staleness_the_weights_are_those_of_the_explicit_form(backend, tiny_model_path, tmp_path):
    """Bit for bit, as the rollouts are seeded; nearly, where a row's log-probabilities depend on the rows beside it."""

    async def rollout(model, seed):
        async with model.rollout() as run:
            messages = [{"role": "user", "content": f"{seed}"}]
            await ask(model, run, messages, seed=seed)
            await ask(model, run, messages, seed=seed + 1)
            return run.trajectory(reward=float(len(messages[1]["content"])))

    async def member(model, scenario):
        """Members of a group differ in their seed, whichever begins first."""
        number = numbers.setdefault((model.name, scenario), itertools.count())
        return await rollout(model, 100 * scenario + 10 * next(number))

    numbers = {}
    explicit, looped = (make_model(tiny_model_path, tmp_path, name) for name in ("explicit", "looped"))
    await explicit.register(backend)
    await looped.register(backend)
    for step in range(2):
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(member(explicit, s) for _ in range(4)) for s in (2 * step, 2 * step + 1)),
            pbar_desc=None,
        )
        result = await backend.train(explicit, groups, learning_rate=1e-3)
    assert result.metrics["data/step_num_gradient_steps"] == 1
    await art.train(looped, member, range(4), groups_per_step=2, group_size=4, learning_rate=1e-3, show_progress=False)

    async def adapter(model):
        last = (await backend.list_checkpoints(model))[-1]
        assert last.step == 2
        return load_file(Path(last.path) / "adapter_model.safetensors")

    ours, theirs = await adapter(explicit), await adapter(looped)
    assert ours.keys() == theirs.keys()
    if equal_rows(choose_dtype("auto", choose_device())):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    else:
        assert all((ours[name] - theirs[name]).norm() <= 0.01 * ours[name].norm() for name in ours)


async def test_preflight_reads_what_was_captured(backend, tiny_model_path, tmp_path):
    model = make_model(tiny_model_path, tmp_path, "preflight")
    await model.register(backend)
    members = {}

    def next_reward(scenario):
        """In each group as many zeros as ones, in whatever order the rollouts end."""
        return float(next(members.setdefault(scenario, itertools.count())) % 2)

    async def keyed(model, scenario):
        async with model.rollout() as run:
            messages = [{"role": "user", "content": "hello"}]
            await ask(model, run, messages, temperature=0.0 if scenario == "greedy" else 1.0)
            return run.trajectory(reward=next_reward(scenario))

    async def ambient(model, scenario):
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": scenario}])
        answer = await model.openai_client().chat.completions.create(
            model=model.name, messages=trajectory.messages(), max_tokens=2
        )
        trajectory.messages_and_choices.append(answer.choices[0])
        return trajectory, next_reward(scenario)

    result = await art.preflight(model, keyed, ["hot", "greedy"], group_size=4)
    assert (result.success_rate, result.flat_share, result.uncaptured) == (0.5, 0.0, 0)
    assert 0 < result.sampled_tokens <= 4
    assert result.context_tokens > result.sampled_tokens
    assert list(result.untrainable.values()) == [4]
    assert "sampled greedily" in result.advice()[0]

    result = await art.preflight(model, ambient, ["a"], group_size=4)
    assert result.can_learn
    assert 0 < result.sampled_tokens <= 2
    assert await model.get_step() == 0


async def test_the_command(tmp_path, tiny_model_path, backend):
    agent = """
async def rollout(model, scenario):
    async with model.rollout() as run:
        answer = await run.openai_client().chat.completions.create(
            model=model.name, messages=[{"role": "user", "content": scenario}], max_tokens=2
        )
        return run.trajectory(reward=len(answer.choices[0].message.content) % 2)

def scenarios():
    return ["a", "b", "c"]
"""
    (tmp_path / "agent.py").write_text(agent)
    control = await backend._control()
    command = ["preflight", "agent:rollout", "--scenarios", "agent:scenarios", "--base-model", str(tiny_model_path)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from art.cli import main; main()", *command, "--groups", "2", "--backend", control.url,
        cwd=tmp_path, env={**os.environ, "ART_API_KEY": control.api_key},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    assert process.returncode in (0, 2), errors
    assert b"16 in 2 groups, 0 failed" in out


async def test_the_demo_trains_in_this_form_too(backend, tiny_model_path, tmp_path, read_history):
    from art.demo.rollout import play

    model = make_model(tiny_model_path, tmp_path, "demo")
    await model.register(backend)
    run = await art.train(model, play, range(4), groups_per_step=2, group_size=2, max_staleness=1, show_progress=False)
    assert run.step == 2
    assert [row["train/exception_rate"] for row in read_history(model) if "train/reward" in row] == [0, 0]


async def test_groups_train_with_the_members_that_are_left(backend, tiny_model_path, tmp_path, read_history, capsys):
    """Of scenario 0, a hung environment and a crash in scoring leave two rewards that differ; of scenario 1 two that do not;
    of scenario 2 none."""
    model = make_model(tiny_model_path, tmp_path, "misfortune")
    await model.register(backend)
    members = {}

    async def rollout(model, scenario):
        member = next(members.setdefault(scenario, itertools.count()))
        async with model.rollout() as run:
            await ask(model, run, [{"role": "user", "content": f"{scenario}"}])
            if member == 0 or scenario == 2:
                await asyncio.Event().wait()
            if member == 1:
                raise ZeroDivisionError("the scorer")
            return run.trajectory(reward=float(member) if scenario == 0 else 0.5)

    options = {"groups_per_step": 3, "group_size": 4, "rollout_timeout_s": 10, "learning_rate": 1e-3}
    done = await art.train(model, rollout, range(3), **options, show_progress=False)
    assert done.step == 1
    [row] = [row for row in read_history(model) if "train/reward" in row]
    assert (row["data/step_num_groups_trainable"], row["data/step_num_groups_submitted"]) == (1, 2)
    assert row["train/exception_rate"] == 0.5
    assert (row["pipeline/rollout_timeouts"], row["pipeline/failed_scenarios"]) == (6, 1)
    assert "scenario 2 failed: EveryRolloutFailedError" in capsys.readouterr().err
