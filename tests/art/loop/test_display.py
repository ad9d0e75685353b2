"""What a run shows of each step."""

import pytest

import art


@pytest.fixture
def metrics():
    """What the backend tells of each step."""
    return {
        "data/step_trainer_tokens": 1200.0,
        "throughput/engine_busy_share": 0.61,
        "throughput/engine_idle_share": 0.05,
        "throughput/engine_paused_share": 0.34,
    }


async def test_a_line_tells_of_a_step_what_was_promised(make_model, backend, metrics, capsys):
    """Step, reward ± spread, tokens/s, busy, idle, paused, groups in flight, stale groups, time, time left, cost."""
    model = await make_model()
    train = backend.train

    async def told(model, groups, **options):
        result = await train(model, groups, **options)
        result.metrics.update(metrics)
        model.metrics_builder().add_cost("train/gpu", 0.75)
        return result

    async def rollout(model, scenario):
        rewards[scenario] = rewards.get(scenario, -1.0) + 1.0
        return art.Trajectory(reward=rewards[scenario])

    backend.train = told
    rewards = {}
    await art.train(model, rollout, range(4), groups_per_step=2, group_size=2, max_staleness=1, steps=2)
    shown = capsys.readouterr().err.splitlines()
    heading = next(line for line in shown if "reward" in line)
    assert heading.split() == [
        "step", "reward", "tokens/s", "busy", "idle", "paused", "in", "flight", "stale", "time", "left", "cost",
    ]  # fmt: skip
    first, second = (line for line in shown if "±" in line)
    step, mean, _, spread, rate, busy, _, idle, _, paused, _, in_flight, stale, time, left, cost = first.split()
    assert (step, mean, spread) == ("1", "+0.500", "0.500")
    assert float(rate) > 0
    assert (busy, idle, paused) == ("61", "5", "34")
    assert (int(in_flight), stale) == (2, "0")
    assert (time.count(":"), left.count(":")) == (1, 1)
    assert cost == "$0.75"
    assert second.split()[0] == "2"
    assert second.split()[-1] == "$1.50"
    assert second.split()[-2] == "0:00", "nothing is left"
