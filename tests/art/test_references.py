import json

import pytest

import art
from art.errors import NoTrainingDataError
from art.references import build_examples, build_train_groups


def only(trajectory):
    groups, left_out = build_train_groups([art.TrajectoryGroup([trajectory])])
    return [member for group in groups for member in group.trajectories], left_out


def test_turns_of_all_histories_count_once(make_choice):
    trajectory = art.Trajectory(
        messages_and_choices=[make_choice(turn="a"), make_choice(turn="b")],
        additional_histories=[
            art.trajectories.History(messages_and_choices=[make_choice(turn="a"), make_choice(turn="c")])
        ],
    )
    (sent,), _ = only(trajectory)
    assert sent.turns == ["a", "b", "c"]


def test_groups_of_nothing_are_left_out_and_failures_told():
    kept = art.TrajectoryGroup([art.Trajectory(rollout_id="r")])
    failed = art.TrajectoryGroup([ValueError("x"), ValueError("y")])
    groups, left_out = build_train_groups([art.TrajectoryGroup([]), failed, kept])
    assert [group.trajectories[0].rollout for group in groups] == ["r"]
    assert left_out == ["group 1: all of its 2 rollouts failed; it was left out"]


def test_a_choice_that_went_through_json_keeps_its_reference(make_choice):
    trajectory = art.Trajectory(messages_and_choices=[make_choice(turn="a")])
    (sent,), _ = only(art.Trajectory.model_validate(json.loads(trajectory.model_dump_json())))
    assert sent.turns == ["a"]


def test_a_plain_dict_is_named(make_choice):
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    )
    with pytest.raises(NoTrainingDataError) as caught:
        build_train_groups([art.TrajectoryGroup([]), art.TrajectoryGroup([art.Trajectory(rollout_id="r"), trajectory])])
    assert "group 1, trajectory 1: turn 1 is a plain dict instead of the sampled Choice" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_choice_of_another_endpoint_is_named(make_choice):
    history = art.trajectories.History(messages_and_choices=[make_choice(turn=None)])
    with pytest.raises(NoTrainingDataError, match="turn 0 of additional history 0 was sampled from another endpoint"):
        only(art.Trajectory(additional_histories=[history]))


def test_a_message_object_is_named(make_choice):
    with pytest.raises(NoTrainingDataError, match="turn 0 is a ChatCompletionMessage, not the sampled Choice"):
        only(art.Trajectory(messages_and_choices=[make_choice().message]))


def test_other_assistants_beside_sampled_turns_are_context(make_choice):
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "assistant", "content": "example"},
            make_choice(turn=None),
            make_choice(turn="a"),
        ]
    )
    (sent,), left_out = only(trajectory)
    assert (sent.turns, left_out) == (["a"], [])


def test_a_run_without_any_call_is_left_out_and_told():
    sent, left_out = only(art.Trajectory(messages_and_choices=[{"role": "user", "content": "q"}], reward=-1))
    assert sent == []
    assert left_out == [
        "group 0, trajectory 0: no model was called in it, so there is nothing to learn from; it was left out"
    ]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_must_be_finite(reward):
    with pytest.raises(NoTrainingDataError, match="The reward of group 0, trajectory 0"):
        only(art.Trajectory(rollout_id="r", reward=reward))


def test_metrics_travel_without_nan():
    (sent,), _ = only(art.Trajectory(rollout_id="r", metrics={"a": 1, "b": float("nan"), "c": True}))
    assert sent.metrics == {"a": 1.0, "c": 1.0}


def test_calls_past_a_keyed_rollout_count_beside_it(make_choice):
    trajectory = art.Trajectory(
        rollout_id="ro_1",
        messages_and_choices=[
            make_choice(turn="its own"),
            make_choice(turn="past it", art={"turn": "past it", "rollout": "ambient", "policy_version": 0}),
        ],
    )
    (sent,), _ = only(trajectory)
    assert (sent.rollout, sent.turns) == ("ro_1", ["past it"])


def test_examples_are_references_where_everything_was_captured_and_messages_elsewhere(make_choice):
    question, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    captured = art.Trajectory(messages_and_choices=[question, make_choice(turn="a")])
    keyed = art.Trajectory(rollout_id="r", messages_and_choices=[question, answer])
    mixed = art.Trajectory(messages_and_choices=[question, make_choice(turn="b"), question, answer])
    plain = art.Trajectory(messages_and_choices=[question, answer])
    elsewhere = art.Trajectory(messages_and_choices=[question, make_choice(turn=None)])
    examples = build_examples([captured, keyed, mixed, plain, elsewhere])
    assert [(example.rollout, example.turns) for example in examples] == [(None, ["a"]), ("r", []), *[(None, [])] * 3]
    assert [len(example.conversations) for example in examples] == [0, 0, 1, 1, 1]
    assert examples[2].conversations[0].trained is None, "every answer is learned, also the one that was put in"
    half = art.Trajectory(messages_and_choices=[{"role": "user", "content": "\ud83d"}, answer])
    with pytest.raises(
        NoTrainingDataError, match=r"Message 0 of trajectory 1 holds '\\ud83d', half of a surrogate pair"
    ):
        build_examples([plain, half])
    with pytest.raises(NoTrainingDataError, match="Message 0 of group 0, trajectory 0 holds"):
        build_train_groups([art.TrajectoryGroup([half])], allow_uncaptured=True)
    with pytest.raises(NoTrainingDataError, match="Trajectory 1 has no message of the assistant"):
        build_examples([plain, art.Trajectory(messages_and_choices=[question])])
