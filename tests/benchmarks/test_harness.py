import json
import re

import pytest
from benchmarks.harness import compare, hold, report


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


@pytest.mark.parametrize(("value", "ok"), [(4.0, True), (6.0, False)])
def test_a_figure_is_held_against_a_bound_of_its_own_or_one_beyond_the_peer_s(value, ok):
    alone = hold("latency", value, unit="ms", at_most=5)
    assert (alone.ours, alone.peer, alone.ratio, alone.target, alone.ok) == (value, None, None, "≤ 5", ok)
    beyond = hold("latency", value, unit="ms", at_most=3, more_than=("peer", 2.0))
    assert (beyond.peer, beyond.ratio, beyond.target, beyond.ok) == (2.0, value / 2, "≤ 3 more", ok)


def test_figures_name_their_machine(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ART_COMPUTE_DTYPE", "float32")
    report([compare("speed", [8.0], [2.0], peer_name="peer", unit="1/s")], tmp_path / "rows.json")
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["ratio"] == 4
    assert re.fullmatch(r".+ \((AMX|AVX-512|neither AMX nor AVX-512)\), \d+ cores, float32", row["machine"])
    assert "float32" in capsys.readouterr().out
