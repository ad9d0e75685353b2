import asyncio
import itertools

import pytest
from tests.support.recording_backend import Recorder

import art
from art.logs.rows import is_trainable
from art.loop.groups import ScenarioCursor
from art.metrics import MetricsBuilder
from art.pipeline_trainer import PipelineTrainer, make_group_rollout_fn


async def play(model, scenario, config):
    await asyncio.sleep(0)
    if scenario == "broken":
        raise ValueError("broken scenario")
    members = [art.Trajectory(reward=r, metadata={"scenario": str(scenario)}) for r in (0.0, 1.0)]
    return art.TrajectoryGroup(members)


@pytest.fixture
async def make(tmp_path):
    backend = Recorder()

    async def build(scenarios, rollout_fn=play, eval_fn=None, **options):
        model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
        await model.register(backend)
        return PipelineTrainer(model, backend, rollout_fn, scenarios, {}, eval_fn, **options)

    build.backend = backend
    return build


def scenarios_of(batches):
    return sorted(int(group.trajectories[0].metadata["scenario"]) for batch in batches for group in batch)


async def test_every_scenario_is_trained_once_in_batches_of_the_right_size(make, read_history):
    trainer = await make(range(11), min_batch_size=2, max_batch_size=3, num_rollout_workers=4)
    await trainer.train(handle_signals=False)
    batches = make.backend.batches
    assert scenarios_of(batches) == list(range(11))
    assert all(2 <= len(batch) <= 3 for batch in batches[:-1])
    assert make.backend.options[0] == {
        "learning_rate": 1e-5,
        "loss_fn": "cispo",
        "loss_fn_config": None,
        "normalize_advantages": True,
        "save_checkpoint": True,
        "adam_params": None,
    }
    rows = read_history(trainer.model)
    assert [row["step"] for row in rows] == list(range(1, len(batches) + 1))
    first = rows[0]
    assert (first["train/reward"], first["train/discarded_stale_groups"], first["loss/train"]) == (0.5, 0.0, 0.5)
    assert {"train/steps_off_policy", "time/step_wall_s", "time/step_trainer_s", "time/step_actor_s"} <= set(first)
    assert "throughput/step_trainer_idle_s" in first


async def test_a_resumed_run_goes_on_with_what_was_not_trained(make):
    trainer = await make(range(10), min_batch_size=2, max_batch_size=2, max_steps=2)
    await trainer.train(handle_signals=False)
    state = trainer.model.read_state()["_pipeline_trainer"]
    assert (state["training_step"], state["total_scenarios_consumed"]) == (2, 4)
    await (await make(range(10), min_batch_size=2, max_batch_size=2, max_steps=1)).train(handle_signals=False)
    assert trainer.model.read_state()["_pipeline_trainer"]["training_step"] == 3, "so many more steps"
    await (await make(range(10), min_batch_size=2)).train(handle_signals=False)
    assert scenarios_of(make.backend.batches) == list(range(10))


async def test_failed_scenarios_are_told_and_a_broken_agent_ends_the_run(make, capsys):
    trainer = await make([0, "broken", 1], min_batch_size=1)
    await trainer.train(handle_signals=False)
    assert scenarios_of(make.backend.batches) == [0, 1]
    assert "scenario 1 failed: ValueError('broken scenario')" in capsys.readouterr().err
    with pytest.raises(ValueError, match="broken scenario"):
        await (await make(itertools.repeat("broken"), resume=False)).train(handle_signals=False)


async def test_a_group_keeps_what_its_scenario_says_of_itself(make):
    trainer = await make([{"metadata": {"scenario_id": 7, "level": "hard", "data": [1]}}], min_batch_size=1)
    await trainer.train(handle_signals=False)
    ((group,),) = make.backend.batches
    assert group.metadata == {"scenario_id": 7, "scenario_level": "hard"}
    assert [t.initial_policy_version for t in group] == [0, 0]


async def test_old_groups_and_those_without_signal_are_left_out(make, read_history):
    fresh = [
        art.TrajectoryGroup([art.Trajectory(reward=r, initial_policy_version=8) for r in (0, 1)]) for _ in range(2)
    ]
    stale = art.TrajectoryGroup([art.Trajectory(reward=r, initial_policy_version=v) for r, v in ((0, 9), (1, 4))])
    flat = art.TrajectoryGroup([art.Trajectory(reward=1), art.Trajectory(reward=1)])

    async def give(model, group, config):
        return group

    make.backend.step = 9
    trainer = await make([stale, fresh[0], flat, fresh[1]], give, min_batch_size=2, num_rollout_workers=1)
    await trainer.train(handle_signals=False)
    assert make.backend.batches == [fresh]
    train, discarded = read_history(trainer.model)
    assert (train["train/discarded_stale_groups"], train["train/steps_off_policy"]) == (1.0, 1.0)
    assert discarded["discarded/reward"] == 1.0


async def test_a_group_without_a_single_run_is_an_error(make):
    async def fail(model, scenario, config):
        return art.TrajectoryGroup([ValueError("all broke")])

    trainer = await make(range(3), fail)
    with pytest.raises(RuntimeError, match=r"(?s)Every rollout of a group failed.*all broke"):
        await trainer.train(handle_signals=False)


