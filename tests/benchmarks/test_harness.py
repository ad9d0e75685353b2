import pytest
from benchmarks.harness import compare


@pytest.mark.parametrize(
    ("bounds", "target", "ok"),
    [
        ({"at_least": 3}, "≥ 3×", True),
        ({"at_least": 5}, "≥ 5×", False),
        ({"at_most": 0.5}, "≤ 0.5×", False),
        ({"at_least": 3, "at_most": 4}, "≥ 3×, ≤ 4×", True),
    ],
)
def test_the_ratio_of_medians_is_held_against_its_bounds(bounds, target, ok):
    row = compare("speed", [8.0, 100.0, 1.0], [2.0], peer_name="peer", unit="1/s", **bounds)
    assert (row.ours, row.peer, row.ratio, row.target, row.ok) == (8.0, 2.0, 4.0, target, ok)
