import pytest
from benchmarks.training import (
    TARGETS,
    Measurement,
    break_down,
    estimate_seconds,
    make_batch,
    make_rows,
    shorten_all_but_two,
)


@pytest.mark.parametrize(
    ("name", "members", "rows"),
    [("agent", 8, [1_500 + 6 * 84]), ("branching", 4, [2_004, *[1_836] * 3]), ("plain", 16, [500])],
)
def test_batches_are_those_that_are_named(name, members, rows):
    batch = make_batch(name, quick=False)
    assert [[len(row.token_ids) for row in member] for member in batch] == [rows] * members
    assert {sum(row.sampled) for member in batch for row in member[:1]} == {300 if name == "plain" else 144}
    first, second = (member[0].token_ids for member in batch[:2])
    assert (first[:1_500] == second[:1_500]) == (name != "plain")
    if name == "branching":
        main, *branches = batch[0]
        assert all(branch.token_ids[:1_668] == main.token_ids[:1_668] for branch in branches)
        assert all(sum(branch.sampled) == 48 for branch in branches), "what they share is trained once"


def test_the_peer_s_warm_up_has_two_whole_rows():
    rows = [(1.0, row) for member in make_batch("branching", quick=True) for row in member]
    lengths = [len(row.token_ids) for _, row in shorten_all_but_two(rows)]
    assert sorted(lengths) == [32] * 6 + [2_004] * 2


@pytest.mark.parametrize("name", list(TARGETS))
def test_the_table_tells_speed_memory_the_matrix_rate_and_where_the_rest_goes(name):
    breakdown = break_down([("aten::mm", 60.0), ("aten::copy_", 30.0), ("aten::odd", 10.0)])
    ours = [Measurement(1.0, 2.0, 100.0, 0.4, breakdown), Measurement(1.0, 2.0, 100.0)]
    rows = {row.name.split(": ")[1]: row for row in make_rows(name, 8, ours, [Measurement(5.0, 10.0, 300.0)] * 2)}
    assert (rows["speed"].ours, rows["speed"].ratio, rows["speed"].ok) == (8.0, 5.0, True)
    assert rows["peak memory"].ratio == pytest.approx(1 / 3)
    assert rows["of the matrix rate"].ours == 0.4
    kinds = {name.removeprefix("time in "): row.ours for name, row in rows.items() if name.startswith("time in ")}
    assert (kinds["linear layers"], kinds["copies and conversions"]) == (0.6, 0.3)
    assert kinds["rest"] == pytest.approx(0.1)
    assert sum(kinds.values()) == pytest.approx(1)


def test_the_time_it_takes_is_estimated_from_the_machine(tiny_model_path):
    """Twice the matrix rate, half the time; three rounds have 7 of our steps and 3 of TRL's, one round 3 and 1."""
    slow, fast = (estimate_seconds(["plain"], tiny_model_path, True, 1, rate) for rate in (1e9, 2e9))
    assert slow == pytest.approx(2 * fast)
    three = estimate_seconds(["plain"], tiny_model_path, True, 3, 1e9)
    assert 7 / 3 < three / slow < 3