async def test_collapse_ends_the_run_with_advice(make, capsys):
    async def flat(model, scenario, config):
        await asyncio.sleep(0)
        return art.TrajectoryGroup([art.Trajectory(reward=1), art.Trajectory(reward=1)])

    trainer = await make(itertools.count(), flat, min_batch_size=2, discard_queue_multiplier=3)
    await asyncio.wait_for(trainer.train(handle_signals=False), 30)
    assert make.backend.batches == []
    assert "6 groups in a row had equal rewards" in capsys.readouterr().err


async def test_evaluation(make, read_history, capsys):
    async def evaluate(model, step, config):
        if step == 2:
            raise ValueError("no evaluation")
        trajectories = [art.Trajectory(reward=step)]
        return {"val": trajectories, "test": trajectories} if step else trajectories

    trainer = await make(range(3), play, evaluate, min_batch_size=1, max_batch_size=1, eval_every_n_steps=1)
    await trainer.train(handle_signals=False)
    rows = [row for row in read_history(trainer.model) if "val/reward" in row or "test/reward" in row]
    assert [(row["step"], row.get("val/reward"), row.get("test/reward")) for row in rows] == [
        (0, 0.0, None),
        (1, 1.0, None),
        (1, None, 1.0),
        (3, 3.0, None),
        (3, None, 3.0),
    ]
    assert ["time/step_eval_s" in row for row in rows] == [True, True, False, True, False]
    assert "the evaluation of step 2 failed: ValueError('no evaluation')" in capsys.readouterr().err
    assert trainer.model.read_state()["_pipeline_trainer"]["last_eval_step"] == 3


async def test_costs_are_booked_for_what_they_were_spent_on(make, read_history):
    async def paid(model, scenario, config):
        MetricsBuilder.get_active().add_cost(f"{MetricsBuilder.get_active().cost_context}/api", 1.0)
        return await play(model, scenario, config)

    async def evaluate(model, step, config):
        MetricsBuilder.get_active().add_cost(f"{MetricsBuilder.get_active().cost_context}/api", 5.0)
        return [art.Trajectory(reward=1)]

    trainer = await make(range(2), paid, evaluate, min_batch_size=2, max_steps=1, eval_every_n_steps=1)
    await trainer.train(handle_signals=False)
    rows = read_history(trainer.model)
    assert sum(row.get("costs/train/api", 0) for row in rows if "train/reward" in row) == 2.0
    assert [row["costs/eval/api"] for row in rows if "val/reward" in row] == [5.0, 5.0]


async def test_a_resumed_model_is_evaluated_first(make, read_history):
    async def evaluate(model, step, config):
        return {"test": [art.TrajectoryGroup([art.Trajectory(reward=step)])]}

    make.backend.step = 4
    trainer = await make([], play, evaluate)
    await trainer.train(handle_signals=False)
    (row,) = read_history(trainer.model)
    assert (row["test/reward"], row["step"]) == (4.0, 4)


def test_a_group_teaches_by_rewards_that_differ():
    def group(*rewards):
        return art.TrajectoryGroup(art.Trajectory(reward=r) for r in rewards)

    taught = [is_trainable(group(*r)) for r in ((), (1,), (1, 1), (1, 1 + 1e-13), (1, 1 + 1e-9))]
    assert taught == [False] * 4 + [True]


async def test_a_stop_in_mid_run_loses_no_scenario(make):
    trainer = await make(range(12), min_batch_size=1, max_batch_size=1, num_rollout_workers=5)

    async def stop():
        if len(make.backend.batches) == 3:
            trainer.request_stop()

    make.backend.during = stop
    await trainer.train(handle_signals=False)
    assert len(make.backend.batches) == 3
    make.backend.during = None
    await (await make(range(12), min_batch_size=1)).train(handle_signals=False)
    assert scenarios_of(make.backend.batches) == list(range(12))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("min_batch_size", 0), ("num_rollout_workers", -1), ("max_batch_size", 0), ("queue_maxsize", 0)),
        *(("discard_queue_multiplier", 0), ("log_interval_seconds", 0.0)),
        *(("max_steps_off_policy", -1), ("max_steps", -1), ("eval_every_n_steps", -1), ("total_scenarios", -1)),
        ("max_batch_size", 3),
    ],
)
async def test_sizes_are_checked(make, option, value):
    with pytest.raises(ValueError, match=option):
        await make([], **{option: value})


async def test_groups_of_single_rollouts():
    async def single(model, scenario, config):
        if scenario == "bad":
            raise ValueError("x")
        return art.Trajectory(reward=1)

    group = await make_group_rollout_fn(single, n=3)(None, "good", None)
    assert len(group) == 3
    assert len((await make_group_rollout_fn(single)(None, "bad", None)).exceptions) == 4


async def test_the_cursor_knows_what_is_done_in_any_order():
    cursor = ScenarioCursor("abcdef")
    taken = [await cursor.take() for _ in range(5)]
    assert taken[2] == (2, "c")
    for number in (3, 0, 1):
        cursor.settle(number)
    assert cursor.state() == {"scenario_offset": 2, "settled_beyond_offset": [3], "total_scenarios_consumed": 3}
    again = ScenarioCursor("abcdef")
    again.restore(cursor.state())
    assert [await again.take() for _ in range(4)] == [(2, "c"), (4, "e"), (5, "f"), None]
