"""Packs hold every row, store what is shared once, and never cut a row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_backend.training.rows.packing import TrainingRow, common_prefix, pack_rows


def row(ids, trained=None, **values):
    """A row; without a mask, its last token is trained."""
    ids = np.array(ids, np.int64)
    mask = np.arange(ids.size) == ids.size - 1 if trained is None else np.array(trained, np.bool_)
    fields = {"temperature": 1.0, "advantage": 1.0, "weight": 1.0, **values}
    return TrainingRow(ids, mask, np.arange(ids.size, dtype=np.float64), **fields)


def ancestors(pack, position):
    return [k for k in range(position + 1) if position < pack.ends[k]]


def test_a_shared_prefix_is_stored_once():
    (pack,) = pack_rows([row([1, 2, 3, 4, 9]), row([1, 2, 5, 9])], 100)
    assert pack.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert pack.depths.tolist() == [0, 1, 2, 3, 2]
    assert pack.ends.tolist() == [5, 5, 4, 4, 5]
    assert [(b.start, b.stop, b.ancestors.tolist()) for b in pack.branches] == [(0, 4, []), (4, 5, [0, 1])]
    assert pack.row_tokens == 9


def test_rows_that_train_the_same_token_keep_their_own_numbers():
    first = row([1, 2, 3], [0, 0, 1], advantage=2.0, weight=0.5, temperature=0.7)
    second = row([1, 2, 3, 4], [0, 0, 1, 1], advantage=-1.0, weight=0.25)
    (pack,) = pack_rows([first, second], 100)
    targets = pack.targets
    found = sorted(
        zip(targets.rows, targets.parents, targets.token_ids, targets.advantages, targets.weights, strict=True)
    )
    assert pack.token_ids.tolist() == [1, 2, 3]
    assert found == [(0, 1, 3, 2.0, 0.5), (1, 1, 3, -1.0, 0.25), (1, 2, 4, -1.0, 0.25)]


def test_what_follows_the_last_trained_token_is_not_stored():
    (pack,) = pack_rows([row([1, 2, 3, 4, 5], [0, 1, 0, 1, 0]), row([1, 7, 8], [0, 0, 0])], 100)
    assert pack.token_ids.tolist() == [1, 2, 3]
    assert pack.targets.token_ids.tolist() == [2, 4]
    assert pack.row_tokens == 5


def test_a_row_longer_than_the_budget_gets_a_pack_of_its_own():
    packs = pack_rows([row(range(51)), row([90, 91, 0]), row([92, 93, 0])], 10)
    assert sorted(pack.size for pack in packs) == [4, 50]


def test_a_tree_over_the_budget_is_split_where_the_least_is_repeated():
    # Two bushes of two rows each. Between the bushes one token is shared, inside of them six.
    rows = [row([0, *[b] * 5, b * 10 + i, 7, 7, 9]) for b in (1, 2) for i in (0, 1)]
    packs = pack_rows(rows, 12)
    assert [pack.size for pack in packs] == [12, 12]
    assert sum(pack.row_tokens for pack in packs) == 40


def test_common_prefix():
    a = np.array([1, 2, 3])
    assert [common_prefix(a, np.array(b, np.int64)) for b in ([], [1], [1, 2, 4], [1, 2, 3, 4], [9])] == [0, 1, 2, 3, 0]


def test_no_rows_give_no_packs():
    assert pack_rows([], 10) == []


# Few distinct tokens: random rows then share prefixes, repeat each other, and are prefixes of each other.
row_ids = st.lists(st.integers(0, 2), min_size=2, max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(row_ids, st.randoms(use_true_random=False)), min_size=1, max_size=10), st.integers(1, 40))
def test_packs_reproduce_the_rows_exactly(drawn, budget):
    rows = [row(ids, [i > 0 and r.random() < 0.5 for i in range(len(ids))]) for ids, r in drawn]
    packs = pack_rows(rows, budget)
    trained = []
    for pack in packs:
        assert pack.size <= budget or len(set(pack.targets.rows)) == 1
        positions = [ancestors(pack, p) for p in range(pack.size)]
        # A token's ancestors are a path: one token per depth. No two tokens stand for the same prefix.
        assert all(pack.depths[path].tolist() == list(range(len(path))) for path in positions)
        prefixes = [tuple(pack.token_ids[path].tolist()) for path in positions]
        assert len(set(prefixes)) == len(prefixes)
        for branch in pack.branches:
            assert positions[branch.start] == [*branch.ancestors.tolist(), branch.start]
        for index, parent, token, old in zip(
            pack.targets.rows, pack.targets.parents, pack.targets.token_ids, pack.targets.engine_logprobs, strict=True
        ):
            trained.append((int(index), (*prefixes[parent], int(token)), float(old)))
    expected = [
        (i, tuple(r.token_ids[: t + 1].tolist()), float(r.logprobs[t]))
        for i, r in enumerate(rows)
        for t in np.flatnonzero(r.trained)
    ]
    assert sorted(trained) == sorted(expected)
    assert sum(pack.row_tokens for pack in packs) == sum(r.token_ids.size for r in rows if r.trained.any())


@settings(max_examples=50, deadline=None)
@given(st.lists(row_ids, min_size=2, max_size=8), st.integers(4, 30), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(drawn, budget, random):
    shuffled = list(drawn)
    random.shuffle(shuffled)
    before, after = (pack_rows([row(ids) for ids in order], budget) for order in (drawn, shuffled))
    assert [p.token_ids.tolist() for p in before] == [p.token_ids.tolist() for p in after]


@pytest.mark.parametrize("budget", [5, 17, 1000])
def test_the_cut_is_optimal(budget):
    """Dynamic programming against every possible cut."""
    random = np.random.default_rng(3)
    rows = [row(random.integers(0, 2, random.integers(3, 7))) for _ in range(8)]
    packs = pack_rows(rows, budget)
    ordered = sorted(r.token_ids.tolist()[:-1] for r in rows)

    def size(part):
        return len({tuple(ids[: n + 1]) for ids in part for n in range(len(ids))})

    def cost(cuts):
        parts = [ordered[a:b] for a, b in zip([0, *cuts], [*cuts, len(ordered)], strict=True)]
        if any(size(part) > budget and len(part) > 1 for part in parts):
            return float("inf")
        return sum(size(part) + 64 for part in parts)

    every_cut = [[i + 1 for i in range(7) if bits >> i & 1] for bits in range(2**7)]
    assert sum(pack.size + 64 for pack in packs) == min(cost(cuts) for cuts in every_cut)
