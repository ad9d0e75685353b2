"""A run that collapses says so, and one that does not is left alone."""

import pytest

import art
from art.loop.signs import DISTINCT, ENTROPY, SUBMITTED, USED, Signs, distinct_share


def answers(*texts):
    """One group whose rollouts said this."""
    return art.TrajectoryGroup(
        [art.Trajectory(messages_and_choices=[{"role": "assistant", "content": text}]) for text in texts]
    )


def test_the_share_of_answers_that_differ():
    assert distinct_share([answers("1", "1", "2", "3"), answers("1", "2", "3", "4")]) == 0.5
    assert distinct_share([answers("1")]) is None
    assert distinct_share([art.TrajectoryGroup([art.Trajectory(rollout_id="r")] * 4)]) is None, "not at hand"
    calls = [
        art.Trajectory(
            messages_and_choices=[
                {"role": "user", "content": f"question {i}"},
                {"role": "assistant", "content": "", "tool_calls": [{"id": str(i), "function": {"arguments": "{}"}}]},
            ]
        )
        for i in range(4)
    ]
    assert distinct_share([art.TrajectoryGroup(calls)]) == 0.25, "the same call is the same answer, whatever its id"


def test_a_model_that_says_one_thing_ever_more_is_told():
    """Three of four right answers are "1", and the model learns to say "1"."""
    signs, told = Signs(), {}
    for step in range(10):
        wrong = max(8 - step, 0)
        groups = [answers(*(["1"] * (8 - wrong) + [f"{step}{i}" for i in range(wrong)])) for _ in range(4)]
        metrics = {ENTROPY: 1.0 / (step + 1), USED: float(max(4 - step, 0)), SUBMITTED: 4.0}
        assert signs.measure(groups, metrics) == {DISTINCT: distinct_share(groups)}
        for sentence in signs.warnings():
            told[sentence.split()[0]] = step
    assert sorted(told) == ["Answers", "Entropy", "Only"], "each once"
    assert told["Only"] == 4, "used: 1, 3/4, 1/2, 1/4, 0"
    assert told["Entropy"] == 5, "the first of which three steps can be compared with the first three"


async def test_a_run_logs_the_share_and_tells_the_signs(make_model, backend, read_history, capsys):
    async def rollout(model, scenario):
        return art.Trajectory(
            messages_and_choices=[{"role": "assistant", "content": "1" if backend.step > 2 else str(next(count))}]
        )

    count, model = iter(range(100)), await make_model()
    await art.train(model, rollout, range(6), groups_per_step=1, group_size=4, show_progress=False)
    assert [row[DISTINCT] for row in read_history(model)] == [1.0] * 3 + [0.25] * 3
    assert (
        "warning: Answers become alike: 25 % of a step's answers are distinct, down from 100 %"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("entropy", [1.0, 0.6])
def test_a_healthy_run_is_left_alone(entropy):
    signs = Signs()
    for step in range(10):
        groups = [answers(*(f"{step} {i}" for i in range(8)))]
        signs.measure(groups, {ENTROPY: 1.0 if step < 3 else entropy, USED: 3.0, SUBMITTED: 4.0})
        assert signs.warnings() == []


def test_a_resumed_run_remembers_its_beginning():
    rows = [{"train/reward": 0.0, ENTROPY: 1.0}] * 3
    rows += [{"loss/sft": 1.0, ENTROPY: 9.0}]  # learning from examples is no step of the run
    signs = Signs(rows)
    for _ in range(3):
        signs.measure([], {ENTROPY: 0.4})
    (warning,) = signs.warnings()
    assert warning.startswith("Entropy fell by more than half: 0.4 nats per token, down from 1 at the start.")
    assert "kl_penalty_coef" in warning
