"""A judge that our own gateway serves, without a way to enforce a format."""

import json

import art
from art.rewards import ruler_score_group


def scores(*pairs):
    return json.dumps({"scores": [{"trajectory_id": i, "explanation": f"why {i}", "score": s} for i, s in pairs]})


async def test_a_served_model_judges_a_group(gateway):
    gateway.model.max_sequence_length = 20_000  # one token per byte here
    client, rollout = gateway.new_client()
    gateway.engine.say("I like the second one.", scores(("2", 0.75), ("1", 0.25)))
    question = {"role": "user", "content": "2 + 2?"}
    group = art.TrajectoryGroup(
        [
            art.Trajectory(messages_and_choices=[question, {"role": "assistant", "content": text}], reward=1.0)
            for text in ("five", "four")
        ],
        metadata={"scenario_id": "sum"},
    )
    with art.Trajectory() as outer:
        judged = await ruler_score_group(group, (client, "m"))
    assert [trajectory.reward for trajectory in judged] == [0.25, 0.75]
    assert judged.trajectories[1].logs == ["RULER explanation: why 2"]
    assert judged.metadata == {"scenario_id": "sum"}
    assert not outer.messages_and_choices
    first, second = gateway.engine.calls
    asked = gateway.renderer.detokenizer.decode(second.fed)
    assert '"trajectory_id"' in asked, "the prompt holds the schema"
    assert "That answer cannot be used" in asked
    assert second.fed[: len(first.fed)] == first.fed, "the objection continues the conversation"
    gateway.check(rollout)
