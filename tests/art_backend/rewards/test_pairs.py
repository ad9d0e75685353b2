from hypothesis import given
from hypothesis import strategies as st

from art.wire.rewards import PreferencePair, ScoredExample
from art_backend.rewards.pairs import compare_examples, split_examples, split_pairs


def said(text):
    return [{"role": "user", "content": "task"}, {"role": "assistant", "content": text}]


def example(text, score, group=None):
    return ScoredExample(messages=said(text), score=score, group=group)


def test_examples_are_compared_within_their_group():
    examples = [example("a", 1, "x"), example("b", 0, "x"), example("c", 0, "x"), example("d", 1, "y")]
    pairs = compare_examples(examples, seed=0)
    assert [(pair.chosen[1]["content"], pair.rejected[1]["content"]) for pair in pairs] == [("a", "b"), ("a", "c")]


def test_many_examples_give_a_bounded_number_of_pairs_and_the_better_is_chosen():
    examples = [example(str(i), i % 2) for i in range(200)]
    pairs = compare_examples(examples, seed=0)
    assert 0 < len(pairs) <= 200 * 8
    assert all(int(pair.chosen[1]["content"]) % 2 > int(pair.rejected[1]["content"]) % 2 for pair in pairs)


@given(st.lists(st.integers(0, 8), min_size=4, max_size=40), st.floats(0.05, 0.9), st.integers(0, 5))
def test_no_task_is_on_both_sides_of_the_split(tasks, held_out, seed):
    pairs = [PreferencePair(chosen=said("a"), rejected=said("b"), group=str(task)) for task in tasks]
    parts = split_pairs(pairs, held_out, seed)
    assert sum(map(len, parts)) == len(pairs)
    groups = [{pair.group for pair in part} for part in parts]
    assert not (groups[0] & groups[1] or groups[0] & groups[2] or groups[1] & groups[2])
    assert split_pairs(pairs, held_out, seed) == parts


def test_no_scored_example_is_on_both_sides_of_the_split():
    examples = [example(str(i), i % 3) for i in range(60)]
    parts = split_examples(examples, 0.4, seed=1)
    texts = [{c[1]["content"] for pair in part for c in (pair.chosen, pair.rejected)} for part in parts]
    assert all(texts)
    assert not (texts[0] & texts[1] or texts[0] & texts[2] or texts[1] & texts[2])
