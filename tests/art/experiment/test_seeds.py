"""Seeds of training are apart from each other and from the held-out ones."""

from art.experiment import training_seeds


def test_no_two_runs_share_a_seed_and_none_meets_the_held_out_ones():
    one, two = training_seeds(1), training_seeds(2)
    assert one[-1] < two[0]
    assert training_seeds(0)[0] > 100_000_000, "held-out seeds are small"
    assert list(one[:3]) == [one[0], one[0] + 1, one[0] + 2]
