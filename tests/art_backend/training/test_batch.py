"""What reaches the packer: checked rows, the overlong policy, advantages, and the weight of each token."""

import numpy as np
import pytest

from art.wire import Algorithm, Overlong, StructuredSpan, TrainOptions
from art_backend.errors import BadRequestError
from art_backend.training.rows.batch import build_batch, weigh
from art_backend.training.types import ScoredTrajectory, StepInput


def span(start, stop):
    return StructuredSpan(start=start, stop=stop, structured_outputs={"regex": "x"}, stop_token_ids=[])


def build(groups, max_length=64, **options):
    return build_batch(
        StepInput(groups=groups, options=TrainOptions(**options), step=1), vocabulary=61, max_length=max_length
    )


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"token_ids": [1, 2, 61]}, "token_ids.2", "is 61; the model's vocabulary has ids 0 to 60"),
        ({"token_ids": [1, -1, 2]}, "token_ids.1", "is -1"),
        ({"token_ids": []}, "token_ids", "is empty"),
        ({"sampled": [False, True]}, "sampled", "has 2 entries where token_ids has 3"),
        ({"logprobs": [0.0] * 4}, "logprobs", "has 4 entries"),
        ({"policy_versions": []}, "policy_versions", "has 0 entries"),
        ({"sampled": [True, True, True]}, "sampled.0", "no context"),
        ({"logprobs": [0.0, 0.0, float("nan")]}, "logprobs.2", "needs a finite log-probability"),
        ({"logprobs": [0.0, 0.0, 5.0]}, "logprobs.2", "0 at the most"),
        ({"temperature": 0.0}, "temperature", "temperature above 0"),
        ({"structures": [span(2, 4)]}, "structures.0", "the row's length"),
        ({"structures": [span(1, 2), span(0, 2)]}, "structures.1", "0 < start"),
    ],
)
def test_a_bad_row_is_named(make_row, change, param, words):
    good = ScoredTrajectory(1.0, [make_row([1, 2], [3])])
    row = make_row([1, 2], [3]).model_copy(update=change)
    with pytest.raises(BadRequestError, match=words) as caught:
        build([[good], [good, ScoredTrajectory(0.0, [make_row([1], [2]), row])]])
    assert caught.value.param == f"groups.1.trajectories.1.rows.1.{param}"


def test_bad_groups_are_named(make_row):
    good = ScoredTrajectory(1.0, [make_row([1, 2], [3])])
    for groups, param in (
        ([], "groups"),
        ([[good], []], "groups.1"),
        ([[good, ScoredTrajectory(float("nan"), good.rows)]], "groups.0.trajectories.1.reward"),
    ):
        with pytest.raises(BadRequestError) as caught:
            build(groups)
        assert caught.value.param == param
        assert param in caught.value.message


def test_groups_without_a_signal_are_dropped_and_counted(make_row):
    row = make_row([1, 2], [3])
    batch = build([[ScoredTrajectory(r, [row]) for r in rewards] for rewards in ([1, 1], [0, 1, 2], [5])])
    assert len(batch.members) == 3
    assert batch.reason is None
    assert batch.metrics["data/step_num_groups_submitted"] == 3
    assert batch.metrics["data/step_num_groups_trainable"] == 1
    assert batch.metrics["data/step_num_groups_dropped"] == 2
    assert batch.metrics["data/step_num_trajectories"] == 6
    assert batch.metrics["reward/mean"] == pytest.approx(10 / 6)
    assert batch.metrics["reward/std_dev"] == pytest.approx((0 + np.sqrt(2 / 3)) / 2)
    empty = build([[ScoredTrajectory(0.1, [row])] * 3])
    assert empty.members == []
    assert empty.reason is not None
    assert "all rewards are equal" in empty.reason
    assert empty.metrics["data/step_num_groups_trainable"] == 0


