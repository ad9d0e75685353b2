"""Rows of hand-built trees."""

from array import array

from art_backend.tokens.rows import build_rows, describe_untrainable, learn_everything
from art_backend.tokens.tree import Prompt, Turn

COUNT = iter(range(10_000))


def prompt(ids, parent=None, keep=None):
    keep = keep if keep is not None else parent.length if parent else 0
    return Prompt(f"p{next(COUNT)}", parent, keep, array("i", ids), b"", [])


def turn(at, ids, temperature=1.0, untrainable=None, version=0):
    logprobs = array("d", [-i / 10 for i in ids])
    name = f"t{next(COUNT):05}"
    return Turn(
        name, at, array("i", ids), logprobs, b"", {}, version, {"temperature": temperature}, untrainable, "stop"
    )


def shape(row):
    """Ids, with the trained ones marked."""
    return [(i, "*") if s else i for i, s in zip(row.token_ids, row.sampled, strict=True)]


def test_a_chain_is_one_row():
    first = turn(prompt([1, 2]), [3, 4], version=5)
    second = turn(prompt([6], first), [7], version=6)
    (row,), untrainable = build_rows([first, second])
    assert shape(row) == [1, 2, (3, "*"), (4, "*"), 6, (7, "*")]
    assert row.logprobs == [0, 0, -0.3, -0.4, 0, -0.7]
    assert row.policy_versions == [-1, -1, 5, 5, -1, 6]
    assert (row.temperature, untrainable) == (1.0, [])


def test_a_shared_turn_is_trained_in_one_row_and_context_in_the_other():
    first = turn(prompt([1]), [2])
    left, right = turn(prompt([3], first), [4, 5]), turn(prompt([6], first), [7])
    rows, _ = build_rows([first, left, right])
    assert [shape(row) for row in rows] == [[1, (2, "*"), 3, (4, "*"), (5, "*")], [1, 2, 6, (7, "*")]]
    assert rows[1].logprobs == [0, 0, 0, -0.7]
    assert rows[1].policy_versions == [-1, 0, -1, 0]


def test_a_fork_in_mid_turn_keeps_context_only():
    first = turn(prompt([1]), [2, 3])
    fork = turn(prompt([9], first, keep=2), [4])
    rows, _ = build_rows([first, fork])
    assert [shape(row) for row in rows] == [[1, 2, 9, (4, "*")], [1, (2, "*"), (3, "*")]]


def test_turns_that_were_not_asked_for_are_context():
    first = turn(prompt([1]), [2])
    second = turn(prompt([3], first), [4])
    (row,), _ = build_rows([second])
    assert shape(row) == [1, 2, 3, (4, "*")]


def test_temperatures_do_not_mix():
    first = turn(prompt([1]), [2], temperature=1.0)
    second = turn(prompt([3], first), [4], temperature=0.5)
    third = turn(prompt([5], second), [6], temperature=1.0)
    rows, _ = build_rows([first, second, third])
    assert [(row.temperature, shape(row)) for row in rows] == [
        (1.0, [1, (2, "*"), 3, 4, 5, (6, "*")]),
        (0.5, [1, 2, 3, (4, "*")]),
    ]


def test_untrainable_turns_are_context_and_said_in_words():
    first = turn(prompt([1]), [2], untrainable="it was sampled with top_p=0.9")
    second = turn(prompt([3], first), [4])
    (row,), (untrainable,) = build_rows([first, second])
    assert shape(row) == [1, 2, 3, (4, "*")]
    assert describe_untrainable(untrainable) == f"turn {first.id} cannot be trained: it was sampled with top_p=0.9"


def test_turns_with_the_same_ids_before_them_share_a_row():
    """A conversation that was continued from another's turn with the same ids."""
    ours, theirs = turn(prompt([1]), [2]), turn(prompt([1]), [2])
    later = turn(prompt([3], theirs), [4])
    rows, _ = build_rows([ours, later])
    assert [shape(row) for row in rows] == [[1, (2, "*"), 3, (4, "*")]]
    rows, _ = build_rows([ours, theirs, later])
    assert [shape(row) for row in rows] == [[1, (2, "*"), 3, (4, "*")], [1, (2, "*")]]


def test_a_sample_and_its_longer_sibling_are_two_rows():
    at = prompt([1])
    short, long = turn(at, [2, 3]), turn(at, [2, 3, 4])
    rows, _ = build_rows([short, long])
    assert [sum(row.sampled) for row in rows] == [3, 2]


def test_structures_stand_at_the_tokens_that_a_row_trains():
    free = turn(prompt([1]), [2])
    shaped = turn(prompt([3], free), [4, 5])
    shaped.sampling |= {"structured_outputs": {"regex": "x"}, "stop_token_ids": [5]}
    last = turn(prompt([6], shaped), [7])
    (row,), _ = build_rows([free, shaped, last])
    (span,) = row.structures
    assert (span.start, span.stop, span.structured_outputs, span.stop_token_ids) == (3, 5, {"regex": "x"}, [5])
    rows, _ = build_rows([last])
    assert rows[0].structures == []


def test_empty_turns_train_nothing():
    first = turn(prompt([1]), [])
    assert build_rows([first]) == ([], [])


def test_a_thousand_turns_in_a_chain():
    last = turn(prompt([1]), [2])
    turns = [last]
    for _ in range(1500):
        last = turn(prompt([3], last), [4])
        turns.append(last)
    (row,), _ = build_rows(turns)
    assert len(row.token_ids) == 3002 and sum(row.sampled) == 1501


def test_what_is_imitated_may_have_been_sampled_anyhow():
    first = turn(prompt([1]), [2], untrainable="it was sampled greedily")
    second = turn(prompt([3], first), [4], temperature=0.5)
    (row,), untrainable = build_rows([first, second], imitate=True)
    assert shape(row) == [1, (2, "*"), 3, (4, "*")]
    assert (row.temperature, untrainable) == (1.0, [])


def test_everything_is_learned_once():
    first = turn(prompt([1, 2]), [3])
    left, right = turn(prompt([4], first), [5, 6]), turn(prompt([4, 8], first), [7])
    rows, _ = build_rows([first, left, right], imitate=True)
    learned = learn_everything(rows)
    assert [shape(row) for row in learned] == [
        [1, (2, "*"), (3, "*"), (4, "*"), (5, "*"), (6, "*")],
        [1, 2, 3, 4, (8, "*"), (7, "*")],
    ]
    assert [row.logprobs for row in learned] == [None, None]
