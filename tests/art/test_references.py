import copy
import json

import pytest

import art
from art.errors import NoTrainingDataError
from art.rollouts.references import build_examples, build_train_groups


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
    assert left_out == ["group 1: all 2 rollouts failed; the group was left out"]


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


OVERFLOWED = {"turn": None, "rollout": None, "policy_version": 0}


@pytest.mark.parametrize("allow_uncaptured", [False, True])
@pytest.mark.parametrize("rollout", [None, "ambient"])
@pytest.mark.parametrize("called", [False, True])
def test_a_run_in_which_nothing_was_sampled_is_sent_with_its_reward_alone(
    make_choice, called, rollout, allow_uncaptured
):
    """No call at all, or one whose prompt filled the context: its choice was appended."""
    items = [{"role": "user", "content": "q"}]
    if called:
        items.append(make_choice("", turn=None, finish_reason="length", art={**OVERFLOWED, "rollout": rollout}))
    group = art.TrajectoryGroup([art.Trajectory(messages_and_choices=items, reward=-1)])
    ((built,), left_out) = build_train_groups([group], allow_uncaptured=allow_uncaptured)
    assert [member.model_dump(exclude_defaults=True) for member in built.trajectories] == [{"reward": -1.0}]
    assert left_out == []


def test_an_overflowed_choice_at_the_end_changes_nothing_of_the_turns_before_it(make_choice):
    question = {"role": "user", "content": "q"}
    overflowed = make_choice("", turn=None, finish_reason="length", art=OVERFLOWED)
    trajectory = art.Trajectory(messages_and_choices=[question, make_choice(turn="a"), question, overflowed])
    (sent,), _ = only(trajectory)
    assert sent.turns == ["a"]
    (example,) = build_examples([trajectory])
    assert (example.turns, example.conversations) == (["a"], []), "learned by its exact ids"
    trajectory.messages_and_choices[1:2] = [{"role": "assistant", "content": "plain"}]
    (example,) = build_examples([trajectory])
    assert [message["role"] for message in example.conversations[0].messages] == ["user", "assistant", "user"]


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


def trajectories_with_a_turn_in_common(make_choice):
    """By what they are: two trajectories that would train one turn twice, and words of the error."""
    t = art.Trajectory(messages_and_choices=[make_choice(turn="a"), make_choice(turn="b")], reward=1.0)
    keyed = art.Trajectory(rollout_id="ro_1", reward=1.0)
    plain = art.Trajectory(messages_and_choices=[{"role": "assistant", "content": "a"}])
    aside = art.trajectories.History(messages_and_choices=[make_choice(turn="b")])
    past = make_choice(turn="c", art={"turn": "c", "rollout": "ambient", "policy_version": 0})
    return {
        "the same object": (t, t, "they are the same object"),
        "the same object without a turn": (plain, plain, "they are the same object"),
        "model_copy": (t, t.model_copy(update={"reward": 0.0}), "turn a"),
        "copy": (t, copy.copy(t), "turn a"),
        "deep copy": (t, copy.deepcopy(t), "turn a"),
        "through JSON": (t, art.Trajectory.model_validate_json(t.model_dump_json()), "turn a"),
        "one turn": (t, art.Trajectory(messages_and_choices=[make_choice(turn="b")]), "turn b"),
        "an additional history": (t, art.Trajectory(additional_histories=[aside]), "turn b"),
        "two additional histories": (
            art.Trajectory(additional_histories=[aside]),
            art.Trajectory(additional_histories=[copy.deepcopy(aside)]),
            "turn b",
        ),
        "one rollout": (keyed, art.Trajectory(rollout_id="ro_1"), "turns of rollout ro_1"),
        "a turn of a rollout": (keyed, art.Trajectory(messages_and_choices=[make_choice(turn="a")]), "turn a"),
        "the rollout of a turn": (t, keyed, "turns of rollout ro_1"),
        "past two rollouts": (
            art.Trajectory(rollout_id="ro_2", messages_and_choices=[past]),
            art.Trajectory(rollout_id="ro_3", messages_and_choices=[past]),
            "turn c",
        ),
    }


@pytest.mark.parametrize("across_groups", [False, True])
def test_a_turn_is_trained_once(make_choice, across_groups):
    for case, (first, second, words) in trajectories_with_a_turn_in_common(make_choice).items():
        groups = [[first], [second]] if across_groups else [[first, second]]
        where = "group 1, trajectory 0" if across_groups else "group 0, trajectory 1"
        with pytest.raises(NoTrainingDataError) as caught:
            build_train_groups([art.TrajectoryGroup(group) for group in groups], allow_uncaptured=True)
        assert str(caught.value).startswith(f"{where} is the same run as group 0, trajectory 0: "), case
        assert words in str(caught.value), case


def test_runs_that_share_no_turn_are_compared(make_choice):
    """Also those of one ambient rollout, and plain conversations that happen to be equal."""
    apart = [art.Trajectory(messages_and_choices=[make_choice(turn=turn)]) for turn in "ab"]
    equal = [art.Trajectory(messages_and_choices=[{"role": "assistant", "content": "yes"}]) for _ in range(2)]
    ((first, second), _) = build_train_groups(
        [art.TrajectoryGroup(apart), art.TrajectoryGroup(equal)], allow_uncaptured=True
    )
    assert [member.turns for member in first.trajectories] == [["a"], ["b"]]
    assert [len(member.conversations) for member in second.trajectories] == [1, 1]


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