def test_overlong_policies(make_row):
    long, short = make_row([1] * 6, [2, 3, 4]), make_row([1], [2])
    groups = [[ScoredTrajectory(0, [short, long]), ScoredTrajectory(1, [short]), ScoredTrajectory(5, [short])]]
    with pytest.raises(BadRequestError, match="row of 9 tokens; the model's maximum sequence length is 7") as caught:
        build(groups, 7, overlong=Overlong.ERROR)
    assert caught.value.param == "groups.0.trajectories.0"

    dropped = build(groups, 7, overlong=Overlong.DROP)
    assert dropped.metrics["data/step_num_overlong"] == 1
    assert dropped.metrics["data/step_num_trajectories_trained"] == 2
    assert "1 trajectories were left out" in dropped.warnings[0]
    # The dropped one's reward still counts in the baseline: 0, 1, 5 have the mean 2.
    (first, second) = dropped.members
    assert np.sign(first.rows[0].advantage) == -1
    assert first.rows[0].advantage / second.rows[0].advantage == pytest.approx(-1 / 3)

    cut = build(groups, 7, overlong=Overlong.TRUNCATE)
    assert [row.token_ids.size for row in cut.members[0].rows] == [2, 7]
    assert cut.members[0].trained_tokens == 2
    assert "were cut" in cut.warnings[0]
    assert not build(groups, 9, overlong=Overlong.ERROR).warnings


def two_members(make_row):
    """Trajectory A: rows with 1 and 3 trained tokens. B: one row with 2."""
    a = ScoredTrajectory(0, [make_row([1], [2]), make_row([1], [3, 4, 5])])
    b = ScoredTrajectory(1, [make_row([1], [6, 7])])
    return build([[a, b]]).members


@pytest.mark.parametrize(
    ("reduction", "weights"),
    [
        ("token", [1 / 6, 1 / 6, 1 / 6]),
        ("trajectory", [1 / (4 * 2), 1 / (4 * 2), 1 / (2 * 2)]),
        ("sequence", [1 / (1 * 3), 1 / (3 * 3), 1 / (2 * 3)]),
        ("constant", [1 / (2 * 10)] * 3),
    ],
)
def test_weights_are_one_over_the_denominator_of_the_whole_step(make_row, reduction, weights):
    rows = weigh(two_members(make_row), reduction, 10)
    assert [row.weight for row in rows] == pytest.approx(weights)


def test_a_trajectory_without_trained_tokens_counts_only_in_the_baseline(make_row):
    silent = make_row([1, 2], [])
    batch = build(
        [[ScoredTrajectory(0, [silent]), ScoredTrajectory(1, [make_row([1], [2])])]], algorithm=Algorithm.GRPO
    )
    assert len(batch.members) == 1
    assert batch.members[0].rows[0].advantage == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_trajectory_in_which_nothing_was_sampled_counts_only_in_the_baseline(make_row, algorithm):
    """Its reward is compared like any other; rewards 0, 1, 5 have the mean 2, with or without tokens of the 5."""
    row = make_row([1], [2])
    groups = [[ScoredTrajectory(0, [row]), ScoredTrajectory(1, [row]), ScoredTrajectory(5, [row])]]
    whole = build(groups, algorithm=algorithm)
    groups[0][2].rows = []
    batch = build(groups, algorithm=algorithm)
    assert [m.rows[0].advantage for m in batch.members] == [m.rows[0].advantage for m in whole.members[:2]]
    assert batch.metrics["data/step_num_trajectories"] == 3
    assert batch.metrics["data/step_num_trajectories_trained"] == 2
    assert batch.metrics["data/step_num_trajectories_without_tokens"] == 1
    assert batch.metrics["data/rows_per_trajectory"] == 1.0
    assert batch.metrics["reward/mean"] == 2.0


@pytest.mark.parametrize("rewards", [(0, 1), (1, 1)])
def test_a_step_of_nothing_but_those_is_an_empty_one(rewards):
    batch = build([[ScoredTrajectory(r, []) for r in rewards]])
    assert batch.members == []
    assert "No trajectory holds a token that this service sampled." in batch.reason
    assert batch.metrics["data/step_num_trajectories_without_tokens"] == 2
    assert batch.metrics["data/rows_per_trajectory"] == 0.0


def test_groups_that_an_older_version_sampled_are_counted(make_row):
    """Step 5 trains version 4: two tokens of version 4, four of version 1 and two of version 2."""

    def of_version(version, n):
        row = make_row([1], [2] * n)
        row.policy_versions[1:] = [version] * n
        return row

    rewards = ([0, of_version(4, 1)], [1, of_version(4, 1)]), ([0, of_version(1, 4)], [1, of_version(2, 2)])
    equal = ([1, of_version(0, 9)], [1, of_version(0, 9)])  # dropped: its age does not matter
    groups = [[ScoredTrajectory(r, [row]) for r, row in group] for group in (*rewards, equal)]
    metrics = build_batch(StepInput(groups, TrainOptions(), 5), vocabulary=61, max_length=64).metrics
    assert metrics["data/step_num_groups_stale"] == 1
