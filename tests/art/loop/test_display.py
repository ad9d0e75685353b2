"""What a run shows of each step."""

import pytest

import art


@pytest.fixture
def metrics():
    """What the backend tells of each step."""
    return {
        "data/step_trainer_tokens": 1200.0,
        "loss/entropy": 0.42,
        "throughput/engine_busy_share": 0.61,
        "throughput/engine_idle_share": 0.05,
        "throughput/engine_paused_share": 0.34,
    }


async def test_a_line_tells_of_a_step_what_was_promised(make_model, backend, metrics, capsys):
    """Step, reward with its interval, groups used, distinct answers, entropy, time, time left, the rollouts' metrics, cost,
    tokens/s, the engine's time, groups in flight, stale groups."""
    model = await make_model()
    train = backend.train

    async def told(model, groups, **options):
        result = await train(model, groups, **options)
        result.metrics.update(metrics)
        model.metrics_builder().add_cost("train/gpu", 0.75)
        return result

    async def rollout(model, scenario):
        mine = turns[scenario] = turns.get(scenario, -1) + 1
        said = f"{scenario}" if scenario % 2 else f"{scenario} {mine}"
        return art.Trajectory(
            messages_and_choices=[{"role": "assistant", "content": said}],
            reward=float(mine * (scenario % 2)),
            metrics={"odd": scenario % 2 == 1, "turns": mine + 1, **({"late": 7.0} if scenario > 1 else {})},
        )

    backend.train = told
    turns = {}
    await art.train(model, rollout, range(4), groups_per_step=2, group_size=2, max_staleness=1, steps=2)
    shown = capsys.readouterr().err.splitlines()
    heading = next(line for line in shown if "reward" in line)
    assert heading.split() == [
        "step", "reward", "±", "95", "%", "used", "distinct", "entropy", "time", "left", "odd", "turns", "cost", "tokens/s",
        "busy", "idle", "paused", "in", "flight", "stale",
    ]  # fmt: skip
    first, second = (line for line in shown if "±" in line and line is not heading)
    step, mean, _, half, used, distinct, _, entropy, time, left, *cells = first.split()
    odd, _, turns, cost, rate, *shares, in_flight, stale = cells
    assert (step, mean, half) == ("1", "+0.250", "3.177"), "of two groups, 0 and 0.5: 12.706 · 0.354 / √2"
    assert (used, distinct, entropy) == ("1/2", "75", "0.42")
    assert float(rate) > 0
    assert shares == ["61", "%", "5", "%", "34", "%"]
    assert (int(in_flight), stale) == (2, "0")
    assert (time.count(":"), left.count(":")) == (1, 1)
    assert (odd, turns) == ("50", "1.5"), "the rollouts' own metrics: a share, and a mean"
    assert cost == "$0.75"
    cells = second.split()
    assert cells[0] == "2"
    assert (cells[9], cells[13]) == ("0:00", "$1.50"), "nothing is left"


async def test_the_end_says_where_to_look(make_model, capsys, tmp_path, monkeypatch):
    async def rollout(model, scenario):
        return art.Trajectory(reward=1.0)

    model = await make_model()
    await art.train(model, rollout, range(2), groups_per_step=1, group_size=2, steps=2)
    told = capsys.readouterr().err
    assert "m: training from step 0 of 2, 2 to take" in told
    assert f"art show p/m 2 --path {tmp_path}" in told.splitlines()[-1]


async def test_a_run_after_a_warm_up_counts_its_own_steps(make_model, backend, capsys):
    async def rollout(model, scenario):
        return art.Trajectory(reward=1.0)

    backend.step = 1
    await art.train(await make_model(), rollout, range(9), groups_per_step=1, group_size=2, steps=5)
    assert "m: resuming after step 1 of 5, 4 to take" in capsys.readouterr().err
