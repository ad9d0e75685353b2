import asyncio
from datetime import datetime

import pytest

import art
from art.loop.advice import Preflight
from art.types import Exchange
from art.wire import RolloutTree


def make_rollout(rewards):
    """Rollouts of scenario s with the rewards ``rewards[s]``, in turn; what is no number is raised."""
    turn = {}

    async def rollout(model, scenario):
        mine = turn[scenario] = turn.get(scenario, -1) + 1
        await asyncio.sleep(0)
        reward = rewards[scenario][mine]
        if isinstance(reward, Exception):
            raise reward
        return art.Trajectory(reward=reward)

    return rollout


def found(**changes):
    """A healthy preflight, but for what the test changes."""
    fields = {
        "groups": 4, "group_size": 8, "groups_per_step": 8, "steps": None, "rollouts": 32, "failures": {},
        "success_reward": 0.5, "success_rate": 0.3, "reward_mean": 0.3, "reward_min": 0.0, "reward_max": 1.0,
        "reward_spread": 0.4, "flat_share": 0.0, "seconds_median": 1.0, "seconds_max": 2.0, "step_rollout_s": 4.0,
        "step_train_s": 4.0, "train_measured": False, "step_cost_usd": None, "sampled_tokens": 50.0,
        "context_tokens": 200.0, "truncated_share": 0.0, "cut_share": 0.0, "untrainable": {},
    }  # fmt: skip
    return Preflight(**{**fields, **changes})


async def test_the_figures(make_model):
    rewards = [[0.0, 1.0, 0.5, 0.5], [0.0] * 4, [1.0, ValueError("no browser\nat all"), 0.0, 1.0]]
    result = await art.preflight(await make_model(), make_rollout(rewards), range(3), groups=5, group_size=4, steps=10)
    assert (result.groups, result.rollouts, result.failures) == (3, 11, {"ValueError: no browser": 1})
    assert result.success_rate == pytest.approx(5 / 11)
    assert result.reward_mean == pytest.approx(4 / 11)
    assert (result.reward_min, result.reward_max) == (0.0, 1.0)
    assert result.flat_share == pytest.approx(1 / 3)
    spread = (0.125**0.5 + 0 + (2 / 9) ** 0.5) / 3
    assert result.reward_spread == pytest.approx(spread)
    assert (result.sampled_tokens, result.truncated_share) == (None, None), "this backend does not tell"
    assert result.can_learn
    shown = str(result)
    assert "12 in 3 groups, 1 failed" in shown
    assert "45 % (reward of at least 0.5)" in shown
    assert "for 10 steps" in shown
    assert "RL can help here." in shown
    assert max(map(len, shown.splitlines())) <= 80


async def test_it_shows_the_worst_and_the_best_conversation(make_model):
    async def rollout(model, scenario):
        said = {"role": "assistant", "content": f"answer {next(count)}"}
        return art.Trajectory(messages_and_choices=[said], reward=float(said["content"][-1]) / 10)

    count = iter(range(8))
    result = await art.preflight(await make_model(), rollout, range(2), group_size=4)
    assert [one.reward for one in result.examples] == [0.0, 0.7]
    assert str(result).startswith(
        "── a rollout of reward 0\n\nassistant\n  answer 0\n\n── a rollout of reward 0.7\n\nassistant\n  answer 7\n\n"
    )


class Service(art.RemoteBackend):
    """A backend that has captured one turn of an ambient rollout."""

    async def get_rollout(self, rollout_id):
        node = {"id": "t", "parent": None, "keep": 3, "messages": [], "token_ids": [1, 2], "sampled": True}
        fields = {"api_key": "k", "base_path": "/", "kind": "ambient", "project": "p", "model": "m", "step": None}
        return RolloutTree.model_validate({"id": rollout_id, **fields, "nodes": [node]})


async def test_calls_of_every_protocol_count_as_captured(make_model):
    async def rollout(model, scenario):
        now = datetime.now()
        call = {"request": {}, "model": "m", "start_time": now, "end_time": now}
        trajectory = art.Trajectory(reward=1.0)
        response = {"art": {"turn": "t", "rollout": "r", "policy_version": 0}}
        trajectory.exchanges.responses.append(Exchange.model_validate({**call, "response": response}))
        return trajectory

    model = await make_model()
    model._backend = Service("http://127.0.0.1:1", "key")
    result = await art.preflight(model, rollout, range(2), group_size=2)
    assert (result.uncaptured, result.sampled_tokens, result.context_tokens) == (0, 2, 5)


async def test_a_broken_agent_is_told_apart_from_a_hard_task(make_model):
    broken = make_rollout([[KeyError("typo")] * 4] * 2)
    result = await art.preflight(await make_model(), broken, range(2), group_size=4)
    assert (result.rollouts, result.can_learn) == (0, False)
    assert result.advice() == [
        "8 rollouts failed with KeyError: 'typo'. Fix this first: failed rollouts contribute nothing."
    ]
    with pytest.raises(ValueError, match="scenarios is empty"):
        await art.preflight(await make_model(), broken, [])


@pytest.mark.parametrize(
    ("changes", "can_learn", "advice"),
    [
        ({}, True, None),
        ({"success_rate": 0.0}, False, "easier scenarios"),
        ({"success_rate": 0.1}, True, "but slowly"),
        ({"success_rate": 0.95}, True, "harder scenarios"),
        ({"flat_share": 0.75}, True, "75 % of the groups have equal rewards"),
        ({"flat_share": 1.0}, False, "larger groups"),
        ({"failures": {"TimeoutError": 8}}, True, "8 rollouts failed with TimeoutError"),
        (
            {"untrainable": {"it was sampled greedily": 9}},
            False,
            "9 answers cannot be trained: it was sampled greedily",
        ),
        ({"uncaptured": 32}, False, "have no captured model call"),
        ({"truncated_share": 0.5}, True, "max_seq_length"),
        ({"cut_share": 0.5}, True, "max_tokens"),
        ({"seconds_max": 9.0}, True, "max_staleness"),
    ],
)
def test_advice(changes, can_learn, advice):
    result = found(**changes)
    assert result.can_learn == can_learn
    assert [advice is not None and advice in sentence for sentence in result.advice()] == [True] * bool(advice)


def test_the_estimate_in_words():
    shown = " ".join(str(found(steps=100, step_cost_usd=0.02)).split())
    assert "at most about 8.0 s for 8 groups of 8: rollouts 4.0 s, training 4.0 s (taken to be as long" in shown
    assert "at most about 13 min for 100 steps, $2.00" in shown
